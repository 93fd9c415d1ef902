package task

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"maps"
	"math"
	"slices"
	"time"
)

// Fingerprint identifies the content of a specification, its key aside: two calls with the
// same key must have the same one. The first byte is the version of the form, so that a
// later form can be told from this one.
func (s *ExecutionSpec) Fingerprint() []byte {
	w := digest{sha256.New()}
	w.text(s.Name)
	w.labels(s.Labels)
	w.flag(s.StartAt != nil)
	if s.StartAt != nil {
		w.number(s.StartAt.UnixMicro())
	}
	w.durations(s.StartDelay, s.Timeout, s.CancelGrace)
	w.flag(s.FailFast)
	w.number(int64(s.Priority))
	w.number(int64(len(s.Steps)))
	for i := range s.Steps {
		w.step(&s.Steps[i])
	}
	return append([]byte{1}, w.h.Sum(nil)...)
}

func (w digest) step(s *StepSpec) {
	w.text(s.Name)
	w.text(s.Capability)
	w.text(s.Node)
	parents := slices.Sorted(slices.Values(s.DependsOn))
	w.texts(parents)
	w.payload(s.Input)
	w.durations(s.Retry.InitialInterval, s.Retry.MaximumInterval)
	w.number(int64(math.Float64bits(s.Retry.BackoffCoefficient)))
	w.number(int64(math.Float64bits(s.Retry.Jitter)))
	w.number(int64(s.Retry.MaximumAttempts))
	w.texts(s.Retry.NonRetryableTypes)
	w.durations(s.ScheduleToStart, s.StartToClose, s.ScheduleToClose, s.StartDelay)
	w.number(int64(s.Priority))
}

// OutcomeFingerprint identifies a report, its checkpoint aside: a repeat has the same one.
func OutcomeFingerprint(o *Outcome) []byte {
	w := digest{sha256.New()}
	w.text(string(o.State))
	w.payload(o.Output)
	w.text(o.Reason)
	w.durations(o.NotBefore)
	w.flag(o.Failure != nil)
	if f := o.Failure; f != nil {
		w.text(f.Type)
		w.text(f.Message)
		w.flag(f.NonRetryable)
		w.flag(f.NextRetryDelay != nil)
		if f.NextRetryDelay != nil {
			w.durations(*f.NextRetryDelay)
		}
		w.payload(f.Details)
	}
	return w.h.Sum(nil)[:16]
}

// digest feeds a hash with fields that cannot be confused: each has its length or a fixed size.
type digest struct{ h hash.Hash }

func (w digest) number(n int64) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(n))
	w.h.Write(b[:])
}

func (w digest) text(s string) {
	w.number(int64(len(s)))
	w.h.Write([]byte(s))
}

func (w digest) texts(list []string) {
	w.number(int64(len(list)))
	for _, s := range list {
		w.text(s)
	}
}

func (w digest) flag(b bool) {
	if b {
		w.number(1)
	} else {
		w.number(0)
	}
}

func (w digest) durations(list ...time.Duration) {
	for _, d := range list {
		w.number(int64(d))
	}
}

func (w digest) labels(m map[string]string) {
	w.number(int64(len(m)))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		w.text(k)
		w.text(m[k])
	}
}

func (w digest) payload(p *Payload) {
	w.flag(p != nil)
	if p != nil {
		w.flag(p.JSON)
		w.text(p.ContentType)
		w.text(string(p.Body))
	}
}
