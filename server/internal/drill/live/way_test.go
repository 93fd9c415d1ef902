package live

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestWay_KeepsWhatTheURLSays: a proxy is put before every database whose name does not matter,
// and all that its URL says beside host and encryption stays. Broken once: a space that became a
// plus.
func TestWay_KeepsWhatTheURLSays(t *testing.T) {
	t.Parallel()
	const timeout = "-c statement_timeout=7000"
	for _, c := range []struct{ database, target string }{
		{"postgres://me:a%20%2B%27b@db.example:6000/shop?options=-c%20statement_timeout%3D7000", "db.example:6000"},
		{"postgres://me:a%20%2B%27b@/shop?host=/run/pg&port=6001&options=-c%20statement_timeout%3D7000", "/run/pg/.s.PGSQL.6001"},
		{`host=10.0.0.1 port=6000 user=me password='a +\'b' dbname=shop options='-c statement_timeout=7000'`, "10.0.0.1:6000"},
	} {
		target, whyNot := way(c.database)
		if target != c.target || whyNot != "" {
			t.Errorf("%s: the way is %q, %q", c.database, target, whyNot)
		}
		changed, err := by(c.database, "127.0.0.1:7000")
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := pgx.ParseConfig(changed)
		if err != nil {
			t.Fatal(err)
		}
		if cfg.Host != "127.0.0.1" || cfg.Port != 7000 || cfg.TLSConfig != nil || cfg.User != "me" || cfg.Password != "a +'b" ||
			cfg.Database != "shop" || cfg.RuntimeParams["options"] != timeout {
			t.Errorf("%s became %s", c.database, changed)
		}
	}
	for _, database := range []string{
		"postgres://me@db.example/shop?sslmode=require", "postgres://me@one,two/shop", "host=a sslmode=verify-full", "postgres://me@/?port=x",
	} {
		if target, whyNot := way(database); whyNot == "" {
			t.Errorf("%s: the way is %q", database, target)
		}
	}
}
