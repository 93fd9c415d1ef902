// Package broken holds the proof that `leasehold drill` can fail: builds of the server with one
// line changed, each of which breaks a promise, and the drills that must notice. `make prove-drill`
// runs it. There is nothing here but tests.
package broken
