package workertest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/leasehold/leasehold/api/worker"
	"github.com/leasehold/leasehold/api/worker/workertest"
)

// shout is the handler to be tested.
func shout(_ context.Context, job *worker.Job[string]) (string, error) {
	if job.Input == "" {
		return "", worker.Permanent(errors.New("nothing to shout"))
	}
	return strings.ToUpper(job.Input) + strings.Repeat("!", job.AttemptNumber()), nil
}

func ExampleRun() {
	t := exampleT{} // a test has its *testing.T
	got := workertest.Run(t, shout, "hello", workertest.Attempt{Number: 2})
	fmt.Println(got.State, got.Output)

	got = workertest.Run(t, shout, "", workertest.Attempt{})
	fmt.Println(got.State, got.Failure.GetMessage(), got.Failure.GetNonRetryable())
	// Output:
	// ATTEMPT_STATE_SUCCEEDED HELLO!!
	// ATTEMPT_STATE_FAILED nothing to shout true
}

// exampleT is as much of a test as Run needs.
type exampleT struct{ testing.TB }

func (exampleT) Helper()                  {}
func (exampleT) Context() context.Context { return context.Background() }
func (exampleT) Output() io.Writer        { return io.Discard }
func (exampleT) Fatal(args ...any)        { panic(fmt.Sprint(args...)) }
