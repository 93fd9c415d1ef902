package main

import (
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"github.com/leasehold/leasehold/server/internal/task"
)

func TestFlags_AllHaveHelpAndAnEnvironmentVariable(t *testing.T) {
	t.Parallel()
	parser, err := newParser(console{out: io.Discard, err: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, command := range parser.Model.Leaves(true) {
		for _, flag := range command.Flags {
			seen++
			want := "LEASEHOLD_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
			if len(flag.Envs) != 1 || flag.Envs[0] != want {
				t.Errorf("%s --%s: environment variables %q, want %s", command.Path(), flag.Name, flag.Envs, want)
			}
			if flag.Help == "" || strings.Contains(flag.Help, want) {
				t.Errorf("%s --%s: help %q, want one without the variable, which is added", command.Path(), flag.Name, flag.Help)
			}
			// What has to be given, is empty, or depends on the command.
			noDefault := []string{"database-url", "data-dir", "capability", "label", "sink", "serve-flag", "direct-database-url"}
			if !flag.HasDefault && !flag.IsBool() && !slices.Contains(noDefault, flag.Name) {
				t.Errorf("%s --%s has no default", command.Path(), flag.Name)
			}
			if flag.HasDefault && !strings.Contains(flag.String(), flag.Default) {
				t.Errorf("%s --%s: help shows %q, not the default %s", command.Path(), flag.Name, flag, flag.Default)
			}
		}
	}
	if seen < 30 {
		t.Errorf("looked at %d flags only", seen)
	}
}

// parse returns the settings that the arguments of serve make.
func parse(t *testing.T, args ...string) (settings, error) {
	t.Helper()
	var c commands
	parser, err := kong.New(&c, kong.Exit(func(int) { t.Error("exits") }))
	if err != nil {
		t.Fatal(err)
	}
	_, err = parser.Parse(append([]string{"serve", "--database-url", "postgres://u@h/d"}, args...))
	return c.Serve.Settings, err
}

func TestSettings_BadOnesAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, want string }{
		{"--listen=50051", "is not an address"},
		{"--listen=localhost:http", "from 0 to 65535"},
		{"--listen=127.0.0.1:65536", "from 0 to 65535"},
		{"--listen=127.0.0.1:-1", "from 0 to 65535"},
		{"--listen=127.0.0.1:", "from 0 to 65535"},
		{"--listen=::1:50051", "is not an address"},
		{"--http-listen=8080", "--http-listen \"8080\" is not an address"},
		{"--http-listen=127.0.0.1:http", "from 0 to 65535"},
		{"--http-listen=", "is not an address"},
		{"--direct-database-url=postgres://u@h:port/d", "--direct-database-url"},
		{"--database-max-conns=1", "from 2 to 10000"},
		{"--database-max-conns=10001", "from 2 to 10000"},
		{"--database-max-conns=many", "--database-max-conns"},
		{"--database-wait=0s", "more than 0"},
		{"--sweep-interval=0s", "more than 0"},
		{"--sweep-interval=5", "missing unit"},
		{"--session-timeout=-1s", "more than 0"},
		{"--shutdown-timeout=1ms", "at least 100ms"},
		{"--max-payload-bytes=0", "from 1024"},
		{"--max-message-bytes=1048576", "at least 3407872"},
		{"--max-message-bytes=1073741825", "to 1073741824"},
		{"--max-parked-polls=0", "from 1"},
		{"--max-streams=0", "from 1"},
		{"--lease-epoch=-1", "from 0 to 8388607"},
		{"--lease-epoch=8388608", "from 0 to 8388607"},
		{"--execution-retention=0", "off keeps for ever"},
		{"--execution-retention=7d", "neither off nor a duration"},
		{"--outbox-retention=-1h", "off keeps for ever"},
		{"--outbox-dead-retention=never", "neither off nor a duration"},
		{"--sink=webhook", "is not known"},
		{"--sink=nats://", "is not known"},
		{"--sink=file", "is not known"},
		{"--events=", "is neither all, default, nor a type"},
		{"--events=all,default", "is neither all, default, nor a type"},
		{"--events=leasehold.step.v1.failed,step", `"step" is neither all, default, nor a type`},
		{"--log-level=loud", "--log-level must be one of"},
		{"--log-format=xml", "--log-format must be one of"},
		{"--no-such-flag", "unknown flag"},
		{"argument", "unexpected argument"},
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			_, err := parse(t, c.args)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than a line: %q", err)
			}
		})
	}
}

func TestSettings_GoodOnesAreTaken(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		nil,
		{"--listen=:0"},
		{"--execution-retention=off", "--outbox-retention=1s", "--outbox-dead-retention=off"},
		{"--listen=[::1]:50051"},
		{"--http-listen=off"},
		{"--http-listen=:0"},
		{"--listen=localhost:50051", "--log-format=json", "--log-level=debug"},
		{"--max-message-bytes=3407872", "--lease-epoch=8388607", "--database-max-conns=2"},
		{"--events=all"},
		{"--events=leasehold.step.v1.failed, leasehold.attempt.v1.lost"},
	} {
		got, err := parse(t, args...)
		if err != nil {
			t.Errorf("%q: %v", args, err)
		}
		if got.SweepInterval != time.Second || got.SessionTimeout != 90*time.Second || got.MaxPayloadBytes != 1<<20 {
			t.Errorf("%q: defaults are %+v", args, got)
		}
	}
}

func TestSettings_Events(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		events string
		want   int
	}{
		{"all", len(task.AllEventTypes())},
		{"default", len(task.DefaultEventTypes())},
		{"leasehold.step.v1.failed,leasehold.attempt.v1.lost,leasehold.step.v1.failed", 2},
	} {
		s := settings{Events: c.events, Sink: "some"}
		if got := s.outboxEvents(); len(got) != c.want {
			t.Errorf("%s: %d types, want %d", c.events, len(got), c.want)
		}
		s.Sink = sinkNone
		if got := s.outboxEvents(); got != nil {
			t.Errorf("%s without a sink: %q", c.events, got)
		}
	}
}

func TestLogSettings_LevelAndFormat(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	log := logSettings{Level: "warn", Format: "json"}.logger(&out)
	log.Info("quiet")
	log.Warn("loud", "n", 1)
	if got := out.String(); strings.Contains(got, "quiet") || !strings.Contains(got, `"msg":"loud","n":1`) {
		t.Errorf("logged %q", got)
	}
	if logger := (logSettings{Level: "debug", Format: "text"}).logger(io.Discard); !logger.Enabled(t.Context(), slog.LevelDebug) {
		t.Error("debug is off at level debug")
	}
}
