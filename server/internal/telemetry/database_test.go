package telemetry

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

// shows tells whether /metrics has a line.
func shows(t *Telemetry, line string) bool {
	_, text := ask(t, http.MethodGet, "/metrics")
	return strings.Contains(text, "\n"+line+"\n")
}

// TestDatabase_IsReadSeldom: many scrapes cost one read, and one that was slow is good for longer.
func TestDatabase_IsReadSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reads, slow := 0, time.Duration(0)
		tele := newWatched(&fakeDatabase{queues: func(context.Context) ([]scheduler.QueueDepth, error) {
			reads++
			time.Sleep(slow)
			return nil, nil
		}})
		after := func(d time.Duration, want int) {
			t.Helper()
			time.Sleep(d)
			for range 10 {
				shows(tele, "")
			}
			if reads != want {
				t.Errorf("%d reads, want %d", reads, want)
			}
		}
		after(0, 1)
		after(defaultFresh-time.Millisecond, 1)
		slow = time.Second
		after(time.Millisecond, 2)
		after(restAfter*slow-time.Millisecond, 2)
		slow = 1900 * time.Millisecond
		after(time.Millisecond, 3)
		after(mostRest-time.Millisecond, 3)
		after(time.Millisecond, 4)
	})
}

// TestDatabase_WhatCannotBeReadIsLeftOut, and told; the rest is shown: the age of a transaction that
// makes counting slow above all. A database that is silent keeps a scrape for one bound only.
func TestDatabase_WhatCannotBeReadIsLeftOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		silence := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		slow, silent := false, false
		tele := newWatched(&fakeDatabase{
			oldest: func(ctx context.Context) (time.Duration, error) {
				if silent {
					return 0, silence(ctx)
				}
				return 90 * time.Second, nil
			},
			queues: func(ctx context.Context) ([]scheduler.QueueDepth, error) {
				if slow {
					return nil, silence(ctx)
				}
				return []scheduler.QueueDepth{{Namespace: "n", Capability: "c", Ready: 4}}, nil
			},
			backlog: func(ctx context.Context) (outbox.Backlog, error) {
				return outbox.Backlog{Events: map[outbox.Status]int{outbox.Dead: 3}, OldestUnsent: time.Minute}, ctx.Err()
			},
		})
		all := map[string]string{
			"up":     "leasehold_database_up 1",
			"oldest": "leasehold_database_oldest_transaction_seconds 90",
			"queue":  `leasehold_queue_attempts{capability="c",namespace="n",state="ready"} 4`,
			"dead":   `leasehold_outbox_events{status="DEAD"} 3`,
			"unsent": "leasehold_outbox_oldest_unsent_age_seconds 60",
			"polls":  "leasehold_parked_polls 7",
		}
		shown := func(when string, took time.Duration, want ...string) {
			t.Helper()
			time.Sleep(mostRest)
			began := time.Now()
			_, text := ask(tele, http.MethodGet, "/metrics")
			if d := time.Since(began); d != took {
				t.Errorf("%s: a scrape took %s, want %s", when, d, took)
			}
			for name, line := range all {
				if got := strings.Contains(text, line+"\n"); got != slices.Contains(want, name) {
					t.Errorf("%s: %q shown: %v", when, line, got)
				}
			}
			if up := slices.Contains(want, "up"); strings.Contains(text, "leasehold_database_up 0\n") == up {
				t.Errorf("%s: it is not told", when)
			}
		}
		shown("well", 0, "up", "oldest", "queue", "dead", "unsent", "polls")
		slow = true
		shown("slow", readTimeout, "oldest", "dead", "unsent", "polls")
		silent = true
		shown("silent", readTimeout, "polls")
		slow, silent = false, false
		shown("well again", 0, "up", "oldest", "queue", "dead", "unsent", "polls")
	})
}

func TestBusiest_PutsTheRestTogether(t *testing.T) {
	t.Parallel()
	queue := func(name string, ready, delayed, running int, oldest time.Duration) scheduler.QueueDepth {
		return scheduler.QueueDepth{Namespace: "n", Capability: name, Ready: ready, Delayed: delayed, Running: running, OldestReady: oldest}
	}
	all := []scheduler.QueueDepth{
		queue("a", 0, 0, 0, 0), queue("b", 1, 0, 0, 3), queue("c", 0, 5, 0, 0), queue("d", 0, 0, 4, 0), queue("e", 1, 1, 0, 9),
	}
	want := []scheduler.QueueDepth{
		queue("c", 0, 5, 0, 0), queue("d", 0, 0, 4, 0),
		{Namespace: others, Capability: others, Ready: 2, Delayed: 1, OldestReady: 9},
	}
	if diff := cmp.Diff(want, busiest(all, 2)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(all, busiest(all, 5)); diff != "" {
		t.Error(diff)
	}
}

// TestDatabase_SeriesAreBounded: capabilities that callers make up do not make series.
func TestDatabase_SeriesAreBounded(t *testing.T) {
	t.Parallel()
	tele := newWatched(&fakeDatabase{queues: func(context.Context) (queues []scheduler.QueueDepth, err error) {
		for i := range 5000 {
			queues = append(queues, scheduler.QueueDepth{Namespace: "n", Capability: fmt.Sprint(i), Ready: i})
		}
		return queues, nil
	}})
	_, text := ask(tele, http.MethodGet, "/metrics")
	if n := strings.Count(text, "\nleasehold_queue_attempts{"); n != 3*(mostQueues+1) {
		t.Errorf("%d series", n)
	}
	if !shows(tele, fmt.Sprintf(`leasehold_queue_attempts{capability="(other)",namespace="(other)",state="ready"} %v`, float64(4900*4899/2))) {
		t.Error("the others are not put together")
	}
}
