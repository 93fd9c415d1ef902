package history

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"slices"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// Kind is what an Op was about.
type Kind string

// The kinds of ops. A LeaseAttempt call is one Grant for each lease in its answer, or a Poll
// when there is none.
const (
	Enqueue   Kind = "enqueue"
	Poll      Kind = "poll"
	Grant     Kind = "grant"
	Renew     Kind = "renew"
	Report    Kind = "report"
	Cancel    Kind = "cancel"
	Terminate Kind = "terminate"
	Retry     Kind = "retry"
	Revoke    Kind = "revoke"
	Get       Kind = "get"   // GetExecution
	Work      Kind = "work"  // user code at work on a lease
	Other     Kind = "other" // any other call; kept only when its answer is a bug
)

// Outcome is how a call ended, as far as its client knows.
type Outcome string

// The outcomes. A call is Refused only when the service itself said so: its effect is then known
// to be none. Whatever else is no success is Unknown: it may have been done, or be done later.
const (
	Unknown Outcome = "unknown"
	OK      Outcome = "ok"
	Refused Outcome = "refused"
)

// Digest stands for a text or a payload: the first eight bytes of its SHA-256; 0: there is none.
type Digest uint64

// Altered stands for a text that the service keeps in another form: it is not compared.
const Altered Digest = math.MaxUint64

// DigestOf is the digest of a body, also of an empty one.
func DigestOf(body []byte) Digest {
	sum := sha256.Sum256(body)
	return digestFrom(sum[:8])
}

// digestFrom keeps the two values free that mean something else.
func digestFrom(sum []byte) Digest {
	return min(max(Digest(binary.BigEndian.Uint64(sum)), 1), Altered-1)
}

func digestPayload(p *leaseholdv1.Payload) Digest {
	switch body := p.GetBody().(type) {
	case *leaseholdv1.Payload_Json:
		return DigestOf([]byte(body.Json))
	case *leaseholdv1.Payload_Data:
		return DigestOf(body.Data)
	default:
		return 0
	}
}

// Op is a call of a client, one item of a batch, one lease of an answer, or a piece of work.
// Times are nanoseconds of the machine's monotonic clock. What a kind does not have is zero.
type Op struct {
	Kind    Kind       `json:"kind"`
	Client  string     `json:"client,omitempty"`
	Begin   int64      `json:"begin"`         // read before anything was sent
	End     int64      `json:"end,omitempty"` // read after the answer had come; 0: it never came
	Outcome Outcome    `json:"outcome"`
	Code    codes.Code `json:"code,omitempty"`
	Reason  string     `json:"reason,omitempty"` // in the error's ErrorInfo

	Execution uuid.UUID `json:"execution,omitzero"` // with ALREADY_EXISTS the existing one
	Step      uuid.UUID `json:"step,omitzero"`
	Attempt   uuid.UUID `json:"attempt,omitzero"`
	Session   uuid.UUID `json:"session,omitzero"`
	Version   int64     `json:"version,omitempty"` // lease_version, as held or as granted
	Number    int32     `json:"number,omitempty"`  // of the attempt; of an enqueue: how many steps
	Lasts     int64     `json:"lasts,omitempty"`   // nanoseconds from Begin on for which the lease is good, by the answer of a grant or renewal

	Namespace string `json:"namespace,omitempty"`
	Key       string `json:"key,omitempty"` // idempotency key, request id, or the method of an Other
	Created   bool   `json:"created,omitempty"`
	Replayed  bool   `json:"replayed,omitempty"`

	Result      string   `json:"result,omitempty"`       // what a report says: SUCCEEDED, FAILED, ...
	FailureType string   `json:"failure_type,omitempty"` // of such a report
	Output      Digest   `json:"output,omitempty"`
	Checkpoint  Digest   `json:"checkpoint,omitempty"`
	Message     Digest   `json:"message,omitempty"` // of progress
	Progress    *float64 `json:"progress,omitempty"`

	State     string `json:"state,omitempty"`      // of the execution, as answered
	StepState string `json:"step_state,omitempty"` // as answered
	Round     int32  `json:"round,omitempty"`      // of the execution, as answered
	Revision  int64  `json:"revision,omitempty"`   // as answered
}

// end is when its effect was there at the latest.
func (o *Op) end() int64 {
	if o.End == 0 || o.Outcome == Unknown {
		return math.MaxInt64
	}
	return o.End
}

// may tells whether it may have had an effect.
func (o *Op) may() bool { return o.Outcome != Refused }

// bug tells whether the answer is one that no client should ever get.
func (o *Op) bug() bool {
	return o.Code == codes.Internal || o.Code == codes.Unknown || o.Code == codes.DataLoss
}

// Delivery is the arrival of an event at a consumer, as its CloudEvents attributes tell it.
type Delivery struct {
	Client    string    `json:"client,omitempty"`
	At        int64     `json:"at"` // before it was acknowledged
	ID        uuid.UUID `json:"id"`
	Type      string    `json:"type"`
	Execution uuid.UUID `json:"execution"` // its subject
	Sequence  int64     `json:"sequence"`
	Namespace string    `json:"namespace,omitempty"`
}

// History is what clients did and saw.
type History struct {
	Clock      string // which clock the times are of; histories of different clocks do not mix
	Sink       bool   // the deliveries are all that there were
	Ops        []Op   // in the order in which they ended
	Deliveries []Delivery
}

// Now is the instant of the clock that recorders take times of.
func Now() int64 { return monotonic() }

// Until is the history as it was known at an instant: what was answered later is of unknown
// outcome. To check a run while it goes on, take Now, then Load, then the recorders' histories
// until that instant: what was answered before is in the tables, the rest may be.
func (h History) Until(at int64) History {
	known := History{Clock: h.Clock, Sink: h.Sink}
	granted := map[uuid.UUID]bool{}
	for _, o := range h.Ops {
		if o.End > at || o.End == 0 {
			o = o.unanswered()
		}
		granted[o.Attempt] = granted[o.Attempt] || o.Kind == Grant
		known.Ops = append(known.Ops, o)
	}
	known.Ops = slices.DeleteFunc(known.Ops, func(o Op) bool { return o.Kind == Work && !granted[o.Attempt] })
	for _, d := range h.Deliveries {
		if d.At <= at {
			known.Deliveries = append(known.Deliveries, d)
		}
	}
	return known
}

// unanswered is an op whose answer has not come.
func (o Op) unanswered() Op {
	if o.Kind == Grant {
		return Op{Kind: Poll, Client: o.Client, Begin: o.Begin, Outcome: Unknown, Session: o.Session, Key: o.Key}
	}
	if o.Kind == Enqueue || o.Kind == Get {
		o.Execution = uuid.Nil // was answered; at worst it is not known what was asked for
	}
	o.End, o.Outcome, o.Code, o.Reason, o.Created, o.Replayed = 0, Unknown, 0, "", false, false
	o.State, o.StepState, o.Round, o.Revision = "", "", 0, 0
	return o
}
