package faults

import "testing"

// TestManyWorkers_NothingLostNothingDoubled: three replicas, fifty workers, a random third of
// the attempts failing or losing their lease.
func TestManyWorkers_NothingLostNothingDoubled(t *testing.T) {
	alongside(t)
	c := newCluster(t, clusterConfig{ownDatabase: true})
	l := startLoad(t, c, loadConfig{producers: 8, workers: 50, executions: sized(600, 20_000)})
	l.finish()
}
