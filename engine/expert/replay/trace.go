package replay

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Trace is which experts a model used, batch by batch.
type Trace struct {
	Model       string
	Experts     int     // per layer
	TopK        int     // that one token uses
	ExpertBytes []int64 // by layer
	Batches     []Batch // in the order of the run
}

// Batch is what one layer asks for at once: in prefill the experts of all tokens, in decode those of one.
type Batch struct {
	Turn    int
	Prefill bool
	Step    int // of its first token
	Layer   int
	K       int       // picks of a token
	Experts []int32   // as routed: token by token, with duplicates
	Scores  []float32 // of every expert, token by token, see ReadScores; mostly absent
}

// sameStep reports whether b belongs to the token step of a.
func (b *Batch) sameStep(a *Batch) bool {
	return b.Turn == a.Turn && b.Prefill == a.Prefill && (b.Prefill || b.Step == a.Step)
}

// StartsStep reports whether batch i is the first of a decode step, of a prefill, or, where the layers start anew, of the
// next part of a prefill that was evaluated in parts.
func (t *Trace) StartsStep(i int) bool {
	if i == 0 {
		return true
	}
	b, before := &t.Batches[i], &t.Batches[i-1]
	return !b.sameStep(before) || b.Layer <= before.Layer
}

// Keys numbers the experts as the store does: layer after layer.
func (t *Trace) Keys() int { return len(t.ExpertBytes) * t.Experts }

// Key is the number of an expert.
func (t *Trace) Key(layer int, expert int32) int32 { return int32(layer*t.Experts) + expert }

// keyBytes is the weight of every key.
func (t *Trace) keyBytes() []int64 {
	bytes := make([]int64, 0, t.Keys())
	for _, b := range t.ExpertBytes {
		bytes = append(bytes, slices.Repeat([]int64{b}, t.Experts)...)
	}
	return bytes
}

// keyLayers returns the layer of each key.
func (t *Trace) keyLayers() []int32 {
	layers := make([]int32, 0, t.Keys())
	for l := range t.ExpertBytes {
		layers = append(layers, slices.Repeat([]int32{int32(l)}, t.Experts)...)
	}
	return layers
}

// Open reads the trace in a file, gzipped if its name ends in .gz.
func Open(name string) (t *Trace, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fault.As(fault.User, err)
	}
	defer f.Close()
	r, err := plain(f, name)
	if err != nil {
		return nil, err
	}
	t, err = Read(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return t, nil
}

// plain is what the file called name says, unpacked if the name says that it is packed.
func plain(f io.Reader, name string) (io.Reader, error) {
	if !strings.HasSuffix(name, ".gz") {
		return f, nil
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, fault.Corruptf("%s: %w", name, err)
	}
	return z, nil
}

const columns = "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes"

// Limits of what a trace may claim, far above any model.
const (
	maxLayers  = 4096
	maxExperts = 1 << 16
)

// Read parses a route trace: comment lines with the model and the bytes of an expert in each layer, a line with the
// column names, and a row for each routed expert of each token and layer. The rows of a batch follow each other.
func Read(r io.Reader) (*Trace, error) {
	t := &Trace{}
	sc := bufio.NewScanner(r)
	header := false
	for n := 1; sc.Scan(); n++ {
		line := sc.Text()
		var err error
		switch {
		case strings.HasPrefix(line, "#"):
			err = t.comment(line)
		case !header:
			if header = line == columns; !header {
				err = fmt.Errorf("columns are %q, want %q", line, columns)
			}
		default:
			err = t.row(line)
		}
		if err != nil {
			return nil, fault.Corruptf("route trace: line %d: %w", n, err)
		}
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("route trace: %w", err)
	}
	if len(t.Batches) == 0 {
		return nil, fault.Corruptf("route trace: no rows")
	}
	for i := range t.Batches {
		if b := &t.Batches[i]; len(b.Experts)%b.K != 0 {
			return nil, fault.Corruptf("route trace: step %d, layer %d: %d rows, of %d for each token", b.Step, b.Layer, len(b.Experts), b.K)
		}
	}
	return t, nil
}

func (t *Trace) comment(line string) error {
	layer := -1
	for _, f := range strings.Fields(line[1:]) {
		key, value, ok := strings.Cut(f, "=")
		if !ok {
			continue
		}
		var err error
		switch key {
		case "model":
			t.Model = value
		case "n_layer":
			var layers int
			if layers, err = number(value, maxLayers); err == nil {
				t.ExpertBytes = make([]int64, layers)
			}
		case "n_expert":
			t.Experts, err = number(value, maxExperts)
		case "n_expert_used":
			t.TopK, err = number(value, maxExperts)
		case "layer":
			layer, err = number(value, len(t.ExpertBytes)-1)
		case "expert_bytes":
			if layer < 0 {
				return errors.New("expert_bytes without a layer")
			}
			t.ExpertBytes[layer], err = strconv.ParseInt(value, 10, 64)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
	}
	return nil
}

func (t *Trace) row(line string) error {
	var v [6]int
	rest := line
	for i := range v {
		field, after, ok := strings.Cut(rest, ",")
		if !ok {
			return fmt.Errorf("%d columns", i+1)
		}
		limit := 1 << 30
		switch i {
		case 1:
			limit = 1
		case 3:
			limit = len(t.ExpertBytes) - 1
		case 4, 5:
			limit = t.Experts - 1
		}
		var err error
		if v[i], err = number(field, limit); err != nil {
			return fmt.Errorf("column %d: %w", i+1, err)
		}
		rest = after
	}
	b := Batch{Turn: v[0], Prefill: v[1] == 0, Step: v[2], Layer: v[3]}
	if t.ExpertBytes[b.Layer] <= 0 {
		return fmt.Errorf("layer %d has no expert_bytes", b.Layer)
	}
	if n := len(t.Batches); n == 0 || !b.sameStep(&t.Batches[n-1]) || b.Layer != t.Batches[n-1].Layer {
		t.Batches = append(t.Batches, b)
	}
	last := &t.Batches[len(t.Batches)-1]
	last.K = max(last.K, v[4]+1)
	last.Experts = append(last.Experts, int32(v[5]))
	return nil
}

func number(s string, limit int) (int, error) {
	n, err := strconv.Atoi(s)
	if err == nil && (n < 0 || n > limit) {
		err = fmt.Errorf("%d is not between 0 and %d", n, limit)
	}
	return n, err
}
