package demo

import (
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

// retries has gRPC try again what is safe to repeat: a producer's call with an idempotency key
// is, and a report. The other calls of workers are repeated by the SDK.
const retries = `{"methodConfig": [{
	"name": [{"service": "leasehold.v1.ExecutionService"}, {"service": "leasehold.v1.WorkerService", "method": "ReportAttempt"}],
	"waitForReady": true,
	"retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.1s", "maxBackoff": "1s", "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}
}]}`

// dial connects to one of the replicas: to that with the index first, and when it is gone to
// the one after it, and so on round.
func dial(replicas []string, first int, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	var state resolver.State
	for i := range replicas {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: replicas[(first+i)%len(replicas)]})
	}
	names := manual.NewBuilderWithScheme("replicas")
	names.InitialState(state)
	conn, err := grpc.NewClient("replicas:///", append(options,
		grpc.WithResolvers(names),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithDefaultServiceConfig(retries),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
	)...)
	if err != nil {
		return nil, fmt.Errorf("connect to the replicas: %w", err)
	}
	return conn, nil
}
