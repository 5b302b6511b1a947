// Package dtype names the element types of GGUF tensors and says how many bytes they take (specs/quants.md 1.1).
//
//	n, err := dtype.Q4_K.RowBytes(2048) // 1152
//
// The numbers are the ids of the file format and never change, so plans and messages carry them as they are. The
// package has no state and is safe for concurrent use.
package dtype

import (
	"fmt"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Type is a tensor element type: its id in a GGUF file.
type Type uint32

// The types of specs/quants.md, by GGUF id.
const (
	F32     Type = 0
	F16     Type = 1
	Q4_0    Type = 2
	Q4_1    Type = 3
	Q5_0    Type = 6
	Q5_1    Type = 7
	Q8_0    Type = 8
	Q8_1    Type = 9
	Q2_K    Type = 10
	Q3_K    Type = 11
	Q4_K    Type = 12
	Q5_K    Type = 13
	Q6_K    Type = 14
	Q8_K    Type = 15
	IQ2_XXS Type = 16
	IQ2_XS  Type = 17
	IQ3_XXS Type = 18
	IQ1_S   Type = 19
	IQ4_NL  Type = 20
	IQ3_S   Type = 21
	IQ2_S   Type = 22
	IQ4_XS  Type = 23
	I8      Type = 24
	I16     Type = 25
	I32     Type = 26
	I64     Type = 27
	F64     Type = 28
	IQ1_M   Type = 29
	BF16    Type = 30
	TQ1_0   Type = 34
	TQ2_0   Type = 35
	MXFP4   Type = 39
	NVFP4   Type = 40
	Q1_0    Type = 41
	Q2_0    Type = 42
)

type layout struct {
	name  string
	elems int // elements in one block
	bytes int // bytes of one block
}

var layouts = map[Type]layout{
	F32: {"F32", 1, 4}, F16: {"F16", 1, 2}, BF16: {"BF16", 1, 2}, F64: {"F64", 1, 8},
	I8: {"I8", 1, 1}, I16: {"I16", 1, 2}, I32: {"I32", 1, 4}, I64: {"I64", 1, 8},
	Q4_0: {"Q4_0", 32, 18}, Q4_1: {"Q4_1", 32, 20}, Q5_0: {"Q5_0", 32, 22}, Q5_1: {"Q5_1", 32, 24},
	Q8_0: {"Q8_0", 32, 34}, Q8_1: {"Q8_1", 32, 36}, IQ4_NL: {"IQ4_NL", 32, 18}, MXFP4: {"MXFP4", 32, 17},
	NVFP4: {"NVFP4", 64, 36}, Q1_0: {"Q1_0", 128, 18}, Q2_0: {"Q2_0", 64, 18},
	Q2_K: {"Q2_K", 256, 84}, Q3_K: {"Q3_K", 256, 110}, Q4_K: {"Q4_K", 256, 144}, Q5_K: {"Q5_K", 256, 176},
	Q6_K: {"Q6_K", 256, 210}, Q8_K: {"Q8_K", 256, 292},
	IQ1_S: {"IQ1_S", 256, 50}, IQ1_M: {"IQ1_M", 256, 56}, IQ2_XXS: {"IQ2_XXS", 256, 66}, IQ2_XS: {"IQ2_XS", 256, 74},
	IQ2_S: {"IQ2_S", 256, 82}, IQ3_XXS: {"IQ3_XXS", 256, 98}, IQ3_S: {"IQ3_S", 256, 110}, IQ4_XS: {"IQ4_XS", 256, 136},
	TQ1_0: {"TQ1_0", 256, 54}, TQ2_0: {"TQ2_0", 256, 66},
}

// Known reports whether t is a type of the format. Removed ids (4, 5, 31-33, 36-38) and foreign ones are not.
func (t Type) Known() bool { _, ok := layouts[t]; return ok }

// String returns the name used in messages, such as Q4_K, or "type 43" for an unknown id.
func (t Type) String() string {
	if l, ok := layouts[t]; ok {
		return l.name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// Parse returns the type called name.
func Parse(name string) (Type, bool) {
	for t, l := range layouts {
		if l.name == name {
			return t, true
		}
	}
	return 0, false
}

// BlockElems returns the elements in one block, or 0 for an unknown type.
func (t Type) BlockElems() int { return layouts[t].elems }

// BlockBytes returns the bytes of one block, or 0 for an unknown type.
func (t Type) BlockBytes() int { return layouts[t].bytes }

// RowBytes returns the bytes of a row of elems elements. It fails when t is unknown or elems is not a positive
// multiple of the block.
func (t Type) RowBytes(elems int64) (int64, error) {
	l, ok := layouts[t]
	switch {
	case !ok:
		return 0, fault.Unsupportedf("unknown tensor %v", t)
	case elems <= 0 || elems%int64(l.elems) != 0:
		return 0, fault.Corruptf("row of %d elements is not a multiple of the %d-element block of %v", elems, l.elems, t)
	case elems/int64(l.elems) > (1<<62)/int64(l.bytes):
		return 0, fault.Corruptf("row of %d elements is too large", elems)
	}
	return elems / int64(l.elems) * int64(l.bytes), nil
}
