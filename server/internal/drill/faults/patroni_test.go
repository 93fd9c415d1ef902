package faults

import (
	"os"
	"testing"
	"time"
)

// TestPatroni_TheLeaderIsKilled: PostgreSQL runs under Patroni behind HAProxy, and its leading
// node is killed under load, twice, so that each time the synchronous standby takes over. The
// service goes on by itself soon after, and nothing that was answered OK is missing.
func TestPatroni_TheLeaderIsKilled(t *testing.T) {
	if os.Getenv("LEASEHOLD_PATRONI") != "1" {
		t.Skip("needs Patroni, etcd and HAProxy: make test-patroni")
	}
	s := startPatroni(t)
	c := s.cluster()
	l := startLoad(t, c, loadConfig{producers: 8, workers: 25, executions: 2000, pause: 20 * time.Millisecond, lease: 5 * time.Second})
	l.progress(30*time.Second, "before any fault")
	for i := range 2 {
		dead, took := s.killLeader()
		back := l.progress(10*time.Second+slack(), "after the promotion")
		t.Logf("failover %d: %s was killed, another node was promoted after %s, work went on %s later", i+1, dead.name, took, back)
		s.startNode(dead) // it comes back as a standby
		eventually(t, 2*time.Minute, "a synchronous standby again", s.safe)
		l.progress(30*time.Second, "with a standby again")
	}
	for _, r := range c.replicas {
		if !r.running() {
			t.Errorf("%s has ended", r.name)
		}
		servesAgain(t, r)
	}
	l.finish()
	t.Logf("%d attempts, lease versions from %d to %d", c.number(`SELECT count(*) FROM attempts`),
		c.number(`SELECT min(lease_version) FROM attempts`), c.number(`SELECT max(lease_version) FROM attempts`))
}
