package devpg

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrRemoved is what Restart returns after Stop of an ephemeral server: its
// folder is gone.
var ErrRemoved = errors.New("the ephemeral data folder was removed when the server was stopped")

// ErrNoBasebackup says that the program which copies a primary is not installed.
var ErrNoBasebackup = errors.New("there is no pg_basebackup")

// NotFoundError says that this machine has no PostgreSQL that is new enough.
type NotFoundError struct {
	// Older lists what was found but is older than MinMajor.
	Older []Binaries
	// Unusable says, a line for each, which binaries could not be run, and why.
	Unusable []string
	// Command is the one command that installs PostgreSQL on this system.
	Command string
}

func (e *NotFoundError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "no PostgreSQL %d or newer was found", MinMajor)
	for _, o := range e.Older {
		fmt.Fprintf(&b, "; %s holds %s, which is too old", o.Dir, o.Version)
	}
	for _, u := range e.Unusable {
		b.WriteString("; " + u)
	}
	fmt.Fprintf(&b, "\ninstall it with:\n\n    %s\n\nor let LEASEHOLD_PG_BIN name the folder of its programs initdb and postgres", e.Command)
	return b.String()
}

// InUseError says that another live process owns the data folder.
type InUseError struct {
	DataDir string
	// PID is the owner's process id; 0 if it had not yet written it.
	PID int
	// Command is the owner's program name, Since the time at which it took the
	// folder. Both may be empty.
	Command string
	Since   time.Time
}

func (e *InUseError) Error() string {
	who := "another process"
	if e.PID != 0 {
		who = fmt.Sprintf("process %d (%s, since %s)", e.PID, e.Command, e.Since.Format(time.RFC3339))
	}
	return fmt.Sprintf("data folder %s is in use by %s", e.DataDir, who)
}

// ForeignServerError says that a PostgreSQL which we did not start runs on the
// data folder.
type ForeignServerError struct {
	DataDir string
	PID     int
}

func (e *ForeignServerError) Error() string {
	return fmt.Sprintf("a PostgreSQL that was started by other means (process %d) runs on %s; stop it first", e.PID, e.DataDir)
}

// UnreachableError says that PostgreSQL's user cannot reach the data folder.
type UnreachableError struct {
	DataDir string
	// Parent is the first folder on the way that the user may not enter.
	Parent string
	// User is who PostgreSQL would run as.
	User string
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("data folder %s: PostgreSQL refuses to run as root, and the user %s, under which it runs instead, may not enter %s; "+
		"choose a folder below ones that everybody may enter, such as %s", e.DataDir, e.User, e.Parent, rootDataDir)
}

// VersionError says that the data folder was made by another major version of
// PostgreSQL than those that are installed.
type VersionError struct {
	DataDir string
	// Folder is the major version that made the folder, Installed the one at hand.
	Folder, Installed int
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("data folder %s was made by PostgreSQL %d, but %d is what is installed; install %d again, choose another folder, or remove this one",
		e.DataDir, e.Folder, e.Installed, e.Folder)
}

// StartError says that PostgreSQL ended, or was given up, before it was ready.
type StartError struct {
	Err error
	// LogTail holds the last lines that it wrote in this start.
	LogTail string
}

func (e *StartError) Error() string {
	if e.LogTail == "" {
		return fmt.Sprintf("start PostgreSQL: %v", e.Err)
	}
	return fmt.Sprintf("start PostgreSQL: %v; the end of its log:\n%s", e.Err, e.LogTail)
}

// Unwrap returns what ended the start.
func (e *StartError) Unwrap() error { return e.Err }

// ExitError says that PostgreSQL ended though nobody had asked it to.
type ExitError struct {
	PID int
	// Status is the process's end in words, such as "signal: killed".
	Status string
	// Err is why it could not be started again; nil if that was not tried.
	Err error
}

func (e *ExitError) Error() string {
	msg := fmt.Sprintf("PostgreSQL (process %d) ended by itself: %s", e.PID, e.Status)
	if e.Err != nil {
		msg += fmt.Sprintf("; starting it again failed: %v", e.Err)
	}
	return msg
}

// Unwrap returns why PostgreSQL could not be started again.
func (e *ExitError) Unwrap() error { return e.Err }
