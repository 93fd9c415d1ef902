package grpcapi

import (
	"encoding/json"
	"errors"
	"fmt"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/task"
)

// maxStartYear keeps every instant that is counted from a start within the years that a
// Timestamp can tell, 1 to 9999.
const maxStartYear = 9000

// validator checks requests by the rules in the protocol files and by those that cannot stand
// there: graphs, payloads, well-known types. It finds everything at once.
type validator struct {
	rules      protovalidate.Validator
	maxPayload int
}

var _ protovalidate.Validator = (*validator)(nil)

func newValidator(maxPayload int) (*validator, error) {
	rules, err := protovalidate.New(protovalidate.WithMessageDescriptors(requestDescriptors()...))
	if err != nil {
		return nil, err
	}
	return &validator{rules: rules, maxPayload: maxPayload}, nil
}

// requestDescriptors lists the requests of every service, so that their rules are compiled
// at start and not by the first calls.
func requestDescriptors() []protoreflect.MessageDescriptor {
	var list []protoreflect.MessageDescriptor
	for _, file := range []protoreflect.FileDescriptor{
		leaseholdv1.File_leasehold_v1_execution_service_proto,
		leaseholdv1.File_leasehold_v1_worker_service_proto,
		leaseholdv1.File_leasehold_v1_operator_service_proto,
	} {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				list = append(list, methods.Get(j).Input())
			}
		}
	}
	return list
}

// Validate returns a *protovalidate.ValidationError with everything that is wrong. Items of
// batches whose items have results of their own are left to whoever handles them.
func (v *validator) Validate(msg proto.Message, options ...protovalidate.ValidationOption) error {
	if undecodable(msg) {
		return joined(nil, []violation{undecodableViolation()})
	}
	shallow := hasOwnResults(msg)
	if shallow {
		options = append(options, protovalidate.WithFilter(onlyTop(msg)))
	}
	byRules := v.rules.Validate(msg, options...)
	var further []violation
	if !shallow {
		s := search{maxPayload: v.maxPayload}
		s.message("", msg.ProtoReflect())
		further = s.found
	}
	return joined(byRules, further)
}

// joined is one error of both. A rule cannot be evaluated on an instant or a duration out of
// range; the search has found that too.
func joined(byRules error, further []violation) error {
	var found protovalidate.ValidationError
	var violations *protovalidate.ValidationError
	switch {
	case errors.As(byRules, &violations):
		found.Violations = violations.Violations
	case byRules != nil && len(further) == 0:
		return byRules
	}
	for _, f := range further {
		found.Violations = append(found.Violations, f.proto())
	}
	if len(found.Violations) == 0 {
		return nil
	}
	return &found
}

func hasOwnResults(msg proto.Message) bool {
	switch msg.(type) {
	case *leaseholdv1.BatchRenewLeasesRequest, *leaseholdv1.BatchReportAttemptsRequest:
		return true
	default:
		return false
	}
}

// onlyTop checks the fields of the message itself, and nothing inside of them.
func onlyTop(msg proto.Message) protovalidate.FilterFunc {
	top := msg.ProtoReflect().Descriptor().FullName()
	return func(m protoreflect.Message, _ protoreflect.Descriptor) bool {
		return m.Descriptor().FullName() == top
	}
}

// search walks through a request.
type search struct {
	maxPayload int
	found      []violation
}

func (s *search) add(field string, reason task.Reason, format string, args ...any) {
	s.found = append(s.found, violation{Violation: task.Violation{Field: field, Reason: reason, Message: fmt.Sprintf(format, args...)}})
}

func (s *search) message(path string, m protoreflect.Message) {
	switch msg := m.Interface().(type) {
	case *durationpb.Duration:
		if msg.CheckValid() != nil {
			s.add(path, task.ReasonInvalidField, "is not a duration of at most 10,000 years")
		}
	case *timestamppb.Timestamp:
		if msg.CheckValid() != nil {
			s.add(path, task.ReasonInvalidField, "is not an instant of the years 1 to 9999")
		}
	case *leaseholdv1.Payload:
		s.payload(path, msg, s.maxPayload)
	case *leaseholdv1.EnqueueExecutionRequest:
		s.graph(path, msg)
		s.start(path, msg)
		s.fields(path, m)
	case *leaseholdv1.BatchEnqueueExecutionsRequest:
		s.sum(path, msg)
		s.fields(path, m)
	case *leaseholdv1.Failure:
		s.payload(join(path, "details"), msg.GetDetails(), min(s.maxPayload, task.MaxFailureDetails))
		if msg.NextRetryDelay != nil {
			s.message(join(path, "next_retry_delay"), msg.GetNextRetryDelay().ProtoReflect())
		}
	default:
		s.fields(path, m)
	}
}

// fields walks in the order of declaration. Requests have no maps of messages.
func (s *search) fields(path string, m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Message() == nil || f.IsMap() || !m.Has(f) {
			continue
		}
		at := join(path, string(f.Name()))
		if !f.IsList() {
			s.message(at, m.Get(f).Message())
			continue
		}
		list := m.Get(f).List()
		for j := range list.Len() {
			s.message(fmt.Sprintf("%s[%d]", at, j), list.Get(j).Message())
		}
	}
}

func (s *search) graph(path string, r *leaseholdv1.EnqueueExecutionRequest) {
	nodes := make([]task.Node, len(r.GetSteps()))
	for i, step := range r.GetSteps() {
		nodes[i] = task.Node{Name: step.GetName(), DependsOn: step.GetDependsOn()}
	}
	for _, v := range task.CheckGraph(nodes) {
		v.Field = join(path, v.Field)
		s.found = append(s.found, violation{Violation: v})
	}
}

// sum holds a batch to what one execution may have: it is written in one transaction.
func (s *search) sum(path string, r *leaseholdv1.BatchEnqueueExecutionsRequest) {
	steps, edges := 0, 0
	for _, one := range r.GetRequests() {
		steps += len(one.GetSteps())
		for _, step := range one.GetSteps() {
			edges += len(step.GetDependsOn())
		}
	}
	if steps > task.MaxSteps {
		s.add(join(path, "requests"), task.ReasonTooManySteps, "must have at most %d steps together, has %d", task.MaxSteps, steps)
	}
	if edges > task.MaxEdges {
		s.add(join(path, "requests"), task.ReasonTooManyEdges, "must have at most %d edges together, has %d", task.MaxEdges, edges)
	}
}

func (s *search) start(path string, r *leaseholdv1.EnqueueExecutionRequest) {
	if at := r.GetStartAt(); at.IsValid() && at.AsTime().Year() >= maxStartYear {
		s.add(join(path, "start_at"), task.ReasonInvalidField, "must be before the year %d", maxStartYear)
	}
}

// payload checks size first: what is too large is not parsed.
func (s *search) payload(path string, p *leaseholdv1.Payload, limit int) {
	text, isJSON := p.GetBody().(*leaseholdv1.Payload_Json)
	size := len(p.GetData())
	if isJSON {
		size = len(text.Json)
	}
	switch {
	case size > limit:
		s.add(path, task.ReasonPayloadTooLarge, "must be at most %d bytes, has %d", limit, size)
		s.found[len(s.found)-1].limit = limit
	case isJSON && !json.Valid([]byte(text.Json)):
		s.add(path, task.ReasonInvalidJSON, "is not well-formed JSON")
	}
}

func join(path, field string) string {
	if path == "" {
		return field
	}
	return path + "." + field
}
