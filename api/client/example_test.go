package client_test

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/api/client"
	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// A producer that enqueues, waits and reads the result. Instead of the server of the example,
// give the addresses of yours.
func Example() {
	server := startExampleServer()
	defer server.stop()

	c, err := client.Dial([]string{server.address})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	input, err := client.JSON(map[string]string{"name": "Ada"})
	if err != nil {
		fmt.Println(err)
		return
	}
	answer, err := c.EnqueueExecution(ctx, &leaseholdv1.EnqueueExecutionRequest{
		Name: "welcome", IdempotencyKey: "welcome-ada", // without a key one is made
		Steps: []*leaseholdv1.StepSpec{{Name: "greet", Capability: "greet/v1", Input: input}},
	})
	if err != nil {
		fmt.Println(client.Reason(err), err)
		return
	}
	done, err := c.Wait(ctx, answer.GetExecution().GetId())
	if err != nil {
		fmt.Println(err)
		return
	}
	greeting, err := client.Output[string](done, "greet")
	fmt.Println(done.GetState(), greeting, err)
	// Output: EXECUTION_STATE_SUCCEEDED Hello, Ada <nil>
}
