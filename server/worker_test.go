package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

const makeThumb = `#!/bin/sh
# Makes a "thumbnail" of the file that is named on stdin.
set -eu
name=$(tr -d '"')
case $name in
bad*) echo "cannot read $name" >&2; exit 65 ;;
late*) [ "$LEASEHOLD_ATTEMPT_NUMBER" -gt 1 ] || exit 75 ;;
esac
sleep 0.05
head -c 5 "$IN/$name" > "$OUT/$name.$LEASEHOLD_LEASE_VERSION"
mv "$OUT/$name.$LEASEHOLD_LEASE_VERSION" "$OUT/$name"
printf '{"made": "%s", "attempt": %s}' "$name" "$LEASEHOLD_ATTEMPT_NUMBER"
`

// A shell script makes thumbnails of 200 files; its worker is killed in the middle, and another
// started: each is made. Exit codes say what was meant by them.
func TestWorker_AShellScriptMakesThumbnails(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	in, out, program := filepath.Join(folder, "in"), filepath.Join(folder, "out"), filepath.Join(folder, "make-thumb.sh")
	for _, dir := range []string{in, out} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(program, []byte(makeThumb), 0o755); err != nil {
		t.Fatal(err)
	}
	server := start(t, "dev", "--ephemeral", "--listen", "127.0.0.1:0")
	work := func() *process {
		return launch(t, "worker", "--address", server.ready.Listen, "--capability", "thumbnails", "--slots", "4", "--lease-duration", "2s",
			"--temporary-delay", "100ms", "--", "env", "IN="+in, "OUT="+out, program)
	}
	first := work()
	const files = 200
	var ids []string
	for i := range files {
		name := fmt.Sprintf("image%03d", i)
		if i%50 == 7 {
			name = fmt.Sprintf("late%03d", i)
		}
		if err := os.WriteFile(filepath.Join(in, name), []byte(name+" in full"), 0o600); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, server.enqueue(name, "thumbnails", fmt.Sprintf("%q", name)).GetExecution().GetId())
	}
	bad := server.enqueue("bad", "thumbnails", `"bad"`).GetExecution().GetId()
	made := func() int {
		list, err := os.ReadDir(out)
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	eventually(t, "a quarter is made", func() bool { return made() > files/4 })
	first.signal(syscall.SIGKILL)
	<-first.exited
	if n := made(); n >= files {
		t.Fatalf("all of %d were made before the worker was killed: nothing was tried", n)
	}
	second := work()
	handedBack := 0
	for _, id := range ids {
		e := server.awaitState(id, leaseholdv1.ExecutionState_EXECUTION_STATE_SUCCEEDED)
		step := e.GetSteps()[0]
		name := strings.Trim(step.GetInput().GetJson(), `"`)
		if want := fmt.Sprintf(`{"made": "%s", "attempt": %d}`, name, len(step.GetAttempts())); step.GetOutput().GetJson() != want {
			t.Errorf("output %s, want %s", step.GetOutput().GetJson(), want)
		}
		if text, err := os.ReadFile(filepath.Join(out, name)); err != nil || string(text) != name[:5] {
			t.Errorf("%s: %q, %v", name, text, err)
		}
		killed := step.GetAttempts()[0].GetState() == leaseholdv1.AttemptState_ATTEMPT_STATE_LOST // before it could hand back
		if strings.HasPrefix(name, "late") && !killed {
			handedBack++
			if len(step.GetAttempts()) < 2 || step.GetCountedAttempts() >= int32(len(step.GetAttempts())) {
				t.Errorf("%s was not handed back: %v", name, step.GetAttempts())
			}
		}
	}
	if handedBack == 0 {
		t.Error("no late one was looked at")
	}
	e := server.awaitState(bad, leaseholdv1.ExecutionState_EXECUTION_STATE_FAILED)
	if f := e.GetSteps()[0].GetFailure(); len(e.GetSteps()[0].GetAttempts()) != 1 || f.GetMessage() != "exit status 65: cannot read bad" {
		t.Errorf("the bad one: %v", e.GetSteps()[0])
	}
	second.stop(syscall.SIGTERM)
	server.stop(syscall.SIGTERM)
}

// The first try leaves a checkpoint and fails, the second one goes on from there.
const goesOn = `#!/bin/sh
set -eu
if [ -s "$LEASEHOLD_CHECKPOINT" ]; then
	printf '{"from": %s}' "$(cat "$LEASEHOLD_CHECKPOINT")"
	exit 0
fi
echo '{"checkpoint": {"page": 7}, "progress": 0.5, "message": "half way"}' >&3
[ ! -e "$FOLDER/wait" ] || while :; do sleep 0.05; done
exit 1
`

// A checkpoint of a program goes to the next attempt: with the report of the failure, and with a
// renewal while it works, where the worker is killed later.
func TestWorker_AProgramLeavesACheckpoint(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	program := filepath.Join(folder, "goes-on.sh")
	if err := os.WriteFile(program, []byte(goesOn), 0o755); err != nil {
		t.Fatal(err)
	}
	server := start(t, "dev", "--ephemeral", "--listen", "127.0.0.1:0", "--http-listen", "off")
	work := func() *process {
		return launch(t, "worker", "--address", server.ready.Listen, "--capability", "pages", "--lease-duration", "1s", "--", "env", "FOLDER="+folder, program)
	}
	wentOn := func(id string) {
		t.Helper()
		step := server.awaitState(id, leaseholdv1.ExecutionState_EXECUTION_STATE_SUCCEEDED).GetSteps()[0]
		if got := step.GetOutput().GetJson(); got != `{"from": {"page": 7}}` || len(step.GetAttempts()) != 2 {
			t.Errorf("output %s after %d attempts", got, len(step.GetAttempts()))
		}
	}
	first := work()
	wentOn(server.enqueue("fails", "pages", `1`).GetExecution().GetId())

	wait := filepath.Join(folder, "wait")
	if err := os.WriteFile(wait, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	id := server.enqueue("is killed", "pages", `1`).GetExecution().GetId()
	client := server.executions()
	eventually(t, "a renewal brought how far it is", func() bool {
		answer, err := client.GetExecution(testTime(t), &leaseholdv1.GetExecutionRequest{ExecutionId: id})
		if err != nil {
			t.Fatal(err)
		}
		attempts := answer.GetExecution().GetSteps()[0].GetAttempts()
		return len(attempts) == 1 && attempts[0].GetProgress() == 0.5 && attempts[0].GetProgressMessage() == "half way"
	})
	first.signal(syscall.SIGKILL)
	<-first.exited
	if err := os.Remove(wait); err != nil {
		t.Fatal(err)
	}
	second := work()
	wentOn(id)
	second.stop(syscall.SIGTERM)
	server.stop(syscall.SIGTERM)
}
