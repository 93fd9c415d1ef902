package demo

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// tally is what was counted at the end.
type tally struct {
	asked       int64 // in the shop's list
	calls       int64 // of producers
	executions  int64 // as the server lists them
	issued      int64 // facts in the shop
	sent        int64 // keys in the mailbox
	early       int64 // messages before the set time
	lost        int64 // asked for, but not issued, or not sent
	doubled     int64 // issued or sent once too often, or without being asked for
	refusedLate int64 // in all timelines
	fenced      int64 // stale writes that the mailbox refused
	resent      int64 // messages that the mailbox had by their key
	redelivered int64 // events that the inbox ignored
}

// failures says what should have come otherwise; nil if nothing. What was meant to be shown
// must have happened.
func (t *tally) failures() (found []string) {
	for _, must := range []struct {
		holds     bool
		otherwise string
	}{
		{t.asked > 0, "nothing was asked for"},
		{t.executions == t.asked, "there is not one execution for each coupon"},
		{t.issued == t.asked, "not as many coupons are issued as were asked for"},
		{t.sent == t.asked, "not as many messages are sent as were asked for"},
		{t.lost == 0, "coupons are lost"},
		{t.doubled == 0, "coupons are doubled"},
		{t.early == 0, "messages were sent before the set time"},
		{t.refusedLate > 0, "no late report was refused"},
		{t.fenced > 0, "the fence has refused nobody"},
		{t.resent > 0, "nobody sent again what a dead worker had sent"},
		{t.redelivered > 0, "no event came again"},
	} {
		if !must.holds {
			found = append(found, must.otherwise)
		}
	}
	return found
}

// conclude prints the table and the verdict.
func conclude(to io.Writer, t *tally, err error) error {
	if t == nil {
		fmt.Fprintln(to, "verdict failed")
		return fmt.Errorf("%w: %w", ErrFailed, err)
	}
	for _, row := range []struct {
		what string
		n    int64
	}{
		{"coupons asked for", t.asked},
		{"calls to enqueue them", t.calls},
		{"executions", t.executions},
		{"issued: facts in the shop", t.issued},
		{"sent: messages in the mailbox, by key", t.sent},
		{"sent again, and known by their key", t.resent},
		{"late reports that the server refused", t.refusedLate},
		{"stale writes that the fence refused", t.fenced},
		{"redelivered events that the inbox ignored", t.redelivered},
	} {
		fmt.Fprintf(to, "  %-42s %6d\n", row.what, row.n)
	}
	word, failures := "ok", t.failures()
	if err != nil {
		failures = append(failures, err.Error())
	}
	if failures != nil {
		word, err = "failed", fmt.Errorf("%w: %s", ErrFailed, strings.Join(failures, "; "))
	}
	fmt.Fprintf(to, "verdict %s issued %d lost %d doubled %d refused_late %d redelivered %d\n",
		word, t.issued, t.lost, t.doubled, t.refusedLate, t.redelivered)
	return err
}

// count looks at what there is: three tables that know nothing of each other, and the server.
func (d *demo) count(ctx context.Context) (*tally, error) {
	asked, err := numbers(ctx, d.shopDB, `SELECT campaign || '/' || customer, 1 FROM asked`)
	if err != nil {
		return nil, err
	}
	issued, err := numbers(ctx, d.shopDB, `SELECT campaign || '/' || customer, times FROM coupons`)
	if err != nil {
		return nil, err
	}
	sent, err := numbers(ctx, d.mailbox.db, `SELECT key, count(*) FROM messages GROUP BY key`)
	if err != nil {
		return nil, err
	}
	t := &tally{
		asked: int64(len(asked)), issued: int64(len(issued)), sent: int64(len(sent)),
		calls: int64(d.calls), redelivered: d.shop.repeated.Load(),
	}
	t.lost, t.doubled = compare(asked, issued, sent)
	err = d.mailbox.db.QueryRow(ctx, `SELECT (SELECT count(*) FROM messages WHERE sent_at < $1),
		(SELECT count(*) FROM refusals), (SELECT count(*) FROM repeats)`, d.setTime).Scan(&t.early, &t.fenced, &t.resent)
	if err != nil {
		return nil, fmt.Errorf("count in the mailbox: %w", err)
	}
	t.executions, t.refusedLate, err = d.ofServer(ctx)
	return t, err
}

// compare says how many coupons are lost, and how many there are too many of.
func compare(asked, issued, sent map[string]int64) (lost, doubled int64) {
	for key := range asked {
		if issued[key] == 0 || sent[key] == 0 {
			lost++
		}
	}
	for _, made := range []map[string]int64{issued, sent} {
		for key, times := range made {
			doubled += times - min(asked[key], times)
		}
	}
	return lost, doubled
}

// numbers reads rows of a name and a number.
func numbers(ctx context.Context, db *pgxpool.Pool, query string) (map[string]int64, error) {
	rows, err := db.Query(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("count: %w", err)
	}
	found := map[string]int64{}
	var name string
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&name, &n}, func() error {
		found[name] += n
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("count: %w", err)
	}
	return found, nil
}

// ofServer counts the executions, and the refused late reports in all of their timelines.
func (d *demo) ofServer(ctx context.Context) (executions, late int64, err error) {
	ids, err := d.listExecutions(ctx)
	if err != nil {
		return 0, 0, err
	}
	var refused atomic.Int64
	looks, ctx := errgroup.WithContext(ctx)
	looks.SetLimit(producing)
	for _, id := range ids {
		looks.Go(func() error {
			n, err := d.lateReports(ctx, id)
			refused.Add(n)
			return err
		})
	}
	err = looks.Wait()
	return int64(len(ids)), refused.Load(), err
}

func (d *demo) listExecutions(ctx context.Context) (ids []string, err error) {
	request := &leaseholdv1.ListExecutionsRequest{Name: executionName, PageSize: 1000}
	for {
		page, err := d.shop.executions.ListExecutions(ctx, request)
		if err != nil {
			return nil, fmt.Errorf("list executions: %w", err)
		}
		for _, execution := range page.GetExecutions() {
			ids = append(ids, execution.GetId())
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			return ids, nil
		}
	}
}

// lateReports counts the late reports that an execution's timeline tells of.
func (d *demo) lateReports(ctx context.Context, id string) (n int64, err error) {
	timeline, err := d.shop.executions.ListTimeline(ctx, &leaseholdv1.ListTimelineRequest{ExecutionId: id, PageSize: 1000})
	if err != nil {
		return 0, fmt.Errorf("read a timeline: %w", err)
	}
	for _, entry := range timeline.GetEntries() {
		if strings.HasPrefix(entry.GetMilestoneKey(), "late/") {
			n += int64(entry.GetCount())
		}
	}
	return n, nil
}
