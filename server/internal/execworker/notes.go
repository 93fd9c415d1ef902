package execworker

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"time"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// note is a line that the program writes to file descriptor 3, as JSON. Fields that are not
// there leave what was said before.
type note struct {
	Checkpoint json.RawMessage `json:"checkpoint"` // for the next attempt of the step
	Progress   *float64        `json:"progress"`   // 0 to 1
	Message    string          `json:"message"`    // what it does, for people
}

// notebook takes what an attempt has to say while it works: *worker.Attempt is one.
type notebook interface {
	SetCheckpoint(v any) error
	Progress(fraction float64, message string)
}

// noteTaking is the pipe from a program's file descriptor 3, and who reads it.
type noteTaking struct {
	reader, writer *os.File
	over           chan struct{} // closed when all was read
}

// takeNotes gives the program, which is not yet started, its file descriptor 3.
func (p *program) takeNotes(cmd *exec.Cmd) (*noteTaking, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe for notes: %w", err)
	}
	cmd.ExtraFiles = []*os.File{writer} // the first one is file descriptor 3
	t := &noteTaking{reader: reader, writer: writer, over: make(chan struct{})}
	go func() {
		defer close(t.over)
		keepNotes(reader, p.c.MaxOutput, p.notes, func(err error) {
			_, _ = fmt.Fprintf(p.c.Stderr, "leasehold worker: file descriptor 3 of %s: %v\n", p.path, err)
		})
	}()
	return t, nil
}

// started leaves the writing end to the program.
func (t *noteTaking) started() { _ = t.writer.Close() } // nothing was written to it here

// finish reads what the program has left. What has fled its group may hold the pipe open: it is
// not waited for long.
func (t *noteTaking) finish() {
	_ = t.writer.Close()                                   // where the program did not start
	_ = t.reader.SetReadDeadline(time.Now().Add(pipeWait)) // of the process's clock, as all of this is
	<-t.over
	_ = t.reader.Close()
}

// keepNotes passes the lines on until the reader ends. A line that cannot be used is complained
// about, and the next ones are read all the same: notes do not fail an attempt.
func keepNotes(lines io.Reader, room int, to notebook, complain func(error)) {
	reader := bufio.NewReader(lines)
	for {
		line, tooLong, err := readLine(reader, room)
		if tooLong {
			complain(fmt.Errorf("a line of more than %d bytes", room))
		} else if len(bytes.TrimSpace(line)) > 0 {
			if bad := keepNote(line, to); bad != nil {
				complain(bad)
			}
		}
		if err != nil { // The end; what came without a newline was tried as it is.
			return
		}
	}
}

// readLine reads a line with its end. Of one that is longer than room, in bytes, nothing is kept.
func readLine(reader *bufio.Reader, room int) (line []byte, tooLong bool, err error) {
	for {
		part, err := reader.ReadSlice('\n')
		if tooLong = tooLong || len(line)+len(part) > room; tooLong {
			line = nil
		} else {
			line = append(line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, tooLong, err
		}
	}
}

func keepNote(line []byte, to notebook) error {
	var n note
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&n); err != nil {
		return fmt.Errorf("a line is not a JSON object of checkpoint, progress and message: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("a line has more than one JSON object")
	}
	if len(n.Checkpoint) > 0 {
		checkpoint := &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Json{Json: string(n.Checkpoint)}, ContentType: "application/json"}
		if err := to.SetCheckpoint(checkpoint); err != nil {
			return err
		}
	}
	switch {
	case n.Progress != nil:
		to.Progress(*n.Progress, n.Message)
	case n.Message != "":
		to.Progress(math.NaN(), n.Message) // as far as before
	}
	return nil
}
