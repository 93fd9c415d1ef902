package faults

import (
	"bufio"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// standing is how a replica stands, by its own metrics.
type standing struct {
	goroutines, files, heap float64
}

// TestSDK_IdleWorkersCostNothing: many workers of the SDK that have nothing to do, in a few
// processes, against one replica. Nothing grows on either side, and PostgreSQL hardly notices.
func TestSDK_IdleWorkersCostNothing(t *testing.T) {
	alongside(t)
	processes, each := sized(2, 4), sized(50, 250)
	// PostgreSQL counts what a connection did up to 10 s later.
	settle, window := sized(11*time.Second, time.Minute), sized(7*time.Second, 5*time.Minute)
	c := newCluster(t, clusterConfig{replicas: 1, sweep: time.Second, args: []string{"--http-listen", "127.0.0.1:0"}})
	metrics := metricsOf(t, c.replicas[0])
	children := make([]*workersProcess, processes)
	for i := range children {
		children[i] = startWorkers(t, workersJob{Addrs: c.addresses(), Capability: "idle", Workers: each, Slots: 4})
	}
	for _, p := range children {
		eventually(t, time.Minute, "all workers well", func() bool { return p.look().Healthy == each })
	}
	time.Sleep(settle)

	before, server := make([]workersLine, processes), lowest(t, metrics)
	for i, p := range children {
		before[i] = p.look()
	}
	const transactions = `SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()`
	began, committed := time.Now(), c.number(transactions)
	time.Sleep(window)
	rate := float64(c.number(transactions)-committed) / time.Since(began).Seconds()
	for i, p := range children {
		now := p.look()
		t.Logf("process %d: before %+v, after %+v", i+1, before[i], now)
		if now.Healthy != each || now.Sockets > before[i].Sockets+2 || now.Goroutines > before[i].Goroutines+each/10 ||
			float64(now.Heap) > 1.2*float64(before[i].Heap)+2<<20 {
			t.Errorf("process %d grows: before %+v, after %+v", i+1, before[i], now)
		}
	}
	after := lowest(t, metrics)
	t.Logf("replica: before %+v, after %+v; %.1f transactions a second", server, after, rate)
	if after.goroutines > server.goroutines*1.05+20 || after.files > server.files+5 || after.heap > 1.25*server.heap+8<<20 {
		t.Errorf("the replica grows: before %+v, after %+v", server, after)
	}
	if rate > 5 {
		t.Errorf("%.1f transactions a second, want at most 5", rate)
	}
}

// metricsOf is where a replica shows its metrics, which it tells in its log.
func metricsOf(t *testing.T, r *replica) string {
	t.Helper()
	line := regexp.MustCompile(`msg=ready .*http=(\S+)`)
	var found [][]byte
	eventually(t, 10*time.Second, "an address of metrics in the log", func() bool {
		log, err := os.ReadFile(r.logPath)
		if err != nil {
			t.Fatal(err)
		}
		found = line.FindSubmatch(log)
		return found != nil
	})
	return "http://" + string(found[1]) + "/metrics"
}

// lowest is the least of what is seen within some seconds: the heap goes up and down.
func lowest(t *testing.T, url string) standing {
	t.Helper()
	least := scrape(t, url)
	for range sized(4, 20) {
		time.Sleep(500 * time.Millisecond)
		now := scrape(t, url)
		least = standing{min(least.goroutines, now.goroutines), min(least.files, now.files), min(least.heap, now.heap)}
	}
	return least
}

func scrape(t *testing.T, url string) standing {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	values := map[string]float64{}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if n, err := strconv.ParseFloat(value, 64); err == nil {
			values[name] = n
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	if values["go_goroutines"] == 0 || values["go_memstats_heap_alloc_bytes"] == 0 {
		t.Fatalf("metrics miss what is looked for: %v", values)
	}
	return standing{values["go_goroutines"], values["process_open_fds"], values["go_memstats_heap_alloc_bytes"]}
}
