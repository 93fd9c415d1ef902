package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
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
		tele := newWatched(&fakeDatabase{measure: func(context.Context) (scheduler.Measures, error) {
			reads++
			time.Sleep(slow)
			return scheduler.Measures{}, nil
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
		after(time.Millisecond, 3)
	})
}

// TestDatabase_WhatCannotBeReadIsLeftOut, and told; the rest is shown. A database that is silent
// keeps a scrape for no longer than the bound.
func TestDatabase_WhatCannotBeReadIsLeftOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var failure error
		silent := false
		tele := newWatched(&fakeDatabase{
			measure: func(ctx context.Context) (scheduler.Measures, error) {
				if silent {
					<-ctx.Done()
					return scheduler.Measures{}, ctx.Err()
				}
				return scheduler.Measures{OldestTransaction: 90 * time.Second}, failure
			},
			backlog: func(ctx context.Context) (outbox.Backlog, error) {
				return outbox.Backlog{Events: map[outbox.Status]int{outbox.Dead: 3}, OldestUnsent: time.Minute}, ctx.Err()
			},
		})
		const oldest, dead = "leasehold_database_oldest_transaction_seconds 90", `leasehold_outbox_events{status="DEAD"} 3`
		for _, want := range []string{oldest, dead, "leasehold_database_up 1", "leasehold_outbox_oldest_unsent_age_seconds 60", "leasehold_parked_polls 7"} {
			if !shows(tele, want) {
				t.Errorf("no %s", want)
			}
		}
		failure = errors.New("refused")
		time.Sleep(defaultFresh)
		if !shows(tele, "leasehold_database_up 0") || shows(tele, oldest) || !shows(tele, dead) || !shows(tele, "leasehold_parked_polls 7") {
			t.Error("with one read that fails: what it said before is shown, or what the other says is not")
		}
		silent = true
		time.Sleep(defaultFresh)
		began := time.Now()
		if !shows(tele, "leasehold_database_up 0") || shows(tele, dead) || !shows(tele, "leasehold_parked_polls 7") {
			t.Error("with a silent database")
		}
		if took := time.Since(began); took != readTimeout {
			t.Errorf("the scrape took %s, want %s", took, readTimeout)
		}
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
	tele := newWatched(&fakeDatabase{measure: func(context.Context) (scheduler.Measures, error) {
		m := scheduler.Measures{}
		for i := range 5000 {
			m.Queues = append(m.Queues, scheduler.QueueDepth{Namespace: "n", Capability: fmt.Sprint(i), Ready: i})
		}
		return m, nil
	}})
	_, text := ask(tele, http.MethodGet, "/metrics")
	if n := strings.Count(text, "\nleasehold_queue_attempts{"); n != 3*(mostQueues+1) {
		t.Errorf("%d series", n)
	}
	if !shows(tele, fmt.Sprintf(`leasehold_queue_attempts{capability="(other)",namespace="(other)",state="ready"} %v`, float64(4900*4899/2))) {
		t.Error("the others are not put together")
	}
}
