package replay

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Header says what a trace was recorded from.
type Header struct {
	Model        string
	Architecture string
	Experts      int     // per layer
	TopK         int     // that one token uses
	ExpertBytes  []int64 // by layer; 0 where a layer has no experts
}

// comment is the line that describes the model.
func (h *Header) comment() string {
	word := func(s string) string { return strings.Join(strings.Fields(s), "_") } // values end at white space
	return fmt.Sprintf("# model=%s arch=%s n_layer=%d n_expert=%d n_expert_used=%d\n",
		word(h.Model), word(h.Architecture), len(h.ExpertBytes), h.Experts, h.TopK)
}

// Writer writes a route trace, a row for each pick: turn, phase (0 prefill, 1 decode), step (position of the token),
// layer, slot (which of the token's picks), expert, weight, residency (1: in the cache before its batch), and the bytes
// that had to be read for it, in the first row of the batch that names it. Not safe for concurrent use.
type Writer struct {
	out *bufio.Writer
	h   Header
	row []byte
	// read[e] is the number of the batch that last paid for expert e.
	read  []int
	batch int
}

// NewWriter writes the comments and the column names. Call [Writer.Flush] at the end; errors of w may show only then.
func NewWriter(w io.Writer, h Header) *Writer {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "# route_trace v1\n%s", h.comment())
	for layer, bytes := range h.ExpertBytes {
		if bytes > 0 {
			fmt.Fprintf(out, "# layer=%d expert_bytes=%d\n", layer, bytes)
		}
	}
	fmt.Fprintln(out, columns)
	return &Writer{out: out, h: h, read: make([]int, h.Experts)}
}

// Write adds a batch. weights are those of b.Experts. missed says whether an expert was not in the cache.
func (w *Writer) Write(b *Batch, weights []float32, missed func(expert int32) bool) error {
	if b.Layer < 0 || b.Layer >= len(w.h.ExpertBytes) || b.K <= 0 || len(b.Experts) != len(weights) {
		return fault.Bugf("route trace: batch of layer %d with %d experts, %d weights, %d a token", b.Layer, len(b.Experts), len(weights), b.K)
	}
	w.batch++
	phase := 1
	if b.Prefill {
		phase = 0
	}
	for i, e := range b.Experts {
		if e < 0 || int(e) >= len(w.read) {
			return fault.Bugf("route trace: expert %d of %d in layer %d", e, len(w.read), b.Layer)
		}
		resident, bytes := 1, int64(0)
		if missed(e) {
			resident = 0
			if w.read[e] != w.batch {
				bytes = w.h.ExpertBytes[b.Layer]
			}
			w.read[e] = w.batch
		}
		w.row = w.row[:0]
		for _, n := range []int{b.Turn, phase, b.Step + i/b.K, b.Layer, i % b.K, int(e)} {
			w.row = append(strconv.AppendInt(w.row, int64(n), 10), ',')
		}
		w.row = append(strconv.AppendFloat(w.row, float64(weights[i]), 'g', 6, 32), ',')
		w.row = append(strconv.AppendInt(w.row, int64(resident), 10), ',')
		w.row = append(strconv.AppendInt(w.row, bytes, 10), '\n')
		if _, err := w.out.Write(w.row); err != nil {
			return err
		}
	}
	return nil
}

// Flush writes what is still buffered.
func (w *Writer) Flush() error { return w.out.Flush() }
