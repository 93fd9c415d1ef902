package drill

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// TestBatchEnqueue_AllOrNothing, with the results in order.
func TestBatchEnqueue_AllOrNothing(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	used := w.enqueue(&leaseholdv1.EnqueueExecutionRequest{Name: "first", IdempotencyKey: "used", Steps: []*leaseholdv1.StepSpec{step("a")}})
	batch := func(last *leaseholdv1.EnqueueExecutionRequest) (*leaseholdv1.BatchEnqueueExecutionsResponse, error) {
		return w.Client(1).Executions.BatchEnqueueExecutions(w.ctx, &leaseholdv1.BatchEnqueueExecutionsRequest{
			Requests: []*leaseholdv1.EnqueueExecutionRequest{graph(step("a")), graph(step("a"), step("b", "a")), last},
		})
	}
	reused := graph(step("a"))
	reused.IdempotencyKey = "used"
	_, err := batch(reused)
	wantReused(t, "a key with other content", err, used)
	want(t, "which", Info(err).GetMetadata()["request_index"], "2")
	bad := graph(step("a", "nobody"))
	_, err = batch(bad)
	want(t, "a bad graph", status.Code(err), codes.InvalidArgument)
	want(t, "executions", len(w.rows(`SELECT id::text FROM executions`)), 1)

	twice := graph(step("a"))
	twice.Name = "twice"
	differs := graph(step("b"))
	differs.IdempotencyKey = twice.IdempotencyKey
	_, err = w.Client(2).Executions.BatchEnqueueExecutions(w.ctx, &leaseholdv1.BatchEnqueueExecutionsRequest{
		Requests: []*leaseholdv1.EnqueueExecutionRequest{twice, differs},
	})
	want(t, "one key, two contents", status.Code(err), codes.AlreadyExists)
	want(t, "executions", len(w.rows(`SELECT id::text FROM executions`)), 1)

	same := &leaseholdv1.EnqueueExecutionRequest{Name: "first", IdempotencyKey: "used", Steps: []*leaseholdv1.StepSpec{step("a")}}
	answer, err := w.Client(2).Executions.BatchEnqueueExecutions(w.ctx, &leaseholdv1.BatchEnqueueExecutionsRequest{
		Requests: []*leaseholdv1.EnqueueExecutionRequest{twice, same, twice, graph(step("z"))},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, createdWant := range []bool{true, false, false, true} {
		want(t, fmt.Sprint("created ", i), answer.GetResults()[i].GetResponse().GetCreated(), createdWant)
	}
	id := func(i int) string { return answer.GetResults()[i].GetResponse().GetExecution().GetId() }
	want(t, "the one that was there", id(1), used)
	want(t, "the same one twice", id(2), id(0))
	want(t, "executions", len(w.rows(`SELECT id::text FROM executions`)), 3)
}

// TestValidateOnly_StoresNothing.
func TestValidateOnly_StoresNothing(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	good := graph(step("a"), step("b", "a"))
	good.ValidateOnly = true
	answer, err := w.Client(0).Executions.EnqueueExecution(w.ctx, good)
	if err != nil || answer.GetCreated() {
		t.Errorf("a good one: %v, created %v", err, answer.GetCreated())
	}
	bad := graph(step("a", "a"))
	bad.ValidateOnly = true
	_, err = w.Client(0).Executions.EnqueueExecution(w.ctx, bad)
	want(t, "a bad one", status.Code(err), codes.InvalidArgument)
	want(t, "executions", len(w.rows(`SELECT id::text FROM executions`)), 0)
	good.ValidateOnly = false
	w.enqueue(good) // its key was not used up
}

// TestGetExecution_ByIDKeyAndStepNames.
func TestGetExecution_ByIDKeyAndStepNames(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	e := graph(step("a"), step("b", "a"), step("c", "a", "b"))
	e.Namespace, e.IdempotencyKey, e.Labels = "ns", "k", map[string]string{"x": "y"}
	e.Steps[0].Input = JSON(`1`)
	id := w.enqueue(e)
	get := func(r *leaseholdv1.GetExecutionRequest) (*leaseholdv1.Execution, error) {
		answer, err := w.Client(1).Executions.GetExecution(w.ctx, r)
		return answer.GetExecution(), err
	}
	got, err := get(&leaseholdv1.GetExecutionRequest{Namespace: "ns", IdempotencyKey: "k"})
	want(t, "by key", err, nil)
	want(t, "id", got.GetId(), id)
	want(t, "steps", len(got.GetSteps()), 3)
	want(t, "label", got.GetLabels()["x"], "y")
	if got.GetSteps()[0].GetInput() != nil {
		t.Error("payloads unasked")
	}
	want(t, "parents of c", fmt.Sprint(find(t, got, "c").GetDependsOn()), "[a b]")
	got, err = get(&leaseholdv1.GetExecutionRequest{ExecutionId: id, StepNames: []string{"c", "a"}, IncludePayloads: true})
	want(t, "by step names", err, nil)
	want(t, "steps", len(got.GetSteps()), 2)
	want(t, "input", find(t, got, "a").GetInput().GetJson(), "1")
	_, err = get(&leaseholdv1.GetExecutionRequest{IdempotencyKey: "k"})
	refused(t, err, codes.NotFound, "EXECUTION_NOT_FOUND")
	_, err = get(&leaseholdv1.GetExecutionRequest{ExecutionId: uuid.NewString()})
	refused(t, err, codes.NotFound, "EXECUTION_NOT_FOUND")
	_, err = get(&leaseholdv1.GetExecutionRequest{ExecutionId: id, IdempotencyKey: "k"})
	want(t, "both", status.Code(err), codes.InvalidArgument)
	_, err = w.Client(0).Executions.ListTimeline(w.ctx, &leaseholdv1.ListTimelineRequest{ExecutionId: uuid.NewString()})
	refused(t, err, codes.NotFound, "EXECUTION_NOT_FOUND")
}

// TestGetExecution_ManyStepsComeInPages, and so does their timeline.
func TestGetExecution_ManyStepsComeInPages(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	const n = 1205
	steps := []*leaseholdv1.StepSpec{step("root")}
	for i := range n - 1 {
		steps = append(steps, step(fmt.Sprint("s", i), "root"))
	}
	id := w.enqueue(graph(steps...))
	got := w.get(id)
	names := map[string]bool{}
	for _, s := range got.GetSteps() {
		names[s.GetName()] = true
	}
	want(t, "different steps", len(names), n)
	want(t, "steps", len(got.GetSteps()), n)
	h := w.worker(0, 1)
	h.report(h.one(long), fatal())
	request := &leaseholdv1.ListTimelineRequest{ExecutionId: id, PageSize: 250}
	next := int64(1)
	for {
		answer, err := w.Client(0).Executions.ListTimeline(w.ctx, request)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range answer.GetEntries() {
			want(t, "sequence", e.GetSequence(), next)
			next++
		}
		if request.PageToken = answer.GetNextPageToken(); request.PageToken == "" {
			break
		}
	}
	want(t, "entries: enqueued, leased, ended, each step, the end", next-1, int64(3+n+1))
}

// TestListExecutions_Filters.
func TestListExecutions_Filters(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	named := func(name string, labels map[string]string) string {
		e := graph(step("a"))
		e.Name, e.Labels = name, labels
		return w.enqueue(e)
	}
	plain := named("plain", nil)
	red := named("red", map[string]string{"color": "red", "size": "1"})
	middle := w.get(red).GetCreateTime()
	blue := named("blue", map[string]string{"color": "blue", "size": "1"})
	w.cancel(0, plain)
	elsewhere := graph(step("a"))
	elsewhere.Namespace = "elsewhere"
	away := w.enqueue(elsewhere)
	for _, tt := range []struct {
		what   string
		filter *leaseholdv1.ListExecutionsRequest
		want   []string
	}{
		{"none", &leaseholdv1.ListExecutionsRequest{}, []string{blue, red, plain}},
		{"namespace", &leaseholdv1.ListExecutionsRequest{Namespace: "elsewhere"}, []string{away}},
		{"state", &leaseholdv1.ListExecutionsRequest{States: []leaseholdv1.ExecutionState{canceled, failed}}, []string{plain}},
		{"states", &leaseholdv1.ListExecutionsRequest{States: []leaseholdv1.ExecutionState{canceled, queued}}, []string{blue, red, plain}},
		{"other state", &leaseholdv1.ListExecutionsRequest{States: []leaseholdv1.ExecutionState{running}}, nil},
		{"name", &leaseholdv1.ListExecutionsRequest{Name: "red"}, []string{red}},
		{"label", &leaseholdv1.ListExecutionsRequest{LabelSelector: map[string]string{"size": "1"}}, []string{blue, red}},
		{"labels", &leaseholdv1.ListExecutionsRequest{LabelSelector: map[string]string{"size": "1", "color": "red"}}, []string{red}},
		{"other label", &leaseholdv1.ListExecutionsRequest{LabelSelector: map[string]string{"size": "2"}}, nil},
		{"after", &leaseholdv1.ListExecutionsRequest{CreatedAfter: middle}, []string{blue, red}},
		{"before", &leaseholdv1.ListExecutionsRequest{CreatedBefore: middle}, []string{plain}},
		{"all together", &leaseholdv1.ListExecutionsRequest{
			Name: "blue", CreatedAfter: middle, CreatedBefore: timestamppb.New(time.Now().Add(time.Hour)),
			LabelSelector: map[string]string{"color": "blue"}, States: []leaseholdv1.ExecutionState{queued},
		}, []string{blue}},
	} {
		var got []string
		tt.filter.PageSize = 2
		for {
			answer, err := w.Client(2).Executions.ListExecutions(w.ctx, tt.filter)
			if err != nil {
				t.Fatalf("%s: %v", tt.what, err)
			}
			for _, e := range answer.GetExecutions() {
				got = append(got, e.GetId())
			}
			if tt.filter.PageToken = answer.GetNextPageToken(); tt.filter.PageToken == "" {
				break
			}
		}
		want(t, tt.what, fmt.Sprint(got), fmt.Sprint(tt.want))
	}
}

// TestPageTokens_AreBoundToTheirQuestion.
func TestPageTokens_AreBoundToTheirQuestion(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	ids := w.enqueueMany(5, func(int) *leaseholdv1.EnqueueExecutionRequest { return graph(step("a"), step("b")) })
	list, err := w.Client(0).Executions.ListExecutions(w.ctx, &leaseholdv1.ListExecutionsRequest{PageSize: 2})
	if err != nil || list.GetNextPageToken() == "" {
		t.Fatal(err, list.GetNextPageToken())
	}
	token := list.GetNextPageToken()
	entries := func(id, token string) error {
		_, err := w.Client(0).Executions.ListTimeline(w.ctx, &leaseholdv1.ListTimelineRequest{ExecutionId: id, PageToken: token})
		return err
	}
	for what, err := range map[string]error{
		"another filter":   second(w.Client(1).Executions.ListExecutions(w.ctx, &leaseholdv1.ListExecutionsRequest{PageToken: token, Name: "x"})),
		"another space":    second(w.Client(1).Executions.ListExecutions(w.ctx, &leaseholdv1.ListExecutionsRequest{PageToken: token, Namespace: "x"})),
		"garbage":          second(w.Client(1).Executions.ListExecutions(w.ctx, &leaseholdv1.ListExecutionsRequest{PageToken: "\x00garbage"})),
		"cut":              second(w.Client(1).Executions.ListExecutions(w.ctx, &leaseholdv1.ListExecutionsRequest{PageToken: token[:len(token)-3]})),
		"another question": entries(ids[0], token),
	} {
		want(t, what, status.Code(err), codes.InvalidArgument)
	}
	if _, err := w.Client(2).Executions.ListExecutions(w.ctx, &leaseholdv1.ListExecutionsRequest{PageToken: token, PageSize: 1}); err != nil {
		t.Errorf("another page size: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }
