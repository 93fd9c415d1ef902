package postgres

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/leasehold/leasehold/server/internal/task"
)

// PostgreSQL counts in microseconds; longer fractions are cut before they are sent.

func instant(t time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: t, Valid: true}
}

func maybeInstant(t *time.Time) pgtype.Timestamptz {
	if t == nil {
		return pgtype.Timestamptz{}
	}
	return instant(*t)
}

func fromInstant(t pgtype.Timestamptz) *time.Time {
	if !t.Valid {
		return nil
	}
	at := t.Time.UTC()
	return &at
}

func interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: true}
}

// maybeInterval stores 0 as NULL, where that means none.
func maybeInterval(d time.Duration) pgtype.Interval {
	if d == 0 {
		return pgtype.Interval{}
	}
	return interval(d)
}

func fromInterval(i pgtype.Interval) time.Duration {
	const day = 24 * time.Hour
	return time.Duration(i.Microseconds)*time.Microsecond + time.Duration(i.Days)*day + time.Duration(i.Months)*30*day
}

func maybeID(id uuid.NullUUID) *uuid.UUID {
	if !id.Valid {
		return nil
	}
	return &id.UUID
}

// jsonOf encodes what is stored as jsonb; nil stays NULL.
func jsonOf[T any](v *T) []byte {
	if v == nil {
		return nil
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", v, err)) // plain structs and maps: cannot fail
	}
	return b
}

func jsonMap(m map[string]string) []byte {
	if len(m) == 0 {
		return nil
	}
	return jsonOf(&m)
}

func fromJSON[T any](b []byte) (*T, error) {
	if b == nil {
		return nil, nil //nolint:nilnil // NULL is nil
	}
	v := new(T)
	if err := json.Unmarshal(b, v); err != nil {
		return nil, fmt.Errorf("decode %T: %w", v, err)
	}
	return v, nil
}

func fromJSONMap(b []byte) (map[string]string, error) {
	m, err := fromJSON[map[string]string](b)
	if m == nil || err != nil {
		return nil, err
	}
	return *m, nil
}

// retryPolicy is stored as NULL while it is the default, which never changes within v1.
func retryPolicy(p task.RetryPolicy) []byte {
	d := task.DefaultRetryPolicy()
	if len(p.NonRetryableTypes) == 0 && p.InitialInterval == d.InitialInterval && p.MaximumInterval == d.MaximumInterval &&
		p.MaximumAttempts == d.MaximumAttempts && p.BackoffCoefficient == d.BackoffCoefficient && p.Jitter == d.Jitter {
		return nil
	}
	return jsonOf(&p)
}

func fromRetryPolicy(b []byte) (task.RetryPolicy, error) {
	p, err := fromJSON[task.RetryPolicy](b)
	if err != nil {
		return task.RetryPolicy{}, err
	}
	if p == nil {
		return task.DefaultRetryPolicy(), nil
	}
	return *p, nil
}
