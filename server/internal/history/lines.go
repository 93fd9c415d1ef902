package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// line is a line of a written history.
type line struct {
	Clock    string    `json:"clock,omitempty"` // the first line of a recorder's part
	Sink     bool      `json:"sink,omitempty"`
	Call     uint64    `json:"call,omitempty"` // links the two lines of a call
	Ended    bool      `json:"ended,omitempty"`
	Ops      []Op      `json:"ops,omitempty"`
	Delivery *Delivery `json:"delivery,omitempty"`
}

// Write writes it as lines of JSON.
func (h History) Write(w io.Writer) error {
	buffer := bufio.NewWriter(w)
	enc := json.NewEncoder(buffer)
	err := enc.Encode(line{Clock: h.Clock, Sink: h.Sink})
	for i := 0; i < len(h.Ops) && err == nil; i++ {
		err = enc.Encode(line{Ended: true, Ops: h.Ops[i : i+1]})
	}
	for i := 0; i < len(h.Deliveries) && err == nil; i++ {
		err = enc.Encode(line{Delivery: &h.Deliveries[i]})
	}
	if err == nil {
		err = buffer.Flush()
	}
	if err != nil {
		return fmt.Errorf("write a history: %w", err)
	}
	return nil
}

// ErrClocks says that histories do not fit together: their times are of different clocks.
var ErrClocks = errors.New("histories of different clocks")

// Read reads lines of one recorder, or several after each other. The last line may be torn: its
// process was killed while it wrote.
func Read(r io.Reader) (History, error) {
	var h History
	open := map[uint64][]Op{}
	in := bufio.NewReader(r)
	for n := 1; ; n++ {
		text, err := in.ReadBytes('\n')
		switch {
		case errors.Is(err, io.EOF): // text is empty or torn
			h.keep(open)
			return h, nil
		case err != nil:
			return h, fmt.Errorf("read a history: %w", err)
		}
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			return h, fmt.Errorf("read a history, line %d: %w", n, err)
		}
		if l.Clock != "" { // calls are numbered anew
			if h.Clock != "" && h.Clock != l.Clock {
				return h, fmt.Errorf("read a history, line %d: %w", n, ErrClocks)
			}
			h.keep(open)
			clear(open)
		}
		h.take(l, open)
	}
}

// take adds a line. open has the calls that were not answered yet.
func (h *History) take(l line, open map[uint64][]Op) {
	if l.Clock != "" {
		h.Clock = l.Clock
	}
	h.Sink = h.Sink || l.Sink
	if l.Delivery != nil {
		h.Deliveries = append(h.Deliveries, *l.Delivery)
	}
	if l.Call != 0 && !l.Ended {
		open[l.Call] = l.Ops
		return
	}
	delete(open, l.Call)
	h.Ops = append(h.Ops, l.Ops...)
}

// keep adds the calls that were never answered.
func (h *History) keep(open map[uint64][]Op) {
	for _, ops := range open {
		h.Ops = append(h.Ops, ops...)
	}
}

// Merge makes one history of those of several recorders, which must be of one machine and boot.
func Merge(parts ...History) (History, error) {
	var all History
	for _, h := range parts {
		if h.Clock == "" && len(h.Ops) == 0 && len(h.Deliveries) == 0 {
			continue
		}
		if all.Clock != "" && all.Clock != h.Clock {
			return all, ErrClocks
		}
		all.Clock, all.Sink = h.Clock, all.Sink || h.Sink
		all.Ops = append(all.Ops, h.Ops...)
		all.Deliveries = append(all.Deliveries, h.Deliveries...)
	}
	return all, nil
}
