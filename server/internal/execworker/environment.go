package execworker

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/api/worker"
)

// environment is what a program knows of its attempt, beside what the worker's own environment
// has: LEASEHOLD_EXECUTION_ID, _EXECUTION_NAME, _STEP_ID, _STEP_NAME, _CAPABILITY, _ATTEMPT_ID,
// _ATTEMPT_NUMBER, _LEASE_VERSION (the fencing token), _LABELS (a JSON object), and the names of
// two files: _PARENT_OUTPUTS (a JSON object from parents' names to their outputs; what is not
// JSON is a string in base64) and _CHECKPOINT (the last one of an earlier attempt; empty if
// there is none). The files are gone when the attempt is over.
func environment(ctx context.Context, job *worker.Job[*leaseholdv1.Payload]) (env []string, cleanup func(), err error) {
	parents, err := parentOutputs(ctx, job)
	if err != nil {
		return nil, nil, err
	}
	labels, err := json.Marshal(job.Labels())
	if err != nil {
		return nil, nil, fmt.Errorf("encode labels: %w", err)
	}
	folder, err := os.MkdirTemp("", "leasehold-attempt-")
	if err != nil {
		return nil, nil, fmt.Errorf("make a folder for the attempt: %w", err)
	}
	cleanup = func() { _ = os.RemoveAll(folder) }
	files := map[string][]byte{"parent_outputs.json": parents, "checkpoint": bodyOf(job.Checkpoint())}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o600); err != nil {
			cleanup()
			return nil, nil, fmt.Errorf("write %s: %w", name, err)
		}
	}
	set := func(name, value string) { env = append(env, "LEASEHOLD_"+name+"="+value) }
	set("EXECUTION_ID", job.ExecutionID())
	set("EXECUTION_NAME", job.ExecutionName())
	set("STEP_ID", job.StepID())
	set("STEP_NAME", job.StepName())
	set("CAPABILITY", job.Capability())
	set("ATTEMPT_ID", job.AttemptID())
	set("ATTEMPT_NUMBER", strconv.Itoa(job.AttemptNumber()))
	set("LEASE_VERSION", strconv.FormatInt(job.LeaseVersion(), 10))
	set("LABELS", string(labels))
	set("PARENT_OUTPUTS", filepath.Join(folder, "parent_outputs.json"))
	set("CHECKPOINT", filepath.Join(folder, "checkpoint"))
	return env, cleanup, nil
}

func parentOutputs(ctx context.Context, job *worker.Job[*leaseholdv1.Payload]) ([]byte, error) {
	outputs, err := job.ParentOutputs(ctx)
	if err != nil {
		return nil, err
	}
	values := make(map[string]any, len(outputs))
	for name, p := range outputs {
		switch body := p.GetBody().(type) {
		case *leaseholdv1.Payload_Json:
			values[name] = json.RawMessage(body.Json)
		case *leaseholdv1.Payload_Data:
			values[name] = body.Data // base64
		default:
			values[name] = nil
		}
	}
	text, err := json.Marshal(values)
	if err != nil {
		return nil, fmt.Errorf("encode parents' outputs: %w", err)
	}
	return text, nil
}
