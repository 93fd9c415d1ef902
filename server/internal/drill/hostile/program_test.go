package hostile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/api/worker"
	"github.com/leasehold/leasehold/server/internal/execworker"
)

const (
	maxProgramOutput  = 2000
	programsOfAWorld  = 1000
	maxFailureMessage = 8 << 10
	programCapability = "program"
)

// FuzzProgramOutput runs programs as a shell worker does: any bytes on stdout and stderr, any exit
// status or signal. Whatever a program does, its attempt ends for the right reason, and what is
// read back is what it wrote.
func FuzzProgramOutput(f *testing.F) {
	long := strings.Repeat("x", maxProgramOutput)
	for _, c := range []struct {
		end      byte
		out, err string
	}{
		{0, `{"a": 1.50}`, ""}, {0, "text\n", "warning"}, {0, "\xff\x00", "\xff\x00"}, {0, "", ""}, {0, `"\u0000"`, ""}, {0, "\"caf\xe9\"", ""},
		{0, long, ""}, {0, long + "x", ""}, {1, "out", "what went wrong\n"}, {65, "", "bad input"}, {75, "1", "later"}, {254, "", long + long + long + "ä\xff"},
		{3, long + "x", "e"}, {126, "", "\x1b[31mred\x1b[0m"}, {250, "[1]", ""}, {251, "", "\x00"}, {252, "cut", "\u202e"}, {0, "nul", ""}, {0, "1 2", ""}, {0, "[", ""},
	} {
		f.Add(c.end, []byte(c.out), []byte(c.err))
	}
	s := &programs{dir: f.TempDir()}
	s.begin(f)
	f.Cleanup(func() { s.end(f) })
	f.Fuzz(func(t *testing.T, end byte, stdout, stderr []byte) {
		if s.count >= programsOfAWorld {
			s.end(t)
			s.begin(t)
		}
		p := programEnd(end)
		got := s.run(t, p, stdout, stderr)
		p.judge(t, got, stdout, stderr)
		if bugs := s.log.heard(); len(bugs) > 0 {
			t.Errorf("the server calls it a bug: %v", bugs)
		}
	})
}

// programs is a server and a worker for it that runs what the inputs say.
type programs struct {
	*world
	dir   string
	count int
	stop  context.CancelFunc
	ended chan error
}

// programText is the program: it says what stands in the files of its execution, and ends as the
// third one says. At a second attempt all is well.
const programText = `f="$0/$LEASEHOLD_EXECUTION_NAME"; cat "$f.out"; cat "$f.err" >&2; [ "$LEASEHOLD_ATTEMPT_NUMBER" -gt 1 ] && exit 0; . "$f.end"`

func (s *programs) begin(t testing.TB) {
	t.Helper()
	s.world, s.count, s.ended = newWorld(t), 0, make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	c := execworker.Config{
		Worker:       worker.Config{Address: s.cluster.Replica(0).Addr(), Logger: slog.New(slog.DiscardHandler)},
		Capabilities: []string{programCapability}, Command: []string{"/bin/sh", "-c", programText, s.dir},
		PermanentExit: execworker.DefaultPermanentExit, MaxOutput: maxProgramOutput, KillAfter: time.Second,
		TempFailDelay: time.Millisecond, Stderr: io.Discard,
	}
	go func() { s.ended <- execworker.Run(ctx, c) }()
}

func (s *programs) end(t testing.TB) {
	t.Helper()
	s.stop()
	if err := <-s.ended; err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("the worker: %v", err)
	}
	s.check(t)
	s.world.end(t)
}

// run has a program run as the one step of an execution, to its end.
func (s *programs) run(t *testing.T, end programEnd, stdout, stderr []byte) *leaseholdv1.Execution {
	t.Helper()
	s.count++
	name := fmt.Sprintf("p%d", s.count)
	for ext, text := range map[string][]byte{"out": stdout, "err": stderr, "end": []byte(end.shell())} {
		file := filepath.Join(s.dir, name+"."+ext)
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.Remove(file) }()
	}
	ctx, cancel := context.WithTimeout(context.Background(), hangs)
	defer cancel()
	client := s.cluster.Client(0)
	answer, err := client.Executions.EnqueueExecution(ctx, &leaseholdv1.EnqueueExecutionRequest{Name: name, Steps: []*leaseholdv1.StepSpec{
		{Name: "s0", Capability: programCapability, RetryPolicy: &leaseholdv1.RetryPolicy{MaximumAttempts: 1}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	id := answer.GetExecution().GetId()
	watch, err := client.Executions.WatchExecution(ctx, &leaseholdv1.WatchExecutionRequest{ExecutionId: id})
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = watch.Recv()
	}
	if !errors.Is(err, io.EOF) {
		t.Fatalf("the execution does not end: %v", err)
	}
	whole, err := client.Get(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	return whole
}

// programEnd is how a program ends: by a status, or from endsBySignal on by a signal.
type programEnd byte

const endsBySignal = 250

func (e programEnd) signal() string {
	return [...]string{"KILL", "TERM", "SEGV", "PIPE", "ABRT", "USR1"}[e-endsBySignal]
}

func (e programEnd) shell() string {
	if e >= endsBySignal {
		return "kill -" + e.signal() + " $$"
	}
	return fmt.Sprintf("exit %d", e)
}

// judge compares an execution with what its program did.
func (e programEnd) judge(t *testing.T, got *leaseholdv1.Execution, stdout, stderr []byte) {
	t.Helper()
	step := got.GetSteps()[0]
	last := step.GetAttempts()[len(step.GetAttempts())-1]
	failure := last.GetFailure()
	want := ""
	switch {
	case len(stdout) > maxProgramOutput && (e == 0 || e == execworker.TempFail): // of the latter the second attempt
		want = worker.TypeResultTooLarge
	case e >= endsBySignal:
		want = execworker.TypeSignal
	case e != 0 && e != execworker.TempFail:
		want = execworker.TypeExit
	}
	if failure.GetType() != want || (got.GetState() == leaseholdv1.ExecutionState_EXECUTION_STATE_SUCCEEDED) != (want == "") {
		t.Fatalf("ends %s with %q, want %q: %v", got.GetState(), failure.GetType(), want, failure)
	}
	if n := 1 + btoi(e == execworker.TempFail); len(step.GetAttempts()) != n {
		t.Errorf("%d attempts, want %d", len(step.GetAttempts()), n)
	}
	if m := failure.GetMessage(); !utf8.ValidString(m) || strings.ContainsRune(m, 0) || len(m) > maxFailureMessage {
		t.Errorf("%d bytes of message: %.200q", len(m), m)
	}
	if said := bytes.TrimSpace(stderr); want == execworker.TypeExit && isPlain(said) && len(said) < 1000 && !strings.HasSuffix(failure.GetMessage(), string(said)) {
		t.Errorf("%q does not tell %q", failure.GetMessage(), said)
	}
	if want == "" {
		judgeOutput(t, step.GetOutput(), stdout)
	}
}

func judgeOutput(t *testing.T, got *leaseholdv1.Payload, stdout []byte) {
	t.Helper()
	text, isJSON := got.GetBody().(*leaseholdv1.Payload_Json)
	kept := got.GetData()
	if isJSON {
		kept = []byte(text.Json)
	}
	if !bytes.Equal(kept, stdout) || isJSON != (json.Valid(stdout) && utf8.Valid(stdout)) {
		t.Errorf("read back %.200q (JSON %t), written %.200q", kept, isJSON, stdout)
	}
}

func isPlain(text []byte) bool {
	return !bytes.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
