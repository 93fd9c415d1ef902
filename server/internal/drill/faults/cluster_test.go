package faults

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasehold/leasehold/server/internal/devpg"
	"github.com/leasehold/leasehold/server/internal/netfault"
)

// clusterConfig says what a cluster is made of. Zero values are usable.
type clusterConfig struct {
	replicas int           // default 3
	sweep    time.Duration // default 200 ms
	args     []string      // further flags of serve
	// ownDatabase gives it a durable PostgreSQL of its own, which the test may kill. Without
	// it the cluster has a database on the shared one, which no test may harm.
	ownDatabase bool
	// behindProxies puts a proxy between each replica and PostgreSQL.
	behindProxies bool
	// program is the server's path; empty: that of the usual one.
	program string
}

// cluster is a PostgreSQL and the replicas on it.
type cluster struct {
	t        *testing.T
	pg       *devpg.Server // nil: the shared one
	url      string
	db       *pgxpool.Pool     // the test's own look at the tables
	proxies  []*netfault.Proxy // to PostgreSQL, one of each replica, if asked for
	replicas []*replica
}

// newCluster starts PostgreSQL and the replicas, all at once, and ends them with the test.
func newCluster(t *testing.T, cfg clusterConfig) *cluster {
	t.Helper()
	if cfg.program == "" {
		cfg.program = shared.server(t)
	}
	c := &cluster{t: t}
	if cfg.ownDatabase {
		c.startPostgres()
	} else {
		c.url = shared.databases.New(t)
	}
	var err error
	if c.db, err = pgxpool.New(t.Context(), c.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.db.Close)
	c.start(cfg)
	return c
}

// start starts the replicas, all at once, and ends them with the test.
func (c *cluster) start(cfg clusterConfig) {
	c.t.Helper()
	t := c.t
	if cfg.sweep == 0 {
		cfg.sweep = 200 * time.Millisecond
	}
	if cfg.replicas == 0 {
		cfg.replicas = 3
	}
	logs := t.TempDir()
	for i := range cfg.replicas {
		if cfg.behindProxies {
			c.proxies = append(c.proxies, newProxy(t, c.host()))
		}
		c.replicas = append(c.replicas, c.newReplica(i, logs, cfg))
	}
	c.launch()
}

// launch starts the replicas that were prepared.
func (c *cluster) launch() {
	c.t.Helper()
	c.t.Cleanup(func() {
		for _, r := range c.replicas {
			r.end()
		}
	})
	for _, r := range c.replicas {
		r.launch()
	}
	for _, r := range c.replicas {
		r.awaitReady()
	}
}

// startPostgres starts one with the durability of production.
func (c *cluster) startPostgres() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	pg, err := devpg.Start(ctx, devpg.Config{Ephemeral: true})
	if err != nil {
		c.t.Fatalf("start PostgreSQL: %v", err)
	}
	c.t.Cleanup(func() {
		if err := pg.Stop(context.Background()); err != nil {
			c.t.Errorf("stop PostgreSQL: %v", err)
		}
	})
	c.pg, c.url = pg, pg.URL()
}

// newReplica prepares a replica whose sessions have a role of their own.
func (c *cluster) newReplica(i int, logs string, cfg clusterConfig) *replica {
	c.t.Helper()
	name := fmt.Sprintf("replica-%d", i+1)
	role := strings.ReplaceAll(name+"-"+uuid.NewString(), "-", "_")
	if _, err := c.db.Exec(c.t.Context(), "CREATE ROLE "+role+" SUPERUSER LOGIN PASSWORD 'secret'"); err != nil {
		c.t.Fatalf("create role: %v", err)
	}
	u, err := url.Parse(c.url)
	if err != nil {
		c.t.Fatal(err)
	}
	u.User = url.UserPassword(role, "secret")
	if i < len(c.proxies) {
		u.Host = c.proxies[i].Addr()
	}
	return &replica{t: c.t, name: name, role: role, url: u.String(), args: append([]string{"--sweep-interval", cfg.sweep.String()}, cfg.args...), program: cfg.program, logPath: filepath.Join(logs, name+".log")}
}

// host is where PostgreSQL listens.
func (c *cluster) host() string {
	c.t.Helper()
	u, err := url.Parse(c.url)
	if err != nil {
		c.t.Fatal(err)
	}
	return u.Host
}

// addresses are those of all replicas.
func (c *cluster) addresses() []string {
	list := make([]string, len(c.replicas))
	for i, r := range c.replicas {
		list[i] = r.addr
	}
	return list
}

// number is the one number that a query returns.
func (c *cluster) number(query string, args ...any) int64 {
	c.t.Helper()
	var n int64
	if err := c.db.QueryRow(c.t.Context(), query, args...).Scan(&n); err != nil {
		c.t.Fatalf("%v in %s", err, query)
	}
	return n
}
