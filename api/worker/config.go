package worker

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
)

// Defaults of Config.
const (
	defaultSlots         = 1
	defaultLeaseDuration = 30 * time.Second
	defaultWaitTimeout   = 20 * time.Second
	defaultGrace         = 10 * time.Second
)

// The server's limits, checked here so that a mistake is an error of Run with the field's
// name, before anything is sent.
const (
	maxAddresses       = 64
	maxSlots           = 10_000
	maxNamespaceBytes  = 63
	maxNameBytes       = 256
	maxCapabilityBytes = 128
	maxCapabilities    = 256
	maxLabels          = 64
	maxLabelKeyBytes   = 63
	maxLabelValueBytes = 256
	minLeaseDuration   = time.Second
	maxLeaseDuration   = time.Hour
	minWaitTimeout     = time.Second
	maxWaitTimeout     = 55 * time.Second
)

// Config says who a worker is and how it works. Everything has a usable zero value, but
// that exactly one of Address, Addresses and Conn must be given.
type Config struct {
	// Address is where the servers are reached: a gRPC target, "127.0.0.1:50051". All servers
	// behind a name with several addresses are made use of.
	Address string
	// Addresses are where each of several servers is reached, in any order. The worker uses
	// one at a time, in an order of its own, goes on with another when that one fails, and
	// comes back when it serves again. 1 to 64.
	Addresses []string
	// DialOptions are for the connections to Address or Addresses, over this package's own:
	// without any they are not encrypted. The place for credentials, and for grpc's
	// interceptors and stats handlers of metrics and tracing.
	DialOptions []grpc.DialOption
	// Conn is a connection to the servers, instead of an address. It stays the caller's: Run
	// does not close it. It has to find another server by itself when one fails.
	Conn grpc.ClientConnInterface

	// Namespace is the namespace to work for. Default: the server's, "default". At most 63
	// bytes of A-Z a-z 0-9 . _ -
	Namespace string
	// Name is the worker's name, unique within the namespace: a second process that registers
	// under it takes it over, and this one's Run ends with ErrSuperseded. Default: a unique
	// one made by the server, which is kept while Run runs. At most 256 bytes.
	Name string
	// Node is where the worker runs; steps can be pinned to it. Default: none. At most 256 bytes.
	Node string
	// Version is that of the worker's program, for people. At most 256 bytes.
	Version string
	// Labels are for people. At most 64, keys of 1 to 63 bytes, values of at most 256 bytes.
	Labels map[string]string

	// Slots is how many attempts run at once. Default 1; at most 10,000.
	Slots int
	// LeaseDuration is how long a lease lasts unless it is renewed, and so how long the work
	// of a worker that died lies still; renewals go out after about a third of it. Default
	// 30 s; 1 s to 1 h; the server may hold it to narrower bounds.
	LeaseDuration time.Duration
	// WaitTimeout is how long a poll waits for work. Default 20 s, below the idle timeouts of
	// usual proxies; 1 s to 55 s.
	WaitTimeout time.Duration
	// Grace is how long Run, once its context has ended, waits for handlers before it ends
	// their contexts with ErrStopping and hands the rest back. Default 10 s; negative: none.
	Grace time.Duration

	// Interceptors stand around every handler, the first outermost.
	Interceptors []Interceptor
	// Logger receives what a host program's operator should know. Default: slog.Default().
	Logger *slog.Logger
}

// withDefaults returns a copy in which what was not given has its default.
func (c Config) withDefaults() Config {
	if c.Slots == 0 {
		c.Slots = defaultSlots
	}
	if c.LeaseDuration == 0 {
		c.LeaseDuration = defaultLeaseDuration
	}
	if c.WaitTimeout == 0 {
		c.WaitTimeout = defaultWaitTimeout
	}
	if c.Grace == 0 {
		c.Grace = defaultGrace
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Labels = maps.Clone(c.Labels)
	c.Addresses = slices.Clone(c.Addresses)
	c.DialOptions = slices.Clone(c.DialOptions)
	c.Interceptors = slices.Clone(c.Interceptors)
	return c
}

// addresses are those to connect to.
func (c Config) addresses() []string {
	if c.Address != "" {
		return []string{c.Address}
	}
	return c.Addresses
}

// validate reports every setting that the server would refuse or that makes no sense.
func (c Config) validate() error {
	var errs []error
	errs = append(errs, c.validServers())
	if len(c.Namespace) > maxNamespaceBytes || !onlyNameBytes(c.Namespace, "._-") {
		errs = append(errs, fmt.Errorf("setting Namespace: %q must be at most %d bytes of A-Z a-z 0-9 . _ -", c.Namespace, maxNamespaceBytes))
	}
	errs = append(errs,
		validText("Name", c.Name), validText("Node", c.Node), validText("Version", c.Version),
		validLabels(c.Labels),
		within("LeaseDuration", c.LeaseDuration, minLeaseDuration, maxLeaseDuration),
		within("WaitTimeout", c.WaitTimeout, minWaitTimeout, maxWaitTimeout))
	if c.Slots < 1 || c.Slots > maxSlots {
		errs = append(errs, fmt.Errorf("setting Slots: %d, must be 1 to %d", c.Slots, maxSlots))
	}
	return errors.Join(errs...)
}

// validServers reports what is wrong with the settings that say where the servers are.
func (c Config) validServers() error {
	ways := 0
	for _, given := range []bool{c.Conn != nil, c.Address != "", len(c.Addresses) > 0} {
		if given {
			ways++
		}
	}
	switch {
	case ways != 1:
		return errors.New("exactly one of Address, Addresses and Conn must be set")
	case len(c.Addresses) > maxAddresses || slices.Contains(c.Addresses, ""):
		return fmt.Errorf("setting Addresses: %d entries, must be at most %d, none of them empty", len(c.Addresses), maxAddresses)
	case c.Conn != nil && len(c.DialOptions) > 0:
		return errors.New("setting DialOptions: has no use for a Conn")
	case slices.ContainsFunc(c.Interceptors, func(i Interceptor) bool { return i == nil }):
		return errors.New("setting Interceptors: one is nil")
	default:
		return nil
	}
}

func validText(field, s string) error {
	if len(s) > maxNameBytes || !plainText(s) {
		return fmt.Errorf("setting %s: must be at most %d bytes of UTF-8 without NUL", field, maxNameBytes)
	}
	return nil
}

func validLabels(labels map[string]string) error {
	if len(labels) > maxLabels {
		return fmt.Errorf("setting Labels: %d entries, at most %d are allowed", len(labels), maxLabels)
	}
	for k, v := range labels {
		if k == "" || len(k) > maxLabelKeyBytes || len(v) > maxLabelValueBytes || !plainText(k) || !plainText(v) {
			return fmt.Errorf("setting Labels: %q must have a key of 1 to %d and a value of at most %d bytes of UTF-8 without NUL",
				k, maxLabelKeyBytes, maxLabelValueBytes)
		}
	}
	return nil
}

func within(field string, d, low, high time.Duration) error {
	if d < low || d > high {
		return fmt.Errorf("setting %s: %v, must be %v to %v", field, d, low, high)
	}
	return nil
}

func validCapability(capability string) error {
	if capability == "" || len(capability) > maxCapabilityBytes || !onlyNameBytes(capability, "._/-") {
		return fmt.Errorf("capability %q must be 1 to %d bytes of A-Z a-z 0-9 . _ / -", capability, maxCapabilityBytes)
	}
	return nil
}

// onlyNameBytes reports whether s consists of ASCII letters, digits and the bytes of extra.
func onlyNameBytes(s, extra string) bool {
next:
	for i := range len(s) {
		c := s[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' {
			continue
		}
		for j := range len(extra) {
			if c == extra[j] {
				continue next
			}
		}
		return false
	}
	return true
}

// plainText reports whether the server takes s as text: UTF-8 without NUL.
func plainText(s string) bool {
	for i := range len(s) {
		if s[i] == 0 {
			return false
		}
	}
	return utf8.ValidString(s)
}
