package telemetry

import (
	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
)

// calls observes gRPC, by the names that the ecosystem knows.
type calls struct{ metrics *grpcprom.ServerMetrics }

func newCalls(r prometheus.Registerer) *calls {
	// A poll for work is answered after up to 55 s.
	buckets := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	c := &calls{grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram(grpcprom.WithHistogramBuckets(buckets)))}
	r.MustRegister(c.metrics)
	return c
}

// ServerOptions are what a gRPC server is made with, before all interceptors of its own.
func (t *Telemetry) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(t.calls.metrics.UnaryServerInterceptor()),
		grpc.ChainStreamInterceptor(t.calls.metrics.StreamServerInterceptor()),
	}
}
