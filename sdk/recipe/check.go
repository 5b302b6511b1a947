package recipe

import (
	"strconv"
	"strings"
)

// RefuseKeys is [Builder.Refuse] for keys that break a rule together: the message has what the file says of each, as in
// "llama.attention.key_length 64, llama.attention.value_length missing: both must be equal".
func (b *Builder) RefuseKeys(kind int, rule string, keys ...string) {
	said := make([]string, len(keys))
	for i, key := range keys {
		v, ok := b.lookup(key)
		said[i] = v.key + " missing"
		if ok {
			said[i] = v.key + " " + v.print()
		}
	}
	b.Refuse(kind, strings.Join(said, ", ")+": "+rule)
}

// print returns a single value, or what an array holds.
func (v value) print() string {
	switch {
	case v.array:
		return v.typeName()
	case v.elem == typeString:
		return strconv.Quote(v.text())
	case v.elem == typeFloat32 || v.elem == typeFloat64:
		return formatFloat(v.b.host.metaFloat(v.handle, 0))
	case v.elem == typeBool:
		return strconv.FormatBool(v.b.host.metaInt(v.handle, 0) != 0)
	case v.elem == typeUint64:
		return strconv.FormatUint(uint64(v.b.host.metaInt(v.handle, 0)), 10)
	}
	return strconv.FormatInt(v.b.host.metaInt(v.handle, 0), 10)
}

// RequireMultiple refuses a file whose n, which the key holds, is no multiple of another's value of, as heads must be of
// key-value heads. Nothing is a multiple of 0.
func (b *Builder) RequireMultiple(key string, n int, ofKey string, of int) {
	if of == 0 || n%of != 0 {
		b.Refuse(Corrupt, b.arch+"."+key+" "+strconv.Itoa(n)+" is not a multiple of "+ofKey+" "+strconv.Itoa(of))
	}
}

// RequireOnly refuses any value of a key but want, which also stands for a missing key: the recipe covers no other.
func (b *Builder) RequireOnly(key string, want int) {
	if found := b.UintOr(key, want, 0, MaxContext); found != want {
		b.Refuse(Unsupported, "key "+strconv.Quote(b.arch+"."+key)+": expected "+strconv.Itoa(want)+", found "+strconv.Itoa(found))
	}
}
