package webhook

import (
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/leasehold/leasehold/server/internal/outbox"
)

const (
	// DefaultTimeout bounds one Publish.
	DefaultTimeout = 10 * time.Second

	// The size of a secret, in bytes, by the Standard Webhooks specification.
	minSecret, maxSecret = 24, 64

	secretPrefix = "whsec_"
)

// Config says where events go. URL and Source are required.
type Config struct {
	// URL takes the requests: http or https. Credentials in it are sent as basic authentication.
	URL string
	// Secrets sign the requests: 24 to 64 random bytes each, in base64, with or without the
	// prefix whsec_. To change one, name the new and the old until all receivers know the new.
	// None: requests are not signed.
	Secrets []string
	// Source is the CloudEvents source: a URI reference that names this installation.
	Source string
	// Timeout bounds one Publish, from the call to the end of the answer; DefaultTimeout if zero.
	Timeout time.Duration
	// RootCAs are who may vouch for the receiver; nil: whom the system trusts.
	RootCAs *x509.CertPool
	// Logger takes what an operator should know; nil discards it.
	Logger *slog.Logger
}

// settings is a Config that was checked.
type settings struct {
	url     string // without credentials
	name    string // for people: scheme and host
	user    *url.Userinfo
	signers []*standardwebhooks.Webhook
	source  string
	timeout time.Duration
}

// check never repeats the URL or a secret in its errors.
func (c Config) check() (*settings, error) {
	u, err := url.Parse(strings.TrimSpace(c.URL))
	switch {
	case err != nil:
		return nil, errors.New("webhook URL: not a URL (percent-encode the credentials)")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("webhook URL: its scheme must be http or https")
	case u.Hostname() == "":
		return nil, errors.New("webhook URL: it has no host")
	}
	s := &settings{name: u.Scheme + "://" + u.Host, user: u.User, source: c.Source, timeout: c.Timeout}
	u.User, u.Fragment = nil, ""
	s.url = u.String()
	for i, secret := range c.Secrets {
		signer, err := newSigner(secret)
		if err != nil {
			return nil, fmt.Errorf("secret %d of the webhook: %w", i+1, err)
		}
		s.signers = append(s.signers, signer)
	}
	if s.timeout == 0 {
		s.timeout = DefaultTimeout
	}
	if s.timeout < 0 {
		return nil, fmt.Errorf("timeout %s of the webhook: must be positive", s.timeout)
	}
	return s, checkSource(c.Source)
}

func newSigner(secret string) (*standardwebhooks.Webhook, error) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(strings.TrimSpace(secret), secretPrefix))
	if err != nil {
		return nil, errors.New("must be base64, with or without the prefix " + secretPrefix)
	}
	if len(key) < minSecret || len(key) > maxSecret {
		return nil, fmt.Errorf("has %d bytes, must have %d to %d", len(key), minSecret, maxSecret)
	}
	return standardwebhooks.NewWebhookRaw(key)
}

// checkSource tries the source on an event: a bad one would refuse them all for good.
func checkSource(source string) error {
	trial := &outbox.Event{ID: uuid.New(), AggregateID: uuid.New(), Type: "trial", Data: []byte("{}"), CreatedAt: time.Now()}
	if _, err := outbox.CloudEvent(trial, source); err != nil {
		return fmt.Errorf("source %q of events: must be a URI reference", source)
	}
	return nil
}
