package worker_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// fakeServer is a WorkerService that grants what it is given, remembers what it was told, and
// misbehaves by its hooks. It keeps no rules of its own but those that the tests are about.
type fakeServer struct {
	leaseholdv1.UnimplementedWorkerServiceServer

	// Hooks are set before the server starts; nil ones do nothing. n counts calls from 1.
	onRegister func(n int, req *leaseholdv1.RegisterWorkerRequest, resp *leaseholdv1.RegisterWorkerResponse) error
	onPoll     func(n int, req *leaseholdv1.LeaseAttemptRequest) (*leaseholdv1.LeaseAttemptResponse, error)
	onRenew    func(ctx context.Context, n int, req *leaseholdv1.BatchRenewLeasesRequest) error
	onRenewal  func(req *leaseholdv1.RenewLeaseRequest, resp *leaseholdv1.RenewLeaseResponse) error
	onReport   func(ctx context.Context, n int, req *leaseholdv1.ReportAttemptRequest) error
	onReports  func(ctx context.Context, req *leaseholdv1.BatchReportAttemptsRequest) error // of a batch as a whole
	onGrant    func(l *leaseholdv1.Lease)
	inputs     []map[string]*leaseholdv1.Payload // pages of GetStepInputs

	mu          sync.Mutex
	ready       []*leaseholdv1.Lease
	changed     chan struct{} // closed and replaced when ready or session changes
	session     string
	registers   []*leaseholdv1.RegisterWorkerRequest
	polls       []*leaseholdv1.LeaseAttemptRequest
	parked      int
	renewCalls  []int // sizes
	renewals    []*leaseholdv1.RenewLeaseRequest
	renewedAt   []time.Time
	reports     []*leaseholdv1.ReportAttemptRequest // those that were answered OK
	reportCalls int
	batches     []int // sizes of those of reports
	drained     int
	deregisters int
}

func newFake() *fakeServer { return &fakeServer{changed: make(chan struct{})} }

// refuse is an error as the service makes them.
func refuse(code codes.Code, reason string) error {
	s, err := status.New(code, "refused").WithDetails(&errdetails.ErrorInfo{Domain: "leasehold", Reason: reason})
	if err != nil {
		return err
	}
	return s.Err()
}

func (f *fakeServer) RegisterWorker(_ context.Context, req *leaseholdv1.RegisterWorkerRequest) (*leaseholdv1.RegisterWorkerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.registers = append(f.registers, req)
	resp := &leaseholdv1.RegisterWorkerResponse{
		WorkerId: uuid.NewString(), SessionId: uuid.NewString(), Name: req.GetName(),
		MaxWaitTimeout: durationpb.New(55 * time.Second), MinLeaseDuration: durationpb.New(time.Second),
		MaxLeaseDuration: durationpb.New(time.Hour), MaxPayloadBytes: 1 << 20, MaxMessageBytes: 4 << 20,
	}
	if resp.Name == "" {
		resp.Name = "made-by-the-server"
	}
	if f.onRegister != nil {
		if err := f.onRegister(len(f.registers), req, resp); err != nil {
			return nil, err
		}
	}
	f.session = resp.SessionId
	f.change()
	return resp, nil
}

func (f *fakeServer) LeaseAttempt(ctx context.Context, req *leaseholdv1.LeaseAttemptRequest) (*leaseholdv1.LeaseAttemptResponse, error) {
	received := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.polls = append(f.polls, req)
	if f.onPoll != nil {
		n := len(f.polls)
		f.mu.Unlock()
		resp, err := f.onPoll(n, req)
		f.mu.Lock()
		if resp != nil || err != nil {
			return resp, err
		}
	}
	f.parked++
	defer func() { f.parked-- }()
	drained := f.drained
	end := time.NewTimer(req.GetWaitTimeout().AsDuration())
	defer end.Stop()
	for {
		if n := min(len(f.ready), int(req.GetMaxLeases())); n > 0 {
			resp := &leaseholdv1.LeaseAttemptResponse{HeldDuration: durationpb.New(time.Since(received))}
			for _, l := range f.ready[:n] {
				if l.LeaseDuration == nil {
					l.LeaseDuration = req.GetLeaseDuration()
				}
				if l.RenewAfter == nil {
					l.RenewAfter = durationpb.New(l.LeaseDuration.AsDuration() / 3)
				}
				if f.onGrant != nil {
					f.onGrant(l)
				}
				resp.Leases = append(resp.Leases, l)
			}
			f.ready = f.ready[n:]
			return resp, nil
		}
		if f.drained > drained { // since the poll came
			return &leaseholdv1.LeaseAttemptResponse{Directive: leaseholdv1.Directive_DIRECTIVE_DRAIN}, nil
		}
		changed := f.changed
		f.mu.Unlock()
		var err error
		ended := false
		select {
		case <-changed:
		case <-end.C:
			ended = true
		case <-ctx.Done():
			err = ctx.Err()
		}
		f.mu.Lock()
		if err != nil || ended {
			return &leaseholdv1.LeaseAttemptResponse{}, err
		}
	}
}

func (f *fakeServer) BatchRenewLeases(ctx context.Context, req *leaseholdv1.BatchRenewLeasesRequest) (*leaseholdv1.BatchRenewLeasesResponse, error) {
	f.mu.Lock()
	f.renewCalls = append(f.renewCalls, len(req.GetRenewals()))
	f.renewals = append(f.renewals, req.GetRenewals()...)
	for range req.GetRenewals() {
		f.renewedAt = append(f.renewedAt, time.Now())
	}
	n := len(f.renewCalls)
	f.mu.Unlock()
	if f.onRenew != nil {
		if err := f.onRenew(ctx, n, req); err != nil {
			return nil, err
		}
	}
	resp := &leaseholdv1.BatchRenewLeasesResponse{}
	for _, renewal := range req.GetRenewals() {
		resp.Results = append(resp.Results, f.renew(renewal))
	}
	return resp, nil
}

func (f *fakeServer) renew(req *leaseholdv1.RenewLeaseRequest) *leaseholdv1.BatchRenewLeasesResult {
	one := &leaseholdv1.RenewLeaseResponse{
		LeaseDuration: req.GetLeaseDuration(), RenewAfter: durationpb.New(req.GetLeaseDuration().AsDuration() / 3),
		Directive: leaseholdv1.Directive_DIRECTIVE_CONTINUE,
	}
	if f.onRenewal != nil {
		if err := f.onRenewal(req, one); err != nil {
			return &leaseholdv1.BatchRenewLeasesResult{Result: &leaseholdv1.BatchRenewLeasesResult_Error{Error: status.Convert(err).Proto()}}
		}
	}
	return &leaseholdv1.BatchRenewLeasesResult{Result: &leaseholdv1.BatchRenewLeasesResult_Response{Response: one}}
}

func (f *fakeServer) ReportAttempt(ctx context.Context, req *leaseholdv1.ReportAttemptRequest) (*leaseholdv1.ReportAttemptResponse, error) {
	f.mu.Lock()
	f.reportCalls++
	n := f.reportCalls
	f.mu.Unlock()
	if f.onReport != nil {
		if err := f.onReport(ctx, n, req); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reports = append(f.reports, req)
	return &leaseholdv1.ReportAttemptResponse{}, nil
}

func (f *fakeServer) BatchReportAttempts(ctx context.Context, req *leaseholdv1.BatchReportAttemptsRequest) (*leaseholdv1.BatchReportAttemptsResponse, error) {
	f.mu.Lock()
	f.batches = append(f.batches, len(req.GetReports()))
	f.mu.Unlock()
	if f.onReports != nil {
		if err := f.onReports(ctx, req); err != nil {
			return nil, err
		}
	}
	resp := &leaseholdv1.BatchReportAttemptsResponse{}
	for _, one := range req.GetReports() {
		answer, err := f.ReportAttempt(ctx, one)
		if err != nil {
			resp.Results = append(resp.Results, &leaseholdv1.BatchReportAttemptsResult{Result: &leaseholdv1.BatchReportAttemptsResult_Error{Error: status.Convert(err).Proto()}})
			continue
		}
		resp.Results = append(resp.Results, &leaseholdv1.BatchReportAttemptsResult{Result: &leaseholdv1.BatchReportAttemptsResult_Response{Response: answer}})
	}
	return resp, nil
}

func (f *fakeServer) GetStepInputs(_ context.Context, req *leaseholdv1.GetStepInputsRequest) (*leaseholdv1.GetStepInputsResponse, error) {
	page := 0
	if req.GetPageToken() != "" {
		if _, err := fmt.Sscan(req.GetPageToken(), &page); err != nil {
			return nil, err
		}
	}
	resp := &leaseholdv1.GetStepInputsResponse{ParentOutputs: f.inputs[page]}
	if page+1 < len(f.inputs) {
		resp.NextPageToken = fmt.Sprint(page + 1)
	}
	return resp, nil
}

func (f *fakeServer) DrainWorker(context.Context, *leaseholdv1.DrainWorkerRequest) (*leaseholdv1.DrainWorkerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drained++
	f.change()
	return &leaseholdv1.DrainWorkerResponse{}, nil
}

func (f *fakeServer) DeregisterWorker(context.Context, *leaseholdv1.DeregisterWorkerRequest) (*leaseholdv1.DeregisterWorkerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.deregisters++
	return &leaseholdv1.DeregisterWorkerResponse{}, nil
}

// change wakes the parked polls; mu is held.
func (f *fakeServer) change() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// enqueue makes leases ready to be granted; those without an id get one.
func (f *fakeServer) enqueue(leases ...*leaseholdv1.Lease) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, l := range leases {
		if l.AttemptId == "" {
			l.AttemptId = uuid.NewString()
		}
		if l.LeaseVersion == 0 {
			l.LeaseVersion = int64(1000 + len(f.ready) + i)
		}
	}
	f.ready = append(f.ready, leases...)
	f.change()
}

// fakeState is a copy of what the server was told.
type fakeState struct {
	registers   []*leaseholdv1.RegisterWorkerRequest
	polls       []*leaseholdv1.LeaseAttemptRequest
	parked      int
	renewCalls  []int
	renewals    []*leaseholdv1.RenewLeaseRequest
	renewedAt   []time.Time
	reports     []*leaseholdv1.ReportAttemptRequest
	reportCalls int
	batches     []int
	drained     int
	deregisters int
}

func (f *fakeServer) state() fakeState {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fakeState{
		registers: append([]*leaseholdv1.RegisterWorkerRequest(nil), f.registers...),
		polls:     append([]*leaseholdv1.LeaseAttemptRequest(nil), f.polls...), parked: f.parked,
		renewCalls: append([]int(nil), f.renewCalls...), renewals: append([]*leaseholdv1.RenewLeaseRequest(nil), f.renewals...),
		renewedAt: append([]time.Time(nil), f.renewedAt...),
		reports:   append([]*leaseholdv1.ReportAttemptRequest(nil), f.reports...), reportCalls: f.reportCalls,
		batches: append([]int(nil), f.batches...),
		drained: f.drained, deregisters: f.deregisters,
	}
}
