package history

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
)

// Stream records how streams of a client end, where that is a bug.
func (r *Recorder) Stream(client string) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		ops := []Op{{Kind: Other, Client: client, Key: method}}
		id := r.begin(ops)
		stream, err := open(ctx, desc, cc, method, opts...)
		if err != nil {
			r.end(id, answered(ops, nil, err))
			return nil, err
		}
		return &recordedStream{ClientStream: stream, ended: func(err error) { r.end(id, answered(ops, nil, err)) }}, nil
	}
}

// recordedStream tells how a stream ends.
type recordedStream struct {
	grpc.ClientStream
	ended func(error)
}

// RecvMsg waits for the next message, or the end.
func (s *recordedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil && !errors.Is(err, io.EOF) {
		s.ended(err)
	}
	return err
}
