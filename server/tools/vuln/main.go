// Command vuln looks for known vulnerabilities of what the service is built from, without the
// network: the database is the one that comes as a Go module, at the version that go.mod names.
//
// A vulnerability of a module that go.mod requires fails it if the service's code comes to the
// vulnerable function. What is in Go's own library is told, and fails nothing: it is mended by the
// Go that builds, which whoever builds chooses.
//
// It is a module of its own, beside the other tools, so that its dependencies do not change theirs.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/vuln/scan"
)

const (
	database = "golang.org/x/vulndb"
	standard = "stdlib"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "vulnerabilities:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("usage: vuln <folder of the module>")
	}
	db, err := databaseFolder()
	if err != nil {
		return fmt.Errorf("make the database: %w", err)
	}
	// The versions of the modules tell at once what there could be, and the packages that are built
	// in whether that is there. Only then is the code looked at, which takes a minute.
	found, err := look(ctx, filepath.Join(args[0], "server"), db, "module")
	if err != nil {
		return err
	}
	there, err := builtIn(args[0], db, found)
	if err != nil {
		return err
	}
	if there {
		if found, err = look(ctx, args[0], db, "symbol"); err != nil {
			return err
		}
	}
	return tell(found)
}

// finding is what of a message of govulncheck's matters here.
type finding struct {
	OSV   string `json:"osv"`
	Fixed string `json:"fixed_version"`
	Trace []struct {
		Module   string `json:"module"`
		Version  string `json:"version"`
		Function string `json:"function"`
	} `json:"trace"`
}

// look runs govulncheck.
func look(ctx context.Context, folder, db, level string) ([]finding, error) {
	var out, complaints bytes.Buffer
	args := []string{"-C", folder, "-db", "file://" + filepath.ToSlash(db), "-scan", level, "-format", "json"}
	if level != "module" {
		args = append(args, "./...")
	}
	cmd := scan.Command(ctx, args...)
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start govulncheck: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("govulncheck: %w\n%s", err, complaints.Bytes())
	}
	var found []finding
	for messages := json.NewDecoder(&out); ; {
		var message struct {
			Finding *finding `json:"finding"`
		}
		err := messages.Decode(&message)
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read what govulncheck found: %w", err)
		}
		if f := message.Finding; f != nil && len(f.Trace) > 0 {
			found = append(found, *f)
		}
	}
}

// builtIn tells whether a package with a vulnerability, of a module that go.mod requires, is one of
// those that the service is built from.
func builtIn(folder, db string, found []finding) (bool, error) {
	out, err := output("go", "-C", folder, "list", "-deps", "./...")
	if err != nil {
		return false, err
	}
	packages := strings.Fields(string(out))
	for _, f := range found {
		if f.Trace[0].Module == standard {
			continue
		}
		affected, err := affectedPackages(db, f.OSV)
		if err != nil {
			return false, err
		}
		if len(affected) == 0 || slices.ContainsFunc(affected, func(p string) bool { return slices.Contains(packages, p) }) {
			return true, nil
		}
	}
	return false, nil
}

// affectedPackages are those with a vulnerability; none: the whole module.
func affectedPackages(db, osv string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(db, "ID", osv+".json"))
	if err != nil {
		return nil, err
	}
	var entry struct {
		Affected []struct {
			Specific struct {
				Imports []struct{ Path string }
			} `json:"ecosystem_specific"`
		}
	}
	if err := json.Unmarshal(text, &entry); err != nil {
		return nil, fmt.Errorf("read %s: %w", osv, err)
	}
	var list []string
	for _, a := range entry.Affected {
		if len(a.Specific.Imports) == 0 {
			return nil, nil
		}
		for _, i := range a.Specific.Imports {
			list = append(list, i.Path)
		}
	}
	return list, nil
}

// tell prints what was found, each once, and fails for what the service's code comes to.
func tell(found []finding) error {
	library, called := map[string]bool{}, map[string]bool{}
	for _, f := range found {
		at := f.Trace[0]
		switch {
		case at.Module == standard:
			library[f.OSV] = true
		case at.Function != "":
			called[fmt.Sprintf("%s: %s %s, %s is called (fixed in %q)", f.OSV, at.Module, at.Version, at.Function, f.Fixed)] = true
		}
	}
	if len(library) > 0 {
		fmt.Printf("in Go's library, which a newer Go mends: %s\n", strings.Join(sorted(library), " "))
	}
	if len(called) > 0 {
		return errors.New(strings.Join(sorted(called), "\n"))
	}
	return nil
}

func sorted(set map[string]bool) []string {
	var list []string
	for s := range set {
		list = append(list, s)
	}
	slices.Sort(list)
	return list
}

// databaseFolder is where the database is. It is made from the module once a version, in the user's
// cache.
func databaseFolder() (string, error) {
	module, err := output("go", "mod", "download", "-json", database)
	if err != nil {
		return "", err
	}
	var m struct{ Dir, Version string }
	if err := json.Unmarshal(module, &m); err != nil {
		return "", fmt.Errorf("read where the module is: %w", err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	cache = filepath.Join(cache, "leasehold")
	folder := filepath.Join(cache, "vulndb-"+m.Version)
	if _, err := os.Stat(folder); err == nil {
		return folder, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	// Made under another name, so that one which was broken off is never taken for good.
	making, err := os.MkdirTemp(cache, "making-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(making) }()
	if _, err := output("go", "tool", "indexdb", "-out", filepath.Join(making, "db"), "-vulns", filepath.Join(m.Dir, "data", "osv")); err != nil {
		return "", err
	}
	if err := os.Rename(filepath.Join(making, "db"), folder); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	return folder, nil
}

func output(name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, complaints.Bytes())
	}
	return out, nil
}
