package main_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/leasehold/leasehold"

const (
	internal  = "server/internal/"
	stubs     = "api/leasehold"
	sqlcsRows = internal + "postgres/internal/dbsqlc"
)

// TestImports_TheArrowsHold reads every file of the module: what points inwards stays so.
// Test files may lean on more, for instance on a database.
func TestImports_TheArrowsHold(t *testing.T) {
	t.Parallel()
	imports := readImports(t, "..")
	if len(imports) < 2 || len(imports[internal+"task"]) == 0 {
		t.Fatalf("read only %d packages: is this the module's folder?", len(imports))
	}
	for pkg, list := range imports {
		for _, imported := range list {
			if why := badArrow(pkg, imported); why != "" {
				t.Errorf("%s imports %s: %s", pkg, imported, why)
			}
		}
	}
}

// badArrow says why a package of the module (its folder) may not import another (its path),
// or nothing.
func badArrow(pkg, imported string) string {
	ours, isOurs := strings.CutPrefix(imported, module+"/")
	if !isOurs {
		if within(pkg, internal+"task") && !standard(imported) && imported != "github.com/google/uuid" {
			return "the domain imports the standard library and uuid only"
		}
		return ""
	}
	name, inner := innerName(pkg)
	target, targetInner := innerName(ours)
	switch {
	case within(ours, sqlcsRows) && !within(pkg, internal+"postgres"):
		return "only the adapter for PostgreSQL sees sqlc's types"
	case within(pkg, stubs):
		return unless(within(ours, stubs), "generated stubs import nothing else of ours")
	case within(pkg, "api/worker"):
		return unless(within(ours, stubs) || within(ours, "api/worker"), "the worker SDK imports only the stubs")
	case within(pkg, "api"):
		return unless(within(ours, "api"), "what clients import knows nothing of the server")
	case within(pkg, "db"):
		return unless(within(ours, "db"), "migrations and queries import nothing of ours")
	case pkg == "server":
		return ""
	case !inner:
		return "this folder has no place among the arrows: give it one"
	case targetInner && name == target:
		return ""
	}
	return badArrowWithin(name, target, targetInner)
}

// badArrowWithin has the rules of the packages in server/internal.
func badArrowWithin(name, target string, targetInner bool) string {
	switch {
	case slices.Contains(commands, name):
		return ""
	case slices.Contains(commands, target):
		return "nobody imports a command"
	case name == "task":
		return "the domain imports nothing of ours"
	case name == "scheduler" || name == "outbox":
		return unless(targetInner && target == "task", "the application imports only the domain")
	case slices.Contains(equipment, name):
		return unless(!targetInner, "it imports nothing of the server's")
	case slices.Contains(adapters, name):
		return unless(!targetInner || target == "task" || target == "scheduler" || target == "outbox", "adapters import the application and the domain, never each other")
	default:
		return "this package has no place among the arrows: give it one"
	}
}

var (
	adapters = []string{"postgres", "natspub", "webhook", "grpcapi", "telemetry", "memstore"}
	commands = []string{"drill", "demo", "bench", "execworker", "builtin", "testdb", "testsink", "storetest"}
	// What commands and tests share of processes, networks and sinks knows nothing of the service.
	equipment = []string{"devpg", "history", "subprocess", "netfault", "broker"}
)

func unless(ok bool, why string) string {
	if ok {
		return ""
	}
	return why
}

func within(pkg, folder string) bool { return pkg == folder || strings.HasPrefix(pkg, folder+"/") }

// innerName is the first folder of a package below server/internal.
func innerName(pkg string) (name string, inner bool) {
	rest, inner := strings.CutPrefix(pkg, internal)
	name, _, _ = strings.Cut(rest, "/")
	return name, inner
}

// standard tells whether a path is of the standard library: no dot in its first element.
func standard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

// readImports reads the imports of all packages below root, but for nested modules. It parses
// only, so that it works while a package does not compile, or does not exist yet.
func readImports(t *testing.T, root string) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skipped(root, file, d.Name())
		}
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		list, err := importsOf(file)
		if err != nil {
			return fmt.Errorf("read imports of %s: %w", file, err)
		}
		folder, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		pkg := path.Clean(filepath.ToSlash(folder))
		found[pkg] = append(found[pkg], list...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func skipped(root, folder, name string) error {
	if folder == root {
		return nil
	}
	if strings.HasPrefix(name, ".") || name == "testdata" || name == "node_modules" {
		return filepath.SkipDir
	}
	if _, err := os.Stat(filepath.Join(folder, "go.mod")); err == nil {
		return filepath.SkipDir
	}
	return nil
}

func importsOf(file string) ([]string, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	var list []string
	for _, spec := range parsed.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		list = append(list, imported)
	}
	return list, nil
}

func TestImports_BadArrowsAreSeen(t *testing.T) {
	t.Parallel()
	const server = module + "/server/internal/"
	const api = module + "/" + stubs + "/v1"
	for _, tt := range []struct {
		pkg, imported string
		good          bool
	}{
		{"server/internal/task", "time", true},
		{"server/internal/task", "github.com/google/uuid", true},
		{"server/internal/task", "pgregory.net/rapid", false},
		{"server/internal/task", server + "scheduler", false},
		{"server/internal/task", module + "/db", false},
		{"server/internal/task", api, false},
		{"server/internal/scheduler", server + "task", true},
		{"server/internal/scheduler", "golang.org/x/sync/errgroup", true},
		{"server/internal/scheduler", server + "outbox", false},
		{"server/internal/scheduler", server + "postgres", false},
		{"server/internal/scheduler", api, false},
		{"server/internal/scheduler/sub", server + "scheduler", true},
		{"server/internal/outbox", server + "task", true},
		{"server/internal/outbox", server + "scheduler", false},
		{"server/internal/postgres", server + "scheduler", true},
		{"server/internal/postgres", server + "outbox", true},
		{"server/internal/postgres", server + "task", true},
		{"server/internal/postgres", module + "/db", true},
		{"server/internal/postgres", server + "postgres/internal/dbsqlc", true},
		{"server/internal/postgres", server + "grpcapi", false},
		{"server/internal/postgres", server + "devpg", false},
		{"server/internal/memstore", server + "postgres/internal/dbsqlc", false},
		{"server/internal/postgresql", server + "postgres/internal/dbsqlc", false},
		{"server/internal/grpcapi", api, true},
		{"server/internal/grpcapi", server + "telemetry", false},
		{"server/internal/telemetry", server + "postgres", false},
		{"server/internal/natspub", server + "webhook", false},
		{"server/internal/webhook", server + "outbox", true},
		{"server/internal/memstore", server + "demo", false},
		{"server/internal/memstore", server + "outbox", true},
		{"server/internal/memstore", server + "postgres", false},
		{"server/internal/memstore", server + "storetest", false},
		{"server/internal/storetest", server + "scheduler", true},
		{"server/internal/devpg", "github.com/jackc/pgx/v5", true},
		{"server/internal/devpg", server + "task", false},
		{"server/internal/history", server + "task", false},
		{"server/internal/drill", server + "postgres", true},
		{"server/internal/builtin", module + "/api/worker", true},
		{"server/internal/scheduler", server + "bench", false},
		{"server/internal/newcomer", server + "task", false},
		{"server", server + "postgres", true},
		{"server", server + "postgres/internal/dbsqlc", false},
		{"api/worker", api, true},
		{"api/worker", module + "/api/client", false},
		{"api/worker", server + "task", false},
		{"api/client", module + "/api/worker", true},
		{"api/consumer", module + "/db", false},
		{"api/examples/go", module + "/api/worker", true},
		{"api/leasehold/v1", "google.golang.org/grpc", true},
		{"api/leasehold/v1", module + "/api/worker", false},
		{"db", server + "task", false},
		{"surprise", module + "/db", false},
	} {
		why := badArrow(tt.pkg, tt.imported)
		if (why == "") != tt.good {
			t.Errorf("%s imports %s: allowed %v, want %v (%s)", tt.pkg, tt.imported, why == "", tt.good, why)
		}
	}
}

// TestImports_ReadFromFiles: a bad arrow in a file is found, in a test file or a nested
// module it is not looked for.
func TestImports_ReadFromFiles(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for file, text := range map[string]string{
		"server/internal/task/a.go":      "package task\nimport _ \"" + module + "/server/internal/outbox\"\nbroken from here {",
		"server/internal/task/a_test.go": "package task\nimport _ \"pgregory.net/rapid\"\n",
		"server/tools/go.mod":            "module tools\n",
		"server/tools/a.go":              "package tools\nimport _ \"" + module + "/db\"\n",
	} {
		file = filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got := readImports(t, root)
	if len(got) != 1 || !slices.Equal(got["server/internal/task"], []string{module + "/server/internal/outbox"}) {
		t.Errorf("read %v", got)
	}
}
