package drill

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// TestB98_NULInPayloadsAndResults: payloads come back byte for byte; in texts NUL is replaced.
func TestB98_NULInPayloadsAndResults(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 4)
	for _, text := range []string{
		`{"x":"a\u0000b"}`, `"\ud800 alone"`, `{"n": 12345678901234567890.10, "n": 1e400,  "a":[ ] }`, ` "\/ é €" `, `null`,
	} {
		s := step("a")
		s.Input = JSON(text)
		s.Input.ContentType = "application/x-test"
		id := w.enqueue(graph(s, step("b", "a")))
		l := h.one(long)
		want(t, "input", l.GetInput().GetJson(), text)
		want(t, "content type", l.GetInput().GetContentType(), "application/x-test")
		h.report(l, Succeeded(JSON(text)))
		child := h.one(long)
		want(t, "parent's output", child.GetParentOutputs()["a"].GetJson(), text)
		want(t, "output as read", w.stepOf(id, "a").GetOutput().GetJson(), text)
		want(t, "input as read", w.stepOf(id, "a").GetInput().GetJson(), text)
		raw := []byte("\x00\xff\xfe binary")
		h.report(child, Succeeded(Data(raw)))
		if got := w.stepOf(id, "b").GetOutput().GetData(); !bytes.Equal(got, raw) {
			t.Errorf("output: got %q, want %q", got, raw)
		}
	}
	id := w.enqueue(graph(&leaseholdv1.StepSpec{Name: "a", Capability: "work", RetryPolicy: retries(1, time.Second)}))
	h.report(h.one(long), Failed(&leaseholdv1.Failure{
		Type: "A\x00B", Message: "why\x00 " + strings.Repeat("é", 10_000), Details: JSON(`{"d":"\u0000"}`),
	}))
	f := w.stepOf(id, "a").GetFailure()
	want(t, "type", f.GetType(), "A\uFFFDB")
	want(t, "details", f.GetDetails().GetJson(), `{"d":"\u0000"}`)
	if m := f.GetMessage(); !strings.HasPrefix(m, "why\uFFFD éé") || len(m) > 8<<10 {
		t.Errorf("message of %d bytes: %.40q", len(m), m)
	}
	want(t, "execution", w.get(id).GetState(), failed)
	w.enqueue(graph(step("a")))
	h.report(h.one(long), Released("rea\x00son", 0))
	h.succeed(h.one(long))
}

// TestB101_AResultOverTheLimit is refused and changes nothing: the worker can end the attempt
// otherwise.
func TestB101_AResultOverTheLimit(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 4)
	limit := int(h.Welcome.GetMaxPayloadBytes())
	for _, size := range []int{limit - 1, limit} {
		id := w.enqueue(graph(step("a")))
		h.report(h.one(long), Succeeded(Data(make([]byte, size))))
		want(t, "bytes read back", len(w.stepOf(id, "a").GetOutput().GetData()), size)
	}
	id := w.enqueue(graph(step("a")))
	l := h.one(long)
	before := w.get(id).GetRevision()
	for _, tt := range []struct {
		size   int
		code   codes.Code
		reason string
	}{
		{limit + 1, codes.InvalidArgument, "PAYLOAD_TOO_LARGE"},
		{5 << 20, codes.ResourceExhausted, ""},
		{20 << 20, codes.ResourceExhausted, ""},
	} {
		_, err := h.Report(w.ctx, l, Succeeded(Data(make([]byte, tt.size))))
		refused(t, err, tt.code, tt.reason)
		_, err = h.Report(w.ctx, l, &leaseholdv1.ReportAttemptRequest{
			Checkpoint: Data(make([]byte, tt.size)), Outcome: Succeeded(nil).Outcome,
		})
		want(t, "too large a checkpoint", status.Code(err), tt.code)
	}
	_, err := h.Report(w.ctx, l, Succeeded(JSON(`{"not": json}`)))
	want(t, "malformed JSON", status.Code(err), codes.InvalidArgument)
	want(t, "revision", w.get(id).GetRevision(), before)
	h.renew(l)
	answer := h.report(l, Failed(&leaseholdv1.Failure{Type: "RESULT_TOO_LARGE", Message: "too large", NonRetryable: true}))
	want(t, "execution", answer.GetExecutionState(), failed)
	want(t, "why", w.stepOf(id, "a").GetRetryStoppedBecause(), "NON_RETRYABLE_FAILURE")
}
