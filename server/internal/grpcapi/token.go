package grpcapi

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// A page token is base64url of
//
//	version (1 byte) | position | digest (12 bytes) of version, method, filter and position
//
// so that one which is damaged, or belongs to another method or filter, is told from a good one.
// The digest is no secret: a position that no call of ours has told has to be harmless too.
const (
	tokenVersion = 1
	digestBytes  = 12
	numberBytes  = 8
	idBytes      = 16
	keyBytes     = numberBytes + idBytes
	placeBytes   = idBytes + numberBytes

	maxYear = 9999 // that an instant of a position has
)

// binding is what a token belongs to: a method and its filter.
type binding struct{ fields hash.Hash }

func bind(method string) binding {
	b := binding{sha256.New()}
	b.text(method)
	return b
}

// text adds a field; its length keeps neighbours apart.
func (b binding) text(values ...string) binding {
	for _, s := range values {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		b.fields.Write(n[:])
		b.fields.Write([]byte(s))
	}
	return b
}

// set adds a list whose order does not matter.
func (b binding) set(values []string) binding {
	sorted := slices.Sorted(slices.Values(values))
	return b.text(strconv.Itoa(len(sorted))).text(sorted...)
}

func (b binding) pairs(m map[string]string) binding {
	b.text(strconv.Itoa(len(m)))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		b.text(k, m[k])
	}
	return b
}

func (b binding) digest(position []byte) []byte {
	h := sha256.New()
	h.Write([]byte{tokenVersion})
	h.Write(b.fields.Sum(nil))
	h.Write(position)
	return h.Sum(nil)[:digestBytes]
}

// token makes the token of a position.
func (b binding) token(position []byte) string {
	raw := append([]byte{tokenVersion}, position...)
	return base64.RawURLEncoding.EncodeToString(append(raw, b.digest(position)...))
}

// open returns the position of a token, which has to be of size bytes.
func (b binding) open(token string, size int) ([]byte, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || size < 0 || len(raw) != 1+size+digestBytes || raw[0] != tokenVersion {
		return nil, badToken()
	}
	position := raw[1 : 1+size]
	if string(b.digest(position)) != string(raw[1+size:]) {
		return nil, badToken()
	}
	return position, nil
}

func badToken() error {
	return &scheduler.InvalidError{Violations: []task.Violation{{
		Field: "page_token", Reason: task.ReasonInvalidField,
		Message: "is not a token that an earlier call with the same filter answered",
	}}}
}

// numberToken is the token of a position that is a number.
func (b binding) numberToken(n int64) string {
	return b.token(binary.BigEndian.AppendUint64(nil, uint64(n)))
}

// number opens a number's token; without a token it is otherwise.
func (b binding) number(token string, otherwise int64) (int64, error) {
	if token == "" {
		return otherwise, nil
	}
	raw, err := b.open(token, numberBytes)
	if err != nil {
		return 0, err
	}
	return int64(binary.BigEndian.Uint64(raw)), nil
}

// ordinal opens the token of a step's place in the order of declaration; without a token it is -1,
// before all.
func (b binding) ordinal(token string) (int, error) {
	n, err := b.number(token, -1)
	if err == nil && (n < -1 || n > math.MaxInt32) {
		return 0, badToken()
	}
	return int(n), err
}

// keyToken is the token of a position that is an instant and an id. PostgreSQL's instants
// are whole microseconds.
func (b binding) keyToken(at time.Time, id uuid.UUID) string {
	return b.token(append(binary.BigEndian.AppendUint64(nil, uint64(at.UnixMicro())), id[:]...))
}

// key opens the token of an instant and an id; without a token both are zero.
func (b binding) key(token string) (at time.Time, id uuid.UUID, err error) {
	if token == "" {
		return at, id, nil
	}
	raw, err := b.open(token, keyBytes)
	if err != nil {
		return at, id, err
	}
	at = time.UnixMicro(int64(binary.BigEndian.Uint64(raw))).UTC()
	if year := at.Year(); year < 1 || year > maxYear {
		return time.Time{}, id, badToken()
	}
	return at, uuid.UUID(raw[numberBytes:]), nil
}

// placeToken is the token of a position that is an id and a number.
func (b binding) placeToken(id uuid.UUID, n int64) string {
	return b.token(binary.BigEndian.AppendUint64(id[:], uint64(n)))
}

// place opens the token of an id and a number; without a token both are zero.
func (b binding) place(token string) (id uuid.UUID, n int64, err error) {
	if token == "" {
		return id, 0, nil
	}
	raw, err := b.open(token, placeBytes)
	if err != nil {
		return id, 0, err
	}
	return uuid.UUID(raw[:idBytes]), int64(binary.BigEndian.Uint64(raw[idBytes:])), nil
}

// nameToken is the token of a position that is a name.
func (b binding) nameToken(name string) string { return b.token([]byte(name)) }

// name opens a name's token; without a token it is empty.
func (b binding) name(token string) (string, error) {
	if token == "" {
		return "", nil
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil {
		return "", badToken()
	}
	position, err := b.open(token, len(raw)-1-digestBytes)
	if err == nil && (!utf8.Valid(position) || bytes.IndexByte(position, 0) >= 0) {
		return "", badToken()
	}
	return string(position), err
}
