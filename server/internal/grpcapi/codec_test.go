package grpcapi

import (
	"errors"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// bytesCodec sends requests that are bytes already.
type bytesCodec struct{ encoding.CodecV2 }

func (c bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	if wire, isWire := v.([]byte); isWire {
		return mem.BufferSlice{mem.SliceBuffer(wire)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// TestUndecodable_IsRefusedAsAnyBadRequest: what is no protobuf message, or has a text that is not
// UTF-8, is the client's fault for every method, streams too. Caught: gRPC's own codec (INTERNAL);
// no look at the mark (accepted as an empty message).
func TestUndecodable_IsRefusedAsAnyBadRequest(t *testing.T) {
	t.Parallel()
	r := newRig(t, &fakeApp{}, Config{})
	mark := protowire.AppendVarint(protowire.AppendTag(nil, undecodableField, protowire.VarintType), 1)
	for _, method := range allMethods() {
		for name, wire := range map[string][]byte{
			"cut off": {0x0a, 0x7f, 'x'}, "not UTF-8": {0x0a, 2, 0xff, 0xfe}, "no tag": {0xff}, "marked": mark,
		} {
			if name == "not UTF-8" && method.Input().Fields().ByNumber(1).Message() != nil {
				continue // there it is a nested message
			}
			err := invokeWire(t, r.conn, string(method.Parent().FullName()), string(method.Name()), method.IsStreamingServer(), wire)
			got := takeApart(status.Convert(err))
			if got.code != codes.InvalidArgument || got.info.GetReason() != "INVALID_FIELD" || got.fields["request"] == "" {
				t.Errorf("%s, %s: %v", method.FullName(), name, err)
			}
		}
	}
	// What is not ours answers as it always did, and the server lives on.
	if err := invokeWire(t, r.conn, "grpc.health.v1.Health", "Check", false, []byte{0xff}); status.Code(err) != codes.Internal {
		t.Errorf("health: %v", err)
	}
	if _, err := healthpb.NewHealthClient(r.conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
}

// TestUndecodable_UnknownFieldsAreNot: a newer client may send more than we know.
func TestUndecodable_UnknownFieldsAreNot(t *testing.T) {
	t.Parallel()
	r := newRig(t, &fakeApp{}, Config{})
	wire, err := proto.Marshal(&leaseholdv1.CancelExecutionRequest{ExecutionId: someID})
	if err != nil {
		t.Fatal(err)
	}
	wire = protowire.AppendVarint(protowire.AppendTag(wire, 18999, protowire.VarintType), 1)
	if err := invokeWire(t, r.conn, "leasehold.v1.ExecutionService", "CancelExecution", false, wire); err != nil {
		t.Error(err)
	}
}

// invokeWire sends bytes as a request, and reads the first answer.
func invokeWire(t *testing.T, conn *grpc.ClientConn, service, method string, streams bool, wire []byte) error {
	t.Helper()
	name := "/" + service + "/" + method
	codec := grpc.ForceCodecV2(bytesCodec{encoding.GetCodecV2("proto")})
	if !streams {
		return conn.Invoke(t.Context(), name, wire, &emptypb.Empty{}, codec)
	}
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, name, codec)
	if err != nil {
		return err
	}
	return errors.Join(stream.SendMsg(wire), stream.CloseSend(), stream.RecvMsg(&emptypb.Empty{}))
}
