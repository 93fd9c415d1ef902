package consumer_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/api/consumer"
)

// message is an event as the server sends it.
const message = `{
	"specversion": "1.0",
	"id": "0195f7a0-0000-7000-8000-000000000001",
	"source": "/leasehold",
	"type": "leasehold.step.v1.failed",
	"subject": "0195f7a0-0000-7000-8000-000000000002",
	"time": "2026-11-30T13:22:14.767815Z",
	"datacontenttype": "application/json",
	"partitionkey": "0195f7a0-0000-7000-8000-000000000002",
	"sequence": "3",
	"namespace": "shop",
	"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	"data": {
		"time": "2026-11-30T13:22:14.767815Z", "execution_id": "0195f7a0-0000-7000-8000-000000000002",
		"execution_name": "order", "namespace": "shop", "round": 1,
		"step_id": "0195f7a0-0000-7000-8000-000000000003", "step_name": "charge", "attempt_number": 2,
		"lease_version": "1099511627782", "failure_type": "ERROR", "failure_message": "card refused",
		"something_new": true
	}
}`

func TestParseEvent(t *testing.T) {
	t.Parallel()
	got, err := consumer.ParseEvent([]byte(message))
	if err != nil {
		t.Fatal(err)
	}
	want := &consumer.Event{
		ID:     uuid.MustParse("0195f7a0-0000-7000-8000-000000000001"),
		Source: "/leasehold", Type: "leasehold.step.v1.failed", Namespace: "shop",
		ExecutionID: uuid.MustParse("0195f7a0-0000-7000-8000-000000000002"),
		Sequence:    3,
		Time:        time.Date(2026, 11, 30, 13, 22, 14, 767815000, time.UTC),
		TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		Data: consumer.Data{
			ExecutionName: "order", Round: 1, StepID: uuid.MustParse("0195f7a0-0000-7000-8000-000000000003"),
			StepName: "charge", AttemptNumber: 2, LeaseVersion: 1099511627782, FailureType: "ERROR", FailureMessage: "card refused",
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestParseEvent_Malformed changes one thing of a good message at a time.
func TestParseEvent_Malformed(t *testing.T) {
	t.Parallel()
	for name, change := range map[string][2]string{
		"no JSON":                   {`{`, ``},
		"no CloudEvent":             {`"specversion": "1.0",`, ``},
		"no type":                   {`"type": "leasehold.step.v1.failed",`, ``},
		"no source":                 {`"source": "/leasehold",`, ``},
		"no id":                     {`"id": "0195f7a0-0000-7000-8000-000000000001",`, ``},
		"an id of somebody else":    {`"id": "0195f7a0-0000-7000-8000-000000000001"`, `"id": "42"`},
		"a subject of another kind": {`"subject": "0195f7a0-0000-7000-8000-000000000002"`, `"subject": "orders/1"`},
		"no sequence":               {`"sequence": "3",`, ``},
		"a sequence of nothing":     {`"sequence": "3"`, `"sequence": "0"`},
		"no number":                 {`"sequence": "3"`, `"sequence": "third"`},
		"data of another shape":     {`"lease_version": "1099511627782"`, `"lease_version": "new"`},
	} {
		text := strings.Replace(message, change[0], change[1], 1)
		if text == message {
			t.Fatalf("%s: nothing was changed", name)
		}
		if e, err := consumer.ParseEvent([]byte(text)); !errors.Is(err, consumer.ErrMalformed) {
			t.Errorf("%s: %+v, %v, want ErrMalformed", name, e, err)
		}
	}
	for _, text := range []string{"", "null", "[]", message + "x", `{"specversion":"1.0","id":"0195f7a0-0000-7000-8000-000000000001","source":"/x","type":"y","subject":"0195f7a0-0000-7000-8000-000000000002","sequence":"1"}`} {
		if e, err := consumer.ParseEvent([]byte(text)); !errors.Is(err, consumer.ErrMalformed) {
			t.Errorf("%q: %+v, %v, want ErrMalformed", text, e, err)
		}
	}
}
