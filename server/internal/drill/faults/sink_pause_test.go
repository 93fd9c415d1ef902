package faults

import (
	"testing"
	"time"

	"github.com/leasehold/leasehold/server/internal/testsink"
)

// TestRelay_SinkPausedDuringLoad: NATS is silent while three replicas work: nothing gets
// through to it, and nothing comes back, but the connections stay. At first for a moment, after
// which all that was under way arrives late; then for half a minute, in which tries run into
// their timeouts, and after which all that was under way is lost. In the end all events are in
// the stream, once and in order. Broken once: a timeout taken for an acknowledgement.
func TestRelay_SinkPausedDuringLoad(t *testing.T) {
	alongside(t)
	n := testsink.StartNATS(t)
	n.PutStream(testsink.Subjects)
	between, arrived := newProxy(t, n.Addr()), &testsink.Record{}
	n.Follow(arrived)
	c := newRelayed(t, clusterConfig{}, "nats://"+between.Addr())
	l := startLoad(t, c, loadConfig{producers: sized(2, 4), workers: sized(8, 30), executions: sized(60, 2_000), pause: sized(300*time.Millisecond, 100*time.Millisecond)})
	l.progress(30*time.Second, "before the pause")
	eventually(t, 30*time.Second, "some events in the stream", func() bool { return len(arrived.IDs()) > 50 })

	var waiting int64
	for _, silence := range []time.Duration{2 * time.Second, sized(12*time.Second, 30*time.Second)} {
		between.Hold(true)
		between.Hold(false)
		began := time.Now()
		l.progress(goOnLimit, "while the sink is silent")
		time.Sleep(silence - time.Since(began))
		waiting = c.number(`SELECT count(*) FROM outbox_events WHERE status <> 'PUBLISHED'`)
		if waiting == 0 {
			t.Error("no event waits: was the sink silent?")
		}
		if silence > 10*time.Second {
			between.Cut()
		}
		between.Release()
	}
	l.finish()
	began := time.Now()
	c.awaitPublished(2 * time.Minute)
	t.Logf("%d events waited for the sink; all were sent %s after the end of the load", waiting, time.Since(began))
	sameEvents(t, c, arrived)
	if r := arrived.Repeats(); r > 0 {
		t.Errorf("%d repeats in the stream, which knows events by their ids", r)
	}
}
