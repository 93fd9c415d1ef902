package postgres_test

import (
	"testing"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/scheduler"
)

// What comes with a capability that is new here is as patient with PostgreSQL as all else: that its
// sessions were cut in the meantime is not told to the caller. Caught: a look at the keys, or at the
// room for a worker, that was tried only once.
func TestNewNames_OutliveACutSession(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	for name, call := range map[string]func() error{
		"enqueue": func() error {
			results, err := s.store.Enqueue(t.Context(), []scheduler.NewExecution{newExecution(spec("new to enqueue", 1))}, false, false)
			if err == nil {
				err = results[0].Err
			}
			return err
		},
		"register": func() error {
			_, err := s.store.Register(t.Context(), scheduler.Registration{
				Namespace: "default", Name: "w", Capabilities: []string{"new to register"}, Slots: 1,
			}, uuid.New(), uuid.New())
			return err
		},
	} {
		s.store.Pool().Reset()
		if err := s.store.Ping(t.Context()); err != nil { // a session that was used just now is not tried out first
			t.Fatal(err)
		}
		if _, err := s.sql.Exec(t.Context(), `SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'leasehold'`); err != nil {
			t.Fatal(err)
		}
		if err := call(); err != nil {
			t.Errorf("%s after its session was cut: %v", name, err)
		}
	}
}
