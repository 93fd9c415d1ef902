package worker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/api/worker"
)

func TestJob_TellsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		got := make(chan error, 1)
		granted := &leaseholdv1.Lease{
			ExecutionId: "e", ExecutionName: "en", StepId: "s", StepName: "sn", Capability: "x", AttemptId: "a",
			AttemptNumber: 3, LeaseVersion: 1 << 41, Labels: map[string]string{"k": "v"},
			PreviousFailure: &leaseholdv1.Failure{Message: "before"}, Checkpoint: jsonPayload(`{"n":7}`),
			ParentOutputs: map[string]*payload{"p": jsonPayload(`{"n":8}`), "none": {}},
		}
		_, conn := connect(t, f)
		w := worker.New(config(conn))
		worker.Handle(w, "x", func(ctx context.Context, job *worker.Job[number]) (struct{}, error) {
			got <- checkJob(ctx, job)
			return struct{}{}, nil
		})
		s := start(t, w)
		f.enqueue(granted)
		if err := <-got; err != nil {
			t.Error(err)
		}
		s.mustStop(t)
	})
}

func checkJob(ctx context.Context, job *worker.Job[number]) error {
	var checkpoint, parent number
	found, err := job.DecodeCheckpoint(&checkpoint)
	missing := job.ParentOutput(ctx, "nobody", &parent)
	empty := job.ParentOutput(ctx, "none", &parent)
	errs := []error{err, job.ParentOutput(ctx, "p", &parent)}
	for what, ok := range map[string]bool{
		"execution":  job.ExecutionID() == "e" && job.ExecutionName() == "en",
		"step":       job.StepID() == "s" && job.StepName() == "sn" && job.Capability() == "x",
		"attempt":    job.AttemptID() == "a" && job.AttemptNumber() == 3 && job.LeaseVersion() == 1<<41,
		"labels":     job.Labels()["k"] == "v",
		"failure":    job.PreviousFailure().GetMessage() == "before",
		"checkpoint": found && checkpoint.N == 7 && job.Checkpoint().GetJson() == `{"n":7}`,
		"parent":     parent.N == 8,
		"no parent":  errors.Is(missing, worker.ErrNoSuchParent) && errors.Is(empty, worker.ErrNoSuchParent),
		"no input":   job.Input == number{},
		"lease":      job.Lease().GetAttemptId() == "a",
	} {
		if !ok {
			errs = append(errs, errors.New(what+" is wrong"))
		}
	}
	return errors.Join(errs...)
}

func TestJob_ReadsParentsThatWereTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.inputs = []map[string]*payload{{"a": jsonPayload(`{"n":1}`)}, {"b": jsonPayload(`{"n":2}`)}}
		_, conn := connect(t, f)
		w := worker.New(config(conn))
		worker.Handle(w, "x", func(ctx context.Context, job *worker.Job[any]) (int, error) {
			sum := 0
			for _, name := range []string{"a", "b", "a"} {
				var v number
				if err := job.ParentOutput(ctx, name, &v); err != nil {
					return 0, err
				}
				sum += v.N
			}
			return sum, nil
		})
		s := start(t, w)
		l := lease("x", "null")
		l.ParentOutputsOmitted = true
		f.enqueue(l)
		synctest.Wait()
		if st := f.state(); len(st.reports) != 1 || st.reports[0].GetSucceeded().GetOutput().GetJson() != "4" {
			t.Errorf("reports = %v, want 4", st.reports)
		}
		s.mustStop(t)
	})
}
