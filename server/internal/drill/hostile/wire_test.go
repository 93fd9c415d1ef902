package hostile

import (
	"encoding/binary"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// source hands out an input's bytes; after its end it is all zeros.
type source struct{ data []byte }

func (s *source) next() byte {
	if len(s.data) == 0 {
		return 0
	}
	b := s.data[0]
	s.data = s.data[1:]
	return b
}

func (s *source) below(n int) int { return int(s.next()) % n }

func (s *source) take(n int) []byte {
	n = min(n, len(s.data))
	b := s.data[:n]
	s.data = s.data[n:]
	return b
}

// deepest is how deep messages are nested that are made here.
const deepest = 5

// maker writes messages in protobuf's wire format. It writes what the library would refuse to
// write too: texts that are not UTF-8, fields of a wrong type, both sides of a oneof. Zeros make
// a message that is as good as can be.
type maker struct {
	src   *source
	pool  *pool
	lease lease // whose version goes with the attempt that was named last
	names int   // of steps, so far in this list
}

// How a field is written.
const (
	absent = iota
	good
	wild
	double
	garbage
)

// manner decides on a field by one byte of the input.
func manner(c byte, needed bool) int {
	switch {
	case c >= 250:
		return garbage
	case c >= 242:
		return double
	case c >= 210:
		return wild
	case needed && c < 200, !needed && c >= 120:
		return good
	}
	return absent
}

// message appends the fields of a message.
func (m *maker) message(b []byte, d protoreflect.MessageDescriptor, depth int) []byte {
	chosen := map[protoreflect.FullName]int{}
	for i := range d.Oneofs().Len() {
		if one := d.Oneofs().Get(i); !one.IsSynthetic() {
			chosen[one.FullName()] = one.Fields().Get(m.src.below(one.Fields().Len())).Index()
		}
	}
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		how := manner(m.src.next(), needed(f))
		if one := f.ContainingOneof(); one != nil && !one.IsSynthetic() {
			if chosen[one.FullName()] != f.Index() && how != double {
				continue
			}
		}
		b = m.field(b, f, how, depth)
	}
	return b
}

func (m *maker) field(b []byte, f protoreflect.FieldDescriptor, how, depth int) []byte {
	if depth >= deepest || how == absent {
		return b
	}
	if how == garbage {
		b = protowire.AppendTag(b, f.Number(), protowire.Type(m.src.below(8)))
		return append(b, m.src.take(m.src.below(12))...)
	}
	times := 1
	if how == double {
		times = 2
	}
	if f.IsList() {
		times = 1 + m.src.below(4)
		defer func(names int) { m.names = names }(m.names)
		m.names = 0
	}
	if f.IsMap() {
		times = 1 + m.src.below(3)
	}
	for range times {
		b = m.value(b, f, how == wild, depth)
	}
	return b
}

func (m *maker) value(b []byte, f protoreflect.FieldDescriptor, wild bool, depth int) []byte {
	switch f.Kind() {
	case protoreflect.MessageKind:
		var inner []byte
		switch {
		case f.IsMap() && wild:
			inner = m.message(nil, f.Message(), depth+1)
		case f.IsMap():
			inner = m.pair(f.Message())
		case f.Message().FullName() == "google.protobuf.Duration" || f.Message().FullName() == "google.protobuf.Timestamp":
			inner = m.instant(f, wild)
		default:
			inner = m.message(nil, f.Message(), depth+1)
		}
		return protowire.AppendBytes(protowire.AppendTag(b, f.Number(), protowire.BytesType), inner)
	case protoreflect.StringKind, protoreflect.BytesKind:
		text := m.text(f, wild)
		return protowire.AppendBytes(protowire.AppendTag(b, f.Number(), protowire.BytesType), text)
	case protoreflect.DoubleKind:
		return protowire.AppendFixed64(protowire.AppendTag(b, f.Number(), protowire.Fixed64Type), math.Float64bits(m.float(wild)))
	default:
		return protowire.AppendVarint(protowire.AppendTag(b, f.Number(), protowire.VarintType), uint64(m.number(f, wild)))
	}
}

// pair is an entry of a map of texts.
func (m *maker) pair(entry protoreflect.MessageDescriptor) []byte {
	key := []byte{'k', '0' + byte(m.src.below(4))}
	b := protowire.AppendBytes(protowire.AppendTag(nil, entry.Fields().ByNumber(1).Number(), protowire.BytesType), key)
	return protowire.AppendBytes(protowire.AppendTag(b, 2, protowire.BytesType), []byte("v"))
}

// instant is a duration or a timestamp.
func (m *maker) instant(f protoreflect.FieldDescriptor, wild bool) []byte {
	var seconds, nanos int64
	switch {
	case wild:
		seconds, nanos = m.anyNumber(), m.anyNumber()
	case f.Message().Name() == "Timestamp":
		seconds = []int64{0, 1_796_000_000, 4_000_000_000, -62_135_596_800, 253_402_300_799}[m.src.below(5)]
	default:
		one := []struct{ s, n int64 }{{0, 20_000_000}, {0, 0}, {1, 0}, {30, 0}, {3600, 0}, {0, 1}, {315_360_000, 0}}[m.src.below(7)]
		seconds, nanos = one.s, one.n
	}
	b := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(seconds))
	return protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), uint64(nanos))
}

// anyNumber is one of those at which things break, or any.
func (m *maker) anyNumber() int64 {
	list := [...]int64{
		0, 1, -1, 2, 100, 101, 1000, 1001, 10_000, 10_001, 1_000_000, 1_000_001, 315_360_000, 315_360_001, 315_576_000_000, 315_576_000_001,
		999_999_999, 1_000_000_000, -999_999_999, -62_135_596_800, -62_135_596_801, 253_402_300_799, 253_402_300_800,
		math.MaxInt32, math.MinInt32, math.MaxInt32 + 1, math.MaxInt64, math.MinInt64, math.MaxInt64 - 1,
	}
	if n := m.src.below(len(list) + 4); n < len(list) {
		return list[n]
	}
	var raw [8]byte
	copy(raw[:], m.src.take(len(raw)))
	return int64(binary.LittleEndian.Uint64(raw[:]))
}

func (m *maker) float(wild bool) float64 {
	if wild {
		list := [...]float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e-300, 1e300, math.MaxFloat64, 1000.0001, -1, 0.9999999999999999}
		if n := m.src.below(len(list) + 2); n < len(list) {
			return list[n]
		}
		return math.Float64frombits(uint64(m.anyNumber()))
	}
	return [...]float64{1, 0, 0.5, 1}[m.src.below(4)]
}
