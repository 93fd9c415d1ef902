package drill

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// listWorkers reads all pages through all replicas.
func (w *world) listWorkers(r *leaseholdv1.ListWorkersRequest) (list []*leaseholdv1.Worker) {
	w.t.Helper()
	for page := 0; ; page++ {
		answer, err := w.Client(page).Operators.ListWorkers(w.ctx, r)
		if err != nil {
			w.t.Fatalf("list workers: %v", err)
		}
		list = append(list, answer.GetWorkers()...)
		if r.PageToken = answer.GetNextPageToken(); r.PageToken == "" {
			return list
		}
	}
}

func namesOf(workers []*leaseholdv1.Worker) string {
	var list []string
	for _, w := range workers {
		list = append(list, w.GetName())
	}
	return strings.Join(list, " ")
}

// Pages in order of name, nothing twice, by node, version, capability and life; a token belongs
// to its filter.
func TestListWorkers_FiltersAndPages(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	for i := range 7 {
		capabilities := []string{"work"}
		if i%3 == 0 {
			capabilities = append(capabilities, "rare")
		}
		w.register(i, &leaseholdv1.RegisterWorkerRequest{
			Name: fmt.Sprint("w", i), Node: fmt.Sprint("n", i%2), Version: fmt.Sprint("v", i%4), Capabilities: capabilities, Slots: int32(i + 1),
		})
	}
	w.register(0, &leaseholdv1.RegisterWorkerRequest{Namespace: "elsewhere", Name: "w0", Capabilities: []string{"work"}})
	gone := w.register(0, &leaseholdv1.RegisterWorkerRequest{Name: "gone", Capabilities: []string{"work"}})
	if _, err := w.Client(0).Workers.DeregisterWorker(w.ctx, &leaseholdv1.DeregisterWorkerRequest{WorkerId: gone.ID, SessionId: gone.Session}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		r    *leaseholdv1.ListWorkersRequest
		want string
	}{
		{&leaseholdv1.ListWorkersRequest{PageSize: 2}, "gone w0 w1 w2 w3 w4 w5 w6"},
		{&leaseholdv1.ListWorkersRequest{LiveOnly: true, PageSize: 3}, "w0 w1 w2 w3 w4 w5 w6"},
		{&leaseholdv1.ListWorkersRequest{Node: "n1", PageSize: 1}, "w1 w3 w5"},
		{&leaseholdv1.ListWorkersRequest{Version: "v2"}, "w2 w6"},
		{&leaseholdv1.ListWorkersRequest{Capability: "rare", Node: "n0"}, "w0 w6"},
		{&leaseholdv1.ListWorkersRequest{Namespace: "elsewhere"}, "w0"},
		{&leaseholdv1.ListWorkersRequest{Namespace: "nowhere"}, ""},
	} {
		want(t, "workers", namesOf(w.listWorkers(tt.r)), tt.want)
	}
	first, err := w.Client(0).Operators.ListWorkers(w.ctx, &leaseholdv1.ListWorkersRequest{PageSize: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{"x", first.GetNextPageToken()} {
		_, err = w.Client(0).Operators.ListWorkers(w.ctx, &leaseholdv1.ListWorkersRequest{Node: "n1", PageToken: token})
		refused(t, err, codes.InvalidArgument, "INVALID_FIELD")
	}
	_, err = w.Client(0).Operators.ListWorkers(w.ctx, &leaseholdv1.ListWorkersRequest{PageSize: 1001})
	refused(t, err, codes.InvalidArgument, "INVALID_FIELD")
}

// A worker as it is: its slots in use are its live leases.
func TestGetWorker_TellsWhatItHolds(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.register(0, &leaseholdv1.RegisterWorkerRequest{
		Name: "one", Node: "n1", Version: "v1", Capabilities: []string{"work", "more"}, Slots: 3, Labels: map[string]string{"k": "v"},
	})
	w.enqueue(graph(step("a"), step("b")))
	leases := h.take(2, long)
	progress := 0.5
	_, err := w.Client(0).Workers.RenewLease(w.ctx, &leaseholdv1.RenewLeaseRequest{
		AttemptId: leases[0].GetAttemptId(), LeaseVersion: leases[0].GetLeaseVersion(), SessionId: h.Session,
		LeaseDuration: durationpb.New(long), Progress: &progress, ProgressMessage: "half",
	})
	if err != nil {
		t.Fatal(err)
	}
	got := w.workerOf(h)
	want(t, "worker", fmt.Sprint(got.GetName(), got.GetNode(), got.GetVersion(), got.GetCapabilities(), got.GetLabels()["k"]), "onen1v1[work more]v")
	want(t, "slots", fmt.Sprint(got.GetSlotsInUse(), " of ", got.GetSlots()), "2 of 3")
	want(t, "live", got.GetLive(), true)
	want(t, "session", got.GetSessionId(), h.Session)
	if age := got.GetLastSeenAge().AsDuration(); age < 0 || age > patient {
		t.Errorf("last seen %s ago", age)
	}
	if len(got.GetAttempts()) != 2 {
		t.Fatalf("attempts: %v", got.GetAttempts())
	}
	for _, l := range leases {
		for _, a := range got.GetAttempts() {
			if a.GetAttemptId() == l.GetAttemptId() {
				want(t, "version", a.GetLeaseVersion(), l.GetLeaseVersion())
				want(t, "step", a.GetStepName(), l.GetStepName())
				want(t, "execution", a.GetExecutionId(), l.GetExecutionId())
				want(t, "remaining", a.GetLeaseRemaining().AsDuration() > 0, true)
				want(t, "progress", a.GetProgressMessage() == "half", l == leases[0])
			}
		}
	}
	h.succeedAll(leases)
	want(t, "in use", w.workerOf(h).GetSlotsInUse(), 0)
	want(t, "in the list", len(w.listWorkers(&leaseholdv1.ListWorkersRequest{})[0].GetAttempts()), 0)
}

// What waits, what runs, who can do it and how attempts ended, as committed. Caught: ends
// that are not tallied; a count that takes what is delayed for ready.
func TestListCapabilities_CountsWhatIsCommitted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	failing := step("failing")
	failing.RetryPolicy = retries(5, time.Hour)
	e := graph(failing, step("released"), step("good"), step("live"), step("waits"), step("blocked", "waits"))
	pinned := step("pinned")
	pinned.Node, pinned.Priority = "n9", new(int32)
	*pinned.Priority = 7
	later := step("later")
	later.StartDelay = durationpb.New(time.Hour)
	id := w.enqueue(graph(pinned, later))
	other := graph(step("a"))
	other.Namespace = "elsewhere"
	w.enqueue(other)
	w.enqueue(e)
	h := w.register(0, &leaseholdv1.RegisterWorkerRequest{Capabilities: []string{"work", "unused"}, Slots: 5})
	leases := byStep(h.take(5, long))
	h.fail(leases["failing"])
	h.report(leases["released"], Released("", time.Hour))
	h.succeed(leases["good"])
	_, err := w.revoke(0, leases["live"], "")
	if err != nil {
		t.Fatal(err)
	}
	drained := w.register(1, &leaseholdv1.RegisterWorkerRequest{Capabilities: []string{"work"}, Slots: 9})
	w.drain(0, drainOf(true, drained))
	got := w.capability("work")
	want(t, "ready", fmt.Sprint(got.GetReady(), got.GetReadyCapped()), "2 false") // pinned, and live once more
	want(t, "delayed", fmt.Sprint(got.GetDelayed(), got.GetDelayedCapped()), "3 false")
	want(t, "running", fmt.Sprint(got.GetRunning(), got.GetRunningCapped()), "1 false")
	want(t, "workers", fmt.Sprint(got.GetLiveWorkers(), got.GetDrainedWorkers(), got.GetFreeSlots(), got.GetWorkersCapped()), "2 1 4 false")
	want(t, "oldest", got.GetOldestReadyAge().AsDuration() >= w.age(id), true)
	want(t, "hour", got.GetLastHour().String(), (&leaseholdv1.AttemptOutcomes{Succeeded: 1, Failed: 1, Lost: 1, Released: 1}).String())
	want(t, "paused", got.GetPaused(), false)
	if n := w.capability("unused"); n.GetReady() != 0 || n.GetOldestReadyAge() != nil || n.GetFreeSlots() != 4 {
		t.Errorf("unused: %v", n)
	}
	sum := w.rows(`SELECT format('%s %s', t.state, sum(t.n)) FROM attempt_tallies t GROUP BY t.state
		EXCEPT SELECT format('%s %s', a.state, count(*)) FROM attempts a WHERE a.state <> 'LEASED' GROUP BY a.state`)
	want(t, "tallies that are not the attempts'", fmt.Sprint(sum), "[]")
	h.succeed(leases["waits"])
	answer, err := w.Client(0).Operators.ListCapabilities(w.ctx, &leaseholdv1.ListCapabilitiesRequest{PageSize: 1})
	if err != nil || len(answer.GetCapabilities()) != 1 || answer.GetCapabilities()[0].GetName() != "unused" {
		t.Fatalf("first page: %v, %v", answer, err)
	}
	answer, err = w.Client(1).Operators.ListCapabilities(w.ctx, &leaseholdv1.ListCapabilitiesRequest{PageSize: 1, PageToken: answer.GetNextPageToken()})
	if err != nil || len(answer.GetCapabilities()) != 1 || answer.GetCapabilities()[0].GetName() != "work" {
		t.Fatalf("second page: %v, %v", answer, err)
	}
}

// age is how long ago an execution was accepted, at least: by PostgreSQL's clock.
func (w *world) age(id string) time.Duration {
	w.t.Helper()
	d, err := time.ParseDuration(w.rows(`SELECT floor(extract(epoch FROM clock_timestamp() - created_at))::text || 's' FROM executions WHERE id = $1::text::uuid`, id)[0])
	if err != nil {
		w.t.Fatal(err)
	}
	return d - 2*time.Second
}

// Minutes that are over are summed up, and nothing is counted twice or lost by that; what is
// older than an hour is forgotten.
func TestTallies_AreSummedUpAndForgotten(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 1)
	w.enqueue(graph(step("a")))
	h.succeed(h.one(long))
	w.rows(`WITH old AS (INSERT INTO attempt_tallies (capability_id, at, state, n)
		SELECT c.id, now() - make_interval(secs => 130 + g), CASE g % 3 WHEN 0 THEN 'FAILED' ELSE 'SUCCEEDED' END, 1 + g % 5
		FROM capabilities c, generate_series(1, 5000) g WHERE c.name = 'work' AND g < 3400 OR c.name = 'work' AND g > 3600 RETURNING 'x')
		SELECT 'x' FROM old LIMIT 1`)
	outcomes := func() string { return w.capability("work").GetLastHour().String() }
	before, lastMinute := outcomes(), w.capability("work").GetLastMinute().GetSucceeded()
	want(t, "last minute", lastMinute, 1)
	for range 2 {
		if err := w.Replica(0).Store.Tidy(context.WithoutCancel(w.ctx)); err != nil {
			t.Fatal(err)
		}
	}
	want(t, "the hour's counts", outcomes(), before)
	rows := w.rows(`SELECT count(*)::text FROM attempt_tallies WHERE at > now() - interval '10 minutes'`)
	if len(rows[0]) > 2 { // two states of eight minutes, and one that is new
		t.Errorf("%s rows of ten minutes", rows[0])
	}
	want(t, "older than an hour", w.rows(`SELECT count(*)::text FROM attempt_tallies WHERE at < now() - interval '61 minutes'`)[0], "0")
}
