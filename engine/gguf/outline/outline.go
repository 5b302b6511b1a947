package outline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/engine/gguf/gguftest"
	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

const (
	longest = 64      // elements of the tokenizer's lists that are kept
	layers  = 1024    // of others: recipes read those of each layer
	most    = 1 << 20 // elements of all lists that are made up
)

// Outline is what is left of a model file.
type Outline struct {
	keys    []key
	tensors []gguf.Tensor
}

type key struct {
	name  string
	value any // as gguftest.Builder takes it, or length
}

// length stands for a list that is too long to keep.
type length struct {
	Strings  int `json:"strings,omitempty"`
	Integers int `json:"integers,omitempty"`
	Floats   int `json:"floats,omitempty"`
}

// Of returns the outline of an open file, all shards taken together.
func Of(f *gguf.File) (*Outline, error) {
	o := &Outline{tensors: f.Tensors()}
	for _, name := range f.Keys() {
		if strings.HasPrefix(name, "split.") { // the outline is one file
			continue
		}
		v, _ := f.Get(name)
		limit := layers
		if strings.HasPrefix(name, "tokenizer.") {
			limit = longest
		}
		value, err := keep(v, limit)
		if err != nil {
			return nil, err
		}
		o.keys = append(o.keys, key{name, value})
	}
	return o, nil
}

func keep(v gguf.Value, limit int) (any, error) {
	elem, array := v.Type()
	long := array && v.Len() > limit
	switch elem {
	case gguf.String:
		if long {
			return length{Strings: v.Len()}, nil
		}
		return oneOrAll(array, v.Strings)
	case gguf.Bool:
		if long {
			return length{Integers: v.Len()}, nil
		}
		return oneOrAll(array, v.Bools)
	case gguf.Float32, gguf.Float64:
		if long {
			return length{Floats: v.Len()}, nil
		}
		return oneOrAll(array, v.Floats)
	case gguf.Uint64:
		if long {
			return length{Integers: v.Len()}, nil
		}
		return oneOrAll(array, v.Uints)
	}
	if long {
		return length{Integers: v.Len()}, nil
	}
	return oneOrAll(array, v.Ints)
}

func oneOrAll[T any](array bool, get func() ([]T, error)) (any, error) {
	all, err := get()
	if err != nil || array {
		return all, err
	}
	return all[0], nil
}

// MarshalJSON returns the form described above, keys and tensors in the order of the file.
func (o *Outline) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	out.WriteString("{\n  \"keys\": {")
	for i, k := range o.keys {
		name, err := json.Marshal(k.name)
		if err != nil {
			return nil, err
		}
		value, err := encode(k.value)
		if err != nil {
			return nil, fault.Unsupportedf("key %q: %w", k.name, err)
		}
		fmt.Fprintf(&out, "%s\n    %s: %s", comma(i), name, value)
	}
	out.WriteString("\n  },\n  \"tensors\": [")
	for i, t := range o.tensors {
		line, err := json.Marshal(fmt.Sprintf("%s %s %v", t.Name, t.Type, t.Dims))
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&out, "%s\n    %s", comma(i), line)
	}
	out.WriteString("\n  ]\n}")
	return out.Bytes(), nil
}

func comma(i int) string {
	if i == 0 {
		return ""
	}
	return ","
}

// encode writes floats with a point or an exponent, so that they are read as such again.
func encode(value any) ([]byte, error) {
	switch v := value.(type) {
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("%v has no JSON form", v)
		}
		// 32-bit numbers are written as such: 1e-05, not 9.999999747378752e-06.
		text := strconv.FormatFloat(v, 'g', -1, 64)
		if float64(float32(v)) == v {
			text = strconv.FormatFloat(v, 'g', -1, 32)
		}
		if !strings.ContainsAny(text, ".e") {
			text += ".0"
		}
		return []byte(text), nil
	case []float64:
		out := []byte("[")
		for i, x := range v {
			text, err := encode(x)
			if err != nil {
				return nil, err
			}
			out = append(append(out, comma(i)...), text...)
		}
		return append(out, ']'), nil
	}
	return json.Marshal(value)
}

// Parse reads an outline. Its errors name the key or tensor.
func Parse(text []byte) (*Outline, error) {
	var raw struct {
		Keys    map[string]json.RawMessage
		Tensors []string
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&raw); err != nil {
		return nil, fault.Corruptf("outline of a model: %w", err)
	}
	o, made := &Outline{}, 0
	for name, text := range raw.Keys {
		value, err := decode(text)
		if err != nil {
			return nil, fault.Corruptf("outline of a model: key %q: %w", name, err)
		}
		if n, ok := value.(length); ok {
			if made += n.Strings + n.Integers + n.Floats; made > most {
				return nil, fault.Unsupportedf("outline of a model: lists of more than %d elements", most)
			}
		}
		o.keys = append(o.keys, key{name, value})
	}
	slices.SortFunc(o.keys, func(a, b key) int { return strings.Compare(a.name, b.name) })
	for _, line := range raw.Tensors {
		t, err := decodeTensor(line)
		if err != nil {
			return nil, fault.Corruptf("outline of a model: tensor %q: %w", line, err)
		}
		o.tensors = append(o.tensors, t)
	}
	return o, nil
}

func decode(text json.RawMessage) (any, error) {
	switch text[0] {
	case '"':
		var s string
		return s, json.Unmarshal(text, &s)
	case 't', 'f':
		return text[0] == 't', nil
	case '[':
		return decodeList(text)
	case '{':
		var n length
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(&n); err != nil {
			return nil, err
		}
		if min(n.Strings, n.Integers, n.Floats) < 0 || max(n.Strings, n.Integers, n.Floats) > most {
			return nil, fmt.Errorf("expected 0 to %d elements", most)
		}
		return n, nil
	}
	return decodeNumber(string(text))
}

func decodeNumber(text string) (any, error) {
	if strings.ContainsAny(text, ".eE") {
		return strconv.ParseFloat(text, 64)
	}
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		return n, nil
	}
	return strconv.ParseInt(text, 10, 64)
}

// decodeList takes the type of the elements from the first one.
func decodeList(text json.RawMessage) (any, error) {
	var list []json.RawMessage
	if err := json.Unmarshal(text, &list); err != nil || len(list) == 0 {
		return []int64{}, err
	}
	first, err := decode(list[0])
	if err != nil {
		return nil, err
	}
	switch first.(type) {
	case string:
		return listOf[string](text)
	case bool:
		return listOf[bool](text)
	case float64:
		return listOf[float64](text)
	case int64, uint64:
		return listOf[int64](text)
	}
	return nil, fmt.Errorf("lists of %s do not occur", list[0])
}

func listOf[T any](text json.RawMessage) (any, error) {
	var list []T
	return list, json.Unmarshal(text, &list)
}

func decodeTensor(line string) (t gguf.Tensor, err error) {
	at := strings.LastIndex(line, "[")
	head := strings.Fields(line[:max(at, 0)])
	if len(head) != 2 || !strings.HasSuffix(line, "]") {
		return t, fmt.Errorf("expected a name, a type and sizes such as [64 288]")
	}
	var known bool
	t.Name = head[0]
	if t.Type, known = dtype.Parse(head[1]); !known {
		return t, fmt.Errorf("unknown type %s", head[1])
	}
	for _, size := range strings.Fields(line[at+1 : len(line)-1]) {
		n, err := strconv.ParseUint(size, 10, 40)
		if err != nil || n == 0 {
			return t, fmt.Errorf("bad size %s", size)
		}
		t.Dims = append(t.Dims, n)
	}
	if len(t.Dims) == 0 || len(t.Dims) > 4 {
		return t, fmt.Errorf("expected 1 to 4 sizes, found %d", len(t.Dims))
	}
	return t, nil
}

// Write writes a model file that has this outline and no weights.
func (o *Outline) Write(path string) error {
	b := gguftest.NewBuilder()
	for _, k := range o.keys {
		b.Set(k.name, narrow(k.value))
	}
	for _, t := range o.tensors {
		b.Tensor(t.Name, t.Type, t.Dims, nil)
	}
	return b.WriteHead(path)
}

// narrow gives numbers the widths that files use, and makes up the elements of lists that were not kept.
func narrow(value any) any {
	switch v := value.(type) {
	case uint64:
		if v <= math.MaxUint32 {
			return uint32(v)
		}
	case int64:
		if int64(int32(v)) == v {
			return int32(v)
		}
	case float64:
		return float32(v)
	case length:
		switch {
		case v.Strings > 0:
			list := make([]string, v.Strings)
			for i := range list {
				list[i] = strconv.Itoa(i)
			}
			return list
		case v.Floats > 0:
			return make([]float32, v.Floats)
		}
		return make([]int32, v.Integers)
	}
	return value
}
