package live

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// refuseOthersWork keeps the drill from a database that is at work: its replicas would sweep what
// others lease, and publish to the drill's NATS what others are to hear.
func refuseOthersWork(ctx context.Context, db *pgxpool.Pool) (err error) {
	for began := time.Now(); ; { // monotonic
		// Sessions of servers that have just ended may still be there.
		if err = othersWork(ctx, db); err == nil || time.Since(began) > sessionsEnd || !pause(ctx, lookAgain) {
			return err
		}
	}
}

const sessionsEnd = 2 * time.Second

func othersWork(ctx context.Context, db *pgxpool.Pool) error {
	for _, look := range []struct{ query, why string }{
		{`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'leasehold'`, "servers are connected to it"},
		{`SELECT count(*) FROM executions WHERE ended_at IS NULL`, "executions in it have not ended"},
		{`SELECT count(*) FROM outbox_events WHERE status NOT IN ('PUBLISHED', 'SKIPPED')`, "events in it are not published"},
	} {
		var n int64
		if err := db.QueryRow(ctx, look.query).Scan(&n); err != nil {
			return fmt.Errorf("look at the database: %w", err)
		}
		if n > 0 {
			return fmt.Errorf("--database-url names a database that is at work: %d %s; use one that is not", n, look.why)
		}
	}
	return nil
}

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

// removeTraces deletes what drills left in the user's database. Its servers are ended first.
func (s *stage) removeTraces(ctx context.Context, over []*exercise) error {
	s.stopAll()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	const executions = `(SELECT id FROM executions WHERE namespace = $1)`
	const steps = `(SELECT id FROM steps WHERE execution_id IN ` + executions + `)`
	var errs []error
	for _, x := range over {
		for _, statement := range []string{
			`DELETE FROM payloads WHERE step_id IN ` + steps,
			`DELETE FROM step_edges WHERE child_id IN ` + steps,
			`DELETE FROM attempts WHERE step_id IN ` + steps,
			`DELETE FROM scheduling_requests WHERE execution_id IN ` + executions,
			`DELETE FROM leases WHERE execution_id IN ` + executions,
			`DELETE FROM timers WHERE execution_id IN ` + executions,
			`DELETE FROM timeline_entries WHERE execution_id IN ` + executions,
			`DELETE FROM outbox_heads WHERE aggregate_id IN ` + executions,
			`DELETE FROM outbox_events WHERE namespace = $1`,
			`DELETE FROM steps WHERE execution_id IN ` + executions,
			`DELETE FROM executions WHERE namespace = $1`,
			`DELETE FROM workers WHERE namespace = $1`,
			`DELETE FROM capabilities WHERE namespace = $1`,
		} {
			if _, err := s.db.Exec(ctx, statement, x.namespace); err != nil {
				errs = append(errs, fmt.Errorf("remove what %s left: %w", x.drill.name, err))
			}
		}
	}
	return errors.Join(errs...)
}
