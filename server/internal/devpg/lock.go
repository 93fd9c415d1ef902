package devpg

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const lockName = "leasehold.lock"

// folderLock is the exclusive right to a data folder. The kernel takes it back
// when the process ends, so that there are no stale locks. The file stays: were
// it removed, two processes could each hold a lock on a file of that name.
type folderLock struct {
	file *os.File
}

// lockNote is what the lock file says about its holder.
type lockNote struct {
	PID     int       `json:"pid"`
	Command string    `json:"command"`
	Since   time.Time `json:"since"`
}

// lockFolder takes the lock, or returns an *InUseError.
func lockFolder(dataDir string) (*folderLock, error) {
	file, err := os.OpenFile(filepath.Join(dataDir, lockName), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the lock of a data folder: %w", err)
	}
	if err := flock(file); err != nil {
		defer file.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock data folder %s: %w", dataDir, err)
		}
		note := readNote(file.Name())
		return nil, &InUseError{DataDir: dataDir, PID: note.PID, Command: note.Command, Since: note.Since}
	}
	l := &folderLock{file: file}
	if err := l.sign(); err != nil {
		l.release()
		return nil, err
	}
	return l, nil
}

func flock(file *os.File) error {
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// sign writes who we are. The program's arguments are left out: a database URL
// may be among them.
func (l *folderLock) sign() error {
	note, err := json.Marshal(lockNote{PID: os.Getpid(), Command: filepath.Base(os.Args[0]), Since: time.Now().UTC().Truncate(time.Second)})
	if err != nil {
		return fmt.Errorf("describe the holder of a lock: %w", err)
	}
	if err := l.file.Truncate(0); err != nil {
		return fmt.Errorf("write the lock of a data folder: %w", err)
	}
	if _, err := l.file.WriteAt(append(note, '\n'), 0); err != nil {
		return fmt.Errorf("write the lock of a data folder: %w", err)
	}
	return nil
}

// readNote waits a little for a holder that has the lock but has not yet signed.
func readNote(path string) lockNote {
	var note lockNote
	for range 20 {
		text, err := os.ReadFile(path)
		if err == nil && json.Unmarshal(text, &note) == nil {
			return note
		}
		time.Sleep(10 * time.Millisecond)
	}
	return lockNote{}
}

func (l *folderLock) release() {
	// Closing gives the lock back: children do not inherit the descriptor.
	_ = l.file.Close()
}
