// Package workertest runs handlers of workers without a server: one attempt in memory, with the
// real worker around it, so that inputs are decoded, checkpoints kept, panics caught and errors
// understood as they will be.
//
//	got := workertest.Run(t, Resize, Picture{URL: "a.png"}, workertest.Attempt{CancelAfter: time.Second})
//	if got.State != leaseholdv1.AttemptState_ATTEMPT_STATE_CANCELED { ... }
//
// Nothing here waits for a network, so within testing/synctest the times cost nothing.
package workertest
