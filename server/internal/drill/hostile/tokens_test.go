package hostile

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// How an input's token is made, by its second byte.
const (
	tokenAsIs     = iota // the input's bytes are the token
	tokenTampered        // a good token, some of whose bytes are changed
	tokenForged          // any position, with a digest that is right: it is no secret
	tokenOther           // a good token of another list
	tokenWays
)

// FuzzPageTokens pages through every list with tokens of any kind. What comes is INVALID_ARGUMENT
// for page_token, or a page of this very list: a part of it without gaps, in its order. A good
// token is followed by just what follows.
func FuzzPageTokens(f *testing.F) {
	w := newWorld(f)
	f.Cleanup(func() { w.end(f) })
	lists := (&librarian{t: f, w: w}).lists()
	for i := range lists {
		for way := range tokenWays {
			f.Add(byte(i), byte(way), byte(1), []byte{0, 1})
		}
		f.Add(byte(i), byte(tokenAsIs), byte(0), []byte(lists[i].tokens[0]))
		for _, position := range positions() {
			f.Add(byte(i), byte(tokenForged), byte(0), position)
		}
		f.Add(byte(i), byte(tokenAsIs), byte(0), []byte("a b=\n"))
		f.Add(byte(i), byte(tokenAsIs), byte(0), bytesOf(9000))
	}
	f.Fuzz(func(t *testing.T, list, way, which byte, data []byte) {
		l := &lists[int(list)%len(lists)]
		token := l.makeToken(lists, int(way)%tokenWays, which, data)
		if token == "" || !isText(token) {
			return
		}
		l.try(t, token)
		if bugs := w.log.heard(); len(bugs) > 0 {
			t.Errorf("the server calls it a bug: %v", bugs)
		}
	})
}

// positions are those at which things break: numbers, instants with an id, ids with a number,
// names.
func positions() [][]byte {
	var list [][]byte
	id := make([]byte, 16)
	for _, n := range []int64{0, 1, -1, math.MaxInt32, math.MaxInt32 + 1, math.MaxUint32, math.MinInt64, math.MaxInt64, 1 << 40} {
		number := binary.BigEndian.AppendUint64(nil, uint64(n))
		list = append(list, number, slices.Concat(number, id), slices.Concat(id, number))
	}
	for _, name := range []string{"", "\x00", "a\x00", "\xff", "worker-1", "\U0010ffff", strings.Repeat("x", 5000)} {
		list = append(list, []byte(name))
	}
	return list
}

func bytesOf(n int) []byte { return []byte(strings.Repeat("A", n)) }

// page is a part of a list, by its items' keys.
type page struct {
	keys []string
	next string
}

// list is a list with a filter, as it is; nothing changes while this target runs.
type list struct {
	name   string
	read   func(ctx context.Context, token string) (page, error)
	fields []string // what its tokens are bound to
	all    []string
	tokens []string // good ones, each with where it leads
	leads  map[string]int
}

// load pages through the list.
func (l *list) load(t testing.TB) {
	t.Helper()
	l.leads = map[string]int{}
	for token := ""; ; {
		p, err := l.read(context.Background(), token)
		if err != nil {
			t.Fatalf("%s: %v", l.name, err)
		}
		l.all = append(l.all, p.keys...)
		if token = p.next; token == "" {
			break
		}
		l.tokens, l.leads[token] = append(l.tokens, token), len(l.all)
	}
	if len(l.tokens) == 0 {
		t.Fatalf("%s has one page", l.name)
	}
	if raw, _ := base64.RawURLEncoding.DecodeString(l.tokens[0]); l.forge(raw[1:len(raw)-12]) != l.tokens[0] {
		t.Fatalf("%s: the target does not know how tokens are made", l.name)
	}
}

// forge makes a token as the server does.
func (l *list) forge(position []byte) string {
	bound := sha256.New()
	for _, s := range l.fields {
		bound.Write(binary.BigEndian.AppendUint64(nil, uint64(len(s))))
		bound.Write([]byte(s))
	}
	digest := sha256.Sum256(slices.Concat([]byte{1}, bound.Sum(nil), position))
	return base64.RawURLEncoding.EncodeToString(slices.Concat([]byte{1}, position, digest[:12]))
}

func (l *list) makeToken(lists []list, way int, which byte, data []byte) string {
	switch way {
	case tokenTampered:
		token := []byte(l.tokens[int(which)%len(l.tokens)])
		for i := 0; i+1 < len(data); i += 2 {
			token[int(data[i])%len(token)] ^= data[i+1]
		}
		return string(token)
	case tokenForged:
		return l.forge(data)
	case tokenOther:
		other := &lists[int(which)%len(lists)]
		return other.tokens[len(data)%len(other.tokens)]
	default:
		return string(data)
	}
}

// try reads a page, and judges it.
func (l *list) try(t *testing.T, token string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hangs)
	defer cancel()
	begun := time.Now() // monotonic
	p, err := l.read(ctx, token)
	at, isGood := l.leads[token]
	st := status.Convert(err)
	for _, fault := range faults(st) {
		t.Errorf("%s with %q: %v: %s", l.name, token, err, fault)
	}
	switch {
	case err != nil && (isGood || st.Code() != codes.InvalidArgument):
		t.Errorf("%s with %q (good: %t): %v", l.name, token, isGood, err)
	case err != nil && !strings.Contains(st.Message(), "page_token"):
		t.Errorf("%s with %q does not name the token: %v", l.name, token, err)
	case err == nil && isGood && !hasAt(l.all, at, p.keys):
		t.Errorf("%s with %q has %q, want what begins at %d of %q", l.name, token, p.keys, at, l.all)
	case err == nil && !isPart(l.all, p.keys):
		t.Errorf("%s with %q has %q, which is no part of %q", l.name, token, p.keys, l.all)
	case err == nil && p.next != "" && p.next == token:
		t.Errorf("%s with %q goes round and round", l.name, token)
	}
	if took := time.Since(begun); took > hangs {
		t.Errorf("took %s", took)
	}
}

func hasAt(all []string, at int, part []string) bool {
	return at+len(part) <= len(all) && slices.Equal(all[at:at+len(part)], part)
}

func isPart(all, part []string) bool {
	if len(part) == 0 {
		return true
	}
	return hasAt(all, max(0, slices.Index(all, part[0])), part)
}
