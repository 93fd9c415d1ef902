package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// Wait waits until an execution has ended, however that is, and returns it with its steps and
// payloads. It goes on through another server when one stops, until ctx ends. Errors: those of
// ctx; NOT_FOUND; what else GetExecution and WatchExecution refuse.
func (c *Client) Wait(ctx context.Context, executionID string) (*leaseholdv1.Execution, error) {
	req := &leaseholdv1.WatchExecutionRequest{ExecutionId: executionID}
	for try := 0; ; try++ {
		err := c.watch(ctx, req)
		switch code := status.Code(err); {
		case err == nil:
			return c.read(ctx, executionID)
		case ctx.Err() != nil:
			return nil, fmt.Errorf("wait for execution %s: %w", executionID, ctx.Err())
		case code == codes.DeadlineExceeded: // the server's clock for it was a little faster than ours
			return nil, fmt.Errorf("wait for execution %s: %w", executionID, context.DeadlineExceeded)
		case code != codes.Unavailable && code != codes.ResourceExhausted:
			return nil, fmt.Errorf("wait for execution %s: %w", executionID, err)
		}
		d := 100 * time.Millisecond << min(try, 5)
		select {
		case <-time.After(d/2 + rand.N(d/2)): // only spreads load
		case <-ctx.Done():
		}
	}
}

// watch follows an execution to its end, and notes in the request how far it came.
func (c *Client) watch(ctx context.Context, req *leaseholdv1.WatchExecutionRequest) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.WatchExecution(ctx, req)
	if err != nil {
		return err
	}
	for {
		told, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if told.GetRevision() > 0 { // else parts of the snapshot are missing
			req.AfterRevision = told.GetRevision()
		}
	}
}

// read reads an execution with all its steps.
func (c *Client) read(ctx context.Context, executionID string) (*leaseholdv1.Execution, error) {
	req := &leaseholdv1.GetExecutionRequest{ExecutionId: executionID, IncludePayloads: true}
	var whole *leaseholdv1.Execution
	for {
		page, err := c.GetExecution(ctx, req)
		if err != nil {
			return nil, fmt.Errorf("read execution %s: %w", executionID, err)
		}
		if whole == nil {
			whole = page.GetExecution()
		} else {
			whole.Steps = append(whole.Steps, page.GetExecution().GetSteps()...)
		}
		if req.PageToken = page.GetNextPageToken(); req.PageToken == "" {
			return whole, nil
		}
	}
}
