package devpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// noClusterFile keeps Debian's package from making a cluster of the system's own
// and from starting it, as it otherwise does when it is installed.
const noClusterFile = "/etc/postgresql-common/createcluster.d/leasehold.conf"

// packages is how a system installs software.
type packages struct {
	// family is "debian", "fedora", "macos" or "".
	family string
	root   bool
}

func systemPackages() packages {
	p := packages{root: os.Geteuid() == 0}
	if runtime.GOOS == "darwin" {
		p.family = "macos"
		return p
	}
	text, err := os.ReadFile("/etc/os-release")
	if err == nil {
		p.family = familyOf(string(text))
	}
	return p
}

// familyOf reads ID and ID_LIKE of an os-release file.
func familyOf(osRelease string) string {
	for line := range strings.Lines(osRelease) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if key != "ID" && key != "ID_LIKE" {
			continue
		}
		for _, id := range strings.Fields(strings.Trim(value, `"'`)) {
			switch id {
			case "debian", "ubuntu":
				return "debian"
			case "fedora", "rhel", "centos":
				return "fedora"
			}
		}
	}
	return ""
}

// command is the one command that installs PostgreSQL.
func (p packages) command() string {
	sudo := "sudo "
	if p.root {
		sudo = ""
	}
	switch p.family {
	case "debian":
		return sudo + "apt-get install -y postgresql"
	case "fedora":
		return sudo + "dnf install -y postgresql-server"
	case "macos":
		return "brew install postgresql@17"
	default:
		return fmt.Sprintf("# install the server of PostgreSQL %d or newer with this system's package manager", MinMajor)
	}
}

// FindOrInstall is Find, and Install where there is nothing to be found.
func FindOrInstall(ctx context.Context, stderr io.Writer) (Binaries, error) {
	found, err := Find(ctx)
	var missing *NotFoundError
	if err == nil || !errors.As(err, &missing) || os.Getenv(EnvBin) != "" {
		return found, err
	}
	if p := systemPackages(); !p.root || p.family != "debian" {
		return found, err
	}
	if err := Install(ctx, stderr); err != nil {
		return found, err
	}
	return Find(ctx)
}

// Install installs the system's package of PostgreSQL, as root on Debian, Ubuntu
// and their like, and says on stderr what it does. The cluster which that
// package makes and starts by default is neither made nor started. Elsewhere it
// does nothing and returns a *NotFoundError with the command to type.
func Install(ctx context.Context, stderr io.Writer) error {
	p := systemPackages()
	if !p.root || p.family != "debian" {
		return &NotFoundError{Command: p.command()}
	}
	return aptInstall(ctx, stderr, apt{stderr: stderr}, noClusterFile)
}

// runner runs a program of the package manager; out is its standard output.
type runner interface {
	run(ctx context.Context, name string, args ...string) (out string, err error)
}

// aptInstall installs the package postgresql, after reading the package lists
// anew if they are absent or out of date.
func aptInstall(ctx context.Context, stderr io.Writer, r runner, noCluster string) error {
	fmt.Fprintf(stderr, "leasehold: no PostgreSQL %d or newer here: installing the package postgresql (without a cluster of the system's own)\n", MinMajor)
	restore, err := forbidCluster(noCluster)
	if err != nil {
		return err
	}
	defer restore()
	major, err := offered(ctx, r)
	if err != nil {
		return err
	}
	updated := major == 0
	if updated {
		if major, err = updateLists(ctx, stderr, r); err != nil {
			return err
		}
	}
	if major < MinMajor {
		return fmt.Errorf("this system's package postgresql is version %d; %d or newer is needed: add PostgreSQL's own package source (https://www.postgresql.org/download/)", major, MinMajor)
	}
	_, err = r.run(ctx, "apt-get", installArgs()...)
	if err != nil && !updated && ctx.Err() == nil {
		// Old lists name packages that the archive no longer has.
		if _, err := updateLists(ctx, stderr, r); err != nil {
			return err
		}
		_, err = r.run(ctx, "apt-get", installArgs()...)
	}
	return err
}

func installArgs() []string {
	return []string{"-o", "DPkg::Lock::Timeout=300", "install", "-y", "--no-install-recommends", "postgresql"}
}

func updateLists(ctx context.Context, stderr io.Writer, r runner) (major int, err error) {
	fmt.Fprintln(stderr, "leasehold: apt-get update")
	if _, err := r.run(ctx, "apt-get", "-o", "DPkg::Lock::Timeout=300", "update"); err != nil {
		return 0, err
	}
	return offered(ctx, r)
}

// offered is the major version of the package that would be installed; 0 if
// there is none.
func offered(ctx context.Context, r runner) (int, error) {
	out, err := r.run(ctx, "apt-cache", "policy", "postgresql")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(out, "Candidate:")
	return leadingNumber(strings.TrimSpace(rest)), nil
}

// forbidCluster tells Debian's package to make no cluster, and returns how to
// take that back: whoever installs another version later decides for himself.
func forbidCluster(path string) (restore func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("keep the system's own cluster from being made: %w", err)
	}
	if err := os.WriteFile(path, []byte("create_main_cluster = false\n"), 0o644); err != nil {
		return nil, fmt.Errorf("keep the system's own cluster from being made: %w", err)
	}
	return func() { _ = os.Remove(path) }, nil
}

// apt runs the real programs. What they print goes to stderr, but for the output
// of apt-cache, which is an answer.
type apt struct{ stderr io.Writer }

func (a apt) run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_SUSPEND=1", "LC_ALL=C")
	// dpkg must be allowed to put itself in order; a kill would leave it broken.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Stderr = a.stderr
	var out strings.Builder
	cmd.Stdout = &out
	if name != "apt-cache" {
		cmd.Stdout = a.stderr
	}
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return out.String(), nil
}
