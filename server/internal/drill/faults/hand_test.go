package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// slack is what a bound is lengthened by for what it does not speak of: noisy processors, and
// the race detector.
func slack() time.Duration {
	if raceDetector {
		return 2 * time.Second
	}
	return 500 * time.Millisecond
}

// hand is a worker that does only what a test tells it to.
type hand struct {
	t           *testing.T
	id, session string
}

// newHand registers a worker.
func newHand(t *testing.T, p *peer, slots int32, capabilities ...string) *hand {
	t.Helper()
	answer, err := p.workers.RegisterWorker(t.Context(), &leaseholdv1.RegisterWorkerRequest{
		Capabilities: capabilities, Slots: slots, RequestId: uuid.NewString(),
	})
	if err != nil {
		t.Fatalf("register: %v", err)
	}
	return &hand{t: t, id: answer.GetWorkerId(), session: answer.GetSessionId()}
}

// polled is the answer of a poll.
type polled struct {
	leases []*leaseholdv1.Lease
	err    error
	took   time.Duration
	at     time.Time
}

// poll asks for up to n leases.
func (h *hand) poll(ctx context.Context, p *peer, n int32, wait, lease time.Duration) polled {
	began := time.Now()
	answer, err := p.workers.LeaseAttempt(ctx, &leaseholdv1.LeaseAttemptRequest{
		WorkerId: h.id, SessionId: h.session, RequestId: uuid.NewString(), MaxLeases: n,
		WaitTimeout: durationpb.New(wait), LeaseDuration: durationpb.New(lease),
	})
	return polled{leases: answer.GetLeases(), err: err, took: time.Since(began), at: time.Now()}
}

// park polls for one lease in the background.
func (h *hand) park(p *peer, wait, lease time.Duration) <-chan polled {
	answer := make(chan polled, 1)
	go func() { answer <- h.poll(h.t.Context(), p, 1, wait, lease) }()
	return answer
}

// take leases exactly n attempts.
func (h *hand) take(p *peer, n int, lease time.Duration) []*leaseholdv1.Lease {
	h.t.Helper()
	var all []*leaseholdv1.Lease
	for len(all) < n {
		got := h.poll(h.t.Context(), p, int32(n-len(all)), 20*time.Second, lease)
		if got.err != nil {
			h.t.Fatalf("poll: %v", got.err)
		}
		if len(got.leases) == 0 {
			h.t.Fatalf("got %d leases, want %d", len(all), n)
		}
		all = append(all, got.leases...)
	}
	return all
}

func (h *hand) renew(ctx context.Context, p *peer, l *leaseholdv1.Lease, lease time.Duration) error {
	_, err := p.workers.RenewLease(ctx, &leaseholdv1.RenewLeaseRequest{
		AttemptId: l.GetAttemptId(), LeaseVersion: l.GetLeaseVersion(), SessionId: h.session, LeaseDuration: durationpb.New(lease),
	})
	return err
}

func (h *hand) succeed(ctx context.Context, p *peer, l *leaseholdv1.Lease) error {
	_, err := p.workers.ReportAttempt(ctx, &leaseholdv1.ReportAttemptRequest{
		AttemptId: l.GetAttemptId(), LeaseVersion: l.GetLeaseVersion(),
		Outcome: &leaseholdv1.ReportAttemptRequest_Succeeded_{Succeeded: &leaseholdv1.ReportAttemptRequest_Succeeded{}},
	})
	return err
}

// enqueue enqueues n executions of one step.
func enqueue(t *testing.T, p *peer, n int, capability string) {
	t.Helper()
	for range n {
		_, err := p.executions.EnqueueExecution(t.Context(), &leaseholdv1.EnqueueExecutionRequest{
			Name: "by hand", IdempotencyKey: uuid.NewString(),
			Steps: []*leaseholdv1.StepSpec{{Name: "only", Capability: capability}},
		})
		if err != nil {
			t.Fatalf("enqueue: %v", err)
		}
	}
}

// clientMode makes this test binary a client process, which a test can kill: its value is the
// address, the capability and the lease's length of a clientJob.
const clientMode = "LEASEHOLD_FAULTS_CLIENT"

// clientJob is what a client process does: it registers, polls once, and says what it got.
type clientJob struct {
	Addr       string
	Capability string
	Lease      time.Duration
}

// clientLine is what it prints, once before it polls and once after.
type clientLine struct {
	Polling bool
	Attempt string
	Err     string
}

// beClient is the client process. It ends by itself, with an error, only if it cannot do its job.
func beClient(mode string) error {
	say := json.NewEncoder(os.Stdout)
	var job clientJob
	if err := json.Unmarshal([]byte(mode), &job); err != nil {
		return err
	}
	conn, err := grpc.NewClient(job.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	workers := leaseholdv1.NewWorkerServiceClient(conn)
	ctx := context.Background()
	session, err := workers.RegisterWorker(ctx, &leaseholdv1.RegisterWorkerRequest{Capabilities: []string{job.Capability}})
	if err != nil {
		return err
	}
	_ = say.Encode(clientLine{Polling: true}) // nobody to tell if that fails
	answer, err := workers.LeaseAttempt(ctx, &leaseholdv1.LeaseAttemptRequest{
		WorkerId: session.GetWorkerId(), SessionId: session.GetSessionId(), RequestId: "once",
		WaitTimeout: durationpb.New(30 * time.Second), LeaseDuration: durationpb.New(job.Lease),
	})
	line := clientLine{}
	if err != nil {
		line.Err = err.Error()
	}
	for _, l := range answer.GetLeases() {
		line.Attempt = l.GetAttemptId()
	}
	_ = say.Encode(line) // as above
	select {}
}

// clientProcess is a client that can be killed.
type clientProcess struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

// startClient starts one, and returns when it is about to poll.
func startClient(t *testing.T, job clientJob) *clientProcess {
	t.Helper()
	cmd := ourselves(t, clientMode, job)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it may have been killed
	p := &clientProcess{cmd: cmd, lines: bufio.NewScanner(out)}
	if line := p.next(t); !line.Polling {
		t.Fatalf("the client said %+v", line)
	}
	return p
}

// ourselves is this test binary as a process of another mode, which gets its job as JSON.
func ourselves(t *testing.T, mode string, job any) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), mode+"="+string(text))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	dieWithUs(cmd.SysProcAttr)
	return cmd
}

func (p *clientProcess) next(t *testing.T) clientLine {
	t.Helper()
	var line clientLine
	if !p.lines.Scan() {
		t.Fatal("the client ended")
	}
	if err := json.Unmarshal(p.lines.Bytes(), &line); err != nil {
		t.Fatal(err)
	}
	return line
}

// kill ends it by SIGKILL.
func (p *clientProcess) kill(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Wait() // it was killed
}
