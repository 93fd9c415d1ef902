package grpcapi

import (
	"context"
	"math"
	"strings"
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
			g := generator{t, rapid.Bool().Draw(t, "tame")}
			request := g.message(method.Input(), 0)
			answer := newMessage(t, method.Output()).Interface()
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			name := "/" + string(method.Parent().FullName()) + "/" + string(method.Name())
			err := r.conn.Invoke(ctx, name, request, answer) // streams have one message here
			cancel()
			got := takeApart(status.Convert(err))
			switch got.code {
			case codes.OK:
				accepted++
				checkItems(t, answer)
			case codes.InvalidArgument:
				refused++
				checkRefusal(t, got)
			default:
				t.Fatalf("%s: %v\n%v", name, err, request)
			}
		}
	})
	t.Logf("%d accepted, %d refused", accepted, refused)
	if accepted < refused/20 || refused < accepted/20 {
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

func checkRefusal(t *rapid.T, got refusal) {
	if got.info.GetReason() == "" || len(got.fields) == 0 || got.fields[""] != "" || got.count != len(got.fields) {
		t.Fatalf("a refusal that says nothing: %v", got)
	}
}

// checkItems looks at the errors of a batch's items.
func checkItems(t *rapid.T, answer proto.Message) {
	if batch, ok := answer.(*leaseholdv1.BatchReportAttemptsResponse); ok {
		for _, result := range batch.GetResults() {
			if e := result.GetError(); e != nil {
				checkRefusal(t, refusalOfItem(e))
			}
		}
	}
	if batch, ok := answer.(*leaseholdv1.BatchRenewLeasesResponse); ok {
		for _, result := range batch.GetResults() {
			if e := result.GetError(); e != nil {
				checkRefusal(t, refusalOfItem(e))
			}
		}
	}
}

func newMessage(t *rapid.T, d protoreflect.MessageDescriptor) protoreflect.Message {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		t.Fatal(err)
	}
	return kind.New()
}

// generator makes messages; tame ones are mostly good.
type generator struct {
	t    *rapid.T
	tame bool
}

func (g generator) message(d protoreflect.MessageDescriptor, depth int) proto.Message {
	m := newMessage(g.t, d)
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if rapid.IntRange(0, 9).Draw(g.t, string(f.Name())) < 3 && !g.needed(f) || depth > 4 {
			continue
		}
		switch {
		case f.IsMap():
			entries := m.Mutable(f).Map()
			for range rapid.IntRange(0, 3).Draw(g.t, "entries") {
				entries.Set(protoreflect.ValueOfString(g.text(f)).MapKey(), protoreflect.ValueOfString(g.text(f)))
			}
		case f.IsList():
			list := m.Mutable(f).List()
			for range rapid.IntRange(0, 4).Draw(g.t, "items") {
				list.Append(g.value(f, depth))
			}
		default:
			m.Set(f, g.value(f, depth))
		}
	}
	return m.Interface()
}

func (g generator) needed(f protoreflect.FieldDescriptor) bool {
	return g.tame && (strings.HasSuffix(string(f.Name()), "_id") || f.Name() == "name" || f.Name() == "capability" ||
		f.Name() == "lease_version" || f.ContainingOneof() != nil)
}

func (g generator) value(f protoreflect.FieldDescriptor, depth int) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.MessageKind:
		return protoreflect.ValueOfMessage(g.message(f.Message(), depth+1).ProtoReflect())
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(g.text(f))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(g.t, "bytes"))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(rapid.Bool().Draw(g.t, "bool"))
	default:
		return g.number(f.Kind())
	}
}

func (g generator) number(k protoreflect.Kind) protoreflect.Value {
	n := rapid.Int64Range(1, 7).Draw(g.t, "small")
	double := rapid.Just(1.0)
	if !g.tame {
		n = rapid.OneOf(rapid.Int64(), rapid.Int64Range(-2, 100)).Draw(g.t, "any")
		double = rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), 0, 1, 2}))
	}
	switch k {
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(n))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(n)
	default:
		return protoreflect.ValueOfFloat64(double.Draw(g.t, "double"))
	}
}

func (g generator) text(f protoreflect.FieldDescriptor) string {
	name := string(f.Name())
	switch {
	case !g.tame:
		return rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{
			"", "a", "a/b.c-d", someID, uuid.Nil.String(), `{"a":"\u0000"}`, "\x00", "a\x00b", "{", "ä",
			"urn:uuid:" + someID, "{" + someID + "}", bind("ListTimeline").numberToken(1),
		})).Draw(g.t, name)
	case strings.HasSuffix(name, "_id"):
		return someID
	case name == "json":
		return rapid.SampledFrom([]string{`"\u0000"`, "[1e999]", "null"}).Draw(g.t, name)
	case name == "page_token", name == "idempotency_key", name == "depends_on":
		return ""
	default:
		return rapid.StringMatching("[a-z]{1,8}").Draw(g.t, name)
	}
}
