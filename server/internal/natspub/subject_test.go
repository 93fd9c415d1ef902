package natspub

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold/leasehold/server/internal/outbox"
)

func TestSubject(t *testing.T) {
	t.Parallel()
	id := uuid.MustParse("018f2b6e-7c1a-7000-8000-000000000001")
	for _, c := range []struct{ pattern, namespace, kind, want string }{
		{DefaultSubjectPattern, "default", "leasehold.step.v1.failed", "leasehold.default.leasehold.step.v1.failed"},
		{"a.{execution}", "n", "t", "a." + id.String()},
		{"a.{namespace}-{namespace}", "n", "t", "a.n-n"},
		{"{type}.{namespace}", "n", "a.b", "a.b.n"},
		{"a.{namespace}", "with.dots", "t", "a.with%2Edots"},
		{"a.{namespace}", "..", "t", "a.%2E%2E"},
		{"a.{namespace}", "a b\t*>%", "t", "a.a%20b%09%2A%3E%25"},
		{"a.{namespace}", "", "t", "a._"},
		{"a.{type}", "n", "a..b*. .>", "a.a._.b%2A.%20.%3E"},
		{"a.{type}", "n", "", "a._"},
		{"{namespace}.x", "$SYS", "t", "%24SYS.x"},
		{"a.{namespace}", "é", "t", "a.%C3%A9"},
		{"a.{namespace}", "{type}", "t", "a.{type}"},
	} {
		p, err := parsePattern(c.pattern)
		if err != nil {
			t.Errorf("%s: %v", c.pattern, err)
			continue
		}
		got := p.subject(&outbox.Event{Namespace: c.namespace, Type: c.kind, AggregateID: id})
		if got != c.want {
			t.Errorf("%s of %q, %q: got %s, want %s", c.pattern, c.namespace, c.kind, got, c.want)
		}
	}
}

func TestWildcard(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]string{
		DefaultSubjectPattern:         "leasehold.*.>",
		"a.b":                         "a.b",
		"a.{namespace}.c":             "a.*.c",
		"a.x-{execution}.{namespace}": "a.*.*",
		"a.{type}.{namespace}":        "a.>",
		"a.x{type}":                   "a.>",
		"{type}":                      ">",
	} {
		p, err := parsePattern(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.wildcard(); got != want {
			t.Errorf("%s: got %s, want %s", pattern, got, want)
		}
	}
}

func TestNew_RefusesWrongSettings(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{
		"no URL":                {},
		"scheme":                {URL: "ws://host"},
		"no host":               {URL: "nats://:4222"},
		"empty server":          {URL: "nats://host,"},
		"path":                  {URL: "nats://host/subject"},
		"mixed":                 {URL: "nats://host,tls://host"},
		"source":                {URL: "nats://host", Source: "http://a b"},
		"no source":             {URL: "nats://host"},
		"unknown placeholder":   {URL: "nats://host", SubjectPattern: "a.{step}"},
		"brace":                 {URL: "nats://host", SubjectPattern: "a.{namespace"},
		"empty token":           {URL: "nats://host", SubjectPattern: "a..{type}"},
		"wildcard":              {URL: "nats://host", SubjectPattern: "a.>"},
		"space":                 {URL: "nats://host", SubjectPattern: "a b.{type}"},
		"system's":              {URL: "nats://host", SubjectPattern: "$JS.{type}"},
		"long":                  {URL: "nats://host", SubjectPattern: strings.Repeat("a", 256)},
		"stream's name":         {URL: "nats://host", CreateStream: "a.b"},
		"stream of all":         {URL: "nats://host", CreateStream: "a", SubjectPattern: "{type}"},
		"stream of all but one": {URL: "nats://host", CreateStream: "a", SubjectPattern: "{namespace}.{type}"},
		"timeout":               {URL: "nats://host", Timeout: -time.Second},
	} {
		if !strings.Contains(name, "source") {
			cfg.Source = source
		}
		if p, err := New(t.Context(), cfg); err == nil {
			_ = p.Close()
			t.Errorf("%s: no error", name)
		}
	}
}

// TestPublish_OddNames: the server takes the subjects that odd names give, and the stream that
// was made for the pattern has them.
func TestPublish_OddNames(t *testing.T) {
	t.Parallel()
	b := newBroker(t, nil)
	p := publisher(t, Config{URL: b.url(), CreateStream: "EVENTS", SubjectPattern: "lh.{namespace}.{execution}.{type}"})
	names := []string{"a b", "*", ">", "", "..", "$JS", "é\r\n", "{type}"}
	for _, name := range names {
		e := newEvent()
		e.Namespace, e.Type = name, "leasehold..odd *"
		if err := p.Publish(t.Context(), e); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	stream, err := b.client().Stream(within(t, 20*time.Second), "EVENTS")
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(">"))
	if err != nil {
		t.Fatal(err)
	}
	if len(info.State.Subjects) != len(names) {
		t.Errorf("subjects %v, want %d different ones", info.State.Subjects, len(names))
	}
}
