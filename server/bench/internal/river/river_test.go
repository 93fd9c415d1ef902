package river

import (
	"os"
	"testing"
	"time"

	"github.com/leasehold/leasehold/server/internal/testdb"
)

// databases are the tests' own.
var databases testdb.Server

func TestMain(m *testing.M) {
	status := m.Run()
	databases.Stop()
	os.Exit(status)
}

// Every scenario ends by itself, with all of its jobs worked once.
func TestRun(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{
		"P1":            {Scenario: "P1", Duration: 300 * time.Millisecond, Producers: 4},
		"P2":            {Scenario: "P2", Count: 500},
		"P3":            {Scenario: "P3", Count: 500, Producers: 2, Batch: 100},
		"P4":            {Scenario: "P4", Duration: 300 * time.Millisecond, Rate: 100},
		"P6":            {Scenario: "P6", Count: 100, Duration: 300 * time.Millisecond},
		"P6 a snapshot": {Scenario: "P6", Count: 100, Duration: 300 * time.Millisecond, Snapshot: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg.URL, cfg.Logger = databases.New(t), Quiet()
			r, err := Run(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			if r.Scenario != cfg.Scenario || r.Side != "river" || r.Count < 1 || r.Rate <= 0 || r.Lost != 0 || r.Doubled != 0 || r.Errors != 0 {
				t.Errorf("the run says %+v", r)
			}
			if cfg.Count > 0 && cfg.Scenario != "P6" && r.Count != int64(cfg.Count) {
				t.Errorf("%d of %d jobs", r.Count, cfg.Count)
			}
			if timed := cfg.Scenario == "P1" || cfg.Scenario == "P3" || cfg.Scenario == "P4"; timed != (r.Latency != nil) {
				t.Errorf("latencies: %+v", r.Latency)
			}
		})
	}
	if _, err := Run(t.Context(), Config{Scenario: "P5"}); err == nil {
		t.Error("River has no P5, and nobody says so")
	}
}

func TestBook_CountsWhatIsLostAndDoubled(t *testing.T) {
	t.Parallel()
	b := newBook(6)
	for number := range 4 { // 4 and 5 were refused
		b.accept(number)
	}
	for _, number := range []int{0, 1, 1, 2, 2, 2, 5} {
		b.work(number)
	}
	if lost, doubled := b.count(); lost != 1 || doubled != 2 {
		t.Errorf("lost %d, doubled %d", lost, doubled)
	}
	if b.inserted.Load() != 4 || b.reached.Load() != 4 {
		t.Errorf("%d inserted, %d reached", b.inserted.Load(), b.reached.Load())
	}
}
