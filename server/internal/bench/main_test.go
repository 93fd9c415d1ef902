package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/leasehold/leasehold/server/internal/testdb"
)

// workshop is what the tests share: a PostgreSQL, and the program that servers run by.
type workshop struct {
	databases testdb.Server
	build     sync.Once
	folder    string
	err       error
}

var shared workshop

func TestMain(m *testing.M) {
	status := shared.databases.Main(m)
	if shared.folder != "" {
		if err := os.RemoveAll(shared.folder); err != nil {
			fmt.Fprintln(os.Stderr, "remove the program:", err)
		}
	}
	os.Exit(status)
}

// program is the path of the program.
func (w *workshop) program(t *testing.T) string {
	t.Helper()
	w.build.Do(func() {
		if w.folder, w.err = os.MkdirTemp("", "leasehold-bench-test-"); w.err != nil {
			return
		}
		out, err := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(w.folder, "leasehold"), "github.com/leasehold/leasehold/server").CombinedOutput()
		if err != nil {
			w.err = fmt.Errorf("build the program: %w\n%s", err, out)
		}
	})
	if w.err != nil {
		t.Fatal(w.err)
	}
	return filepath.Join(w.folder, "leasehold")
}
