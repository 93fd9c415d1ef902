package worker

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

const (
	// connectTimeout is for one try to connect, until the server has said something.
	connectTimeout = 3 * time.Second
	// A connection on which nothing was heard for pingAfter is asked for a sign of life, and
	// given up without one after pingTimeout: not soon, for it may be a machine that is slow,
	// and a thousand workers that connect anew do not make it faster. Calls that hang are
	// noticed by their own limits. The servers allow a ping every 10 s.
	pingAfter   = 20 * time.Second
	pingTimeout = 20 * time.Second
	// spread makes use of all servers behind one name.
	spread = `{"loadBalancingConfig": [{"round_robin": {}}]}`
)

// dial makes a connection that notices a dead peer. It connects when it is first used.
func dial(address string, further []grpc.DialOption) (link, error) {
	reconnect := backoff.DefaultConfig
	reconnect.BaseDelay = backoffBase
	reconnect.MaxDelay = backoffCap / 2
	conn, err := grpc.NewClient(address, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(spread),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: connectTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout, PermitWithoutStream: true}),
	}, further...)...)
	if err != nil {
		return link{}, err
	}
	return link{conn: conn, client: leaseholdv1.NewWorkerServiceClient(conn), own: conn}, nil
}
