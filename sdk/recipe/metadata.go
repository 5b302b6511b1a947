package recipe

import (
	"math"
	"strconv"
	"strings"
)

// Bounds for sizes read from a file, so that nonsense is refused where it is read.
const (
	MaxLayers  = 1000
	MaxWidth   = 1 << 24 // elements of a row, rows of a vocabulary
	MaxCount   = 1 << 16 // heads, experts
	MaxContext = 1 << 40 // positions
)

// Types of metadata values, as the file format numbers them.
const (
	typeFloat32 = 6
	typeBool    = 7
	typeString  = 8
	typeUint64  = 10
	typeFloat64 = 12
	typeArray   = 0x100 // added to the type of the elements
)

var typeNames = [...]string{"uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "bool", "string", "array",
	"uint64", "int64", "float64"}

// value is one metadata value.
type value struct {
	b      *Builder
	key    string // in full
	handle int32
	elem   int32
	array  bool
	count  int32
}

// lookup finds a key. Keys are given without the architecture's prefix, except those of the general and tokenizer groups.
func (b *Builder) lookup(key string) (value, bool) {
	if !strings.HasPrefix(key, "general.") && !strings.HasPrefix(key, "tokenizer.") {
		key = b.arch + "." + key
	}
	h := b.host.metaFind(key)
	if h < 0 {
		return value{key: key}, false
	}
	t := b.host.metaType(h)
	return value{b: b, key: key, handle: h, elem: t &^ typeArray, array: t&typeArray != 0, count: b.host.metaLen(h)}, true
}

func (b *Builder) require(key string) value {
	v, ok := b.lookup(key)
	if !ok {
		b.Refuse(Corrupt, "key "+strconv.Quote(v.key)+" is missing")
	}
	return v
}

func (v value) typeName() string {
	name := "type " + strconv.Itoa(int(v.elem))
	if int(v.elem) < len(typeNames) {
		name = typeNames[v.elem]
	}
	if v.array {
		return "array of " + strconv.Itoa(int(v.count)) + " " + name
	}
	return name
}

func (v value) refuse(expected, found string) {
	v.b.Refuse(Corrupt, "key "+strconv.Quote(v.key)+": expected "+expected+", found "+found)
}

// one refuses arrays, unless they have exactly one element.
func (v value) one(expected string) {
	if v.array && v.count != 1 {
		v.refuse("one "+expected, v.typeName())
	}
}

func (v value) uint(index int32, min, max int) int {
	if v.elem > typeFloat64 || v.elem == typeFloat32 || v.elem == typeFloat64 || v.elem == typeBool || v.elem == typeString {
		v.refuse("an integer", v.typeName())
	}
	n := v.b.host.metaInt(v.handle, index)
	if n < int64(min) || n > int64(max) {
		found := strconv.FormatInt(n, 10)
		if v.elem == typeUint64 {
			found = strconv.FormatUint(uint64(n), 10)
		}
		v.refuse(strconv.Itoa(min)+" to "+strconv.Itoa(max), found)
	}
	return int(n)
}

func (v value) float(min, max float64) float64 {
	v.one("number")
	var x float64
	switch v.elem {
	case typeFloat32, typeFloat64:
		x = v.b.host.metaFloat(v.handle, 0)
	case typeString, typeBool:
		v.refuse("a number", v.typeName())
	default:
		x = float64(v.uint(0, math.MinInt, math.MaxInt))
	}
	if !(x >= min && x <= max) { // also refuses NaN
		v.refuse(formatFloat(min)+" to "+formatFloat(max), formatFloat(x))
	}
	return x
}

func (v value) text() string {
	v.one("string")
	if v.elem != typeString {
		v.refuse("a string", v.typeName())
	}
	return text(func(buf []byte) int32 { return v.b.host.metaText(v.handle, 0, buf) })
}

func formatFloat(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }

// Has reports whether the file has the key.
func (b *Builder) Has(key string) bool {
	_, ok := b.lookup(key)
	return ok
}

// Uint returns a whole number from min to max. The key is required. It is given without the architecture's prefix,
// as in "block_count", unless it belongs to the general or tokenizer group; that holds for every getter here.
func (b *Builder) Uint(key string, min, max int) int {
	v := b.require(key)
	v.one("integer")
	return v.uint(0, min, max)
}

// UintOr is [Builder.Uint] with a default for a missing key. The default is not checked.
func (b *Builder) UintOr(key string, missing, min, max int) int {
	if !b.Has(key) {
		return missing
	}
	return b.Uint(key, min, max)
}

// PerLayer returns one whole number for each layer: the key holds either one for all or an array with one for each.
func (b *Builder) PerLayer(key string, layers, min, max int) []int {
	v := b.require(key)
	if v.array && v.count != 1 && int(v.count) != layers {
		v.refuse("one integer, or one for each of "+strconv.Itoa(layers)+" layers", v.typeName())
	}
	out := make([]int, layers)
	for i := range out {
		out[i] = v.uint(min32(int32(i), v.count-1), min, max)
	}
	return out
}

// PerLayerOr is [Builder.PerLayer] with a default for a missing key.
func (b *Builder) PerLayerOr(key string, missing, layers, min, max int) []int {
	if b.Has(key) {
		return b.PerLayer(key, layers, min, max)
	}
	out := make([]int, layers)
	for i := range out {
		out[i] = missing
	}
	return out
}

// PerLayerBool returns one truth value for each layer. The key holds one for all, or an array with one for each; they
// are stored as such or as integers, of which 0 alone is false.
func (b *Builder) PerLayerBool(key string, layers int) []bool {
	v := b.require(key)
	if v.elem == typeFloat32 || v.elem == typeFloat64 || v.elem == typeString {
		v.refuse("truth values", v.typeName())
	}
	if v.array && int(v.count) != layers {
		v.refuse("one truth value, or one for each of "+strconv.Itoa(layers)+" layers", v.typeName())
	}
	out := make([]bool, layers)
	for i := range out {
		out[i] = b.host.metaInt(v.handle, min32(int32(i), v.count-1)) != 0
	}
	return out
}

// PerLayerBoolOr is [Builder.PerLayerBool] with a rule for a missing key.
func (b *Builder) PerLayerBoolOr(key string, layers int, missing func(layer int) bool) []bool {
	if b.Has(key) {
		return b.PerLayerBool(key, layers)
	}
	out := make([]bool, layers)
	for i := range out {
		out[i] = missing(i)
	}
	return out
}

func min32(a, b int32) int32 {
	if a < b {
		return a
	}
	return b
}

// Float returns a number from min to max. The key is required.
func (b *Builder) Float(key string, min, max float64) float64 { return b.require(key).float(min, max) }

// FloatOr is [Builder.Float] with a default for a missing key.
func (b *Builder) FloatOr(key string, missing, min, max float64) float64 {
	if !b.Has(key) {
		return missing
	}
	return b.Float(key, min, max)
}

// BoolOr returns a truth value, stored as such or as 0 or 1.
func (b *Builder) BoolOr(key string, missing bool) bool {
	v, ok := b.lookup(key)
	if !ok {
		return missing
	}
	v.one("bool")
	if v.elem == typeBool {
		return b.host.metaInt(v.handle, 0) != 0
	}
	return v.uint(0, 0, 1) == 1
}

// Text returns a string. The key is required.
func (b *Builder) Text(key string) string { return b.require(key).text() }

// TextOr returns a string that must be one of those listed; the first of them stands for a missing key.
func (b *Builder) TextOr(key string, oneOf ...string) string {
	v, ok := b.lookup(key)
	if !ok {
		return oneOf[0]
	}
	s := v.text()
	for _, known := range oneOf {
		if s == known {
			return s
		}
	}
	b.Refuse(Unsupported, "key "+strconv.Quote(v.key)+": expected one of "+strings.Join(oneOf, ", ")+", found "+strconv.Quote(s))
	return ""
}

// Vocabulary returns the number of tokens, which is the length of tokenizer.ggml.tokens.
func (b *Builder) Vocabulary() int {
	v := b.require("tokenizer.ggml.tokens")
	switch {
	case !v.array || v.elem != typeString:
		v.refuse("array of strings", v.typeName())
	case v.count < 1 || v.count > MaxWidth:
		v.refuse("1 to "+strconv.Itoa(MaxWidth)+" tokens", strconv.Itoa(int(v.count)))
	}
	return int(v.count)
}

// RopeScaling reads the keys rope.freq_base and rope.scaling.* with the defaults that GGUF models share: a factor
// without a type is linear, rope.scale_linear is its old name, attn_factor multiplies the magnitude whatever the type.
// YaRN has its fixed betas and the magnitude (1 + 0.1 ln factor) · attn_factor (specs/gpt-oss.md 3.1, Y1 to Y6).
func (b *Builder) RopeScaling(rotated, trainedContext int) Rope {
	r := Rope{
		Rotated:   rotated,
		Base:      b.FloatOr("rope.freq_base", 10000, 1e-3, 1e12),
		Magnitude: b.FloatOr("rope.scaling.attn_factor", 1, -1e6, 1e6),
	}
	kind := b.TextOr("rope.scaling.type", "linear", "none", "yarn")
	factor := b.FloatOr("rope.scaling.factor", b.FloatOr("rope.scale_linear", 1, 1e-6, 1e6), 1e-6, 1e6)
	switch {
	case kind == "yarn":
		r.Scaling, r.Factor = kind, factor
		r.OriginalContext = b.UintOr("rope.scaling.original_context_length", trainedContext, 1, MaxContext)
		r.Magnitude *= 1 + 0.1*math.Log(factor)
	case kind == "linear" && factor != 1:
		r.Scaling, r.Factor = kind, factor
	}
	if r.Magnitude == 0 { // a plan would take it for the default
		b.RefuseKeys(Corrupt, "queries and keys would be 0", "rope.scaling.attn_factor", "rope.scaling.factor")
	}
	return r
}
