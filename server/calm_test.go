package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// What fails ten times a second for an hour leaves some lines in the log, which tell how often;
// other words have lines of their own, errors are all there, and after a rest the next warning
// is told at once. Break seen to fail: no rest after which it is a first one again.
func TestCalm_BoundsWarnings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(newCalm(slog.NewTextHandler(&out, nil)))
		const hour = 36_000
		for i := range hour {
			log.With("call", i).Warn("storage is unavailable", "n", i)
			if i%60 == 0 {
				log.WithGroup("g").Warn("other")
				log.Error("bug")
				log.Info("news")
			}
			time.Sleep(100 * time.Millisecond)
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		count := func(words string) (n int) {
			for _, line := range lines {
				if strings.Contains(line, words) {
					n++
				}
			}
			return n
		}
		for words, want := range map[string][2]int{ // 1+2+4+...+32 s, then one a minute
			`msg="storage is unavailable"`: {60, 70}, "msg=other": {60, 75}, "msg=bug": {600, 600}, "msg=news": {600, 600},
			"alike_before=599": {55, 60}, `storage is unavailable" call=0 n=0`: {1, 1},
		} {
			if n := count(words); n < want[0] || n > want[1] {
				t.Errorf("%d lines with %s, want %v", n, words, want)
			}
		}
		time.Sleep(2 * time.Minute)
		out.Reset()
		log.Warn("storage is unavailable")
		log.Warn("storage is unavailable")
		time.Sleep(1100 * time.Millisecond)
		log.Warn("storage is unavailable")
		if n := strings.Count(out.String(), "\n"); n != 2 || !strings.Contains(out.String(), "alike_before=1") {
			t.Errorf("after a rest: %s", out.String())
		}
	})
}
