package hostile

import (
	"bytes"
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// An input is a script: one byte of flags, then calls until its end, at most some. A call is a
// byte that chooses the method, one that chooses how the message is read, and the message:
//
//	formRaw    two bytes of length, then the message as it is sent, whatever it is
//	formNamed  the same, but texts such as $e0 stand for ids of the pool
//	formMade   and above: bytes from which a message is made that is mostly good
const (
	mostCalls = 6

	formRaw   = 0
	formNamed = 1
	formMade  = 2
	forms     = 5

	flagDigest = 1 // look that refused calls change nothing
	flagSweep  = 2 // sweep after the script
)

// methodsOf are a service's methods in order of declaration.
func methodsOf(file protoreflect.FileDescriptor) []protoreflect.MethodDescriptor {
	methods := file.Services().Get(0).Methods()
	list := make([]protoreflect.MethodDescriptor, methods.Len())
	for i := range list {
		list[i] = methods.Get(i)
	}
	return list
}

// nextCall reads a call's method and message.
func nextCall(src *source, p *pool, methods []protoreflect.MethodDescriptor) (protoreflect.MethodDescriptor, []byte) {
	method := methods[src.below(len(methods))]
	var wire []byte
	switch form := src.below(forms); form {
	case formRaw, formNamed:
		length := binary.LittleEndian.Uint16([]byte{src.next(), src.next()})
		wire = src.take(int(length))
		if form == formNamed {
			wire = named(wire, method.Input(), p)
		}
	default:
		m := &maker{src: src, pool: p}
		wire = m.message(nil, method.Input(), 0)
	}
	return method, hurried(wire, method.Input())
}

// script writes one call with a message of placeholders, for seeds.
func script(flags byte, method int, message proto.Message) []byte {
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		panic(err) // a seed of ours
	}
	b := []byte{flags, byte(method), formNamed}
	return append(binary.LittleEndian.AppendUint16(b, uint16(len(wire))), wire...)
}

func newMessage(d protoreflect.MessageDescriptor) proto.Message {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		panic(err) // linked in
	}
	return kind.New().Interface()
}

// named puts ids of the pool in the places of their names. What is no message stays as it is.
func named(wire []byte, d protoreflect.MessageDescriptor, p *pool) []byte {
	msg := newMessage(d)
	if proto.Unmarshal(wire, msg) != nil {
		return wire
	}
	nameIn(msg.ProtoReflect(), p)
	out, err := proto.Marshal(msg)
	if err != nil {
		return wire
	}
	return out
}

func nameIn(m protoreflect.Message, p *pool) {
	var held lease
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case !m.Has(f) || f.IsMap():
		case f.IsList() && f.Kind() == protoreflect.StringKind:
			list := m.Mutable(f).List()
			for j := range list.Len() {
				list.Set(j, protoreflect.ValueOfString(idOf(list.Get(j).String(), p, &held)))
			}
		case f.IsList() && f.Message() != nil:
			for j := range m.Get(f).List().Len() {
				nameIn(m.Mutable(f).List().Get(j).Message(), p)
			}
		case f.IsList():
		case f.Message() != nil:
			nameIn(m.Mutable(f).Message(), p)
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString(idOf(m.Get(f).String(), p, &held)))
		case f.Name() == "lease_version" && held.attempt != "" && m.Get(f).Int() == rightVersion:
			m.Set(f, protoreflect.ValueOfInt64(held.version))
		}
	}
}

// rightVersion stands for the version of the lease that was named before it.
const rightVersion = 7

// idOf is what a name stands for: a dollar, a letter for the kind, a digit.
func idOf(name string, p *pool, held *lease) string {
	if len(name) != 3 || name[0] != '$' {
		return name
	}
	n := name[2] - '0'
	switch name[1] {
	case 'e':
		return p.text(kindExecution, n)
	case 's':
		return p.text(kindStep, n)
	case 'v':
		return p.text(kindEvent, n)
	case 't':
		return p.text(kindToken, n)
	case 'w':
		return p.session(n).worker
	case 'n':
		if held.session != "" {
			return held.session
		}
		return p.session(n).session
	case 'a':
		*held = p.lease(n)
		return held.attempt
	}
	return name
}

// longestWait is how long a poll may wait here.
const longestWait = 30_000_000 // ns

// hurried shortens the wait of a poll. Of a field that is there twice the later one counts.
func hurried(wire []byte, d protoreflect.MessageDescriptor) []byte {
	poll, isPoll := newMessage(d).(*leaseholdv1.LeaseAttemptRequest)
	if !isPoll || proto.Unmarshal(wire, poll) != nil {
		return wire
	}
	wait := poll.GetWaitTimeout()
	if poll.WaitTimeout != nil && (!wait.IsValid() || wait.AsDuration() <= longestWait) {
		return wire
	}
	short := protowire.AppendTag(nil, 1, protowire.VarintType)
	short = protowire.AppendVarint(short, 0)
	short = protowire.AppendTag(short, 2, protowire.VarintType)
	short = protowire.AppendVarint(short, longestWait)
	field := d.Fields().ByName("wait_timeout")
	return protowire.AppendBytes(protowire.AppendTag(bytes.Clone(wire), field.Number(), protowire.BytesType), short)
}
