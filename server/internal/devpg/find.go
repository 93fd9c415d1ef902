package devpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// MinMajor is the oldest major version of PostgreSQL that we run on.
const MinMajor = 15

// EnvBin is the environment variable that names the folder of PostgreSQL's
// programs, before all other places.
const EnvBin = "LEASEHOLD_PG_BIN"

// Binaries are the programs of one PostgreSQL installation.
type Binaries struct {
	// Dir holds initdb and postgres.
	Dir string
	// Major is the major version, such as 17; Version the whole one, such as "17.2".
	Major   int
	Version string
}

func (b Binaries) initdb() string   { return filepath.Join(b.Dir, "initdb") }
func (b Binaries) postgres() string { return filepath.Join(b.Dir, "postgres") }

// places are the folders to look in, in order. A pattern stands for all the
// folders that match it, the newest version first.
type places struct {
	// only is LEASEHOLD_PG_BIN: if it is set, nothing else is looked at.
	only     string
	path     []string
	patterns []string
}

func systemPlaces() places {
	return places{
		only: os.Getenv(EnvBin),
		path: filepath.SplitList(os.Getenv("PATH")),
		patterns: []string{
			"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
			"/usr/pgsql-*/bin",          // Fedora, from PostgreSQL's own packages
			"/usr/bin",                  // Fedora
			"/opt/homebrew/opt/postgresql@*/bin",
			"/opt/homebrew/opt/postgresql/bin",
			"/usr/local/opt/postgresql@*/bin",
			"/usr/local/opt/postgresql/bin",
			"/Applications/Postgres.app/Contents/Versions/*/bin",
		},
	}
}

// Find looks for the programs of PostgreSQL MinMajor or newer: in the folder
// that LEASEHOLD_PG_BIN names, and nowhere else if that is set; then in PATH;
// then where Debian, Fedora, Homebrew and Postgres.app put them, the newest
// first. It returns a *NotFoundError if there are none.
func Find(ctx context.Context) (Binaries, error) {
	all, err := findAll(ctx, systemPlaces())
	if err != nil {
		return Binaries{}, err
	}
	return all[0], nil
}

// findAll returns every usable installation, the preferred one first, or an error.
func findAll(ctx context.Context, in places) ([]Binaries, error) {
	who, err := unprivileged()
	if err != nil {
		return nil, err
	}
	missing := &NotFoundError{Command: systemPackages().command()}
	var found []Binaries
	for _, dir := range in.candidates() {
		b, err := inspect(ctx, dir, who)
		switch {
		case in.only == "" && absent(err):
		case err != nil:
			missing.Unusable = append(missing.Unusable, err.Error())
		case b.Major < MinMajor:
			missing.Older = append(missing.Older, b)
		default:
			found = append(found, b)
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("look for PostgreSQL: %w", err)
	}
	if len(found) == 0 {
		return nil, missing
	}
	return found, nil
}

// absent tells of a folder of PATH that holds no PostgreSQL, or into which we
// cannot look: neither is worth a word.
func absent(err error) bool {
	var path *os.PathError
	return errors.As(err, &path) && path.Op == "stat"
}

// candidates lists each folder once.
func (p places) candidates() []string {
	if p.only != "" {
		return []string{p.only}
	}
	var dirs []string
	add := func(dir string) {
		if filepath.IsAbs(dir) && !slices.Contains(dirs, filepath.Clean(dir)) {
			dirs = append(dirs, filepath.Clean(dir))
		}
	}
	for _, dir := range p.path {
		add(dir)
	}
	for _, pattern := range p.patterns {
		matches, _ := filepath.Glob(pattern) // The only error is a malformed pattern.
		slices.SortStableFunc(matches, func(a, b string) int { return versionIn(b) - versionIn(a) })
		for _, dir := range matches {
			add(dir)
		}
	}
	return dirs
}

// versionIn reads the version out of a path such as /usr/lib/postgresql/17/bin;
// it only orders candidates, inspect asks the programs themselves.
func versionIn(path string) int {
	name := filepath.Base(filepath.Dir(path))
	return leadingNumber(name[strings.LastIndexAny(name, "@-")+1:])
}

// versionOf reads the version out of what `postgres --version` prints, such as
// "postgres (PostgreSQL) 17.2 (Debian 17.2-1)" or "postgres (PostgreSQL) 18beta1".
func versionOf(output string) (version string, major int) {
	_, rest, ok := strings.Cut(output, "(PostgreSQL) ")
	if !ok {
		return "", 0
	}
	version, _, _ = strings.Cut(strings.TrimSpace(rest), " ")
	return version, leadingNumber(version)
}

func leadingNumber(text string) int {
	n := 0
	for _, r := range text {
		if r < '0' || r > '9' || n > 1000 {
			break
		}
		n = n*10 + int(r-'0')
	}
	return n
}

// inspect asks the programs of a folder for their version, as the user that
// will run them: they may lie where only we can reach them.
func inspect(ctx context.Context, dir string, who account) (Binaries, error) {
	b := Binaries{Dir: dir}
	for _, program := range []string{b.initdb(), b.postgres()} {
		if _, err := os.Stat(program); err != nil {
			return b, fmt.Errorf("look at %s: %w", program, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.postgres(), "--version")
	cmd.Dir = "/"
	cmd.Env = childEnv()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: who.credential}
	out, err := cmd.Output()
	if err != nil {
		return b, fmt.Errorf("%s could not be run as %s: %w", b.postgres(), who.name, err)
	}
	b.Version, b.Major = versionOf(string(out))
	if b.Major == 0 {
		return b, fmt.Errorf("%s --version answers %q", b.postgres(), bytes.TrimSpace(out))
	}
	return b, nil
}

// childEnv is what PostgreSQL's programs get of our environment: no PG*
// variable, which would change what they do, and no secret of ours.
func childEnv() []string {
	env := []string{"LC_ALL=C", "TZ=UTC"}
	for _, name := range []string{"PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// binariesFor chooses the programs for a data folder that a major version made;
// 0 if it is yet to be made.
func binariesFor(ctx context.Context, given Binaries, folder int, dataDir string) (Binaries, error) {
	if given.Dir != "" && (folder == 0 || folder == given.Major) {
		return given, nil
	}
	all, err := findAll(ctx, systemPlaces())
	if err != nil {
		return Binaries{}, err
	}
	if folder == 0 {
		return all[0], nil
	}
	for _, b := range all {
		if b.Major == folder {
			return b, nil
		}
	}
	return Binaries{}, &VersionError{DataDir: dataDir, Folder: folder, Installed: all[0].Major}
}

// folderMajor reads the version that made a PostgreSQL folder; 0 if there is none.
func folderMajor(pgdata string) (int, error) {
	text, err := os.ReadFile(filepath.Join(pgdata, "PG_VERSION"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the version of a data folder: %w", err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("read the version of data folder %s: %w", pgdata, err)
	}
	return major, nil
}
