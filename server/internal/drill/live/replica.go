package live

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/server/internal/netfault"
	"github.com/leasehold/leasehold/server/internal/subprocess"
)

// replica is a server process, which may end and start again on the same port.
type replica struct {
	stage    *stage
	name     string
	role     string            // of PostgreSQL: tells its sessions from the others'; empty where roles cannot be made
	url      string            // of the database, for it
	database []*netfault.Proxy // between it and the hosts of the database; before a user's own only if a drill needs one
	sink     *netfault.Proxy
	addr     string // once it was ready

	process *subprocess.Process
}

// newReplica prepares one, with networks of its own.
func (s *stage) newReplica(ctx context.Context, i int) (*replica, error) {
	r := &replica{stage: s, name: fmt.Sprintf("replica-%d", i+1), url: s.url}
	var err error
	if r.sink, err = netfault.New(s.broker.Addr()); err != nil {
		return nil, err
	}
	if s.primary == nil {
		return r, nil
	}
	return r, r.giveRole(ctx)
}

// giveRole makes the replica a role of its own, and a database URL through proxies.
func (r *replica) giveRole(ctx context.Context) error {
	r.role = strings.ReplaceAll(r.name, "-", "_")
	const secret = "of-the-drill"
	if _, err := r.stage.db.Exec(ctx, fmt.Sprintf("CREATE ROLE %s SUPERUSER LOGIN PASSWORD '%s'", r.role, secret)); err != nil {
		return fmt.Errorf("make a role for %s: %w", r.name, err)
	}
	for _, pg := range r.stage.servers() {
		u, err := url.Parse(pg.URL())
		if err != nil {
			return err
		}
		if err := r.stand(u.Host); err != nil {
			return err
		}
	}
	hosts := make([]string, len(r.database))
	for i, p := range r.database {
		hosts[i] = p.Addr()
	}
	var err error
	r.url, err = multiHost(r.stage.url, url.UserPassword(r.role, secret), hosts)
	return err
}

// stand puts a proxy before a host of the database. It knows the session that listens for hints.
func (r *replica) stand(target string) error {
	between, err := netfault.New(target)
	if err != nil {
		return err
	}
	between.Mark("LISTEN ")
	r.database = append(r.database, between)
	return nil
}

// multiHost is a URL that leads to whichever of several hosts takes writes.
func multiHost(database string, who *url.Userinfo, hosts []string) (string, error) {
	cfg, err := pgx.ParseConfig(database)
	if err != nil {
		return "", err
	}
	u := url.URL{
		Scheme: "postgres", User: who, Host: strings.Join(hosts, ","), Path: "/" + cfg.Database,
		RawQuery: "sslmode=disable&target_session_attrs=read-write",
	}
	return u.String(), nil
}

// launch starts the process without waiting until it is ready.
func (r *replica) launch(flags ...string) error {
	listen := r.addr
	if listen == "" {
		listen = net.JoinHostPort("127.0.0.1", "0")
	}
	// Secrets go by the environment: arguments can be read by everybody on the machine.
	process, err := subprocess.Start(subprocess.Config{
		Program: r.stage.cfg.Program, Folder: r.stage.folder, Name: r.name,
		Env: []string{"LEASEHOLD_DATABASE_URL=" + r.url},
		Args: append([]string{
			"serve", "--listen=" + listen, "--http-listen=off", "--sweep-interval=" + sweepInterval.String(),
			"--sink=nats://" + r.sink.Addr(), "--events=all",
			"--execution-retention=off", "--outbox-retention=off", "--outbox-dead-retention=off",
		}, flags...),
	})
	if err != nil {
		return err // The process before it, if there was one, is still to be asked how it ended.
	}
	r.process = process
	return nil
}

// awaitReady waits until the process says that it is ready.
func (r *replica) awaitReady(ctx context.Context) error {
	text, err := r.process.Line(ctx)
	if err != nil {
		return err
	}
	var ready struct{ Listen string }
	if err := json.Unmarshal([]byte(text), &ready); err != nil {
		return fmt.Errorf("%s says %q: %w", r.name, text, err)
	}
	r.addr = ready.Listen
	return nil
}

// start starts it again, and waits until it is ready.
func (r *replica) start(ctx context.Context, flags ...string) error {
	if err := r.launch(flags...); err != nil {
		return err
	}
	return r.awaitReady(ctx)
}

func (r *replica) kill() error   { return r.process.Kill() }
func (r *replica) freeze() error { return r.process.Signal(syscall.SIGSTOP) }
func (r *replica) thaw() error   { return r.process.Signal(syscall.SIGCONT) }

// close ends its networks; the process has ended.
func (r *replica) close() {
	for _, p := range append(r.database, r.sink) {
		p.Close()
	}
}
