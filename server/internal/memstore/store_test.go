package memstore_test

import (
	"testing"

	"github.com/leasehold/leasehold/server/internal/memstore"
	"github.com/leasehold/leasehold/server/internal/storetest"
	"github.com/leasehold/leasehold/server/internal/task"
)

func TestStore_KeepsTheContract(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) storetest.Stand {
		s := memstore.New(memstore.Config{Events: task.AllEventTypes()})
		return storetest.Stand{Store: s, Outbox: s.Outbox(), Pass: s.Advance}
	})
}
