package demo

import (
	"errors"
	"strings"
	"testing"
)

func good() tally {
	return tally{asked: 2000, calls: 4000, executions: 2000, issued: 2000, sent: 2000, refusedLate: 1, fenced: 1, resent: 1, redelivered: 3}
}

func TestConclude_Ok(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	counted := good()
	if err := conclude(&out, &counted, nil); err != nil {
		t.Errorf("conclude: %v", err)
	}
	const want = "\nverdict ok issued 2000 lost 0 doubled 0 refused_late 1 redelivered 3\n"
	if !strings.HasSuffix(out.String(), want) {
		t.Errorf("got %q, want it to end with %q", out.String(), want)
	}
}

// TestConclude_Failed changes one number at a time.
func TestConclude_Failed(t *testing.T) {
	t.Parallel()
	broken := errors.New("worker-3 ended by itself")
	for name, tt := range map[string]struct {
		change func(*tally)
		err    error
		want   string
	}{
		"lost":         {func(n *tally) { n.lost = 1 }, nil, "verdict failed issued 2000 lost 1 doubled 0 refused_late 1 redelivered 3\n"},
		"doubled":      {func(n *tally) { n.doubled = 2 }, nil, "verdict failed issued 2000 lost 0 doubled 2 refused_late 1 redelivered 3\n"},
		"not issued":   {func(n *tally) { n.issued-- }, nil, "verdict failed issued 1999 "},
		"not sent":     {func(n *tally) { n.sent-- }, nil, "verdict failed "},
		"twice":        {func(n *tally) { n.executions++ }, nil, "verdict failed "},
		"early":        {func(n *tally) { n.early = 1 }, nil, "verdict failed "},
		"nobody late":  {func(n *tally) { n.refusedLate = 0 }, nil, "verdict failed issued 2000 lost 0 doubled 0 refused_late 0 redelivered 3\n"},
		"no stale":     {func(n *tally) { n.fenced = 0 }, nil, "verdict failed "},
		"no resend":    {func(n *tally) { n.resent = 0 }, nil, "verdict failed "},
		"no repeat":    {func(n *tally) { n.redelivered = 0 }, nil, "verdict failed issued 2000 lost 0 doubled 0 refused_late 1 redelivered 0\n"},
		"nothing":      {func(n *tally) { *n = tally{} }, nil, "verdict failed issued 0 "},
		"not finished": {func(*tally) {}, broken, "verdict failed issued 2000 lost 0 doubled 0 refused_late 1 redelivered 3\n"},
	} {
		var out strings.Builder
		counted := good()
		tt.change(&counted)
		err := conclude(&out, &counted, tt.err)
		lines := strings.SplitAfter(strings.TrimSuffix(out.String(), "\n"), "\n")
		if last := lines[len(lines)-1] + "\n"; !strings.HasPrefix(last, tt.want) || !errors.Is(err, ErrFailed) {
			t.Errorf("%s: %q, %v", name, last, err)
		}
	}
	var out strings.Builder
	if err := conclude(&out, nil, broken); !errors.Is(err, ErrFailed) || !errors.Is(err, broken) || out.String() != "verdict failed\n" {
		t.Errorf("nothing counted: %q, %v", out.String(), err)
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	type numbers = map[string]int64
	asked := numbers{"a": 1, "b": 1, "c": 1}
	for name, tt := range map[string]struct {
		issued, sent  numbers
		lost, doubled int64
	}{
		"as asked":               {numbers{"a": 1, "b": 1, "c": 1}, numbers{"a": 1, "b": 1, "c": 1}, 0, 0},
		"one not issued":         {numbers{"a": 1, "b": 1}, numbers{"a": 1, "b": 1, "c": 1}, 1, 0},
		"one not sent":           {numbers{"a": 1, "b": 1, "c": 1}, numbers{"a": 1, "c": 1}, 1, 0},
		"one of each":            {numbers{"b": 1, "c": 1}, numbers{"a": 1, "c": 1}, 2, 0},
		"issued twice":           {numbers{"a": 2, "b": 1, "c": 1}, numbers{"a": 1, "b": 1, "c": 1}, 0, 1},
		"sent three times":       {numbers{"a": 1, "b": 1, "c": 1}, numbers{"a": 1, "b": 3, "c": 1}, 0, 2},
		"one lost, one doubled":  {numbers{"a": 2, "b": 1}, numbers{"a": 1, "b": 1}, 1, 1},
		"one that nobody wanted": {numbers{"a": 1, "b": 1, "c": 1, "d": 1}, numbers{"a": 1, "b": 1, "c": 1, "d": 1}, 0, 2},
		"nothing":                {nil, nil, 3, 0},
	} {
		if lost, doubled := compare(asked, tt.issued, tt.sent); lost != tt.lost || doubled != tt.doubled {
			t.Errorf("%s: lost %d, doubled %d, want %d and %d", name, lost, doubled, tt.lost, tt.doubled)
		}
	}
}
