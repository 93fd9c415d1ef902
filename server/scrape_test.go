package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// get asks a path of the process's HTTP port.
func (p *process) get(path string) (status int, body string) {
	p.t.Helper()
	request, err := http.NewRequestWithContext(testTime(p.t), http.MethodGet, "http://"+p.ready.HTTP+path, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	client := http.Client{Timeout: 20 * time.Second}
	response, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(text)
}

// labels select series; those that are not named may have any value.
type labels map[string]string

// meter reads the metrics of a process, and remembers which were seen to do what they say.
type meter struct {
	p    *process
	seen map[string]bool
}

// families are all metrics, as they are now.
func (m *meter) families() map[string]*dto.MetricFamily {
	m.p.t.Helper()
	status, text := m.p.get("/metrics")
	if status != http.StatusOK {
		m.p.t.Fatalf("/metrics: %d %s", status, text)
	}
	return parseMetrics(m.p.t, text)
}

func parseMetrics(t *testing.T, text string) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewBufferString(text))
	if err != nil {
		t.Fatalf("parse metrics: %v", err)
	}
	return families
}

// value is the sum of the series of a metric; of a histogram, how often it observed.
func (m *meter) value(name string, want labels) (sum float64, found bool) {
	m.p.t.Helper()
	for _, series := range m.families()[name].GetMetric() {
		if matches(series, want) {
			found = true
			sum += series.GetCounter().GetValue() + series.GetGauge().GetValue() + float64(series.GetHistogram().GetSampleCount())
		}
	}
	return sum, found
}

func matches(series *dto.Metric, want labels) bool {
	missing := maps.Clone(want)
	for _, l := range series.GetLabel() {
		if want[l.GetName()] == l.GetValue() {
			delete(missing, l.GetName())
		}
	}
	return len(missing) == 0
}

// rises fails the test unless what is caused makes a metric rise by just so much.
func (m *meter) rises(name string, want labels, by float64, cause func()) {
	m.p.t.Helper()
	before, _ := m.value(name, want)
	cause()
	var now float64
	m.await(name+" rises", func() bool { now, _ = m.value(name, want); return now >= before+by })
	if now != before+by {
		m.p.t.Errorf("%s%v rose from %g to %g, want by %g", name, want, before, now, by)
	}
	m.seen[name] = true
}

// grows fails the test unless what is caused makes a metric rise.
func (m *meter) grows(name string, want labels, cause func()) {
	m.p.t.Helper()
	before, _ := m.value(name, want)
	cause()
	m.becomes(name, want, "more", above(before))
}

// becomes waits until a metric has a value that is as wanted.
func (m *meter) becomes(name string, want labels, what string, ok func(v float64) bool) {
	m.p.t.Helper()
	m.await(fmt.Sprintf("%s%v becomes %s", name, want, what), func() bool {
		v, found := m.value(name, want)
		return found && ok(v)
	})
	m.seen[name] = true
}

// await is patient: what is read from a slow database is read seldom.
func (m *meter) await(what string, ok func() bool) {
	m.p.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if ok() {
			return
		}
	}
	m.p.t.Fatalf("never happened: %s", what)
}

func equals(want float64) func(float64) bool { return func(v float64) bool { return v == want } }
func above(least float64) func(float64) bool { return func(v float64) bool { return v > least } }

// labelNames are the labels of a metric, in order; le is a histogram's own.
func labelNames(family *dto.MetricFamily) []string {
	names := map[string]bool{}
	for _, series := range family.GetMetric() {
		for _, l := range series.GetLabel() {
			names[l.GetName()] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}
