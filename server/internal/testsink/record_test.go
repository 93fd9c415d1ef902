package testsink

import (
	"fmt"
	"testing"
)

// TestRecord_SeesBrokenOrder: a checker that sees nothing would pass everything.
func TestRecord_SeesBrokenOrder(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		story  string // arrivals of events by their sequence, a capital letter when one is taken
		broken int
	}{
		"in order":                  {"1A2B3C", 0},
		"a repeat that comes late":  {"1A2B1A3C2B", 0},
		"a try that was not taken":  {"11A2B", 0},
		"the second comes first":    {"2B1A", 1},
		"a gap":                     {"1A3C", 1},
		"the second does not wait":  {"12AB", 1},
		"the first was never taken": {"12B", 1},
		"no number":                 {"0", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &Record{}
			last := map[rune]*Delivery{}
			for _, what := range c.story {
				if what >= 'A' {
					r.Taken(last[what-'A'+'1'])
					continue
				}
				d, err := r.Arrived(fmt.Appendf(nil, `{"id":"id-%c","subject":"one","sequence":"%c"}`, what, what))
				if err != nil {
					t.Fatal(err)
				}
				last[what] = d
			}
			if got := r.CheckOrder(); len(got) != c.broken {
				t.Errorf("found %q, want %d", got, c.broken)
			}
		})
	}
}

func TestRecord_CountsRepeats(t *testing.T) {
	t.Parallel()
	r := &Record{}
	for _, id := range []string{"a", "b", "a"} {
		d, err := r.Arrived([]byte(`{"id":"` + id + `","subject":"one","sequence":"1"}`))
		if err != nil {
			t.Fatal(err)
		}
		if id == "a" {
			r.Taken(d)
		}
	}
	if r.Repeats() != 1 || r.Times("a") != 2 || r.Times("c") != 0 || len(r.IDs()) != 1 || len(r.Deliveries()) != 3 {
		t.Errorf("repeats %d, of a %d, ids %v", r.Repeats(), r.Times("a"), r.IDs())
	}
	if _, err := r.Arrived([]byte("{")); err == nil {
		t.Error("what is no event was noted")
	}
}
