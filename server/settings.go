package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/server/internal/task"
)

// settings are those of the server, the same for `serve` and `dev`. Each is a flag, and an
// environment variable of the same name: --listen is LEASEHOLD_LISTEN.
type settings struct {
	// DatabaseURL is no flag here: `serve` takes one, `dev` has a database of its own.
	DatabaseURL string `kong:"-"`
	// DirectURL leads to PostgreSQL itself where DatabaseURL leads to a pooler; the same holds.
	DirectURL string `kong:"-"`
	// Migrate applies migrations before the start; the same holds.
	Migrate bool `kong:"-"`
	// FreeHTTP takes a free port where another program has that of HTTPListen: `dev`.
	FreeHTTP bool `kong:"-"`

	Listen          string        `default:"127.0.0.1:50051" help:"Address to serve gRPC on; port 0 takes a free one."`
	HTTPListen      string        `name:"http-listen" default:"127.0.0.1:8080" help:"Address to serve /metrics, /healthz and /readyz on; off serves none, port 0 takes a free one, and dev takes a free one where it is taken."`
	MaxConns        int           `name:"database-max-conns" default:"10" help:"Connections to the database at most, beside one that listens for hints; 2 to 10000."`
	DatabaseWait    time.Duration `default:"30s" help:"Time that the start waits for a database that does not answer; a duration such as 500ms or 1m30s, as are all below."`
	Sink            string        `help:"Where events are to be published: none (the default of serve), log (the default of dev), nats://host:port, or an http or https URL. With none no events are written; with another they are written to the outbox, in the transaction of their change, and published from there."`
	Events          string        `default:"default" help:"Types of events to write for the sink: all, default (what ends an execution or a step, and reopened), or a list with commas, such as leasehold.step.v1.failed,leasehold.attempt.v1.lost."`
	SweepInterval   time.Duration `default:"1s" help:"Time between two looks for leases, timeouts and deadlines that are over."`
	SessionTimeout  time.Duration `default:"90s" help:"Time without a sign of life after which a worker is not counted on."`
	ShutdownTimeout time.Duration `default:"7s" help:"Time that calls under way get to finish when the server stops; at least 100ms."`
	MaxPayloadBytes int           `default:"1048576" help:"Size of one payload at most, in bytes; 1024 or more."`
	MaxMessageBytes int           `default:"4194304" help:"Size of one gRPC message at most, in bytes; at least two payloads and 1.25 MiB, up to 1 GiB."`
	MaxParkedPolls  int           `default:"20000" help:"Polls for work that wait at once, at most; 1 or more."`
	MaxStreams      int           `default:"2000" help:"Watches of executions that are open at once, at most; 1 or more."`
	LeaseEpoch      int64         `default:"0" help:"Number that leads each lease version, for a PostgreSQL that does not tell its timeline; raise it with each failover; 0 to 8388607, 0 asks PostgreSQL."`

	Out  sinkSettings      `embed:""`
	Keep retentionSettings `embed:""`
	Log  logSettings       `embed:"" prefix:"log-"`
}

// logSettings say what is logged on stderr.
type logSettings struct {
	Level  string `default:"info" enum:"debug,info,warn,error" help:"What is logged: debug, info, warn or error, and what is worse."`
	Format string `default:"text" enum:"text,json" help:"How it is logged: text or json."`
}

// The bounds of settings that have some.
const (
	fewestConns        = 2 // a transaction, and a look beside it
	mostConns          = 10_000
	smallestPayload    = 1 << 10
	largestMessage     = 1 << 30
	largestEpoch       = 1<<23 - 1 // beside 40 bits of a counter in an int64
	leastShutdownLimit = 100 * time.Millisecond
	answerMargin       = 256 << 10 // of a lease beside its payloads, in bytes
)

// check returns what is wrong with the settings, all at once.
func (s settings) check() error {
	_, eventsErr := s.eventTypes()
	return join(
		checkListen("listen", s.Listen),
		checkHTTPListen(s.HTTPListen),
		checkNumber("database-max-conns", s.MaxConns, fewestConns, mostConns),
		checkDuration("database-wait", s.DatabaseWait, 1),
		checkSink(s.Sink),
		eventsErr,
		checkDuration("sweep-interval", s.SweepInterval, 1),
		checkDuration("session-timeout", s.SessionTimeout, 1),
		checkDuration("shutdown-timeout", s.ShutdownTimeout, leastShutdownLimit),
		checkNumber("max-payload-bytes", s.MaxPayloadBytes, smallestPayload, largestMessage-1),
		checkNumber("max-message-bytes", s.MaxMessageBytes, smallestPayload+1, largestMessage),
		s.checkSizes(),
		checkNumber("max-parked-polls", s.MaxParkedPolls, 1, 10_000_000),
		checkNumber("max-streams", s.MaxStreams, 1, 10_000_000),
		checkNumber("outbox-max-attempts", s.Out.MaxAttempts, 1, 1_000_000),
		checkNumber("lease-epoch", s.LeaseEpoch, 0, largestEpoch),
	)
}

// join makes one line of all errors.
func join(errs ...error) error {
	var lines []string
	for _, err := range errs {
		if err != nil {
			lines = append(lines, err.Error())
		}
	}
	if lines == nil {
		return nil
	}
	return errors.New(strings.Join(lines, "; "))
}

func (s settings) checkSizes() error {
	least := 2*s.MaxPayloadBytes + task.MaxParentBytes + answerMargin
	if s.MaxMessageBytes >= least {
		return nil
	}
	return fmt.Errorf("--max-message-bytes is %d, and must be at least %d: a lease carries input, checkpoint and 1 MiB of parents' outputs, and --max-payload-bytes is %d",
		s.MaxMessageBytes, least, s.MaxPayloadBytes)
}

func checkListen(flag, address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("--%s %q is not an address such as 127.0.0.1:50051", flag, address)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("--%s %q: the port must be a number from 0 to 65535", flag, address)
	} else if n == 0 && port != "0" {
		return fmt.Errorf("--%s %q: write port 0 as 0", flag, address)
	}
	return nil
}

// httpOff serves no HTTP.
const httpOff = "off"

func checkHTTPListen(address string) error {
	if address == httpOff {
		return nil
	}
	return checkListen("http-listen", address)
}

func checkNumber[T int | int64](flag string, value, low, high T) error {
	if value < low || value > high {
		return fmt.Errorf("--%s is %d, and must be from %d to %d", flag, value, low, high)
	}
	return nil
}

func checkDuration(flag string, value, low time.Duration) error {
	switch {
	case value <= 0:
		return fmt.Errorf("--%s is %s, and must be more than 0", flag, value)
	case value < low:
		return fmt.Errorf("--%s is %s, and must be at least %s", flag, value, low)
	}
	return nil
}

const (
	sinkNone = "none"
	sinkLog  = "log"
)

func checkSink(sink string) error {
	if sink == "" || sink == sinkNone || sink == sinkLog {
		return nil
	}
	u, err := url.Parse(sink)
	if err == nil && u.Host != "" && slices.Contains([]string{"nats", "tls", "http", "https"}, u.Scheme) {
		return nil
	}
	return fmt.Errorf("--sink %q is not known; it is none, log, nats://host:port, or an http or https URL", sink)
}

func checkDirectURL(direct string) error {
	if direct == "" {
		return nil
	}
	if _, err := pgx.ParseConfig(direct); err != nil {
		return fmt.Errorf("--direct-database-url: %w", err)
	}
	return nil
}

func checkDatabaseURL(database string) error {
	if database == "" {
		return errors.New("--database-url (or LEASEHOLD_DATABASE_URL) is not set; it names a database, such as postgres://user:password@host:5432/leasehold")
	}
	if _, err := pgx.ParseConfig(database); err != nil {
		return fmt.Errorf("--database-url: %w", err)
	}
	return nil
}

// outboxEvents are the types of events that are written.
func (s settings) outboxEvents() []task.EventType {
	if s.Sink == sinkNone {
		return nil
	}
	types, _ := s.eventTypes() // Checked before the start.
	return types
}

func (s settings) eventTypes() ([]task.EventType, error) {
	switch s.Events {
	case "all":
		return task.AllEventTypes(), nil
	case "default":
		return task.DefaultEventTypes(), nil
	}
	known := task.AllEventTypes()
	var chosen []task.EventType
	for name := range strings.SplitSeq(s.Events, ",") {
		t := task.EventType(strings.TrimSpace(name))
		if !slices.Contains(known, t) {
			return nil, fmt.Errorf("--events: %q is neither all, default, nor a type of event; the types are %s", t, joinTypes(known))
		}
		if !slices.Contains(chosen, t) {
			chosen = append(chosen, t)
		}
	}
	return chosen, nil
}

func joinTypes(types []task.EventType) string {
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = string(t)
	}
	return strings.Join(names, ", ")
}

// logger writes to w; the settings were checked when they were parsed.
func (l logSettings) logger(w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(l.Level)) // One of the four of its tag.
	options := &slog.HandlerOptions{Level: level}
	if l.Format == "json" {
		return slog.New(newCalm(slog.NewJSONHandler(w, options)))
	}
	return slog.New(newCalm(slog.NewTextHandler(w, options)))
}
