package faults

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasehold/leasehold/server/internal/devpg"
)

// patroniStack is PostgreSQL as many run it: three nodes under Patroni, which keeps its leader
// in etcd, and HAProxy, which leads connections to it. All of it is on loopback.
type patroniStack struct {
	*packaged
	bin   string // folder of PostgreSQL's programs
	etcd  int    // port
	front int    // port of HAProxy, which leads to the leader
	nodes []*patroniNode
}

// patroniNode is one PostgreSQL with its Patroni.
type patroniNode struct {
	name       string
	port, rest int // ports of PostgreSQL, and of Patroni's own service
	data       string
	config     string
	patroni    *child
}

// startPatroni starts everything, and waits until a node leads and another one follows it
// synchronously.
func startPatroni(t *testing.T) *patroniStack {
	t.Helper()
	require(t, dependency{"etcd", "etcd-server"}, dependency{"patroni", "patroni"}, dependency{"haproxy", "haproxy"})
	binaries, err := devpg.FindOrInstall(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	server, err := filepath.EvalSymlinks(filepath.Join(binaries.Dir, "postgres")) // pg_rewind is only where it really is
	if err != nil {
		t.Fatal(err)
	}
	s := &patroniStack{packaged: newPackaged(t), bin: filepath.Dir(server), etcd: freePort(t), front: freePort(t)}
	s.startEtcd()
	for i := range 3 {
		n := &patroniNode{name: fmt.Sprintf("pg%d", i+1), port: freePort(t), rest: freePort(t)}
		n.data, n.config = filepath.Join(s.folder, n.name), filepath.Join(s.folder, n.name+".yml")
		s.write(n.config, s.configOf(n))
		s.nodes = append(s.nodes, n)
	}
	for _, n := range s.nodes {
		s.startNode(n)
	}
	s.startHAProxy()
	eventually(t, 2*time.Minute, "a leader with a synchronous standby", s.safe)
	return s
}

func (s *patroniStack) startEtcd() {
	s.t.Helper()
	peer, client := fmt.Sprintf("http://127.0.0.1:%d", freePort(s.t)), fmt.Sprintf("http://127.0.0.1:%d", s.etcd)
	s.run("etcd", "etcd", "--name=only", "--data-dir="+filepath.Join(s.folder, "etcd"), "--listen-client-urls="+client,
		"--advertise-client-urls="+client, "--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=only="+peer)
	eventually(s.t, time.Minute, "etcd is well", func() bool { return statusOf(s.t, client+"/health") == http.StatusOK })
}

// configOf has the leader's lease in etcd last as short as Patroni lets it.
func (s *patroniStack) configOf(n *patroniNode) string {
	return fmt.Sprintf(`
scope: leasehold
name: %s
restapi: {listen: "127.0.0.1:%d", connect_address: "127.0.0.1:%[2]d"}
etcd3: {host: "127.0.0.1:%d"}
bootstrap:
  dcs:
    ttl: 20
    loop_wait: 2
    retry_timeout: 5
    synchronous_mode: true
    postgresql:
      use_pg_rewind: true
      parameters: {max_connections: 200, wal_keep_size: 512MB}
  initdb: [{encoding: UTF8}, {locale: C}, data-checksums]
postgresql:
  listen: "127.0.0.1:%d"
  connect_address: "127.0.0.1:%[4]d"
  data_dir: "%s"
  bin_dir: "%s"
  pgpass: "%[5]s.pgpass"
  pg_hba: ["local all all trust", "host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]
  authentication:
    superuser: {username: postgres, password: secret}
    replication: {username: replicator, password: secret}
  parameters: {unix_socket_directories: "%[7]s"}
watchdog: {mode: "off"}
`, n.name, n.rest, s.etcd, n.port, n.data, s.bin, s.folder)
}

func (s *patroniStack) startNode(n *patroniNode) {
	s.t.Helper()
	s.t.Cleanup(n.killPostgres) // after its Patroni, which would start it again
	n.patroni = s.run(n.name, "patroni", n.config)
}

// killPostgres kills the node's PostgreSQL, whose other processes end when they notice.
func (n *patroniNode) killPostgres() {
	text, err := os.ReadFile(filepath.Join(n.data, "postmaster.pid"))
	if err != nil {
		return
	}
	first, _, _ := strings.Cut(string(text), "\n")
	if pid, err := strconv.Atoi(first); err == nil && pid > 1 {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
}

func (s *patroniStack) startHAProxy() {
	s.t.Helper()
	text := fmt.Sprintf(`
global
  maxconn 1000
defaults
  mode tcp
  timeout connect 2s
  timeout client 30m
  timeout server 30m
  timeout check 2s
listen leader
  bind 127.0.0.1:%d
  option httpchk OPTIONS /primary
  http-check expect status 200
  default-server inter 500ms fall 2 rise 1 on-marked-down shutdown-sessions
`, s.front)
	for _, n := range s.nodes {
		text += fmt.Sprintf("  server %s 127.0.0.1:%d check port %d\n", n.name, n.port, n.rest)
	}
	path := filepath.Join(s.folder, "haproxy.cfg")
	s.write(path, text)
	s.run("haproxy", "haproxy", "-f", path, "-db")
}

// leader is the node that leads by its own word, nil if none does.
func (s *patroniStack) leader() *patroniNode {
	for _, n := range s.nodes {
		if statusOf(s.t, fmt.Sprintf("http://127.0.0.1:%d/primary", n.rest)) == http.StatusOK {
			return n
		}
	}
	return nil
}

// safe tells whether a node leads, and another one has all that it has answered.
func (s *patroniStack) safe() bool {
	if s.leader() == nil {
		return false
	}
	for _, n := range s.nodes {
		if statusOf(s.t, fmt.Sprintf("http://127.0.0.1:%d/synchronous", n.rest)) == http.StatusOK {
			return true
		}
	}
	return false
}

// killLeader ends the leading node at once, its Patroni with it, and returns when another one
// is promoted, and how long that took.
func (s *patroniStack) killLeader() (dead *patroniNode, took time.Duration) {
	s.t.Helper()
	dead = s.leader()
	if dead == nil {
		s.t.Fatal("nobody leads")
	}
	if err := dead.patroni.cmd.Process.Kill(); err != nil {
		s.t.Fatal(err)
	}
	<-dead.patroni.exited
	dead.killPostgres()
	return dead, eventually(s.t, 2*time.Minute, "another node is promoted", func() bool {
		for _, n := range s.nodes {
			if n != dead && promoted(n) {
				return true
			}
		}
		return false
	})
}

// promoted tells whether a node takes writes, by its own word.
func promoted(n *patroniNode) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, fmt.Sprintf("postgres://postgres:secret@127.0.0.1:%d/postgres?sslmode=disable", n.port))
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var follows bool
	return conn.QueryRow(ctx, "SELECT pg_is_in_recovery()").Scan(&follows) == nil && !follows
}

// cluster starts replicas on a database behind HAProxy.
func (s *patroniStack) cluster() *cluster {
	s.t.Helper()
	front := url.URL{Scheme: "postgres", User: url.UserPassword("postgres", "secret"), Host: fmt.Sprintf("127.0.0.1:%d", s.front), Path: "/postgres", RawQuery: "sslmode=disable"}
	eventually(s.t, time.Minute, "HAProxy leads to the leader", func() bool {
		conn, err := pgx.Connect(s.t.Context(), front.String())
		if err != nil {
			return false
		}
		defer func() { _ = conn.Close(context.Background()) }()
		_, err = conn.Exec(s.t.Context(), "CREATE DATABASE leasehold")
		return err == nil
	})
	front.Path = "/leasehold"
	c := &cluster{t: s.t, url: front.String()}
	var err error
	if c.db, err = pgxpool.New(s.t.Context(), c.url); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.db.Close)
	c.start(clusterConfig{replicas: 2, program: shared.server(s.t), sweep: 200 * time.Millisecond})
	return c
}

// statusOf is the status of an answer, 0 if there is none.
func statusOf(t *testing.T, url string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	_ = answer.Body.Close() // only the status counts
	return answer.StatusCode
}
