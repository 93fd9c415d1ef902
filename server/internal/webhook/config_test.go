package webhook

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"
)

func TestNew_RefusesWrongSettings(t *testing.T) {
	t.Parallel()
	bytes := func(n int) string { return base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", n))) }
	for name, c := range map[string]struct {
		cfg  Config
		want string // in the error; empty: none
	}{
		"good":             {Config{URL: "https://host/a?b=c", Source: source, Secrets: []string{secretA, bytes(24), "whsec_" + bytes(64)}}, ""},
		"no URL":           {Config{Source: source}, "scheme"},
		"other scheme":     {Config{URL: "ftp://host", Source: source}, "scheme"},
		"no host":          {Config{URL: "http:///path", Source: source}, "no host"},
		"no source":        {Config{URL: "http://host"}, "source"},
		"bad source":       {Config{URL: "http://host", Source: "http://a b"}, "source"},
		"short secret":     {Config{URL: "http://host", Source: source, Secrets: []string{secretA, bytes(23)}}, "secret 2"},
		"long secret":      {Config{URL: "http://host", Source: source, Secrets: []string{bytes(65)}}, "secret 1"},
		"empty secret":     {Config{URL: "http://host", Source: source, Secrets: []string{"whsec_"}}, "secret 1"},
		"not base64":       {Config{URL: "http://host", Source: source, Secrets: []string{"whsec_?"}}, "base64"},
		"negative timeout": {Config{URL: "http://host", Source: source, Timeout: -time.Second}, "positive"},
	} {
		p, err := New(c.cfg)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want == "":
			if err := p.Close(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		case err == nil || !strings.Contains(err.Error(), c.want):
			t.Errorf("%s: got %v, want one with %q", name, err, c.want)
		}
	}
}
