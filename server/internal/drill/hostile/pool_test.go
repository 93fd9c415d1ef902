package hostile

import (
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// kind is what an id is of.
type kind int

const (
	kindExecution kind = iota
	kindStep
	kindEvent
	kindToken
	kinds
)

// kept is how many of a kind the pool remembers.
const kept = 32

// lease is what renewals and reports name.
type lease struct {
	attempt string
	version int64
	session string
}

// session is what polls name.
type session struct{ worker, session string }

// pool is what exists, so that inputs can name it by a small number.
type pool struct {
	texts      [kinds][]string
	leases     []lease
	sessions   []session
	lastWorker byte
}

const nobody = "0192d5a0-5a5a-7a5a-8a5a-5a5a5a5a5a5a"

func (p *pool) text(k kind, n byte) string {
	if len(p.texts[k]) == 0 {
		return ""
	}
	return p.texts[k][int(n)%len(p.texts[k])]
}

func (p *pool) lease(n byte) lease {
	if len(p.leases) == 0 {
		return lease{nobody, 1, nobody}
	}
	return p.leases[int(n)%len(p.leases)]
}

func (p *pool) session(n byte) session {
	if len(p.sessions) == 0 {
		return session{nobody, nobody}
	}
	return p.sessions[int(n)%len(p.sessions)]
}

func (p *pool) add(k kind, s string) { p.texts[k] = remember(p.texts[k], s) }

// remember forgets the second oldest half now and then: the first are what the world began with.
func remember[T comparable](list []T, v T) []T {
	if slices.Contains(list, v) {
		return list
	}
	if len(list) >= kept {
		list = slices.Delete(list, kept/2, kept/2+1)
	}
	return append(list, v)
}

// learn gathers what an answer names. The request tells whose session it was.
func (p *pool) learn(request, answer proto.Message) {
	switch a := answer.(type) {
	case *leaseholdv1.RegisterWorkerResponse:
		p.sessions = remember(p.sessions, session{a.GetWorkerId(), a.GetSessionId()})
		return
	case *leaseholdv1.LeaseAttemptResponse:
		r, _ := request.(*leaseholdv1.LeaseAttemptRequest)
		for _, l := range a.GetLeases() {
			p.leases = remember(p.leases, lease{l.GetAttemptId(), l.GetLeaseVersion(), r.GetSessionId()})
			p.add(kindStep, l.GetStepId())
		}
		return
	}
	p.walk(answer.ProtoReflect())
}

func (p *pool) walk(m protoreflect.Message) {
	switch v := m.Interface().(type) {
	case *leaseholdv1.Execution:
		p.add(kindExecution, v.GetId())
	case *leaseholdv1.Step:
		p.add(kindStep, v.GetId())
	case *leaseholdv1.OutboxEvent:
		p.add(kindEvent, v.GetId())
	case *leaseholdv1.Attempt:
		p.leases = remember(p.leases, lease{v.GetId(), v.GetLeaseVersion(), nobody})
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Name() == "next_page_token":
			p.add(kindToken, v.String())
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for i := range min(v.List().Len(), kept) {
				p.walk(v.List().Get(i).Message())
			}
		default:
			p.walk(v.Message())
		}
		return true
	})
}
