package postgres_test

import (
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/leasehold/leasehold/server/internal/postgres"
)

// pooler is what a pooler is to the beginning of a session: it does not pass settings on, or
// refuses who asks for them. It has PgBouncer's words.
type pooler struct {
	target  string
	refuses bool
}

// serve takes connections until the listener ends.
func (p pooler) serve(ln net.Listener) {
	var serving sync.WaitGroup
	defer serving.Wait()
	for {
		near, err := ln.Accept()
		if err != nil {
			return
		}
		serving.Go(func() { p.session(near) })
	}
}

func (p pooler) session(near net.Conn) {
	defer near.Close()
	client := pgproto3.NewBackend(near, near)
	first, err := client.ReceiveStartupMessage()
	start, ok := first.(*pgproto3.StartupMessage)
	if err != nil || !ok {
		return
	}
	if _, asked := start.Parameters["lock_timeout"]; asked && p.refuses {
		client.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: lock_timeout"})
		_ = client.Flush() // the client goes in any case
		return
	}
	start.Parameters = map[string]string{"user": start.Parameters["user"], "database": start.Parameters["database"]}
	text, err := start.Encode(nil)
	if err != nil {
		return
	}
	far, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer far.Close()
	_, err = far.Write(text)
	if err != nil {
		return
	}
	var asking sync.WaitGroup
	asking.Go(func() { _, _ = io.Copy(far, near); _ = far.Close() }) // until the end of either side
	_, _ = io.Copy(near, far)
	_ = near.Close()
	asking.Wait()
}

// TestB90_APoolerThatTakesSettingsAwayIsRefused at the start and at once, with words that say
// what to do: it would half work. Where the role has the settings, they are there. Broken once: a
// look that only asks for an answer.
func TestB90_APoolerThatTakesSettingsAwayIsRefused(t *testing.T) {
	t.Parallel()
	database := databases.New(t)
	behind := func(p pooler) string {
		u := parse(t, database)
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		p.target, u.Host = u.Host, ln.Addr().String()
		var serving sync.WaitGroup
		serving.Go(func() { p.serve(ln) })
		t.Cleanup(func() { _ = ln.Close(); serving.Wait() })
		return u.String()
	}
	await := func(url string) error {
		return postgres.Await(migrationTime(t), url, time.Minute, slog.New(slog.DiscardHandler))
	}
	if err := await(database); err != nil {
		t.Fatalf("directly: %v", err)
	}
	for what, p := range map[string]pooler{"refuses": {refuses: true}, "ignores": {}} {
		began := time.Now()
		err := await(behind(p))
		if err == nil || !strings.Contains(err.Error(), "use a URL that leads to PostgreSQL itself") {
			t.Errorf("behind a pooler that %s settings: %v", what, err)
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("behind a pooler that %s settings: said after %s", what, took)
		}
	}
	for _, setting := range []string{"idle_in_transaction_session_timeout = '5s'", "lock_timeout = '2s'", "enable_seqscan = off"} {
		execSQL(t, database, "ALTER DATABASE "+pgx.Identifier{databaseName(t, database)}.Sanitize()+" SET "+setting)
	}
	if err := await(behind(pooler{})); err != nil {
		t.Errorf("with the settings of the database: %v", err)
	}
}
