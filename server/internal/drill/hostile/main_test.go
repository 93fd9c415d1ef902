package hostile

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/leasehold/leasehold/server/internal/testdb"
)

var databases testdb.Server

func TestMain(m *testing.M) {
	code := m.Run()
	databases.Stop()
	// While it fuzzes, the library for tests has goroutines of its own.
	if f := flag.Lookup("test.fuzz"); code == 0 && (f == nil || f.Value.String() == "") {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
