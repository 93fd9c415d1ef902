package task

import "fmt"

// TransitionError says that an event may not happen in a state.
type TransitionError struct {
	Entity string // "execution", "step" or "attempt"
	From   string
	Event  string
}

func (e *TransitionError) Error() string {
	return fmt.Sprintf("%s is %s: %s is not possible", e.Entity, e.From, e.Event)
}

// Reason is why a call was refused, as clients see it in google.rpc.ErrorInfo.
type Reason string

// The reasons that the domain gives.
const (
	ReasonInvalidField       Reason = "INVALID_FIELD"
	ReasonStepCycle          Reason = "STEP_CYCLE"
	ReasonStepUnknownParent  Reason = "STEP_UNKNOWN_PARENT"
	ReasonStepSelfParent     Reason = "STEP_SELF_PARENT"
	ReasonStepDoubleParent   Reason = "STEP_DUPLICATE_PARENT"
	ReasonStepDoubleName     Reason = "STEP_DUPLICATE_NAME"
	ReasonNoSteps            Reason = "NO_STEPS"
	ReasonTooManySteps       Reason = "TOO_MANY_STEPS"
	ReasonTooManyEdges       Reason = "TOO_MANY_EDGES"
	ReasonPayloadTooLarge    Reason = "PAYLOAD_TOO_LARGE"
	ReasonInvalidJSON        Reason = "INVALID_JSON"
	ReasonLeaseSuperseded    Reason = "LEASE_SUPERSEDED"
	ReasonOutcomeRecorded    Reason = "OUTCOME_ALREADY_RECORDED"
	ReasonLeaseRevoked       Reason = "LEASE_REVOKED"
	ReasonSessionSuperseded  Reason = "SESSION_SUPERSEDED"
	ReasonExecutionClosed    Reason = "EXECUTION_CLOSED"
	ReasonLeaseExpired       Reason = "LEASE_EXPIRED"
	ReasonCancelNotRequested Reason = "CANCEL_NOT_REQUESTED"
	ReasonNotRetryable       Reason = "EXECUTION_NOT_RETRYABLE"
	ReasonStepNotRetryable   Reason = "STEP_NOT_RETRYABLE"
)

// Violation is one thing that is wrong with an input.
type Violation struct {
	Field   string // like steps[2].depends_on[0]
	Reason  Reason
	Message string
}
