//go:build race

package faults

// raceDetector tells whether this test binary was built with it: then the server is too.
const raceDetector = true
