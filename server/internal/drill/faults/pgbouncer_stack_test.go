package faults

import (
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// bouncer is a PgBouncer before a cluster's PostgreSQL. It gives a session away for the length of
// a transaction, and has few of them.
type bouncer struct {
	*packaged
	addr    string
	config  string // its path
	process *child
}

// The settings of our sessions: PgBouncer refuses them unless it is told to ignore them, and then
// they have to be those of the role.
const (
	ignoredSettings = "idle_in_transaction_session_timeout, lock_timeout, statement_timeout, default_transaction_isolation, " +
		"tcp_keepalives_idle, tcp_keepalives_interval, tcp_keepalives_count, tcp_user_timeout, jit, plan_cache_mode, " +
		"enable_seqscan, enable_hashjoin, enable_mergejoin, enable_bitmapscan, max_parallel_workers_per_gather"
	roleSettings = `
		ALTER ROLE %[1]s SET idle_in_transaction_session_timeout = '5s';
		ALTER ROLE %[1]s SET lock_timeout = '2s';
		ALTER ROLE %[1]s SET statement_timeout = '10s';
		ALTER ROLE %[1]s SET default_transaction_isolation = 'read committed';
		ALTER ROLE %[1]s SET jit = off;
		ALTER ROLE %[1]s SET plan_cache_mode = force_generic_plan;
		ALTER ROLE %[1]s SET enable_seqscan = off;
		ALTER ROLE %[1]s SET enable_hashjoin = off;
		ALTER ROLE %[1]s SET enable_mergejoin = off;
		ALTER ROLE %[1]s SET enable_bitmapscan = off;
		ALTER ROLE %[1]s SET max_parallel_workers_per_gather = 0;`
)

// bouncerConfig is what differs between tests.
type bouncerConfig struct {
	host    string   // of PostgreSQL, with its port
	roles   []string // that may log in
	ignored string   // parameters that clients may ask for in vain
}

// startBouncer starts one that ends with the test, and returns when it takes connections.
func startBouncer(t *testing.T, c bouncerConfig) *bouncer {
	t.Helper()
	b := &bouncer{packaged: newPackaged(t), addr: fmt.Sprintf("127.0.0.1:%d", freePort(t))}
	host, port, err := net.SplitHostPort(c.host)
	if err != nil {
		t.Fatal(err)
	}
	_, own, _ := net.SplitHostPort(b.addr) // made above
	users := filepath.Join(b.folder, "users.txt")
	var list strings.Builder
	for _, role := range c.roles {
		fmt.Fprintf(&list, "%q %q\n", role, "secret")
	}
	b.write(users, list.String())
	b.config = filepath.Join(b.folder, "pgbouncer.ini")
	b.write(b.config, fmt.Sprintf(`
[databases]
* = host=%s port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %s
unix_socket_dir =
auth_type = plain
auth_file = %s
pool_mode = transaction
default_pool_size = 4
max_client_conn = 200
ignore_startup_parameters = %s
`, host, port, own, users, c.ignored))
	b.start()
	return b
}

func (b *bouncer) start() {
	b.t.Helper()
	b.process = b.run("pgbouncer", "pgbouncer", b.config)
	eventually(b.t, 20*time.Second, "PgBouncer takes connections", func() bool {
		conn, err := net.DialTimeout("tcp", b.addr, time.Second)
		if err == nil {
			_ = conn.Close() // it was a look
		}
		return err == nil
	})
}

// kill ends it at once, with all connections of clients and to PostgreSQL.
func (b *bouncer) kill() {
	b.t.Helper()
	if err := b.process.cmd.Process.Kill(); err != nil {
		b.t.Fatal(err)
	}
	<-b.process.exited
}

// through is the URL of a database that goes through it.
func (b *bouncer) through(direct, mode string) string {
	b.t.Helper()
	u, err := url.Parse(direct)
	if err != nil {
		b.t.Fatal(err)
	}
	u.Host = b.addr
	q := u.Query()
	if mode != "" {
		q.Set("default_query_exec_mode", mode)
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// newUnstarted is a cluster on the shared PostgreSQL whose replicas do not run yet.
func newUnstarted(t *testing.T, replicas int) *cluster {
	t.Helper()
	c := &cluster{t: t, url: shared.databases.New(t)}
	var err error
	if c.db, err = pgxpool.New(t.Context(), c.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.db.Close)
	logs, program := t.TempDir(), shared.server(t)
	for i := range replicas {
		c.replicas = append(c.replicas, c.newReplica(i, logs, clusterConfig{sweep: 200 * time.Millisecond, program: program}))
	}
	return c
}

// giveSettings gives the replicas' roles the settings that sessions cannot ask for.
func (c *cluster) giveSettings() {
	c.t.Helper()
	for _, role := range c.roles() {
		if _, err := c.db.Exec(c.t.Context(), fmt.Sprintf(roleSettings, role)); err != nil {
			c.t.Fatal(err)
		}
	}
}
