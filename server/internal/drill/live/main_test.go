package live

import (
	"os"
	"testing"

	"github.com/leasehold/leasehold/server/internal/testdb"
)

var database testdb.Server

func TestMain(m *testing.M) {
	code := m.Run()
	database.Stop()
	os.Exit(code)
}
