package main

import (
	"errors"
	"fmt"
	"math"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
)

// Kinds of error, by their number in the mailbox.
const (
	failure = iota
	corrupt
	user
	unsupported
	bug
)

var codeOf = map[uint32]codes.Code{failure: codes.Unknown, corrupt: codes.DataLoss, user: codes.InvalidArgument,
	unsupported: codes.Unimplemented, bug: codes.Internal}

type refusal struct {
	kind uint32
	text string
}

func (r *refusal) Error() string { return r.text }

func refuse(kind uint32, format string, args ...any) error {
	return &refusal{kind, fmt.Sprintf(format, args...)}
}

func bugf(format string, args ...any) error  { return refuse(bug, format, args...) }
func lackf(format string, args ...any) error { return refuse(unsupported, format, args...) }

func kindOf(err error) uint32 {
	var r *refusal
	if errors.As(err, &r) {
		return r.kind
	}
	return failure
}

// message is a protobuf message by field number.
type message map[protowire.Number][]value

// value is a number or bytes.
type value struct {
	n uint64
	b []byte
}

func parse(b []byte) (message, error) {
	m := message{}
	for len(b) > 0 {
		field, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, bugf("message: %v", protowire.ParseError(n))
		}
		b = b[n:]
		var v value
		switch typ {
		case protowire.VarintType:
			v.n, n = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			v.n, n = protowire.ConsumeFixed64(b)
		case protowire.BytesType:
			v.b, n = protowire.ConsumeBytes(b)
		default:
			return nil, bugf("message: field %d has wire type %d", field, typ)
		}
		if n < 0 {
			return nil, bugf("message: field %d: %v", field, protowire.ParseError(n))
		}
		m[field] = append(m[field], v)
		b = b[n:]
	}
	return m, nil
}

func (m message) has(f protowire.Number) bool { return len(m[f]) > 0 }

func (m message) last(f protowire.Number) value {
	if !m.has(f) {
		return value{}
	}
	return m[f][len(m[f])-1]
}

func (m message) uint(f protowire.Number) uint64  { return m.last(f).n }
func (m message) bytes(f protowire.Number) []byte { return m.last(f).b }
func (m message) text(f protowire.Number) string  { return string(m.last(f).b) }
func (m message) float(f protowire.Number) float64 {
	return math.Float64frombits(m.last(f).n)
}

func (m message) texts(f protowire.Number) (list []string) {
	for _, v := range m[f] {
		list = append(list, string(v.b))
	}
	return list
}

// uints are repeated numbers, packed or not.
func (m message) uints(f protowire.Number) (list []uint64) {
	for _, v := range m[f] {
		if v.b == nil {
			list = append(list, v.n)
		}
		for b := v.b; len(b) > 0; {
			x, n := protowire.ConsumeVarint(b)
			if n < 0 {
				break
			}
			list, b = append(list, x), b[n:]
		}
	}
	return list
}

func (m message) each(f protowire.Number, do func(message) error) error {
	for _, v := range m[f] {
		sub, err := parse(v.b)
		if err == nil {
			err = do(sub)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
