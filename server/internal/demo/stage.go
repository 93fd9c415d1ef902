package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"

	"github.com/leasehold/leasehold/api/client"
	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/broker"
	"github.com/leasehold/leasehold/server/internal/devpg"
	"github.com/leasehold/leasehold/server/internal/subprocess"
)

const (
	replicaCount = 3
	workerCount  = 6
	postgresStop = 5 * time.Second
)

// stage is everything that the story happens on.
type stage struct {
	cfg       Config
	folder    string // logs of the processes, and NATS's files
	pg        *devpg.Server
	broker    *broker.Broker
	replicas  []*subprocess.Process
	addresses []string // of the replicas
	workers   []*subprocess.Process
	clients   []*client.Client

	server  *pgxpool.Pool // the server's database
	shopDB  *pgxpool.Pool // the business's
	mailbox mailbox       // the mail provider's
	mailURL string
}

// setUp starts all parts. What it started until an error, tearDown ends.
func (s *stage) setUp(ctx context.Context) error {
	for _, step := range []func(context.Context) error{s.startStores, s.openDatabases, s.startReplicas, s.startWorkers} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) startStores(ctx context.Context) (err error) {
	if s.folder, err = os.MkdirTemp("", "leasehold-demo-"); err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	binaries, err := devpg.FindOrInstall(ctx, s.cfg.Err)
	if err != nil {
		return err
	}
	if s.pg, err = devpg.Start(ctx, devpg.Config{Ephemeral: true, Binaries: binaries}); err != nil {
		return err
	}
	s.broker, err = broker.Start(s.folder)
	return err
}

func (s *stage) openDatabases(ctx context.Context) (err error) {
	if s.server, err = pgxpool.New(ctx, s.pg.URL()); err != nil {
		return fmt.Errorf("open the server's database: %w", err)
	}
	var shopURL string
	if shopURL, err = s.createDatabase(ctx, "shop", shopSchema); err != nil {
		return err
	}
	if s.mailURL, err = s.createDatabase(ctx, "mail", mailboxSchema); err != nil {
		return err
	}
	if s.shopDB, err = pgxpool.New(ctx, shopURL); err != nil {
		return fmt.Errorf("open the shop's database: %w", err)
	}
	s.mailbox, err = openMailbox(ctx, s.mailURL)
	return err
}

// createDatabase returns the URL of a new database, a neighbour of the server's.
func (s *stage) createDatabase(ctx context.Context, name, schema string) (string, error) {
	if _, err := s.server.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return "", fmt.Errorf("create database %s: %w", name, err)
	}
	u, err := url.Parse(s.pg.URL())
	if err != nil {
		return "", fmt.Errorf("create database %s: %w", name, err)
	}
	u.Path = "/" + name
	db, err := pgxpool.New(ctx, u.String())
	if err != nil {
		return "", fmt.Errorf("open database %s: %w", name, err)
	}
	defer db.Close()
	if _, err := db.Exec(ctx, schema); err != nil {
		return "", fmt.Errorf("make the tables of %s: %w", name, err)
	}
	return u.String(), nil
}

// start runs our own program as another process.
func (s *stage) start(name string, env []string, args ...string) (*subprocess.Process, error) {
	return subprocess.Start(subprocess.Config{Program: s.cfg.Program, Folder: s.folder, Name: name, Env: env, Args: args})
}

func (s *stage) startReplicas(ctx context.Context) error {
	// Secrets go by the environment: arguments can be read by everybody on the machine.
	env := []string{"LEASEHOLD_DATABASE_URL=" + s.pg.URL(), "LEASEHOLD_HTTP_LISTEN=off"}
	for i := range replicaCount {
		p, err := s.start(fmt.Sprintf("replica-%d", i+1), env,
			"serve", "--migrate", "--listen=127.0.0.1:0", "--sink="+s.broker.URL(), "--nats-create-stream="+stream)
		if err != nil {
			return err
		}
		s.replicas = append(s.replicas, p)
	}
	for _, p := range s.replicas {
		text, err := p.Line(ctx)
		if err != nil {
			return err
		}
		var ready struct{ Listen string }
		if err := json.Unmarshal([]byte(text), &ready); err != nil {
			return fmt.Errorf("%s says %q: %w", p.Name, text, err)
		}
		s.addresses = append(s.addresses, ready.Listen)
	}
	return nil
}

// startWorkers gives each worker all replicas; it chooses among them itself.
func (s *stage) startWorkers(context.Context) error {
	env := []string{"LEASEHOLD_MAILBOX=" + s.mailURL}
	for i := range workerCount {
		args := []string{
			"demo-worker", fmt.Sprintf("--name=worker-%d", i+1), "--replicas=" + strings.Join(s.addresses, ","), "--pace=" + s.cfg.pace().String(),
			// At a third of its share: late enough to be in the middle, and sure to come.
			fmt.Sprintf("--at=%d", s.cfg.Coupons/workerCount/3),
		}
		switch i {
		case sleeper:
			args = append(args, "--fate="+FateSleep)
		case deadWorker:
			args = append(args, "--fate="+FateDie)
		}
		p, err := s.start(fmt.Sprintf("worker-%d", i+1), env, args...)
		if err != nil {
			return err
		}
		s.workers = append(s.workers, p)
	}
	return nil
}

// client calls the replica with the index first; when it is gone the one after it, and so on round.
func (s *stage) client(first int) (leaseholdv1.ExecutionServiceClient, error) {
	c, err := client.Dial(slices.Concat(s.addresses[first:], s.addresses[:first]), grpc.WithNoProxy())
	if err != nil {
		return nil, err
	}
	s.clients = append(s.clients, c)
	return c, nil
}

// watch returns an error when a process ends by itself.
func (s *stage) watch(ctx context.Context) error {
	ended := make(chan *subprocess.Process)
	for _, p := range append(append([]*subprocess.Process(nil), s.replicas...), s.workers...) {
		go func() {
			select {
			case <-p.Exited():
				select {
				case ended <- p:
				case <-ctx.Done():
				}
			case <-ctx.Done():
			}
		}()
	}
	for {
		select {
		case p := <-ended:
			if err := p.ByItself(); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// tearDown ends all parts in order: workers before replicas, these before what they need. The
// logs are kept if asked for.
func (s *stage) tearDown(keepLogs bool) error {
	for _, c := range s.clients {
		_ = c.Close() // It cannot fail but for a second time.
	}
	for _, group := range [][]*subprocess.Process{s.workers, s.replicas} {
		var stopping sync.WaitGroup
		for _, p := range group {
			stopping.Go(p.Stop)
		}
		stopping.Wait()
	}
	for _, db := range []*pgxpool.Pool{s.mailbox.db, s.shopDB, s.server} {
		if db != nil {
			db.Close()
		}
	}
	if s.broker != nil {
		s.broker.Stop()
	}
	var errs []error
	if s.pg != nil {
		ctx, cancel := context.WithTimeout(context.Background(), postgresStop)
		defer cancel()
		errs = append(errs, s.pg.Stop(ctx))
	}
	if s.folder != "" && !keepLogs {
		errs = append(errs, os.RemoveAll(s.folder))
	}
	return errors.Join(errs...)
}
