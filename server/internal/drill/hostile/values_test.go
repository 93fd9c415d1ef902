package hostile

import (
	"bytes"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// needed are the fields without which a request is refused early, or says nothing.
func needed(f protoreflect.FieldDescriptor) bool {
	if one := f.ContainingOneof(); one != nil && !one.IsSynthetic() {
		return true // the input chooses which
	}
	switch f.Name() {
	case "name", "capability", "capabilities", "steps", "requests", "renewals", "reports", "event_ids",
		"execution_id", "attempt_id", "worker_id", "session_id", "lease_version", "wait_timeout", "draining":
		return true
	}
	return false
}

// number is a number, a truth or a value of an enum.
func (m *maker) number(f protoreflect.FieldDescriptor, wild bool) int64 {
	switch {
	case wild:
		return m.anyNumber()
	case f.Kind() == protoreflect.EnumKind:
		return int64(m.src.below(f.Enum().Values().Len()))
	case f.Kind() == protoreflect.BoolKind:
		return int64(1 - m.src.below(2))
	case f.Name() == "lease_version":
		if m.src.next() >= 224 { // another's
			return m.pool.lease(m.src.next()).version
		}
		return m.lease.version
	case f.Name() == "after_revision":
		return int64(m.src.below(6))
	default:
		return int64([...]int{1, 2, 3, 5, -1, 100, 0}[m.src.below(7)])
	}
}

// text is a text or bytes.
func (m *maker) text(f protoreflect.FieldDescriptor, wild bool) []byte {
	if wild {
		return m.anyText()
	}
	name := string(f.Name())
	switch {
	case name == "name" && f.Parent().Name() == "StepSpec":
		m.names++
		return []byte("s" + strconv.Itoa(m.names-1))
	case name == "depends_on":
		return []byte("s" + strconv.Itoa(m.src.below(max(m.names, 1))))
	case name == "step_name", name == "step_names":
		return []byte("s" + strconv.Itoa(m.src.below(3)))
	case name == "name" && f.Parent().Name() == "RegisterWorkerRequest":
		return []byte("worker-" + strconv.Itoa(m.src.below(4)))
	case name == "name", name == "type", name == "content_type", name == "non_retryable_error_types":
		return pick(m, "job", "broken", "text/plain", "")
	case name == "json":
		return pick(m, `{"a":1.50}`, `"\u0000"`, `[1e999]`, "null", ` {"a":"\ud800"} `)
	case name == "data", name == "message", name == "reason", name == "progress_message":
		return pick(m, "text", "a\x00b", "", "ä€𝄞")
	case name == "capability", name == "capabilities":
		return pick(m, "run", "build/v1", "paused", "nobody", "run.v2")
	case name == "namespace":
		return pick(m, "", "default", "other")
	case name == "node", name == "version":
		return pick(m, "", "n1", "n2")
	case name == "idempotency_key", name == "request_id":
		return pick(m, "", "key-1", "key-2", "key-3")
	case name == "page_token":
		return []byte(m.pool.text(kindToken, m.src.next()))
	}
	return []byte(m.id(f))
}

// id is one that exists, of the kind that a field names. With an attempt goes its lease.
func (m *maker) id(f protoreflect.FieldDescriptor) string {
	switch name := string(f.Name()); name {
	case "attempt_id":
		m.lease = m.pool.lease(m.src.next())
		return m.lease.attempt
	case "session_id":
		if m.lease.session != "" {
			return m.lease.session
		}
		return m.pool.session(m.pool.lastWorker).session
	case "worker_id":
		m.pool.lastWorker = m.src.next()
		return m.pool.session(m.pool.lastWorker).worker
	case "step_id":
		return m.pool.text(kindStep, m.src.next())
	case "event_ids":
		return m.pool.text(kindEvent, m.src.next())
	default: // execution_id, aggregate_id
		return m.pool.text(kindExecution, m.src.next())
	}
}

func pick(m *maker, list ...string) []byte { return []byte(list[m.src.below(len(list))]) }

// anyText is a text at which things break, or any bytes.
func (m *maker) anyText() []byte {
	list := [...]string{
		"", "\x00", "a\x00b", "\xff\xfe", "caf\xe9", "\xed\xa0\x80", "{", `{"a":`, `"\ud800"`, "[1,]", "nul", "%s%d", "' OR 1=1 --", "../../x",
		"00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff", "urn:uuid:0192d5a0-5a5a-7a5a-8a5a-5a5a5a5a5a5a",
		"{0192d5a0-5a5a-7a5a-8a5a-5a5a5a5a5a5a}", "0192D5A0-5A5A-7A5A-8A5A-5A5A5A5A5A5A", "0192d5a05a5a7a5a8a5a5a5a5a5a5a5a", "run", "default", "s0",
		"\u202egnp.exe", "𝄞\U0010ffff", "a b", "a\nb", "\ufeffx", "AQAAAAAAAAAB",
	}
	n := m.src.below(len(list) + 12)
	switch {
	case n < len(list):
		return []byte(list[n])
	case n < len(list)+2:
		return []byte(strings.Repeat("x", [...]int{63, 64, 128, 129, 256, 257, 1024, 1025, 8193, 65_537}[m.src.below(10)]))
	case n < len(list)+3:
		return []byte(strings.Repeat("[", m.src.below(256)*60) + strings.Repeat("]", m.src.below(256)*60))
	case n < len(list)+4:
		return bytes.Repeat([]byte("ä\xff"), 1+m.src.below(200))
	case n == len(list)+4 && m.src.next() > 250:
		return make([]byte, 1<<20+m.src.below(2))
	default:
		return m.src.take(int(m.src.next()))
	}
}
