package hostile

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/drill"
)

// librarian fills two namespaces, and knows every list that has pages.
type librarian struct {
	t testing.TB
	w *world
}

// noInstant is how a token's binding writes an instant that was not given.
const noInstant = "0001-01-01T00:00:00Z"

func isText(s string) bool { return utf8.ValidString(s) }

func (b *librarian) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *librarian) lists() []list {
	var all []list
	for _, ns := range []string{"one", "two"} {
		ids := b.fill(ns)
		all = append(all, b.executions(ns), b.workers(ns), b.capabilities(ns), b.events(ns), b.timeline(ids[0]))
	}
	all = append(all, b.steps("many"), b.inputs())
	for i := range all {
		all[i].load(b.t)
	}
	return all
}

// fill makes executions, one of which is canceled, and workers.
func (b *librarian) fill(ns string) (ids []string) {
	b.t.Helper()
	ctx, c := context.Background(), b.w.cluster.Client(0)
	for i := range 5 {
		ids = append(ids, b.enqueue(ns, step("s0", "c"+strconv.Itoa(i)), step("s1", "c0")))
		_, err := c.Workers.RegisterWorker(ctx, &leaseholdv1.RegisterWorkerRequest{Namespace: ns, Name: "worker-" + strconv.Itoa(i), Capabilities: []string{"c0"}})
		b.must(err)
	}
	_, err := c.Executions.CancelExecution(ctx, &leaseholdv1.CancelExecutionRequest{ExecutionId: ids[0]})
	b.must(err)
	return ids
}

func (b *librarian) enqueue(ns string, steps ...*leaseholdv1.StepSpec) string {
	b.t.Helper()
	answer, err := b.w.cluster.Client(0).Executions.EnqueueExecution(context.Background(), &leaseholdv1.EnqueueExecutionRequest{Namespace: ns, Name: "job", Steps: steps})
	b.must(err)
	return answer.GetExecution().GetId()
}

func (b *librarian) executions(ns string) list {
	c := b.w.cluster.Client(0).Executions
	return list{
		name: "executions of " + ns, fields: []string{"ListExecutions", ns, "job", "0", "0", noInstant, noInstant},
		read: func(ctx context.Context, token string) (page, error) {
			a, err := c.ListExecutions(ctx, &leaseholdv1.ListExecutionsRequest{Namespace: ns, Name: "job", PageSize: 2, PageToken: token})
			return page{keysOf(a.GetExecutions(), (*leaseholdv1.Execution).GetId), a.GetNextPageToken()}, err
		},
	}
}

func (b *librarian) workers(ns string) list {
	c := b.w.cluster.Client(0).Operators
	return list{
		name: "workers of " + ns, fields: []string{"ListWorkers", ns, "", "", "", "false"},
		read: func(ctx context.Context, token string) (page, error) {
			a, err := c.ListWorkers(ctx, &leaseholdv1.ListWorkersRequest{Namespace: ns, PageSize: 2, PageToken: token})
			return page{keysOf(a.GetWorkers(), (*leaseholdv1.Worker).GetId), a.GetNextPageToken()}, err
		},
	}
}

func (b *librarian) capabilities(ns string) list {
	c := b.w.cluster.Client(0).Operators
	return list{
		name: "capabilities of " + ns, fields: []string{"ListCapabilities", ns, ""},
		read: func(ctx context.Context, token string) (page, error) {
			a, err := c.ListCapabilities(ctx, &leaseholdv1.ListCapabilitiesRequest{Namespace: ns, PageSize: 2, PageToken: token})
			return page{keysOf(a.GetCapabilities(), (*leaseholdv1.Capability).GetName), a.GetNextPageToken()}, err
		},
	}
}

func (b *librarian) events(ns string) list {
	c := b.w.cluster.Client(0).Operators
	return list{
		name: "events of " + ns, fields: []string{"ListOutboxEvents", ns, uuid.Nil.String(), noInstant, "0"},
		read: func(ctx context.Context, token string) (page, error) {
			a, err := c.ListOutboxEvents(ctx, &leaseholdv1.ListOutboxEventsRequest{Namespace: ns, PageSize: 2, PageToken: token})
			return page{keysOf(a.GetEvents(), (*leaseholdv1.OutboxEvent).GetId), a.GetNextPageToken()}, err
		},
	}
}

func (b *librarian) timeline(id string) list {
	c := b.w.cluster.Client(0).Executions
	return list{
		name: "timeline of " + id, fields: []string{"ListTimeline", id},
		read: func(ctx context.Context, token string) (page, error) {
			a, err := c.ListTimeline(ctx, &leaseholdv1.ListTimelineRequest{ExecutionId: id, PageSize: 1, PageToken: token})
			return page{keysOf(a.GetEntries(), (*leaseholdv1.TimelineEntry).GetMilestoneKey), a.GetNextPageToken()}, err
		},
	}
}

// steps is an execution with more steps than a page has.
func (b *librarian) steps(ns string) list {
	b.t.Helper()
	c := b.w.cluster.Client(0).Executions
	many := make([]*leaseholdv1.StepSpec, 1010)
	for i := range many {
		many[i] = &leaseholdv1.StepSpec{Name: fmt.Sprintf("s%d", i), Capability: "many"}
	}
	id := b.enqueue(ns, many...)
	return list{
		name: "steps of " + id, fields: []string{"GetExecution", id, ns, "", "0"},
		read: func(ctx context.Context, token string) (page, error) {
			a, err := c.GetExecution(ctx, &leaseholdv1.GetExecutionRequest{Namespace: ns, ExecutionId: id, PageToken: token})
			return page{keysOf(a.GetExecution().GetSteps(), (*leaseholdv1.Step).GetName), a.GetNextPageToken()}, err
		},
	}
}

// inputs has a live attempt whose parents' outputs need two pages.
func (b *librarian) inputs() list {
	b.t.Helper()
	ctx, c := context.Background(), b.w.cluster.Client(0)
	parents := []string{"p0", "p1", "p2", "p3", "p4"}
	steps := []*leaseholdv1.StepSpec{step("child", "inputs", parents...)}
	for _, p := range parents {
		steps = append(steps, step(p, "inputs"))
	}
	worker, err := c.Register(ctx, &leaseholdv1.RegisterWorkerRequest{Capabilities: []string{"inputs"}, Slots: 5})
	b.must(err)
	b.enqueue("", steps...)
	var child *leaseholdv1.Lease
	for left := len(parents) + 1; left > 0; {
		a, err := c.Workers.LeaseAttempt(ctx, &leaseholdv1.LeaseAttemptRequest{
			WorkerId: worker.ID, SessionId: worker.Session, MaxLeases: 1, WaitTimeout: durationpb.New(time.Second), LeaseDuration: durationpb.New(time.Hour),
		})
		b.must(err)
		for _, child = range a.GetLeases() {
			if left--; left > 0 {
				_, err := worker.Report(ctx, child, drill.Succeeded(drill.Data([]byte(strings.Repeat("x", 900<<10)))))
				b.must(err)
			}
		}
	}
	return list{
		name: "inputs of " + child.GetAttemptId(), fields: []string{"GetStepInputs", child.GetAttemptId()},
		read: func(ctx context.Context, token string) (page, error) {
			a, err := c.Workers.GetStepInputs(ctx, &leaseholdv1.GetStepInputsRequest{
				AttemptId: child.GetAttemptId(), LeaseVersion: child.GetLeaseVersion(), PageToken: token,
			})
			var keys []string
			for name := range a.GetParentOutputs() {
				keys = append(keys, name)
			}
			slices.Sort(keys) // they were declared in this order
			return page{keys, a.GetNextPageToken()}, err
		},
	}
}

func keysOf[T any](items []T, key func(T) string) []string {
	keys := make([]string, len(items))
	for i, item := range items {
		keys[i] = key(item)
	}
	return keys
}
