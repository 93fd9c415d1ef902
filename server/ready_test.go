package main

import (
	"strings"
	"testing"
)

func TestReadyLine_IsOneLineOfJSON(t *testing.T) {
	t.Parallel()
	line := readyLine{Ready: true, Listen: "127.0.0.1:50051", DatabaseURL: "postgres://u@h/d?a=1&b=2", PID: 1, Version: "v"}
	for http, field := range map[string]string{"": "", "127.0.0.1:8080": `"http":"127.0.0.1:8080",`} {
		var out strings.Builder
		line.HTTP = http
		if err := line.print(&out); err != nil {
			t.Fatal(err)
		}
		want := `{"ready":true,"listen":"127.0.0.1:50051",` + field + `"database_url":"postgres://u@h/d?a=1&b=2","pid":1,"version":"v"}` + "\n"
		if out.String() != want {
			t.Errorf("got  %swant %s", out.String(), want)
		}
	}
}

func TestWithoutPassword(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, want string }{
		{"postgres://u:secret@h:5432/d?sslmode=disable", "postgres://u@h:5432/d?sslmode=disable"},
		{"postgresql://u:secret@h/d", "postgresql://u@h/d"},
		{"postgres://h/d?user=u&password=secret", "postgres://h/d?user=u"},
		{"postgres://u:sec%2Fret@h/d", "postgres://u@h/d"},
		{"postgres://u@h/d", "postgres://u@h/d"},
		{"host=h port=5433 user=u password=secret dbname=d sslmode=disable", "postgres://u@h:5433/d"},
		{"postgres://u:secret@h1:5432,h2:5433/d", "postgres://u@h1:5432,h2:5433/d"},
		{"host=/run/postgresql user=u dbname=d password=secret", "postgres://u@/d?host=%2Frun%2Fpostgresql"},
		{"not a url, secret", ""},
	} {
		if got := withoutPassword(c.in); got != c.want {
			t.Errorf("%s: got %s, want %s", c.in, got, c.want)
		}
	}
}

func TestDialable(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"127.0.0.1:50051": "127.0.0.1:50051",
		"0.0.0.0:50051":   "127.0.0.1:50051",
		"[::]:50051":      "127.0.0.1:50051",
		"[::1]:50051":     "[::1]:50051",
		"10.1.2.3:1":      "10.1.2.3:1",
	} {
		if got := dialable(in); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}

func TestHints_CanBeCopied(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	line := readyLine{Listen: "127.0.0.1:4711", HTTP: "0.0.0.0:4712", DatabaseURL: "postgres://u:p@h/d"}
	printHints(&out, line)
	for _, want := range []string{
		"127.0.0.1:4711 leasehold.v1.ExecutionService/EnqueueExecution",
		"127.0.0.1:4711 leasehold.v1.ExecutionService/GetExecution",
		"127.0.0.1:4711 leasehold.v1.ExecutionService/ListTimeline",
		"psql 'postgres://u:p@h/d'",
		"curl -s http://127.0.0.1:4712/metrics",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "ADDRESS") || strings.Contains(out.String(), "DATABASE") || strings.Contains(out.String(), "HTTP") {
		t.Errorf("something was left open:\n%s", out.String())
	}
	var off strings.Builder
	line.HTTP = ""
	if printHints(&off, line); strings.Contains(off.String(), "/metrics") || !strings.Contains(off.String(), "Ctrl-C") {
		t.Errorf("without HTTP:\n%s", off.String())
	}
}
