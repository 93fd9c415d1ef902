package grpcapi

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"pgregory.net/rapid"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

// TestRandomRequests_NeverInternal sends messages of any content to every method: each is
// answered OK, or refused for a reason that is told.
func TestRandomRequests_NeverInternal(t *testing.T) {
	t.Parallel()
	app := &fakeApp{poll: func(_ context.Context, p scheduler.Poll) (scheduler.PollAnswer, error) {
		return scheduler.PollAnswer{Leases: make([]scheduler.LeaseView, min(p.MaxLeases, 3))}, nil
	}}
	r := newRig(t, app, Config{MaxPayloadBytes: 8})
	accepted, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		for _, method := range allMethods() {
			request := draw(t, method.Input(), 0)
			answerType, err := protoregistry.GlobalTypes.FindMessageByName(method.Output().FullName())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			name := "/" + string(method.Parent().FullName()) + "/" + string(method.Name())
			err = r.conn.Invoke(ctx, name, request, answerType.New().Interface())
			cancel()
			switch status.Code(err) {
			case codes.OK:
				accepted++
			case codes.InvalidArgument:
				refused++
				if got := takeApart(status.Convert(err)); got.info.GetReason() == "" || len(got.fields) == 0 || got.fields[""] != "" || got.count != len(got.fields) {
					t.Fatalf("%s: a refusal that says nothing: %v", name, got)
				}
			default:
				t.Fatalf("%s: %v\n%v", name, err, request)
			}
		}
	})
	t.Logf("%d accepted, %d refused", accepted, refused)
	if accepted == 0 || refused == 0 {
		t.Error("the requests are too much alike")
	}
}

func allMethods() []protoreflect.MethodDescriptor {
	var list []protoreflect.MethodDescriptor
	for _, file := range []protoreflect.FileDescriptor{
		leaseholdv1.File_leasehold_v1_execution_service_proto, leaseholdv1.File_leasehold_v1_worker_service_proto,
	} {
		for i := range file.Services().Len() {
			for j := range file.Services().Get(i).Methods().Len() {
				list = append(list, file.Services().Get(i).Methods().Get(j))
			}
		}
	}
	return list
}

// draw makes a message of a type, with values that are good more often than chance would have it.
func draw(t *rapid.T, d protoreflect.MessageDescriptor, depth int) proto.Message {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		t.Fatal(err)
	}
	m := kind.New()
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		switch share := rapid.IntRange(0, 9).Draw(t, string(f.Name())); {
		case share < 3 || depth > 4:
		case f.IsMap():
			entries := m.Mutable(f).Map()
			for range rapid.IntRange(0, 3).Draw(t, "entries") {
				entries.Set(protoreflect.ValueOfString(drawString(t, f)).MapKey(), protoreflect.ValueOfString(drawString(t, f)))
			}
		case f.IsList():
			list := m.Mutable(f).List()
			for range rapid.IntRange(0, 4).Draw(t, "items") {
				list.Append(drawValue(t, f, depth))
			}
		default:
			m.Set(f, drawValue(t, f, depth))
		}
	}
	return m.Interface()
}

func drawValue(t *rapid.T, f protoreflect.FieldDescriptor, depth int) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.MessageKind:
		return protoreflect.ValueOfMessage(draw(t, f.Message(), depth+1).ProtoReflect())
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(drawString(t, f))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(rapid.SliceOfN(rapid.Byte(), 0, 12).Draw(t, "bytes"))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(rapid.Bool().Draw(t, "bool"))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(rapid.Int32Range(-1, 9).Draw(t, "enum")))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(rapid.OneOf(rapid.Int32(), rapid.Int32Range(-2, 100)).Draw(t, "int32"))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(rapid.OneOf(rapid.Int64(), rapid.Int64Range(-2, 100)).Draw(t, "int64"))
	default:
		return protoreflect.ValueOfFloat64(rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), 0, 1, 2})).Draw(t, "double"))
	}
}

func drawString(t *rapid.T, f protoreflect.FieldDescriptor) string {
	good := []string{"", "a", "b", "a/b.c-d", someID, uuid.Nil.String(), `{"a":"\u0000"}`, `[1e999]`}
	return rapid.OneOf(
		rapid.SampledFrom(good), rapid.SampledFrom(good), rapid.String(),
		rapid.SampledFrom([]string{"\x00", "a\x00b", "{", "ä", "urn:uuid:" + someID, "{" + someID + "}", bind("ListTimeline").numberToken(1)}),
	).Draw(t, string(f.Name()))
}
