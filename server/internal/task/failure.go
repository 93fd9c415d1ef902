package task

import (
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds of texts that come from workers, in bytes.
const (
	MaxFailureType    = 256
	MaxFailureMessage = 8 << 10
	MaxFailureDetails = 64 << 10
	MaxReason         = 1 << 10
)

// Payload is opaque content, kept byte for byte.
type Payload struct {
	JSON        bool // Body is a JSON text, else any bytes
	Body        []byte
	ContentType string
}

// Size is what the payload weighs in an answer, in bytes.
func (p *Payload) Size() int {
	if p == nil {
		return 0
	}
	return len(p.Body) + len(p.ContentType)
}

// Failure says why an attempt failed.
type Failure struct {
	Type           string         `json:"type,omitempty"`
	Message        string         `json:"message,omitempty"`
	NonRetryable   bool           `json:"non_retryable,omitempty"`
	NextRetryDelay *time.Duration `json:"next_retry_delay,omitempty"`
	Details        *Payload       `json:"details,omitempty"`
}

// Clean returns the failure with texts that can be stored: text never keeps an attempt alive.
func (f Failure) Clean() *Failure {
	f.Type = CleanText(f.Type, MaxFailureType)
	f.Message = CleanText(f.Message, MaxFailureMessage)
	return &f
}

// CleanText replaces NUL and invalid UTF-8 by U+FFFD and cuts at a rune, so that at most
// limit bytes are left.
func CleanText(s string, limit int) string {
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "\uFFFD"), "\uFFFD")
	if len(s) <= limit {
		return s
	}
	cut := limit
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut]
}
