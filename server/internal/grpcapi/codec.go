package grpcapi

import (
	"strings"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/leasehold/leasehold/server/internal/task"
)

// ourMessages is the package of the wire contract, as messages bear it in their names.
const ourMessages = "leasehold."

// undecodableField marks a message whose bytes were no message. Its number is one of those that
// protobuf keeps for itself: no message of ours has it.
const undecodableField protowire.Number = 19000

// undecodableText does not tell which of both it is: the library's words change from build to build.
const undecodableText = "cannot be decoded: it is no message of this type, or a text in it is not UTF-8"

// patientCodec is gRPC's own codec, but for requests that cannot be decoded. For those gRPC
// answers INTERNAL by itself, before any interceptor has seen them, as if it were the server's
// fault. Here they become empty messages with a mark, which validation finds and refuses, so that
// they are answered, logged and counted like every other bad request.
type patientCodec struct{ encoding.CodecV2 }

func newPatientCodec() patientCodec { return patientCodec{encoding.GetCodecV2("proto")} }

// Unmarshal fails only for messages that are not ours.
func (c patientCodec) Unmarshal(data mem.BufferSlice, v any) error {
	err := c.CodecV2.Unmarshal(data, v)
	msg, isMessage := v.(proto.Message)
	if err == nil || !isMessage || !strings.HasPrefix(string(msg.ProtoReflect().Descriptor().FullName()), ourMessages) {
		return err
	}
	proto.Reset(msg)
	mark := protowire.AppendTag(nil, undecodableField, protowire.VarintType)
	msg.ProtoReflect().SetUnknown(protowire.AppendVarint(mark, 1))
	return nil
}

// undecodable tells whether a message bears the mark. A client that puts it there itself is
// refused as well.
func undecodable(msg proto.Message) bool {
	number, _, n := protowire.ConsumeTag(msg.ProtoReflect().GetUnknown())
	return n > 0 && number == undecodableField
}

// undecodableViolation is what is wrong with such a message.
func undecodableViolation() violation {
	return violation{Violation: task.Violation{Field: "request", Reason: task.ReasonInvalidField, Message: undecodableText}}
}
