package devpg

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fakeApt answers apt-cache with one policy before an update and another after.
type fakeApt struct {
	t             *testing.T
	before, after string
	failInstalls  int
	noCluster     string
	ran           []string
}

func (f *fakeApt) run(_ context.Context, name string, args ...string) (string, error) {
	line := name + " " + args[len(args)-1]
	f.ran = append(f.ran, line)
	switch line {
	case "apt-cache postgresql":
		if slices.Contains(f.ran, "apt-get update") {
			return f.after, nil
		}
		return f.before, nil
	case "apt-get postgresql":
		if text, err := os.ReadFile(f.noCluster); err != nil || !strings.Contains(string(text), "create_main_cluster = false") {
			f.t.Errorf("installed without forbidding the system's own cluster: %q, %v", text, err)
		}
		if f.failInstalls > 0 {
			f.failInstalls--
			return "", errors.New("404 not found")
		}
	}
	return "", nil
}

func TestAptInstall(t *testing.T) {
	t.Parallel()
	const good, none = "postgresql:\n  Installed: (none)\n  Candidate: 15+248\n  Version table:\n", ""
	const ubuntu22 = "postgresql:\n  Installed: (none)\n  Candidate: 14+238\n"
	cases := []struct {
		name          string
		before, after string
		failInstalls  int
		want          []string
		fails         bool
	}{
		{"lists are there", good, good, 0, []string{"apt-cache postgresql", "apt-get postgresql"}, false},
		{"no lists", none, good, 0, []string{"apt-cache postgresql", "apt-get update", "apt-cache postgresql", "apt-get postgresql"}, false},
		{"old lists", good, good, 1, []string{"apt-cache postgresql", "apt-get postgresql", "apt-get update", "apt-cache postgresql", "apt-get postgresql"}, false},
		{"fails for good", good, good, 9, []string{"apt-cache postgresql", "apt-get postgresql", "apt-get update", "apt-cache postgresql", "apt-get postgresql"}, true},
		{"too old", ubuntu22, ubuntu22, 0, []string{"apt-cache postgresql"}, true},
		{"not offered", none, none, 0, []string{"apt-cache postgresql", "apt-get update", "apt-cache postgresql"}, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "createcluster.d", "leasehold.conf")
			f := &fakeApt{t: t, before: c.before, after: c.after, failInstalls: c.failInstalls, noCluster: file}
			err := aptInstall(context.Background(), io.Discard, f, file)
			if (err != nil) != c.fails {
				t.Errorf("error %v, want one: %v", err, c.fails)
			}
			if !slices.Equal(f.ran, c.want) {
				t.Errorf("ran %q, want %q", f.ran, c.want)
			}
			if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the setting was left behind: %v", err)
			}
		})
	}
}

func TestCommand_OneForEachSystem(t *testing.T) {
	t.Parallel()
	for osRelease, want := range map[string]string{
		"NAME=x\nID=debian\n":                          "sudo apt-get install -y postgresql",
		"ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n":    "sudo apt-get install -y postgresql",
		"ID=fedora\n":                                  "sudo dnf install -y postgresql-server",
		"ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"": "sudo dnf install -y postgresql-server",
	} {
		if got := (packages{family: familyOf(osRelease)}).command(); got != want {
			t.Errorf("%q: %s, want %s", osRelease, got, want)
		}
	}
	if got := (packages{family: "macos"}).command(); !strings.HasPrefix(got, "brew install ") {
		t.Errorf("macOS: %s", got)
	}
	if got := (packages{family: "debian", root: true}).command(); strings.Contains(got, "sudo") {
		t.Errorf("root: %s", got)
	}
	if got := familyOf("ID=arch\n"); got != "" {
		t.Errorf("arch is of the family %s", got)
	}
}
