package hostile

import (
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/drill"
)

// FuzzExecutionService sends producers' calls.
func FuzzExecutionService(f *testing.F) {
	fuzz(f, leaseholdv1.File_leasehold_v1_execution_service_proto, []proto.Message{
		&leaseholdv1.EnqueueExecutionRequest{
			Name: "job", IdempotencyKey: "key-1", Labels: map[string]string{"k": "v"}, Timeout: durationpb.New(3e9), FailFast: true,
			Steps: []*leaseholdv1.StepSpec{step("s0", "run"), step("s1", "build/v1", "s0"), step("s2", "run", "s0", "s1")},
		},
		&leaseholdv1.BatchEnqueueExecutionsRequest{Requests: []*leaseholdv1.EnqueueExecutionRequest{
			{Name: "a", IdempotencyKey: "k", Steps: []*leaseholdv1.StepSpec{step("s0", "run")}},
			{Name: "b", IdempotencyKey: "k", Steps: []*leaseholdv1.StepSpec{step("s0", "run")}},
		}},
		&leaseholdv1.GetExecutionRequest{ExecutionId: "$e0", IncludePayloads: true, StepNames: []string{"s0", "s1"}},
		&leaseholdv1.ListExecutionsRequest{PageSize: 2, PageToken: "$t0", States: []leaseholdv1.ExecutionState{2, 3}, LabelSelector: map[string]string{"k0": "v"}},
		&leaseholdv1.CancelExecutionRequest{ExecutionId: "$e5", Reason: "why"},
		&leaseholdv1.RetryExecutionRequest{ExecutionId: "$e2", StepNames: []string{"s0"}, RequestId: "key-1"},
		&leaseholdv1.ListTimelineRequest{ExecutionId: "$e1", PageSize: 1},
		&leaseholdv1.WatchExecutionRequest{ExecutionId: "$e0", AfterRevision: 1},
	})
}

// FuzzWorkerService sends workers' calls.
func FuzzWorkerService(f *testing.F) {
	failed := drill.Failed(&leaseholdv1.Failure{Type: "broken", Message: "m\x00", Details: drill.JSON("{}"), NextRetryDelay: durationpb.New(1)})
	failed.AttemptId, failed.LeaseVersion = "$a0", rightVersion
	succeeded := drill.Succeeded(drill.Data([]byte{0, 255}))
	succeeded.AttemptId, succeeded.LeaseVersion = "$a3", rightVersion
	fuzz(f, leaseholdv1.File_leasehold_v1_worker_service_proto, []proto.Message{
		&leaseholdv1.RegisterWorkerRequest{Name: "worker-0", Capabilities: []string{"run", "build/v1"}, Slots: 3, RequestId: "key-1", Labels: map[string]string{"k": "v"}},
		&leaseholdv1.LeaseAttemptRequest{WorkerId: "$w0", SessionId: "$n0", MaxLeases: 2, RequestId: "key-1", WaitTimeout: durationpb.New(0)},
		&leaseholdv1.RenewLeaseRequest{AttemptId: "$a0", LeaseVersion: rightVersion, SessionId: "$n0", Checkpoint: drill.JSON("1"), Progress: proto.Float64(0.5)},
		&leaseholdv1.BatchRenewLeasesRequest{Renewals: []*leaseholdv1.RenewLeaseRequest{
			{AttemptId: "$a0", LeaseVersion: rightVersion, SessionId: "$n0"}, {AttemptId: "$a0", LeaseVersion: rightVersion}, {AttemptId: "$a1", LeaseVersion: rightVersion, SessionId: "$n0"},
		}},
		failed,
		&leaseholdv1.BatchReportAttemptsRequest{Reports: []*leaseholdv1.ReportAttemptRequest{
			failed, succeeded, {AttemptId: "$a1", LeaseVersion: rightVersion, Outcome: &leaseholdv1.ReportAttemptRequest_Canceled_{}},
		}},
		&leaseholdv1.GetStepInputsRequest{AttemptId: "$a0", LeaseVersion: rightVersion},
		&leaseholdv1.DrainWorkerRequest{WorkerId: "$w1", SessionId: "$n1"},
		&leaseholdv1.DeregisterWorkerRequest{WorkerId: "$w2", SessionId: "$n2", Force: true},
	})
}

// FuzzOperatorService sends operators' calls.
func FuzzOperatorService(f *testing.F) {
	fuzz(f, leaseholdv1.File_leasehold_v1_operator_service_proto, []proto.Message{
		&leaseholdv1.ListWorkersRequest{PageSize: 1, Node: "n1", LiveOnly: true},
		&leaseholdv1.GetWorkerRequest{WorkerId: "$w0"},
		&leaseholdv1.SetWorkerDrainRequest{Target: &leaseholdv1.SetWorkerDrainRequest_WorkerId{WorkerId: "$w0"}, Draining: true, Reason: "r"},
		&leaseholdv1.ListCapabilitiesRequest{PageSize: 1, Capability: "run"},
		&leaseholdv1.PauseCapabilityRequest{Capability: "run", Reason: "r"},
		&leaseholdv1.ResumeCapabilityRequest{Capability: "paused"},
		&leaseholdv1.ExplainStepRequest{ExecutionId: "$e0", StepName: "s1"},
		&leaseholdv1.RevokeLeaseRequest{AttemptId: "$a0", LeaseVersion: rightVersion, Reason: "r"},
		&leaseholdv1.TerminateExecutionRequest{ExecutionId: "$e3"},
		&leaseholdv1.ListOutboxEventsRequest{PageSize: 2, AggregateId: "$e0", IncludePayload: true, Statuses: []leaseholdv1.OutboxEventStatus{1, 5}},
		&leaseholdv1.RedriveOutboxEventsRequest{Status: 5, Reason: "r"},
		&leaseholdv1.SkipOutboxEventsRequest{EventIds: []string{"$v0", "$v1"}},
	})
}

// fuzz plays scripts with a service's calls. The seeds are a good request for each method, in the
// order of declaration, the start of each, and messages made from anything.
func fuzz(f *testing.F, file protoreflect.FileDescriptor, seeds []proto.Message) {
	methods := methodsOf(file)
	if len(methods) != len(seeds) {
		f.Fatalf("%d methods, %d seeds", len(methods), len(seeds))
	}
	var all, ones [][]byte
	for i, message := range seeds {
		if message.ProtoReflect().Descriptor() != methods[i].Input() {
			f.Fatalf("seed %d is not for %s", i, methods[i].FullName())
		}
		one := script(flagDigest, i, message)
		if ones = append(ones, one); i%mostCalls == 0 {
			all = append(all, []byte{flagSweep})
		}
		all[len(all)-1] = append(all[len(all)-1], one[1:]...)
	}
	for _, good := range slices.Concat(ones, all) {
		f.Add(good)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for i, one := range ones {
		f.Add(one[:len(one)-1])
		f.Add([]byte{flagDigest, byte(i), formRaw, 4, 0, 0x0a, 2, 0xff, 0xfe})
		f.Add([]byte{flagSweep, byte(i), formMade, byte(i)})
		for range 2 {
			any := []byte{flagDigest | flagSweep, byte(i), formMade}
			for range 40 + random.IntN(100) {
				any = append(any, byte(random.Uint32()))
			}
			f.Add(any)
		}
	}
	s := newStage(f)
	f.Fuzz(func(t *testing.T, data []byte) { play(t, s, methods, data) })
}
