package live

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// way is the address of the user's database, or the path of its socket, if a proxy can stand before
// it: it must see what goes by, and the database's name must not matter.
func way(database string) (target, whyNot string) {
	cfg, err := pgx.ParseConfig(database)
	if err != nil {
		return "", "your database's URL cannot be read" // Whoever opens it says why.
	}
	plain := cfg.TLSConfig == nil
	for _, other := range cfg.Fallbacks {
		if other.Host != cfg.Host || other.Port != cfg.Port {
			return "", "it stands between servers and database, and yours has several hosts"
		}
		plain = plain || other.TLSConfig == nil
	}
	if !plain {
		return "", "it stands between servers and database, and yours asks for encryption"
	}
	_, target = pgconn.NetworkAddress(cfg.Host, cfg.Port)
	return target, ""
}

// by is the URL of the user's database by way of a proxy.
func by(database, proxy string) (string, error) {
	cfg, err := pgx.ParseConfig(database)
	if err != nil {
		return "", err
	}
	host, port, err := net.SplitHostPort(proxy)
	if err != nil {
		return "", err
	}
	// What stands last counts. The password may come from a file, where it belongs to the host.
	isURL := strings.Contains(database, "://")
	for _, change := range [][2]string{{"host", host}, {"port", port}, {"sslmode", "disable"}, {"password", cfg.Password}} {
		switch {
		case !isURL:
			database += fmt.Sprintf(" %s='%s'", change[0], strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(change[1]))
		case strings.Contains(database, "?"):
			database += "&" + change[0] + "=" + strings.ReplaceAll(url.QueryEscape(change[1]), "+", "%20")
		default:
			database += "?" + change[0] + "=" + change[1]
		}
	}
	return database, nil
}

// standBetween has all servers go to the database by proxies. Before a private one they do already.
func (s *stage) standBetween(ctx context.Context) error {
	if s.primary != nil {
		return nil
	}
	target, whyNot := way(s.url)
	if whyNot != "" {
		return errors.New(whyNot)
	}
	s.stopAll()
	for _, r := range s.replicas {
		if err := r.stand(target); err != nil {
			return err
		}
		var err error
		if r.url, err = by(s.url, r.database[0].Addr()); err != nil {
			return err
		}
	}
	return s.startAll(ctx)
}
