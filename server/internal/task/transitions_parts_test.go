package task

// ---- a step alone

func stepTable() []row {
	states := []StepState{StepBlocked, StepReady, StepRunning, StepSucceeded, StepFailed, StepCanceled, StepSkipped}
	var rows []row
	for _, from := range states {
		r := row{name: string(from)}
		for _, ev := range stepEvents() {
			d := StepData{State: from, Retry: DefaultRetryPolicy(), WaitingParents: 1}
			d.Retry.MaximumAttempts = 2
			s := &Step{d: d}
			if from == StepRunning {
				s.attempt = RestoreAttempt(AttemptData{State: AttemptLeased, Number: 1})
			}
			c := cell{event: ev.name, from: string(from)}
			if err := ev.do(s); err == nil {
				c.to = string(s.d.State)
			}
			r.cells = append(r.cells, c)
		}
		rows = append(rows, r)
	}
	return rows
}

type stepEvent struct {
	name string
	do   func(*Step) error
}

func stepEvents() []stepEvent {
	ends := func(name string, a AttemptData, counted int, stopping bool) stepEvent {
		return stepEvent{name, func(s *Step) error {
			s.d.Counted = counted
			_, err := s.attemptEnded(epoch, a, 0, stopping, 0)
			return err
		}}
	}
	deadline := func(name string, reason string) stepEvent {
		return ends(name, AttemptData{State: AttemptTimedOut, Reason: reason}, 0, false)
	}
	times := func(because string) stepEvent {
		return stepEvent{"its wait is over: " + because, func(s *Step) error { return s.timeOut(because) }}
	}
	events := []stepEvent{
		{"a parent succeeds, another is left", func(s *Step) error { s.d.WaitingParents = 2; return second(s.parentSucceeded(epoch, 0)) }},
		{"the last parent succeeds", func(s *Step) error { return second(s.parentSucceeded(epoch, 0)) }},
		{"a parent does not succeed", (*Step).skip},
		{"leased", func(s *Step) error { return s.lease(&Attempt{}) }},
		{"attempt SUCCEEDED", func(s *Step) error { return s.attemptSucceeded(nil) }},
	}
	for _, state := range []AttemptState{AttemptFailed, AttemptTimedOut, AttemptLost, AttemptReleased} {
		events = append(events,
			ends("attempt "+string(state), AttemptData{State: state}, 0, false),
			ends("attempt "+string(state)+", it was the last", AttemptData{State: state}, 1, false))
	}
	events = append(events,
		ends("attempt FAILED, non-retryable", AttemptData{State: AttemptFailed, Failure: &Failure{NonRetryable: true}}, 0, false),
		deadline("attempt TIMED_OUT by schedule_to_close_timeout", EndScheduleToClose),
		deadline("attempt TIMED_OUT by the execution's deadline", EndExecutionDeadline))
	for _, state := range []AttemptState{AttemptFailed, AttemptTimedOut, AttemptLost, AttemptReleased, AttemptCanceled} {
		events = append(events, ends("attempt "+string(state)+" while stopping", AttemptData{State: state}, 0, true))
	}
	return append(events, times(StoppedScheduleToStart), times(StoppedScheduleToClose), times(StoppedDeadline),
		stepEvent{"canceled while nothing of it is live", (*Step).cancel},
		stepEvent{"reopened, a parent too", func(s *Step) error { return s.reopen(epoch, 1) }},
		stepEvent{"reopened, all parents succeeded", func(s *Step) error { return s.reopen(epoch, 0) }})
}

func second(_ bool, err error) error { return err }

// ---- an attempt alone

func attemptTable() []row {
	states := []AttemptState{
		AttemptLeased, AttemptSucceeded, AttemptFailed, AttemptTimedOut, AttemptLost, AttemptReleased, AttemptCanceled,
	}
	events := []struct {
		name string
		do   func(*Attempt) error
	}{
		{"succeed", func(a *Attempt) error { return a.Succeed(epoch) }},
		{"fail", func(a *Attempt) error { return a.Fail(epoch, nil) }},
		{"time out", func(a *Attempt) error { return a.TimeOut(epoch, EndStartToClose) }},
		{"lose", func(a *Attempt) error { return a.Lose(epoch, EndLeaseExpired) }},
		{"release", func(a *Attempt) error { return a.Release(epoch, "") }},
		{"cancel", func(a *Attempt) error { return a.Cancel(epoch, EndCancelGrace) }},
	}
	var rows []row
	for _, from := range states {
		r := row{name: string(from)}
		for _, ev := range events {
			a := RestoreAttempt(AttemptData{State: from})
			c := cell{event: ev.name, from: string(from)}
			if ev.do(a) == nil {
				c.to = string(a.d.State)
			}
			r.cells = append(r.cells, c)
		}
		rows = append(rows, r)
	}
	return rows
}
