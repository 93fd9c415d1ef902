package postgres_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// Ids go to PostgreSQL and come back as they are, alone and in lists, empty ones too, and are read
// without a detour through text. Caught: each part of the codecs.
func TestIDs_TravelAsBytes(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	conn, err := s.store.Pool().Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	ids := []uuid.UUID{uuid.New(), uuid.Nil, uuid.New()}
	for _, list := range [][]uuid.UUID{ids, ids[:1], {}} {
		var back []uuid.UUID
		var n int
		var same bool
		err := conn.QueryRow(t.Context(), "SELECT $1::uuid[], cardinality($1::uuid[]), $1::uuid[] = $2::text[]::uuid[]",
			list, texts(list)).Scan(&back, &n, &same)
		if err != nil || !slices.Equal(back, list) || n != len(list) || !same {
			t.Errorf("%v came back as %v (%d, %t): %v", list, back, n, same, err)
		}
	}
	var id uuid.UUID
	var none, some uuid.NullUUID
	if err := conn.QueryRow(t.Context(), "SELECT $1::uuid, NULL::uuid, $1::uuid", ids[0]).Scan(&id, &none, &some); err != nil {
		t.Fatal(err)
	}
	if id != ids[0] || none.Valid || !some.Valid || some.UUID != ids[0] {
		t.Errorf("%v came back as %v, %v, %v", ids[0], id, none, some)
	}
	if err := conn.QueryRow(t.Context(), "SELECT NULL::uuid").Scan(&id); err == nil {
		t.Error("NULL was read as an id")
	}
	m := conn.Conn().TypeMap()
	for _, target := range []any{&id, &none} {
		if plan := fmt.Sprintf("%T", m.PlanScan(pgtype.UUIDOID, pgtype.BinaryFormatCode, target)); strings.Contains(plan, "SQLScanner") {
			t.Errorf("%T is read as text: %s", target, plan)
		}
	}
	if plan := fmt.Sprintf("%T", m.PlanEncode(pgtype.UUIDArrayOID, pgtype.BinaryFormatCode, ids)); !strings.Contains(plan, "encodeIDs") {
		t.Errorf("a list is written by %s", plan)
	}
}

func texts(ids []uuid.UUID) []string {
	list := []string{}
	for _, id := range ids {
		list = append(list, id.String())
	}
	return list
}
