package hostile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

const (
	// hangs is after how long a call without an answer is a fault. A poll waits 30 ms here.
	hangs = 8 * time.Second
	// afterPoll is how long after a poll its traces may appear: a stopwatch's time, monotonic.
	afterPoll = time.Second
	// watches is how long a watch is listened to.
	watches = 40 * time.Millisecond
)

// wireCodec sends requests that are bytes already.
type wireCodec struct{ encoding.CodecV2 }

// Marshal takes bytes as they are.
func (c wireCodec) Marshal(v any) (mem.BufferSlice, error) {
	if wire, isWire := v.([]byte); isWire {
		return mem.BufferSlice{mem.SliceBuffer(wire)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// play runs a script, and judges what comes of it.
func play(t *testing.T, s *stage, methods []protoreflect.MethodDescriptor, data []byte) {
	w := s.world(t)
	src := &source{data: data}
	flags := src.next()
	for n := 0; n < mostCalls && len(src.data) > 0; n++ {
		method, wire := nextCall(src, w.pool, methods)
		w.call(t, method, wire, flags&flagDigest != 0)
		if method.Name() == "LeaseAttempt" {
			w.polled = time.Now()
		}
		if t.Failed() {
			return
		}
	}
	if flags&flagSweep != 0 {
		w.sweep(t)
	}
	if w.scripts%checkEvery == 0 {
		w.check(t)
	}
	if bugs := w.log.heard(); len(bugs) > 0 {
		t.Errorf("the server calls it a bug: %v", bugs)
	}
}

// call makes one call and judges its answer.
func (w *world) call(t *testing.T, method protoreflect.MethodDescriptor, wire []byte, compare bool) {
	before := ""
	if compare {
		before = w.digest(t)
	}
	answers, err := w.invoke(method, wire)
	request := newMessage(method.Input())
	undecoded := proto.Unmarshal(wire, request)
	tell := func(format string, args ...any) {
		t.Errorf("%s: %s\nrequest (%v): %.2000s\nbytes: %.400x", method.FullName(), fmt.Sprintf(format, args...), undecoded, prototext.Format(request), wire)
	}
	for _, a := range answers {
		w.pool.learn(request, a)
		for _, item := range itemsOf(a) {
			for _, fault := range faults(item) {
				tell("an item is answered %v: %s", item, fault)
			}
		}
	}
	st := status.Convert(err)
	for _, fault := range faults(st) {
		tell("answered %v (%v): %s", st.Code(), err, fault)
	}
	if undecoded != nil && st.Code() != codes.InvalidArgument && st.Code() != codes.ResourceExhausted {
		tell("what is no message is answered %v", err)
	}
	if compare && leavesNothing(st) {
		if after := w.digest(t); after != before && w.again(t, method, wire) {
			tell("refused %v, and yet something changed:\n%s\n%s", err, before, after)
		}
	}
}

// again tells whether a refused call changes something each time. Soon after a poll something may
// have changed by itself: one that was answered empty may have met a grant that was just being
// made; that is made all the same, and handed back.
func (w *world) again(t *testing.T, method protoreflect.MethodDescriptor, wire []byte) bool {
	for n := 0; n < 5 && time.Since(w.polled) < afterPoll; n++ {
		before := w.digest(t)
		_, _ = w.invoke(method, wire)
		if w.digest(t) == before {
			return false
		}
	}
	return true
}

// invoke sends a message and reads what comes.
func (w *world) invoke(method protoreflect.MethodDescriptor, wire []byte) ([]proto.Message, error) {
	name := fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
	codec := grpc.ForceCodecV2(wireCodec{encoding.GetCodecV2("proto")})
	ctx, cancel := context.WithTimeout(context.Background(), hangs)
	defer cancel()
	answer := newMessage(method.Output())
	if !method.IsStreamingServer() {
		err := w.conn.Invoke(ctx, name, wire, answer, codec)
		if err != nil {
			return nil, err
		}
		return []proto.Message{answer}, nil
	}
	stream, err := w.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, name, codec)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(stream.SendMsg(wire), stream.CloseSend()); err != nil {
		return nil, err
	}
	// A snapshot is owed, the rest is listened to for a moment.
	var answers []proto.Message
	if !goesOn(method, wire) {
		if err := stream.RecvMsg(answer); err != nil {
			return nil, ended(err)
		}
		answers = append(answers, answer)
	}
	defer time.AfterFunc(watches, cancel).Stop()
	for {
		next := newMessage(method.Output())
		if err := stream.RecvMsg(next); err != nil {
			if status.Code(err) == codes.Canceled {
				return answers, nil
			}
			return answers, ended(err)
		}
		answers = append(answers, next)
	}
}

// goesOn tells whether a watch asks for what comes next only, which may be nothing.
func goesOn(method protoreflect.MethodDescriptor, wire []byte) bool {
	request := newMessage(method.Input())
	watch, isWatch := request.(*leaseholdv1.WatchExecutionRequest)
	return isWatch && proto.Unmarshal(wire, request) == nil && watch.GetAfterRevision() > 0
}

func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// itemsOf are the errors of a batch's items.
func itemsOf(answer proto.Message) []*status.Status {
	var list []*status.Status
	switch a := answer.(type) {
	case *leaseholdv1.BatchRenewLeasesResponse:
		for _, r := range a.GetResults() {
			list = append(list, status.FromProto(r.GetError()))
		}
	case *leaseholdv1.BatchReportAttemptsResponse:
		for _, r := range a.GetResults() {
			list = append(list, status.FromProto(r.GetError()))
		}
	}
	return list
}

// faults are what is wrong with a status, whatever the request was.
func faults(st *status.Status) []string {
	var found []string
	switch st.Code() {
	case codes.OK:
		return nil
	case codes.ResourceExhausted:
		if strings.HasPrefix(st.Message(), "grpc: received message larger than max") {
			return nil
		}
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.FailedPrecondition:
	default:
		found = append(found, "no client should get this code for what it sent")
	}
	var info *errdetails.ErrorInfo
	fields := 0
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			info = d
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				if fields++; v.GetField() == "" || v.GetDescription() == "" {
					found = append(found, "a violation that does not say of what")
				}
			}
		}
	}
	if info.GetDomain() != "leasehold" || info.GetReason() == "" {
		found = append(found, "no reason")
	}
	if st.Code() == codes.InvalidArgument && fields == 0 {
		found = append(found, "no field is named")
	}
	text := fmt.Sprint(st.Proto())
	if !utf8.ValidString(st.Message()) || strings.ContainsAny(st.Message(), "\x00") || strings.Contains(text, "SQLSTATE") {
		found = append(found, "its text is not for clients")
	}
	return found
}

// leavesNothing tells whether after an answer everything has to be as it was. A late report or
// renewal is noted in the timeline.
func leavesNothing(st *status.Status) bool {
	switch st.Code() {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists:
		return true
	case codes.FailedPrecondition:
		for _, d := range st.Details() {
			if info, isInfo := d.(*errdetails.ErrorInfo); isInfo && info.GetMetadata()["held_lease_version"] != "" {
				return false
			}
		}
		return true
	}
	return false
}

// digest sums up all that calls can change.
func (w *world) digest(t *testing.T) string {
	var digest string
	if err := w.db.QueryRow(context.Background(), digestQuery).Scan(&digest); err != nil {
		t.Fatal(err)
	}
	return digest
}

const digestQuery = `
SELECT concat_ws(' ',
    (SELECT format('executions %s %s %s %s', count(*), sum(revision), sum(sequence), sum(round)) FROM executions),
    (SELECT format('steps %s %s', count(*), sum(attempts_ended)) FROM steps),
    (SELECT format('edges %s', count(*)) FROM step_edges),
    (SELECT format('payloads %s', count(*)) FROM payloads),
    (SELECT format('requests %s', count(*)) FROM scheduling_requests),
    (SELECT format('attempts %s %s', count(*), count(*) FILTER (WHERE state = 'LEASED')) FROM attempts),
    (SELECT format('leases %s %s %s', count(*), sum(lease_version % 1000000), max(expires_at)) FROM leases),
    (SELECT format('workers %s %s %s %s', count(*), count(session_id), count(*) FILTER (WHERE draining), max(registered_at)) FROM workers),
    (SELECT format('sessions %s %s', count(*), count(ended_at)) FROM sessions),
    (SELECT format('capabilities %s %s', count(*), count(*) FILTER (WHERE paused)) FROM capabilities),
    (SELECT format('drains %s', count(*)) FROM drains),
    (SELECT format('timers %s %s', count(*), max(fires_at)) FROM timers),
    (SELECT format('entries %s %s', count(*), sum(count)) FROM timeline_entries),
    (SELECT format('events %s %s', count(*), count(*) FILTER (WHERE status = 'SKIPPED')) FROM outbox_events))`
