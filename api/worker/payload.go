package worker

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// payloadOverhead is what a message may be larger than its payload.
const payloadOverhead = 1 << 10

// EncodePayload makes a payload of JSON text.
func EncodePayload(v any) (*leaseholdv1.Payload, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Json{Json: string(text)}, ContentType: "application/json"}, nil
}

// DecodePayload decodes a payload of JSON, text or bytes, into v. A missing or empty payload
// leaves v as it is.
func DecodePayload(p *leaseholdv1.Payload, v any) error {
	text := p.GetData()
	if body, ok := p.GetBody().(*leaseholdv1.Payload_Json); ok {
		text = []byte(body.Json)
	}
	if len(text) == 0 {
		return nil
	}
	return json.Unmarshal(text, v)
}

// checkPayload tells what the server would refuse, or could not even be sent: a string with
// broken UTF-8 cannot be encoded.
func checkPayload(what string, p *leaseholdv1.Payload, s *session) error {
	text, isJSON := p.GetBody().(*leaseholdv1.Payload_Json)
	size := len(p.GetData())
	if isJSON {
		size = len(text.Json)
	}
	if s.maxPayload > 0 && size > s.maxPayload {
		return fmt.Errorf("%w: the %s has %d bytes, the server takes at most %d", ErrPayloadTooLarge, what, size, s.maxPayload)
	}
	if total := proto.Size(p) + payloadOverhead; s.maxMessage > 0 && total > s.maxMessage {
		return fmt.Errorf("%w: the message with the %s has about %d bytes, the server takes at most %d", ErrPayloadTooLarge, what, total, s.maxMessage)
	}
	if isJSON && (!utf8.ValidString(text.Json) || !json.Valid([]byte(text.Json))) {
		return fmt.Errorf("%w: the %s is not well-formed JSON in UTF-8", ErrInvalidPayload, what)
	}
	if !utf8.ValidString(p.GetContentType()) {
		return fmt.Errorf("%w: the content type of the %s is not UTF-8", ErrInvalidPayload, what)
	}
	return nil
}
