package hostile

import (
	"os"
	"testing"

	"github.com/leasehold/leasehold/server/internal/testdb"
)

var databases testdb.Server

func TestMain(m *testing.M) { os.Exit(databases.Main(m)) }
