package demo

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasehold/leasehold/api/consumer"
)

// mailboxSchema is that of the mail provider. Nothing in it makes a key unique: what keeps
// messages from being doubled is deliver, and the verdict counts them.
const mailboxSchema = consumer.FenceMigration + `
CREATE TABLE messages (
    key           text        NOT NULL,
    lease_version bigint      NOT NULL,
    sent_at       timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX messages_key ON messages (key);
CREATE TABLE repeats (
    key           text   NOT NULL,
    lease_version bigint NOT NULL
);
CREATE TABLE refusals (
    key           text   NOT NULL,
    lease_version bigint NOT NULL,
    newest        bigint NOT NULL
);`

// mailbox is the mail provider, which stands for any resource outside. Coupons have a key
// there, and their workers a lease version.
type mailbox struct{ db *pgxpool.Pool }

func openMailbox(ctx context.Context, url string) (mailbox, error) {
	db, err := pgxpool.New(ctx, url)
	if err != nil {
		return mailbox{}, fmt.Errorf("open the mailbox: %w", err)
	}
	return mailbox{db}, nil
}

func (m mailbox) close() { m.db.Close() }

// deliver sends a coupon's message unless it was sent before: a worker that died between the
// message and its report has a successor that delivers once more. A worker with a stale lease
// version is refused by the fence; under the fence two with the same key follow each other.
func (m mailbox) deliver(ctx context.Context, coupon Coupon, leaseVersion int64) error {
	err := pgx.BeginFunc(ctx, m.db, func(tx pgx.Tx) error {
		if err := consumer.Fence(ctx, tx, coupon.Key(), leaseVersion); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `INSERT INTO messages (key, lease_version)
			SELECT $1, $2 WHERE NOT EXISTS (SELECT FROM messages WHERE key = $1)`, coupon.Key(), leaseVersion)
		if err == nil && tag.RowsAffected() == 0 {
			_, err = tx.Exec(ctx, `INSERT INTO repeats VALUES ($1, $2)`, coupon.Key(), leaseVersion)
		}
		return err
	})
	var stale *consumer.StaleTokenError
	if errors.As(err, &stale) {
		_, noted := m.db.Exec(ctx, `INSERT INTO refusals VALUES ($1, $2, $3)`, stale.Resource, stale.Token, stale.Newest)
		err = errors.Join(err, noted)
	}
	return err
}
