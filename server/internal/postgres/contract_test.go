package postgres_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/leasehold/leasehold/server/internal/storetest"
)

// What callers of the ports see is the same as with the store in memory.
func TestStore_KeepsTheContract(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Stand {
		s := newStand(t)
		return storetest.Stand{Store: s.store, Outbox: s.store.Outbox(), Pass: s.pass}
	})
}

// pass lets PostgreSQL's time pass: everything that it has written lies further back.
func (s *stand) pass(d time.Duration) {
	s.t.Helper()
	s.exec(`DO $$ DECLARE c record; BEGIN
		FOR c IN SELECT t.table_name, string_agg(format('%1$I = %1$I - interval ''` + strconv.FormatInt(d.Microseconds(), 10) + ` microseconds''', k.column_name), ', ') AS sets
			FROM information_schema.tables t JOIN information_schema.columns k USING (table_schema, table_name)
			WHERE t.table_schema = 'public' AND t.table_type = 'BASE TABLE' AND k.data_type = 'timestamp with time zone'
			GROUP BY t.table_name LOOP
			EXECUTE format('UPDATE %I SET %s', c.table_name, c.sets);
		END LOOP; END $$`)
	s.store.ForgetFrontiers() // no time that passes moves what waits
}
