package natspub

import (
	"fmt"
	"strings"

	"github.com/leasehold/leasehold/server/internal/outbox"
)

const maxPattern = 255 // bytes

// The placeholders of a pattern.
const (
	namespaceField = "{namespace}"
	executionField = "{execution}"
	typeField      = "{type}"
)

// pattern makes an event's subject. Its literal parts have been checked.
type pattern struct{ text string }

func parsePattern(text string) (pattern, error) {
	if len(text) > maxPattern {
		return pattern{}, fmt.Errorf("subject pattern: %d bytes, at most %d", len(text), maxPattern)
	}
	for _, token := range strings.Split(text, ".") {
		if token == "" {
			return pattern{}, fmt.Errorf("subject pattern %q: has an empty token", text)
		}
		literal := strings.NewReplacer(namespaceField, "", executionField, "", typeField, "").Replace(token)
		if strings.ContainsAny(literal, "{}") {
			return pattern{}, fmt.Errorf("subject pattern %q: token %q has another placeholder than %s, %s, %s",
				text, token, namespaceField, typeField, executionField)
		}
		if escape(literal) != literal && literal != "" {
			return pattern{}, fmt.Errorf("subject pattern %q: token %q must be of ASCII without spaces and * > %% $", text, token)
		}
	}
	return pattern{text: text}, nil
}

// subject is where an event goes. The values are filled in at once, so that a value that looks
// like a placeholder stays what it is.
func (p pattern) subject(e *outbox.Event) string {
	types := strings.Split(e.Type, ".")
	for i, token := range types {
		types[i] = escape(token)
	}
	return strings.NewReplacer(
		namespaceField, escape(e.Namespace),
		executionField, e.AggregateID.String(),
		typeField, strings.Join(types, "."),
	).Replace(p.text)
}

// wildcard matches every subject of the pattern.
func (p pattern) wildcard() string {
	var tokens []string
	for _, token := range strings.Split(p.text, ".") {
		switch {
		case strings.Contains(token, typeField): // of any number of tokens
			return strings.Join(append(tokens, ">"), ".")
		case strings.Contains(token, "{"):
			tokens = append(tokens, "*")
		default:
			tokens = append(tokens, token)
		}
	}
	return strings.Join(tokens, ".")
}

// escape makes one token of a subject from any text, and different ones from different texts:
// bytes with a meaning in subjects, and those that are not printable ASCII, are percent-encoded.
// A $ is one, because subjects that begin with it are the server's own.
func escape(text string) string {
	if text == "" {
		return "_"
	}
	var token strings.Builder
	for _, c := range []byte(text) {
		if c <= ' ' || c > '~' || strings.IndexByte("*>.%$", c) >= 0 {
			fmt.Fprintf(&token, "%%%02X", c)
			continue
		}
		token.WriteByte(c)
	}
	return token.String()
}
