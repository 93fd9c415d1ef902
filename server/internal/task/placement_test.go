package task

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

func worker(n byte) uuid.UUID { return uuid.UUID{15: n} }

func offer(w byte, node string, room int, capabilities ...string) Offer {
	o := Offer{WorkerID: worker(w), Node: node, Room: room, Bytes: 1000, Capabilities: map[string]bool{}}
	for _, c := range capabilities {
		o.Capabilities[c] = true
	}
	return o
}

func TestPlace(t *testing.T) {
	t.Parallel()
	x := Waiting{Capability: "x", AnswerBytes: 10}
	pinned := Waiting{Capability: "x", Node: "n2"}
	big := Waiting{Capability: "x", AnswerBytes: 600}
	huge := Waiting{Capability: "x", AnswerBytes: 5000}
	foreign := Waiting{Capability: "x", Namespace: "other"}
	many := map[uuid.UUID]int{worker(1): 9, worker(2): 9}
	for _, tt := range []struct {
		rule     string
		requests []Waiting
		offers   []Offer
		free     map[uuid.UUID]int
		want     []Assignment
	}{
		{"first requests first", []Waiting{x, x, x}, []Offer{offer(1, "", 2, "x")}, many, []Assignment{{0, 0}, {1, 0}}},
		{"what nobody can do hides nothing", []Waiting{{Capability: "y"}, x}, []Offer{offer(1, "", 2, "x")}, many, []Assignment{{1, 0}}},
		{"a pinned step goes to its node only", []Waiting{pinned, x}, []Offer{offer(1, "n1", 5, "x"), offer(2, "n2", 5, "x")}, many, []Assignment{{0, 1}, {1, 0}}},
		{"a pin to an absent node hides nothing", []Waiting{{Capability: "x", Node: "gone"}, x}, []Offer{offer(1, "n1", 5, "x")}, many, []Assignment{{1, 0}}},
		{"namespaces are apart", []Waiting{foreign, x}, []Offer{offer(1, "", 5, "x")}, many, []Assignment{{1, 0}}},
		{"polls of one worker share its slots", []Waiting{x, x, x}, []Offer{offer(1, "", 1, "x"), offer(1, "", 5, "x")}, map[uuid.UUID]int{worker(1): 2}, []Assignment{{0, 0}, {1, 1}}},
		{"a worker without a free slot gets nothing", []Waiting{x}, []Offer{offer(1, "", 1, "x")}, map[uuid.UUID]int{worker(1): 0}, nil},
		{"an unknown worker gets nothing", []Waiting{x}, []Offer{offer(3, "", 1, "x")}, many, nil},
		{"an answer stays within its bytes", []Waiting{big, big, x}, []Offer{offer(1, "", 5, "x")}, many, []Assignment{{0, 0}, {2, 0}}},
		{"the first is taken whatever its size", []Waiting{huge, x}, []Offer{offer(1, "", 5, "x")}, many, []Assignment{{0, 0}}},
		{"what is too large for one answer goes into the next", []Waiting{big, big}, []Offer{offer(1, "", 5, "x"), offer(1, "", 5, "x")}, many, []Assignment{{0, 0}, {1, 1}}},
	} {
		if got := Place(tt.requests, tt.offers, tt.free); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.rule, got, tt.want)
		}
	}
}

func randomWaiting(t *rapid.T) Waiting {
	return Waiting{
		Namespace:   rapid.SampledFrom([]string{"p", "q"}).Draw(t, "namespace"),
		Capability:  rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "capability"),
		Node:        rapid.SampledFrom([]string{"", "", "n1", "n2"}).Draw(t, "pin"),
		AnswerBytes: rapid.IntRange(0, 300).Draw(t, "bytes"),
	}
}

func randomOffer(t *rapid.T) Offer {
	o := offer(rapid.Byte().Draw(t, "worker")%4, rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(t, "node"), rapid.IntRange(0, 4).Draw(t, "room"),
		rapid.SliceOfN(rapid.SampledFrom([]string{"x", "y"}), 0, 2).Draw(t, "capabilities")...)
	o.Namespace = rapid.SampledFrom([]string{"p", "q"}).Draw(t, "namespace")
	o.Bytes = rapid.IntRange(0, 600).Draw(t, "budget")
	return o
}

// TestPlace_AlwaysKeepsItsBounds: whatever the requests and offers, slots, room, bytes, nodes
// and capabilities are kept, and no request is left out that an offer still had room for.
func TestPlace_AlwaysKeepsItsBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		requests := rapid.SliceOfN(rapid.Custom(randomWaiting), 0, 25).Draw(t, "requests")
		offers := rapid.SliceOfN(rapid.Custom(randomOffer), 0, 8).Draw(t, "offers")
		free := map[uuid.UUID]int{}
		for w := range byte(4) {
			free[worker(w)] = rapid.IntRange(-1, 5).Draw(t, "free")
		}
		left := map[uuid.UUID]int{}
		for id, n := range free {
			left[id] = n
		}
		taken, weight := make([]int, len(offers)), make([]int, len(offers))
		can := func(r Waiting, o int) bool {
			f := offers[o]
			return f.Namespace == r.Namespace && f.Capabilities[r.Capability] && (r.Node == "" || r.Node == f.Node) &&
				taken[o] < f.Room && left[f.WorkerID] > 0 && (taken[o] == 0 || weight[o]+r.AnswerBytes <= f.Bytes)
		}
		placed := Place(requests, offers, free)
		for i, r := range requests { // in their order: an earlier one never yields to a later one
			if len(placed) > 0 && placed[0].Waiting == i {
				o := placed[0].Offer
				if !can(r, o) {
					t.Fatalf("request %d went to offer %d, which cannot take it", i, o)
				}
				taken[o]++
				weight[o] += r.AnswerBytes
				left[offers[o].WorkerID]--
				placed = placed[1:]
				continue
			}
			for o := range offers {
				if can(r, o) {
					t.Fatalf("request %d was left out, offer %d had room", i, o)
				}
			}
		}
		if len(placed) > 0 {
			t.Fatalf("%v are out of order, twice or of no request", placed)
		}
		for id, n := range free {
			if n != free[id] || left[id] > max(n, 0) {
				t.Fatalf("free slots of the caller were changed")
			}
		}
	})
}

func TestPlace_IsFastWithManyPolls(t *testing.T) {
	t.Parallel()
	const n = 20_000
	requests, offers, free := make([]Waiting, n), make([]Offer, n), map[uuid.UUID]int{}
	capabilities := map[string]bool{"x": true}
	for i := range offers {
		id := uuid.UUID{0: 1, 14: byte(i >> 8), 15: byte(i)}
		requests[i].Capability = "x"
		offers[i] = Offer{WorkerID: id, Capabilities: capabilities, Room: 1}
		free[id] = 1
	}
	start := time.Now()
	if got := len(Place(requests, offers, free)); got != n {
		t.Fatalf("%d of %d were placed", got, n)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("placing %d requests on %d polls took %v", n, n, took)
	}
}
