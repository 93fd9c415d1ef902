package devpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// startBystander runs a process that has nothing to do with PostgreSQL.
func startBystander(t *testing.T, who account) *child {
	t.Helper()
	cmd := exec.Command("/bin/sleep", "600")
	cmd.Dir = "/"
	c, err := startChild(cmd, who, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.killGroup)
	return c
}

// install makes a folder with programs that only say their version.
func install(t *testing.T, dir, version string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"initdb", "postgres"} {
		text := "#!/bin/sh\necho '" + program + " (PostgreSQL) " + version + "'\n"
		if err := os.WriteFile(filepath.Join(dir, program), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFindAll_OrderAndAge(t *testing.T) {
	t.Parallel()
	root := reachableDir(t)
	old := install(t, filepath.Join(root, "old"), "13.4")
	inPath := install(t, filepath.Join(root, "path"), "16.1")
	v9 := install(t, filepath.Join(root, "debian", "9", "bin"), "9.6.24")
	v15 := install(t, filepath.Join(root, "debian", "15", "bin"), "15.18 (Debian 15.18-0+deb12u1)")
	v17 := install(t, filepath.Join(root, "debian", "17", "bin"), "17beta1")
	brew := install(t, filepath.Join(root, "opt", "postgresql@18", "bin"), "18.0")
	empty := filepath.Join(root, "nothing")
	debian := filepath.Join(root, "debian", "*", "bin")

	cases := []struct {
		name string
		in   places
		want []string
	}{
		{"PATH first", places{path: []string{"", ".", empty, inPath}, patterns: []string{debian}}, []string{inPath, v17, v15}},
		{"an old one in PATH is passed over", places{path: []string{old}, patterns: []string{debian}}, []string{v17, v15}},
		{"named folder only", places{only: v15, path: []string{inPath}, patterns: []string{debian}}, []string{v15}},
		{"Homebrew", places{patterns: []string{filepath.Join(root, "opt", "postgresql@*", "bin")}}, []string{brew}},
		{"each once", places{path: []string{v17, inPath, v17 + "/"}, patterns: []string{debian}}, []string{v17, inPath, v15}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := findAll(context.Background(), c.in)
			if err != nil {
				t.Fatal(err)
			}
			var dirs []string
			for _, b := range got {
				dirs = append(dirs, b.Dir)
			}
			if fmt.Sprint(dirs) != fmt.Sprint(c.want) {
				t.Errorf("got %v, want %v", dirs, c.want)
			}
		})
	}
	var missing *NotFoundError
	_, err := findAll(context.Background(), places{path: []string{old, empty}, patterns: []string{v9}})
	if !errors.As(err, &missing) || len(missing.Older) != 2 || !strings.Contains(err.Error(), "13.4") {
		t.Errorf("got %v, want a NotFoundError that names the two old ones", err)
	}
	_, err = findAll(context.Background(), places{only: empty, path: []string{inPath}})
	if !errors.As(err, &missing) || len(missing.Unusable) != 1 {
		t.Errorf("got %v, want a NotFoundError that names %s", err, empty)
	}
}

func TestFindAll_PassesOverProgramsThatItsUserCannotRun(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root runs PostgreSQL as another user")
	}
	root := reachableDir(t)
	closed := filepath.Join(root, "closed")
	dir := install(t, filepath.Join(closed, "bin"), "17.0")
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	var missing *NotFoundError
	if _, err := findAll(context.Background(), places{path: []string{dir}}); !errors.As(err, &missing) || len(missing.Unusable) != 1 {
		t.Errorf("got %v, want a NotFoundError", err)
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	for output, want := range map[string]string{
		"postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n": "15.18 15",
		"postgres (PostgreSQL) 18beta1\n":                        "18beta1 18",
		"postgres (PostgreSQL) 9.6.24":                           "9.6.24 9",
		"something else":                                         " 0",
		"":                                                       " 0",
	} {
		version, major := versionOf(output)
		if got := fmt.Sprintf("%s %d", version, major); got != want {
			t.Errorf("versionOf(%q) = %q, want %q", output, got, want)
		}
	}
	for path, want := range map[string]int{
		"/usr/lib/postgresql/17/bin": 17, "/usr/pgsql-16/bin": 16, "/opt/homebrew/opt/postgresql@15/bin": 15,
		"/Applications/Postgres.app/Contents/Versions/latest/bin": 0, "/usr/bin": 0,
	} {
		if got := versionIn(path); got != want {
			t.Errorf("versionIn(%q) = %d, want %d", path, got, want)
		}
	}
}
