package postgres

import (
	"encoding/binary"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	pgxuuid "github.com/vgarvardt/pgx-google-uuid/v5"
)

// registerIDs makes ids travel as bytes. Otherwise each one goes through text: it was a quarter of
// the server's time.
func registerIDs(conn *pgx.Conn) {
	m := conn.TypeMap()
	pgxuuid.Register(m)
	id := &pgtype.Type{Name: "uuid", OID: pgtype.UUIDOID, Codec: idCodec{}}
	m.RegisterType(id)
	m.RegisterType(&pgtype.Type{Name: "_uuid", OID: pgtype.UUIDArrayOID, Codec: idsCodec{&pgtype.ArrayCodec{ElementType: id}}})
}

// idCodec also reads them as bytes. A uuid.UUID can be read from text too, which pgx prefers to the
// wrappers that the library registers for it.
type idCodec struct{ pgxuuid.UUIDCodec }

// PlanScan is of pgtype.Codec.
func (c idCodec) PlanScan(m *pgtype.Map, oid uint32, format int16, target any) pgtype.ScanPlan {
	plan, inner, ours := pgxuuid.TryWrapUUIDScanPlan(target)
	if !ours {
		return c.UUIDCodec.PlanScan(m, oid, format, target)
	}
	next := c.UUIDCodec.PlanScan(m, oid, format, inner)
	if next == nil {
		return nil
	}
	plan.SetNext(next)
	return plan
}

// idsCodec also writes lists of them as bytes. pgx would go through them by reflection, two
// allocations for each.
type idsCodec struct{ *pgtype.ArrayCodec }

// PlanEncode is of pgtype.Codec.
func (c idsCodec) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if _, ours := value.([]uuid.UUID); ours && format == pgtype.BinaryFormatCode {
		return encodeIDs{}
	}
	return c.ArrayCodec.PlanEncode(m, oid, format, value)
}

type encodeIDs struct{}

// Encode appends an array of one dimension, without NULLs, whose first index is 1.
func (encodeIDs) Encode(value any, buf []byte) ([]byte, error) {
	ids := value.([]uuid.UUID)
	dimensions := uint32(1)
	if len(ids) == 0 {
		dimensions = 0
	}
	for _, head := range []uint32{dimensions, 0, pgtype.UUIDOID} {
		buf = binary.BigEndian.AppendUint32(buf, head)
	}
	if len(ids) == 0 {
		return buf, nil
	}
	buf = binary.BigEndian.AppendUint32(buf, uint32(len(ids)))
	buf = binary.BigEndian.AppendUint32(buf, 1)
	for i := range ids {
		buf = binary.BigEndian.AppendUint32(buf, uint32(len(ids[i])))
		buf = append(buf, ids[i][:]...)
	}
	return buf, nil
}
