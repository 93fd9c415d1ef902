package execworker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/api/worker"
)

// Exit codes and types of failures.
const (
	TempFail = 75 // EX_TEMPFAIL

	TypeExit   = "EXIT_STATUS" // the program ended with another status than 0
	TypeSignal = "SIGNAL"      // a signal ended it
	TypeStart  = "NOT_STARTED" // it could not be started
)

// Defaults of Config.
const (
	DefaultPermanentExit = 65 // EX_DATAERR of sysexits.h: the input is at fault
	DefaultMaxOutput     = 1 << 20
	DefaultKillAfter     = 5 * time.Second
	DefaultTempFailDelay = time.Second
)

// Config says what to run, and for whom.
type Config struct {
	Worker        worker.Config
	Capabilities  []string      // at least one
	Command       []string      // a program and its arguments
	PermanentExit int           // 1 to 255
	TempFailDelay time.Duration // until a step that was handed back is due again
	MaxOutput     int           // bytes of stdout, and of a line of notes
	KillAfter     time.Duration // between SIGTERM and SIGKILL, after a cancel
	Stderr        io.Writer     // gets what the programs write to theirs; for several goroutines
}

// Run works until ctx ends. Errors: a program that is not there, and those of worker.Run.
func Run(ctx context.Context, c Config) error {
	if len(c.Command) == 0 {
		return errors.New("no program was given")
	}
	path, err := exec.LookPath(c.Command[0])
	if err != nil {
		return fmt.Errorf("the program: %w", err)
	}
	w := worker.New(c.Worker)
	for _, capability := range c.Capabilities {
		worker.HandleRaw(w, capability, func(ctx context.Context, job *worker.Job[*leaseholdv1.Payload]) (*leaseholdv1.Payload, error) {
			env, cleanup, err := environment(ctx, job)
			if err != nil {
				return nil, err
			}
			defer cleanup()
			p := &program{
				path: path, args: c.Command, env: env, input: bodyOf(job.Input), notes: job, lease: job.Lease().GetLeaseDuration().AsDuration(), c: &c,
			}
			return p.run(ctx)
		})
	}
	return w.Run(ctx)
}

func bodyOf(p *leaseholdv1.Payload) []byte {
	if body, isJSON := p.GetBody().(*leaseholdv1.Payload_Json); isJSON {
		return []byte(body.Json)
	}
	return p.GetData()
}
