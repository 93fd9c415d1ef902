package grpcapi

import (
	"errors"
	"strconv"
	"strings"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/leasehold/leasehold/server/internal/task"
)

// maxViolationBytes bounds the violations in one answer. Base64 adds a third to it on the
// wire, where all headers together have to stay below 8 KiB.
const maxViolationBytes = 4 << 10

// limitElement is the name under which the path of a violated rule carries the limit.
const limitElement = "max_bytes"

// violation is one thing that is wrong with a request.
type violation struct {
	task.Violation
	limit int // in bytes, that a payload is over; else 0
}

// proto is the form in which it passes through the validation interceptor. Its path is kept
// as text, in one element.
func (v violation) proto() *protovalidate.Violation {
	field, rule, text := v.Field, string(v.Reason), v.Message
	p := validate.Violation_builder{
		Field:  validate.FieldPath_builder{Elements: []*validate.FieldPathElement{{}}}.Build(),
		RuleId: &rule, Message: &text,
	}.Build()
	p.GetField().GetElements()[0].SetFieldName(field)
	if v.limit > 0 {
		limit := validate.FieldPathElement_builder{}.Build()
		limit.SetFieldName(limitElement)
		limit.SetUintKey(uint64(v.limit))
		p.SetRule(validate.FieldPath_builder{Elements: []*validate.FieldPathElement{limit}}.Build())
	}
	return &protovalidate.Violation{Proto: p}
}

func fromDomain(list []task.Violation) []violation {
	found := make([]violation, len(list))
	for i, v := range list {
		found[i] = violation{Violation: v}
	}
	return found
}

// violationsOf is what a validator found, as its own error or as the validation interceptor's
// status; nil if the error is none of that.
func violationsOf(err error) []violation {
	var own *protovalidate.ValidationError
	if errors.As(err, &own) {
		return fromRules(own.ToProto())
	}
	for _, detail := range status.Convert(err).Details() {
		if found, ok := detail.(*validate.Violations); ok {
			return fromRules(found)
		}
	}
	return nil
}

func fromRules(list *validate.Violations) []violation {
	found := make([]violation, 0, len(list.GetViolations()))
	for _, p := range list.GetViolations() {
		found = append(found, fromRule(p))
	}
	return found
}

func fromRule(p *validate.Violation) violation {
	v := violation{Violation: task.Violation{
		Field: protovalidate.FieldPathString(p.GetField()), Reason: ruleReason(p.GetRuleId()), Message: p.GetMessage(),
	}}
	if v.Field == "" { // a rule over a whole message: its id is the field that it is about
		v.Field = p.GetRuleId()
		v.Message = strings.TrimPrefix(v.Message, v.Field+": ")
	}
	if v.Message == "" {
		v.Message = "breaks the rule " + p.GetRuleId()
	}
	for _, e := range p.GetRule().GetElements() {
		if e.GetFieldName() == limitElement && e.HasUintKey() {
			v.limit = int(e.GetUintKey())
		}
	}
	return v
}

// ruleReason is the reason that a rule stands for: its own, if it is one of the domain's.
func ruleReason(rule string) task.Reason {
	switch r := task.Reason(rule); r {
	case task.ReasonStepCycle, task.ReasonStepUnknownParent, task.ReasonStepSelfParent,
		task.ReasonStepDoubleParent, task.ReasonStepDoubleName, task.ReasonNoSteps,
		task.ReasonTooManySteps, task.ReasonTooManyEdges, task.ReasonPayloadTooLarge, task.ReasonInvalidJSON:
		return r
	default:
		return task.ReasonInvalidField
	}
}

// firstOfField keeps one violation a field.
func firstOfField(list []violation) []violation {
	seen := make(map[string]bool, len(list))
	kept := make([]violation, 0, len(list))
	for _, v := range list {
		if !seen[v.Field] {
			seen[v.Field] = true
			kept = append(kept, v)
		}
	}
	return kept
}

// badRequest lists violations as far as an answer can carry them; omitted is how many it
// cannot.
func badRequest(list []violation) (detail *errdetails.BadRequest, omitted int) {
	detail = &errdetails.BadRequest{}
	size := 0
	for i, v := range list {
		f := &errdetails.BadRequest_FieldViolation{
			Field: short(v.Field), Description: shortDetail(v.Message), Reason: string(v.Reason),
		}
		size += proto.Size(f) + 3
		if i > 0 && size > maxViolationBytes {
			return detail, len(list) - i
		}
		detail.FieldViolations = append(detail.FieldViolations, f)
	}
	return detail, 0
}

// violationMetadata is what ErrorInfo says of the first violation, whose reason it has.
func violationMetadata(first violation, omitted int) map[string]string {
	metadata := map[string]string{"field": first.Field}
	if first.limit > 0 {
		metadata["limit_bytes"] = strconv.Itoa(first.limit)
	}
	if omitted > 0 {
		metadata["violations_omitted"] = strconv.Itoa(omitted)
	}
	return metadata
}
