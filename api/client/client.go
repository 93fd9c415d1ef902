// Package client is a producer's sugar over the generated stubs: a connection to several
// servers that repeats what is safe to repeat, idempotency keys, typed payloads, and waiting
// for an execution's end.
//
//	c, err := client.Dial([]string{"127.0.0.1:50051"})
//	input, err := client.JSON(Mail{To: "ada@example.com"})
//	answer, err := c.EnqueueExecution(ctx, &leaseholdv1.EnqueueExecutionRequest{Name: "welcome", Steps: ...})
//	done, err := c.Wait(ctx, answer.GetExecution().GetId())
//
// It imports nothing but the stubs. Everything here can be done with them alone: [ServiceConfig]
// is for those who do.
package client

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// ServiceConfig is a service config of grpc: calls go round all servers, and those that are
// safe to repeat are, up to four times within about 5 s, when they are answered UNAVAILABLE.
// An enqueue is safe with an idempotency key, and RetryExecution with a request_id; without them
// a call that was carried out, and whose answer was lost, is carried out again. A Client fills
// them in.
const ServiceConfig = `{
	"loadBalancingConfig": [{"round_robin": {}}],
	"methodConfig": [{
		"name": [
			{"service": "leasehold.v1.ExecutionService", "method": "EnqueueExecution"},
			{"service": "leasehold.v1.ExecutionService", "method": "BatchEnqueueExecutions"},
			{"service": "leasehold.v1.ExecutionService", "method": "GetExecution"},
			{"service": "leasehold.v1.ExecutionService", "method": "ListExecutions"},
			{"service": "leasehold.v1.ExecutionService", "method": "CancelExecution"},
			{"service": "leasehold.v1.ExecutionService", "method": "RetryExecution"},
			{"service": "leasehold.v1.ExecutionService", "method": "ListTimeline"}
		],
		"retryPolicy": {
			"maxAttempts": 5, "initialBackoff": "0.2s", "maxBackoff": "2s", "backoffMultiplier": 3,
			"retryableStatusCodes": ["UNAVAILABLE"]
		}
	}]
}`

// Client has all methods of the ExecutionService. It may be used by several goroutines.
type Client struct {
	leaseholdv1.ExecutionServiceClient
	conn *grpc.ClientConn // nil: it is somebody else's
}

// Dial prepares a client of servers at one or more addresses, which connects when it is first
// used, without TLS unless the options have other credentials. Close it.
func Dial(addresses []string, opts ...grpc.DialOption) (*Client, error) {
	var state resolver.State
	for _, address := range addresses {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: address})
	}
	servers := manual.NewBuilderWithScheme("leasehold")
	servers.InitialState(state)
	reconnect := backoff.DefaultConfig
	reconnect.BaseDelay, reconnect.MaxDelay = 100*time.Millisecond, 5*time.Second
	conn, err := grpc.NewClient("leasehold:///", append([]grpc.DialOption{
		grpc.WithResolvers(servers),
		grpc.WithDefaultServiceConfig(ServiceConfig),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: 3 * time.Second}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 20 * time.Second}), // the servers allow one every 10 s
	}, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to %v: %w", addresses, err)
	}
	c := New(conn)
	c.conn = conn
	return c, nil
}

// New makes a client of a connection, which stays the caller's.
func New(conn grpc.ClientConnInterface) *Client {
	return &Client{ExecutionServiceClient: leaseholdv1.NewExecutionServiceClient(conn)}
}

// Close closes the connection, if it was made by Dial.
func (c *Client) Close() error {
	if c.conn == nil {
		return nil
	}
	return c.conn.Close()
}

// EnqueueExecution is the stub's, but that it fills in an idempotency key where there is none:
// in the request itself, so that who sends that again, after whatever error, still means the
// same execution.
func (c *Client) EnqueueExecution(ctx context.Context, req *leaseholdv1.EnqueueExecutionRequest, opts ...grpc.CallOption) (*leaseholdv1.EnqueueExecutionResponse, error) {
	fillKey(req)
	return c.ExecutionServiceClient.EnqueueExecution(ctx, req, opts...)
}

// BatchEnqueueExecutions is the stub's, but that it fills in idempotency keys as
// EnqueueExecution does.
func (c *Client) BatchEnqueueExecutions(ctx context.Context, req *leaseholdv1.BatchEnqueueExecutionsRequest, opts ...grpc.CallOption) (*leaseholdv1.BatchEnqueueExecutionsResponse, error) {
	for _, one := range req.GetRequests() {
		fillKey(one)
	}
	return c.ExecutionServiceClient.BatchEnqueueExecutions(ctx, req, opts...)
}

// RetryExecution is the stub's, but that it fills in a request_id in the same way.
func (c *Client) RetryExecution(ctx context.Context, req *leaseholdv1.RetryExecutionRequest, opts ...grpc.CallOption) (*leaseholdv1.RetryExecutionResponse, error) {
	if req.GetRequestId() == "" {
		req.RequestId = uuid.NewString()
	}
	return c.ExecutionServiceClient.RetryExecution(ctx, req, opts...)
}

func fillKey(req *leaseholdv1.EnqueueExecutionRequest) {
	if req.GetIdempotencyKey() == "" {
		req.IdempotencyKey = uuid.NewString()
	}
}

// JSON makes a payload of JSON text.
func JSON(v any) (*leaseholdv1.Payload, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Json{Json: string(text)}, ContentType: "application/json"}, nil
}

// Output decodes the JSON output of a step of an execution that was read with its payloads, as
// Wait does. A step without an output leaves the zero value.
func Output[T any](e *leaseholdv1.Execution, step string) (T, error) {
	var v T
	for _, s := range e.GetSteps() {
		if s.GetName() != step {
			continue
		}
		text := append(s.GetOutput().GetData(), s.GetOutput().GetJson()...) // there is only one of them
		if len(text) == 0 {
			return v, nil
		}
		if err := json.Unmarshal(text, &v); err != nil {
			return v, fmt.Errorf("decode output of step %q: %w", step, err)
		}
		return v, nil
	}
	return v, fmt.Errorf("execution %s has no step %q", e.GetId(), step)
}

// Reason is the service's reason for an error, as "IDEMPOTENCY_KEY_REUSED"; empty if the
// error is not the service's own.
func Reason(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == "leasehold" {
			return info.GetReason()
		}
	}
	return ""
}
