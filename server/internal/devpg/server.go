package devpg

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
)

// Server is a private PostgreSQL. Its methods may be called from several
// goroutines at once.
type Server struct {
	cfg      Config
	bin      Binaries
	port     int
	password string

	folder *folder
	// socketDir belongs to whoever is starting PostgreSQL: Start, Restart, or
	// the run's own goroutine.
	socketDir string

	// ops lets one of Stop, Down, Kill and Restart act at a time.
	ops sync.Mutex
	// stopped says that the folder was given back; guarded by ops.
	stopped bool

	mu  sync.Mutex
	run *run
	pid int

	logMu sync.Mutex
}

// Start makes or opens a data folder and runs PostgreSQL on it. It returns when
// the server answers queries; ctx bounds only the start.
//
// Errors to tell apart: *NotFoundError (no PostgreSQL), *InUseError (another
// process owns the folder), *ForeignServerError, *UnreachableError,
// *VersionError, and *StartError with the end of PostgreSQL's log.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, port: cfg.Port}
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	if err := s.firstStart(ctx); err != nil {
		return nil, errors.Join(err, s.giveBack())
	}
	return s, nil
}

// open takes the data folder.
func (s *Server) open(ctx context.Context) (err error) {
	if s.cfg.Ephemeral {
		s.folder, err = openEphemeral(ctx)
	} else {
		s.folder, err = openFolder(ctx, s.cfg.DataDir)
	}
	return err
}

func (s *Server) firstStart(ctx context.Context) error {
	major, err := folderMajor(s.folder.pgdata())
	if err != nil {
		return err
	}
	if s.bin, err = binariesFor(ctx, s.cfg.Binaries, major, s.folder.path); err != nil {
		return err
	}
	// An earlier server must be gone before its port is looked at.
	if err := endOrphans(ctx, s.folder.path, s.folder.pgdata()); err != nil {
		return err
	}
	if err := s.folder.initialise(ctx, s.fill); err != nil {
		return err
	}
	if err := s.folder.rotateLog(); err != nil {
		return err
	}
	c, err := s.launchOnPort(ctx)
	if err != nil {
		return err
	}
	if err := s.admit(ctx); err != nil {
		s.crash(c)
		return err
	}
	s.begin(c)
	return nil
}

// launchOnPort starts on the port that was asked for, or on a free one, and then
// once more if somebody takes that between our look and the start.
func (s *Server) launchOnPort(ctx context.Context) (*child, error) {
	if s.cfg.Port != 0 {
		if err := checkPort(s.cfg.Port); err != nil {
			return nil, err
		}
		return s.launch(ctx)
	}
	for try := 1; ; try++ {
		var err error
		if s.port, err = freePort(); err != nil {
			return nil, err
		}
		c, err := s.launch(ctx)
		if err == nil || !errors.Is(err, errPortTaken) || try == 5 {
			return c, err
		}
	}
}

// admit sees to it that URL works: that the role has a password and that the
// database exists.
func (s *Server) admit(ctx context.Context) error {
	return s.query(ctx, "postgres", func(ctx context.Context, conn *pgx.Conn) error {
		if err := s.ensurePassword(ctx, conn); err != nil {
			return err
		}
		var found bool
		const q = "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)"
		if err := conn.QueryRow(ctx, q, s.cfg.Database).Scan(&found); err != nil {
			return fmt.Errorf("look for database %s: %w", s.cfg.Database, err)
		}
		if found {
			return nil
		}
		if _, err := conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{s.cfg.Database}.Sanitize()); err != nil {
			return fmt.Errorf("create database %s: %w", s.cfg.Database, err)
		}
		return nil
	})
}

// ensurePassword keeps the password of an existing folder, so that a URL which
// somebody noted stays good. The file is written last: a kill in between means
// one more password, not a wrong one.
func (s *Server) ensurePassword(ctx context.Context, conn *pgx.Conn) error {
	path := s.folder.password()
	text, err := os.ReadFile(path)
	if err == nil && len(strings.TrimSpace(string(text))) > 0 {
		s.password = strings.TrimSpace(string(text))
		return nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read PostgreSQL's password: %w", err)
	}
	s.password = rand.Text()
	// rand.Text has only letters and digits, so that it needs no quoting.
	if _, err := conn.Exec(ctx, "ALTER ROLE "+superuser+" PASSWORD '"+s.password+"'"); err != nil {
		return fmt.Errorf("set PostgreSQL's password: %w", err)
	}
	if err := os.WriteFile(path, []byte(s.password+"\n"), 0o600); err != nil {
		return fmt.Errorf("keep PostgreSQL's password: %w", err)
	}
	return nil
}

// URL is where to connect, for pgx as for psql: a role that may do everything,
// with its password, over 127.0.0.1. It stays the same over Restart, and the
// password over the life of the data folder.
func (s *Server) URL() string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, s.password),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)),
		Path:     "/" + s.cfg.Database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// DataDir is the data folder, absolute and without symbolic links.
func (s *Server) DataDir() string { return s.folder.path }

// Binaries are the programs that run.
func (s *Server) Binaries() Binaries { return s.bin }

// LogFile is where PostgreSQL writes its log.
func (s *Server) LogFile() string { return s.folder.logFile() }

// PID is the process id of the postmaster; 0 while PostgreSQL is down.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pid
}

// Done is closed when PostgreSQL is down for good: after Stop, Down or Kill, or
// when it ended by itself and is not (or could not be) started again. After
// Restart there is a new one.
func (s *Server) Done() <-chan struct{} { return s.current().done }

// Wait returns when PostgreSQL is down for good: nil if that was asked for, else
// an *ExitError.
func (s *Server) Wait() error {
	r := s.current()
	<-r.done
	return r.err
}

// Stop shuts PostgreSQL down and gives the data folder back; an ephemeral one is
// removed. When ctx ends, or after 30 s, it no longer waits for a checkpoint but
// ends PostgreSQL by force: Stop returns with no process left in any case.
// A second call does nothing.
func (s *Server) Stop(ctx context.Context) error {
	s.ops.Lock()
	defer s.ops.Unlock()
	s.current().end(ending{hurry: ctx.Done()})
	if s.stopped {
		return nil
	}
	return s.giveBack()
}

// Down shuts PostgreSQL down as Stop does, but keeps the data folder, ephemeral
// or not, for Restart.
func (s *Server) Down(ctx context.Context) {
	s.ops.Lock()
	defer s.ops.Unlock()
	s.current().end(ending{hurry: ctx.Done()})
}

// Kill ends the postmaster by SIGKILL, and then its backends, as a crash does.
// The supervisor does not undo it; Restart does. The data folder is kept.
func (s *Server) Kill() {
	s.ops.Lock()
	defer s.ops.Unlock()
	s.current().end(ending{crash: true})
}

// Restart starts PostgreSQL again on the same port and folder, after Down, Kill
// and Stop, or after its end by itself; if it is up, it is shut down first. After
// Stop of an ephemeral server it returns ErrRemoved. ctx bounds the start.
func (s *Server) Restart(ctx context.Context) error {
	s.ops.Lock()
	defer s.ops.Unlock()
	s.current().end(ending{hurry: ctx.Done()})
	if s.stopped {
		if s.cfg.Ephemeral {
			return ErrRemoved
		}
		again, err := openFolder(ctx, s.folder.path)
		if err != nil {
			return err
		}
		s.folder.lock = again.lock
		s.stopped = false
	}
	c, err := s.launch(ctx)
	if err != nil {
		return err
	}
	s.begin(c)
	return nil
}

// giveBack ends our right to the data folder.
func (s *Server) giveBack() error {
	s.stopped = true
	defer s.folder.lock.release()
	if s.cfg.Ephemeral {
		return s.folder.remove()
	}
	s.folder.removeSocketDir()
	return nil
}

func (s *Server) current() *run {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.run
}

func (s *Server) setPID(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pid = pid
}

func (s *Server) logf(format string, args ...any) {
	s.logMu.Lock()
	defer s.logMu.Unlock()
	fmt.Fprintf(s.cfg.Log, format+"\n", args...)
}
