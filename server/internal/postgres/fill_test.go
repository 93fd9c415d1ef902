package postgres_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/leasehold/leasehold/server/internal/task"
)

// TestDispatch_BringsSmallPayloads in the round trip of its commit; large ones are read when no row
// is locked any more. Broken once: none brought, and all.
func TestDispatch_BringsSmallPayloads(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	w := s.register("w", "a", 10)
	for _, size := range []int{10, 100_000} {
		want := bytes.Repeat([]byte("x"), size)
		s.enqueue(spec("a", 1, func(e *task.ExecutionSpec) { e.Steps[0].Input = &task.Payload{Body: want, ContentType: "text/plain"} }))
		id, claimed := s.claim(w, 1)
		done, err := s.store.Dispatch(t.Context(), assign(w, id, claimed.Requests, time.Minute))
		if err != nil || len(done.Leases) != 1 {
			t.Fatalf("%v, %+v", err, done)
		}
		l := &done.Leases[0]
		if small := size < 1000; done.Filled != small || (l.Input != nil) != small {
			t.Errorf("%d bytes: filled %t, input %t", size, done.Filled, l.Input != nil)
		}
		if !done.Filled {
			if err := s.store.Fill(t.Context(), done.Leases); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(l.Input.Body, want) || l.Input.ContentType != "text/plain" {
			t.Errorf("%d bytes: the input is of %d", size, len(l.Input.Body))
		}
	}
}
