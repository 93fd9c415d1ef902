package execworker

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// notesHeard is a notebook that keeps everything as text.
type notesHeard struct {
	mu   sync.Mutex
	text []string
}

func (n *notesHeard) SetCheckpoint(v any) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	p, ok := v.(*leaseholdv1.Payload)
	if !ok {
		return fmt.Errorf("a checkpoint of type %T", v)
	}
	n.text = append(n.text, "checkpoint "+p.GetJson())
	return nil
}

func (n *notesHeard) Progress(fraction float64, message string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.text = append(n.text, fmt.Sprintf("progress %v %s", fraction, message))
}

// noted runs a shell script and tells which notes it left, and what was complained about.
func noted(t *testing.T, text string) (notes []string, complaints string) {
	t.Helper()
	var heard notesHeard
	var stderr bytes.Buffer
	p := &program{path: "/bin/sh", args: []string{"sh", "-c", text}, notes: &heard, lease: time.Minute, c: &Config{MaxOutput: 1000, KillAfter: time.Minute, Stderr: &stderr}}
	if _, err := p.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	return heard.text, stderr.String()
}

// Caught: a pipe that is closed before it was read to its end; a bad line that ends the reading;
// a line that is cut and taken for a whole one.
func TestNotes_LineByLine(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, script, want, complaint string }{
		{"nothing", `true`, "", ""},
		{"a checkpoint", `echo '{"checkpoint": {"page": 7}}' >&3`, `checkpoint {"page": 7}`, ""},
		{"progress", `echo '{"progress": 0.5, "message": "half"}' >&3`, "progress 0.5 half", ""},
		{"a message alone", `echo '{"message": "still here"}' >&3`, "progress NaN still here", ""},
		{"all in order", `for i in 1 2 3; do echo "{\"checkpoint\": $i}" >&3; done`, "checkpoint 1|checkpoint 2|checkpoint 3", ""},
		{"without a newline at the end", `printf '{"checkpoint": 1}' >&3`, "checkpoint 1", ""},
		{"empty lines", `echo >&3; echo '{"checkpoint": 1}' >&3; echo >&3`, "checkpoint 1", ""},
		{"no JSON", `echo page 7 >&3; echo '{"checkpoint": 1}' >&3`, "checkpoint 1", "not a JSON object"},
		{"an unknown field", `echo '{"chekpoint": 7}' >&3`, "", `unknown field "chekpoint"`},
		{"two on one line", `echo '{"progress": 1} {"progress": 0}' >&3`, "", "more than one"},
		{"too long", `head -c 100000 /dev/zero | tr '\0' ' ' >&3; echo '{"checkpoint": 1}' >&3; echo '{"checkpoint": 2}' >&3`, "checkpoint 2", "more than 1000 bytes"},
		{"too long, to the end", `head -c 100000 /dev/zero | tr '\0' x >&3`, "", "more than 1000 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			notes, complaints := noted(t, tt.script)
			if got := strings.Join(notes, "|"); got != tt.want {
				t.Errorf("notes %q, want %q", got, tt.want)
			}
			if !strings.Contains(complaints, tt.complaint) || tt.complaint == "" && complaints != "" {
				t.Errorf("complaints %q, want %q", complaints, tt.complaint)
			}
		})
	}
}

// A process that left the group holds the pipe open: the attempt ends all the same.
func TestNotes_EndWithTheProgram(t *testing.T) {
	t.Parallel()
	var heard notesHeard
	p := &program{
		path: "/bin/sh", args: []string{"sh", "-c", `setsid sleep 1000 >/dev/null 2>&1 & echo $!; echo '{"checkpoint": 1}' >&3`},
		notes: &heard, lease: time.Minute, c: &Config{MaxOutput: 1000, KillAfter: time.Minute, Stderr: &bytes.Buffer{}},
	}
	ended := make(chan error, 1)
	var pid int
	go func() {
		out, err := p.run(t.Context())
		if err == nil {
			_, err = fmt.Sscan(string(bodyOf(out)), &pid)
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		if err != nil {
			t.Fatal(err)
		}
		_ = syscall.Kill(pid, syscall.SIGKILL) // ours; it has fled its group on purpose
	case <-time.After(time.Minute):
		t.Fatal("the attempt waits for a process that left its group")
	}
	if got := strings.Join(heard.text, "|"); got != "checkpoint 1" {
		t.Errorf("notes %q", got)
	}
}
