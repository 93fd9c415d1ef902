package worker

import (
	"log/slog"
	"time"
)

// outage keeps the log short while servers are away: one line when it begins, one a minute
// while it lasts, one when it is over. It is used by the polling goroutine alone.
type outage struct {
	since  time.Time // zero while all is well
	logged time.Time
}

func (o *outage) failed(log *slog.Logger, call string, err error) {
	now := time.Now()
	if o.since.IsZero() {
		o.since = now
	}
	if !o.logged.IsZero() && now.Sub(o.logged) < time.Minute {
		return
	}
	o.logged = now
	log.Warn("server not reached, trying again", "call", call, "for", now.Sub(o.since).Round(time.Second), "error", err)
}

func (o *outage) over(log *slog.Logger) {
	if o.since.IsZero() {
		return
	}
	log.Info("server reached again", "after", time.Since(o.since).Round(time.Millisecond))
	*o = outage{}
}
