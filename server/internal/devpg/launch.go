package devpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// errPortTaken is how a start fails when somebody took the port just before.
var errPortTaken = errors.New("the port is taken")

// launch starts PostgreSQL on the folder and returns when it answers queries.
// Nothing of ours may run on the folder yet. It waits as long as ctx allows:
// recovery after a crash can take its time.
func (s *Server) launch(ctx context.Context) (*child, error) {
	if err := s.prepare(ctx); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(s.folder.logFile(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open PostgreSQL's log: %w", err)
	}
	defer log.Close()
	size, err := log.Seek(0, 2)
	if err != nil {
		return nil, fmt.Errorf("open PostgreSQL's log: %w", err)
	}
	pgdata := s.folder.pgdata()
	cmd := exec.Command(s.bin.postgres(), "-D", pgdata, "-c", clusterArg(pgdata))
	cmd.Dir = pgdata
	cmd.Stdout, cmd.Stderr = log, log
	c, err := startChild(cmd, s.folder.who, !s.cfg.noDeathSignal)
	if err != nil {
		return nil, &StartError{Err: err}
	}
	if err := s.awaitReady(ctx, c); err != nil {
		s.crash(c)
		tail := readFrom(s.folder.logFile(), size)
		if bytes.Contains(tail, []byte("could not bind")) {
			err = errors.Join(errPortTaken, err)
		}
		return nil, &StartError{Err: err, LogTail: lastLines(tail)}
	}
	return c, nil
}

// prepare clears away what an earlier server left, and writes the settings.
func (s *Server) prepare(ctx context.Context) error {
	pgdata := s.folder.pgdata()
	if err := endOrphans(ctx, s.folder.path, pgdata); err != nil {
		return err
	}
	if err := disarmPIDFile(pgdata); err != nil {
		return err
	}
	var err error
	if s.socketDir, err = s.folder.makeSocketDir(); err != nil {
		return err
	}
	files := map[string]string{
		"postgresql.conf": postgresqlConf(s.port, s.socketDir, s.cfg.Settings),
		"pg_hba.conf":     hbaConf,
	}
	for name, text := range files {
		path := filepath.Join(pgdata, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return fmt.Errorf("write PostgreSQL's settings: %w", err)
		}
		if err := s.folder.who.own(path); err != nil {
			return err
		}
	}
	return nil
}

// awaitReady waits until postmaster.pid names the child as ready, and until it
// answers a query.
func (s *Server) awaitReady(ctx context.Context, c *child) error {
	tell := time.Now().Add(10 * time.Second)
	for {
		file, err := readPIDFile(s.folder.pgdata())
		if err != nil {
			return err
		}
		if file.ready && file.pid == c.pid {
			return s.query(ctx, "postgres", func(context.Context, *pgx.Conn) error { return nil })
		}
		if time.Now().After(tell) {
			tell = time.Now().Add(10 * time.Second)
			s.logf("PostgreSQL is still starting; its log is %s", s.folder.logFile())
		}
		select {
		case <-c.exited:
			return errors.New("it ended with " + c.status())
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pollEvery):
		}
	}
}

// query runs f on a connection through the socket, which needs no password.
func (s *Server) query(ctx context.Context, database string, f func(context.Context, *pgx.Conn) error) error {
	conf, err := pgx.ParseConfig(fmt.Sprintf("host=/ port=%d user=%s dbname=%s sslmode=disable", s.port, superuser, database))
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	conf.Host = s.socketDir // Set here, because a path may hold what a connection string takes for syntax.
	conn, err := pgx.ConnectConfig(ctx, conf)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := conn.Ping(ctx); err != nil {
		return fmt.Errorf("ask PostgreSQL: %w", err)
	}
	return f(ctx, conn)
}

// crash ends the postmaster at once, and all its backends.
func (s *Server) crash(c *child) {
	if err := c.signal(syscall.SIGKILL); err != nil {
		s.logf("%v", err)
	}
	<-c.exited
	ctx, cancel := context.WithTimeout(context.Background(), orphanLimit)
	defer cancel()
	if err := endOrphans(ctx, s.folder.path, s.folder.pgdata()); err != nil {
		s.logf("%v", err)
	}
}

// freePort chooses a port below the ranges from which systems take the ports of
// outgoing connections (Linux from 32768, macOS from 49152). In those, a client
// that retries while the server is down can get the very port it dials, connect
// to itself, and keep the server from ever coming back.
func freePort() (int, error) {
	const lowest, highest = 15000, 32000
	var last error
	for range 100 {
		port := lowest + rand.IntN(highest-lowest)
		if last = checkPort(port); last == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("find a free port: %w", last)
}

func checkPort(port int) error {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("PostgreSQL's port: %w", err)
	}
	return l.Close()
}

func readFrom(path string, offset int64) []byte {
	text, err := os.ReadFile(path)
	if err != nil || int64(len(text)) < offset {
		return nil
	}
	return text[offset:]
}

// lastLines is the part of a log that belongs into an error.
func lastLines(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}
