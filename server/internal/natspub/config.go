package natspub

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/outbox"
)

const (
	// DefaultSubjectPattern gives subjects such as
	// leasehold.default.leasehold.execution.v1.succeeded.
	DefaultSubjectPattern = "leasehold.{namespace}.{type}"
	// DefaultTimeout bounds one Publish.
	DefaultTimeout = 10 * time.Second

	maxStreamName = 255 // the server's limit, in bytes
)

// Config says where events go. URL and Source are required.
type Config struct {
	// URL names one server or several of one cluster: nats://host:4222, or
	// tls://user:password@host,other:4222. Servers are separated by commas; those after the
	// first may leave out the scheme and the credentials, and then have the first one's. The
	// schemes are nats and tls, and all servers have the same one; the port is 4222 by default.
	// A user without a password is a token. Other bytes than letters and digits in credentials
	// are percent-encoded.
	URL string
	// SubjectPattern is the subject with placeholders: {namespace} and {execution} fill one
	// token each, {type} several (its dots are kept). Bytes that a subject cannot have are
	// percent-encoded, an empty token is "_". At most 255 bytes; DefaultSubjectPattern if empty.
	SubjectPattern string
	// Source is the CloudEvents source: a URI reference that names this installation.
	Source string
	// CreateStream is the name of the stream to make for the subjects of SubjectPattern if none
	// takes them; one that exists is left as it is. Empty: no stream is made. A stream made here
	// is kept in files, has one replica and no limits; make it yourself for anything else. The
	// pattern's first token must then have no placeholder.
	CreateStream string
	// Timeout bounds one Publish, from the call to the acknowledgement; DefaultTimeout if zero.
	Timeout time.Duration
	// Logger takes what happens to the connection; nil discards it.
	Logger *slog.Logger
}

// settings is a Config that was checked.
type settings struct {
	servers []string // for the client, with credentials
	names   string   // for people, without
	subject pattern
	source  string
	stream  string
	timeout time.Duration
	log     *slog.Logger
}

func (c Config) check() (*settings, error) {
	servers, names, err := parseServers(c.URL)
	if err != nil {
		return nil, err
	}
	if c.SubjectPattern == "" {
		c.SubjectPattern = DefaultSubjectPattern
	}
	subject, err := parsePattern(c.SubjectPattern)
	if err != nil {
		return nil, err
	}
	if err := checkSource(c.Source); err != nil {
		return nil, err
	}
	if err := checkStream(c.CreateStream, subject); err != nil {
		return nil, err
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Timeout < 0 {
		return nil, fmt.Errorf("timeout %s of NATS: must be positive", c.Timeout)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &settings{
		servers: servers, names: names, subject: subject, source: c.Source,
		stream: c.CreateStream, timeout: c.Timeout, log: c.Logger,
	}, nil
}

// parseServers reads the list of servers. Its errors never repeat the text, which may have a
// password in it.
func parseServers(list string) (servers []string, names string, err error) {
	var first *url.URL
	var hosts []string
	for i, text := range strings.Split(list, ",") {
		text = strings.TrimSpace(text)
		if first != nil && !strings.Contains(text, "://") {
			text = first.Scheme + "://" + text
		}
		u, err := url.Parse(text)
		switch {
		case err != nil:
			return nil, "", fmt.Errorf("server %d of the NATS URL: not a URL (percent-encode the credentials)", i+1)
		case u.Scheme != "nats" && u.Scheme != "tls":
			return nil, "", fmt.Errorf("server %d of the NATS URL: its scheme must be nats or tls", i+1)
		case u.Hostname() == "":
			return nil, "", fmt.Errorf("server %d of the NATS URL: it has no host", i+1)
		case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
			return nil, "", fmt.Errorf("server %d of the NATS URL: only scheme, credentials, host and port have a meaning", i+1)
		}
		if first == nil {
			first = u
		}
		if u.Scheme != first.Scheme {
			return nil, "", errors.New("servers of the NATS URL: all need the same scheme")
		}
		if u.User == nil {
			u.User = first.User
		}
		u.Path = ""
		servers = append(servers, u.String())
		hosts = append(hosts, u.Host)
	}
	return servers, strings.Join(hosts, ","), nil
}

// checkSource tries the source on an event: a bad one would refuse them all for good.
func checkSource(source string) error {
	trial := &outbox.Event{ID: uuid.New(), AggregateID: uuid.New(), Type: "trial", Data: []byte("{}"), CreatedAt: time.Now()}
	if _, err := outbox.CloudEvent(trial, source); err != nil {
		return fmt.Errorf("source %q of events: must be a URI reference", source)
	}
	return nil
}

func checkStream(name string, subject pattern) error {
	if name == "" {
		return nil
	}
	bad := func(r rune) bool { return !unicode.IsPrint(r) || strings.ContainsRune(` .*>/\`, r) }
	if len(name) > maxStreamName || strings.ContainsFunc(name, bad) {
		return fmt.Errorf(`name %q of the stream to create: at most %d bytes, without spaces and . * > / \`, name, maxStreamName)
	}
	if strings.HasPrefix(subject.wildcard(), "*") || strings.HasPrefix(subject.wildcard(), ">") {
		return fmt.Errorf("subject pattern %q: begins with a placeholder, so the stream to create would take the subjects of others too", subject.text)
	}
	return nil
}
