package history

import "fmt"

// Violation is a promise that was broken, and by what.
type Violation struct {
	Rule string // the name of one of Rules
	Text string
}

func (v Violation) String() string { return v.Rule + ": " + v.Text }

// Rule is a promise that Check looks at.
type Rule struct {
	Name     string
	Sentence string
}

// The names of the rules.
const (
	ruleAnswers      = "answers"
	ruleOneLease     = "one-lease"
	ruleVersions     = "versions"
	ruleLinearizable = "linearizable"
	ruleKept         = "kept"
	ruleFinal        = "final"
	ruleDurable      = "durable"
	ruleRefused      = "refused"
	ruleWhole        = "whole"
	ruleRetries      = "retries"
	ruleParents      = "parents"
	ruleKeys         = "keys"
	ruleCancel       = "cancel"
	ruleEvents       = "events"
	ruleDelivery     = "delivery"
	ruleEnds         = "ends"
)

// Rules are all rules, in the order in which they are checked.
func Rules() []Rule {
	return []Rule{
		{ruleAnswers, "No answer is INTERNAL, UNKNOWN or DATA_LOSS."},
		{ruleOneLease, "A step has at most one live lease at any instant, and a lease is one session's."},
		{ruleVersions, "lease_version grows within a step, is never used twice, and is greater for a grant that began after another was answered."},
		{ruleLinearizable, "For each step the answers to lease, renew, report and release fit to one lease that changes hands, in the order in which they can have happened."},
		{ruleKept, "A lease lasts as long as it was granted or renewed for: until then no call on it is refused because it is over, and nobody else gets the step."},
		{ruleFinal, "What has ended stays as it ended: nothing but a new round follows, in the tables, the timeline and the answers."},
		{ruleDurable, "What was answered OK is in the tables, with all of its effect."},
		{ruleRefused, "A call that was refused changed nothing; a late report leaves its one counted entry. What a worker is said to have done, it asked for."},
		{ruleWhole, "What belongs together was committed together: attempt, lease, step, counters, children, timeline; an unclear report is there as a whole or not at all."},
		{ruleRetries, "Attempts are numbered without gaps, only those that may have run are counted, none is made beyond maximum_attempts, after a final end, or before it is due."},
		{ruleParents, "A step starts after all of its parents have succeeded, and is skipped only because of one that did not."},
		{ruleKeys, "An idempotency key stands for one execution, in all answers, and that is created once."},
		{ruleCancel, "After a cancel or terminate was answered OK no attempt of that round starts, and the execution ends CANCELED."},
		{ruleEvents, "Every transition that is written as an event is in the outbox just once, numbered without gaps, and nothing else is."},
		{ruleDelivery, "What a consumer gets was committed, every published event came, and the first deliveries of an execution came in order."},
		{ruleEnds, "Every accepted execution ends, and all of its events are settled (only in a finished run)."},
	}
}

// Check tells which promises were broken, in a run that may have been cut off in the middle:
// what has not come yet is no fault.
func Check(h History, c Committed) []Violation { return check(h, c, false) }

// CheckFinished is Check of a run whose work is done and whose events are published: what has not
// come will not come.
func CheckFinished(h History, c Committed) []Violation { return check(h, c, true) }

func check(h History, c Committed, finished bool) []Violation {
	b := newBook(&h, &c)
	b.answers()
	b.oneLease()
	b.versions()
	b.linearizable()
	b.kept()
	b.final()
	b.durable()
	b.refused()
	b.whole()
	b.retries()
	b.parentsFirst()
	b.keys()
	b.cancel()
	b.events()
	b.delivery(finished)
	if finished {
		b.ends()
	}
	return b.list()
}

// mostTold is how many violations of a rule are told; further ones are counted.
const mostTold = 20

// findings are the violations so far.
type findings struct {
	told map[string][]Violation
	more map[string]int
}

func (f *findings) broken(rule, format string, args ...any) {
	if len(f.told[rule]) >= mostTold {
		f.more[rule]++
		return
	}
	f.told[rule] = append(f.told[rule], Violation{rule, fmt.Sprintf(format, args...)})
}

func (f *findings) list() []Violation {
	var all []Violation
	for _, r := range Rules() {
		all = append(all, f.told[r.Name]...)
		if n := f.more[r.Name]; n > 0 {
			all = append(all, Violation{r.Name, fmt.Sprintf("and %d more", n)})
		}
	}
	return all
}

// answers: rule answers.
func (b *book) answers() {
	for i := range b.h.Ops {
		if o := &b.h.Ops[i]; o.bug() {
			b.broken(ruleAnswers, "%s was answered %s (reason %q)", o, o.Code, o.Reason)
		}
	}
}

// ends: rule ends.
func (b *book) ends() {
	for i := range b.c.Executions {
		if e := &b.c.Executions[i]; !terminal(e.State) {
			b.broken(ruleEnds, "execution %s is %s, with %d open steps", e.ID, e.State, e.OpenSteps)
		}
	}
	for i := range b.c.Leases {
		b.broken(ruleEnds, "the lease of attempt %s is there", b.c.Leases[i].Attempt)
	}
	if !b.h.Sink {
		return
	}
	for i := range b.c.Events {
		if e := &b.c.Events[i]; e.Status != statusPublished && e.Status != statusSkipped {
			b.broken(ruleEnds, "event %s (%s of %s) is %s", e.ID, e.Type, e.Execution, e.Status)
		}
	}
}
