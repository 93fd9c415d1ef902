package task

import "time"

// Defaults of a specification.
const (
	DefaultNamespace    = "default"
	DefaultCancelGrace  = 30 * time.Second
	DefaultStartToClose = time.Hour
)

// Limits of a graph.
const (
	MaxSteps = 10_000
	MaxEdges = 50_000
)

// ExecutionSpec is an execution as a producer asks for it, defaults filled in.
type ExecutionSpec struct {
	Namespace      string
	IdempotencyKey string
	Name           string
	Labels         map[string]string
	TraceContext   map[string]string
	StartAt        *time.Time    // at this instant, or
	StartDelay     time.Duration // this long after it was accepted
	Timeout        time.Duration // 0: none
	CancelGrace    time.Duration
	FailFast       bool
	Priority       int
	Steps          []StepSpec
}

// StepSpec is a step as a producer asks for it, defaults filled in.
type StepSpec struct {
	Name            string
	Capability      string
	Node            string
	DependsOn       []string
	Input           *Payload
	Retry           RetryPolicy
	ScheduleToStart time.Duration // 0: none
	StartToClose    time.Duration
	ScheduleToClose time.Duration // 0: none
	StartDelay      time.Duration
	Priority        int
}
