package outbox_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/api/consumer"
	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/task"
)

// TestCloudEvent_IsWhatConsumersRead: every field of an event arrives in the consumers'
// package, which cannot import ours. Break seen to fail: another name of a field in
// consumer.Data.
func TestCloudEvent_IsWhatConsumersRead(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 30, 13, 22, 14, 767815000, time.UTC)
	step, attempt, worker := uuid.New(), uuid.New(), uuid.New()
	told := task.Event{
		Type: task.EventStepRetryScheduled, Sequence: 7, At: at,
		ExecutionID: uuid.New(), ExecutionName: "order", Namespace: "shop", Round: 2,
		StepID: &step, StepName: "charge", AttemptID: &attempt, AttemptNumber: 3, LeaseVersion: 1 << 60, WorkerID: &worker,
		Reason: "LOST", FailureType: "ERROR", Failure: "card refused", NextAttempt: &at,
	}
	for field, value := range reflect.ValueOf(told).Fields() {
		if value.IsZero() {
			t.Fatalf("the event has a field %s that this test does not set", field.Name)
		}
	}
	data, err := json.Marshal(told)
	if err != nil {
		t.Fatal(err)
	}
	sent, err := outbox.CloudEvent(&outbox.Event{
		ID: uuid.New(), Namespace: told.Namespace, AggregateID: told.ExecutionID, Type: string(told.Type),
		Sequence: told.Sequence, Data: data, CreatedAt: at, TraceContext: map[string]string{"traceparent": "00-a-b-01", "tracestate": "k=v"},
	}, "/test")
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(sent)
	if err != nil {
		t.Fatal(err)
	}
	got, err := consumer.ParseEvent(body)
	if err != nil {
		t.Fatal(err)
	}
	want := &consumer.Event{
		ID: uuid.MustParse(sent.ID()), Source: "/test", Type: string(told.Type), Namespace: "shop", ExecutionID: told.ExecutionID,
		Sequence: 7, Time: at, TraceParent: "00-a-b-01", TraceState: "k=v",
		Data: consumer.Data{
			ExecutionName: "order", Round: 2, StepID: step, StepName: "charge", AttemptID: attempt, AttemptNumber: 3,
			LeaseVersion: 1 << 60, WorkerID: worker, Reason: "LOST", FailureType: "ERROR", FailureMessage: "card refused", NextAttempt: at,
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v\nfrom %s", got, want, body)
	}
	// What is in the attributes need not be read from the data; nothing else may be missing.
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		t.Fatal(err)
	}
	known := ""
	for field := range reflect.TypeFor[consumer.Data]().Fields() {
		known += " " + field.Tag.Get("json") + ","
	}
	for name := range fields {
		if name != "time" && name != "execution_id" && name != "namespace" && !strings.Contains(known, " "+name+",") {
			t.Errorf("consumers do not get %s", name)
		}
	}
}
