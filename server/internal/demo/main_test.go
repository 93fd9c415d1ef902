package demo

import (
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasehold/leasehold/server/internal/testdb"
)

var database testdb.Server

func TestMain(m *testing.M) { os.Exit(database.Main(m)) }

func newDatabase(t *testing.T, schema string) *pgxpool.Pool {
	t.Helper()
	db, err := pgxpool.New(t.Context(), database.New(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	if _, err := db.Exec(t.Context(), schema); err != nil {
		t.Fatal(err)
	}
	return db
}
