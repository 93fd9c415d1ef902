package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

func startServe(t *testing.T, database string, args ...string) *process {
	t.Helper()
	return start(t, append([]string{
		"serve", "--database-url", database, "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--migrate",
	}, args...)...)
}

func TestServe_SeveralStartTogetherAndHideThePassword(t *testing.T) {
	t.Parallel()
	server := startPostgres(t)
	secret := password(server.URL())
	for _, name := range []string{"A", "B", "C"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startServe(t, server.URL())
			if !p.serving("") {
				t.Error("ready, but health does not say SERVING")
			}
			if strings.Contains(p.ready.DatabaseURL, secret) || !strings.Contains(p.ready.DatabaseURL, "/leasehold") {
				t.Errorf("database_url is %s", p.ready.DatabaseURL)
			}
			p.stop(syscall.SIGINT)
			if strings.Contains(p.stderr.String(), secret) {
				t.Error("the log tells the password")
			}
		})
	}
}

func TestServe_OutlivesItsDatabase(t *testing.T) {
	t.Parallel()
	server := startPostgres(t)
	p := startServe(t, server.URL())
	client := p.executions()
	look := func() codes.Code {
		_, err := client.GetExecution(testTime(t), &leaseholdv1.GetExecutionRequest{IdempotencyKey: "none"})
		return status.Code(err)
	}
	if got := look(); got != codes.NotFound {
		t.Fatalf("GetExecution: %s, want %s", got, codes.NotFound)
	}
	server.Kill()
	if got := look(); got != codes.Unavailable {
		t.Errorf("without a database: %s, want %s", got, codes.Unavailable)
	}
	if err := server.Restart(testTime(t)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "answers from the database that is back", func() bool { return look() == codes.NotFound })
	server.Kill()
	p.stop(syscall.SIGTERM) // Within 10 s, whatever the database does.
}

// TestServe_B108_SIGTERMWithOpenPolls: parked polls are answered at once, and do not keep the
// process.
func TestServe_B108_SIGTERMWithOpenPolls(t *testing.T) {
	t.Parallel()
	const polls = 20
	p := startServe(t, startPostgres(t).URL())
	client := leaseholdv1.NewWorkerServiceClient(p.dial())
	session, err := client.RegisterWorker(testTime(t), &leaseholdv1.RegisterWorkerRequest{Capabilities: []string{"test"}, Slots: polls})
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, polls)
	for range polls {
		go func() {
			answer, err := client.LeaseAttempt(testTime(t), &leaseholdv1.LeaseAttemptRequest{
				WorkerId: session.GetWorkerId(), SessionId: session.GetSessionId(), WaitTimeout: durationpb.New(30 * time.Second),
			})
			if err == nil && len(answer.GetLeases()) > 0 {
				t.Errorf("leases out of nothing: %v", answer)
			}
			answered <- err
		}()
	}
	time.Sleep(time.Second) // The polls are on their way; nothing tells when they are parked.
	p.signal(syscall.SIGTERM)
	limit := time.After(time.Second)
	for range polls {
		select {
		case err := <-answered:
			if err != nil && status.Code(err) != codes.Unavailable {
				t.Errorf("a parked poll: %v", err)
			}
		case <-limit:
			t.Fatal("parked polls are not answered within 1 s")
		}
	}
	if got := p.wait(10 * time.Second); got != 0 {
		t.Errorf("status %d, want 0", got)
	}
}
