package replay

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Scores are kept beside a trace, in a file of their own, because they are twenty times as much: a line for each token and layer,
// in the order of the trace, with what the layer's router thought of every expert, before gating and bias.

const scoreColumns = "turn,phase,step,layer,scores"

// ScoreWriter writes scores. Not safe for concurrent use.
type ScoreWriter struct {
	out *bufio.Writer
	row []byte
}

// NewScoreWriter writes the comments and the column names. Call [ScoreWriter.Flush] at the end; errors of w may show only then.
func NewScoreWriter(w io.Writer, h Header) *ScoreWriter {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "# route_scores v1\n%s%s\n", h.comment(), scoreColumns)
	return &ScoreWriter{out: out}
}

// Write adds the scores of a batch: those of all experts for one token after the other.
func (w *ScoreWriter) Write(b *Batch) error {
	if b.K <= 0 || len(b.Scores) == 0 || len(b.Scores)%(len(b.Experts)/b.K) != 0 {
		return fault.Bugf("route scores: batch of layer %d: %d scores for %d picks, %d of each token", b.Layer, len(b.Scores), len(b.Experts), b.K)
	}
	phase := int64(1)
	if b.Prefill {
		phase = 0
	}
	experts := len(b.Scores) / (len(b.Experts) / b.K)
	for i := 0; i < len(b.Scores); i += experts {
		w.row = w.row[:0]
		for _, n := range []int64{int64(b.Turn), phase, int64(b.Step + i/experts), int64(b.Layer)} {
			w.row = append(strconv.AppendInt(w.row, n, 10), ',')
		}
		for _, s := range b.Scores[i : i+experts] {
			w.row = append(strconv.AppendFloat(w.row, float64(s), 'g', 5, 32), ' ')
		}
		w.row[len(w.row)-1] = '\n'
		if _, err := w.out.Write(w.row); err != nil {
			return err
		}
	}
	return nil
}

// Flush writes what is still buffered.
func (w *ScoreWriter) Flush() error { return w.out.Flush() }

// OpenScores reads the scores that belong to the trace, from a file that is gzipped if its name ends in .gz.
func (t *Trace) OpenScores(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return fault.As(fault.User, err)
	}
	defer f.Close()
	r, err := plain(f, name)
	if err != nil {
		return err
	}
	if err := t.ReadScores(r); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// ReadScores fills in the Scores of every batch. The scores must be those of this trace.
func (t *Trace) ReadScores(r io.Reader) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 32*maxExperts)
	line := 0
	next := func() (string, error) {
		for sc.Scan() {
			line++
			if text := sc.Text(); !strings.HasPrefix(text, "#") {
				return text, nil
			}
		}
		if err := sc.Err(); err != nil {
			return "", err
		}
		return "", io.ErrUnexpectedEOF
	}
	bad := func(err error) error { return fault.Corruptf("route scores: line %d: %w", line, err) }
	head, err := next()
	if err == nil && head != scoreColumns {
		err = fmt.Errorf("columns are %q, want %q", head, scoreColumns)
	}
	if err != nil {
		return bad(err)
	}
	for i := range t.Batches {
		b := &t.Batches[i]
		b.Scores = b.Scores[:0]
		for token := range len(b.Experts) / b.K {
			text, err := next()
			if err == nil {
				err = t.scoreRow(b, token, text)
			}
			if err != nil {
				return bad(err)
			}
		}
	}
	if text, err := next(); err == nil {
		return bad(fmt.Errorf("%.40q is beyond the end of the trace", text))
	}
	return nil
}

func (t *Trace) scoreRow(b *Batch, token int, text string) error {
	fields := strings.SplitN(text, ",", 5)
	if len(fields) != 5 {
		return fmt.Errorf("%d columns", len(fields))
	}
	phase := "1"
	if b.Prefill {
		phase = "0"
	}
	want := []string{strconv.Itoa(b.Turn), phase, strconv.Itoa(b.Step + token), strconv.Itoa(b.Layer)}
	if !slices.Equal(fields[:4], want) {
		return fmt.Errorf("turn, phase, step and layer are %s, in the trace %s", strings.Join(fields[:4], ","), strings.Join(want, ","))
	}
	scores := strings.Fields(fields[4])
	if len(scores) < b.K || len(scores) > t.Experts {
		return fmt.Errorf("%d scores, of %d experts", len(scores), t.Experts)
	}
	if n := len(b.Scores); n > 0 && len(scores)*token != n {
		return fmt.Errorf("%d scores, %d for the token before", len(scores), n/token)
	}
	for _, s := range scores {
		v, err := strconv.ParseFloat(s, 32)
		if err == nil && (math.IsNaN(v) || math.IsInf(v, 0)) {
			err = fmt.Errorf("score %s", s)
		}
		if err != nil {
			return err
		}
		b.Scores = append(b.Scores, float32(v))
	}
	return nil
}

// Band is a range of ranks among the scores of a token in a layer, best first.
type Band struct {
	From int     `json:"from"` // ranks, from 1
	To   int     `json:"to"`
	Next float64 `json:"chosen_next"` // share of the experts with these ranks that the next token picks in the layer
}

// ScoreBands says how well scores foretell what the next token picks, in decode. The bands are the experts picked, as many that
// narrowly were not, twice as many after them, and the rest. A trace without scores has none.
func (t *Trace) ScoreBands() []Band {
	edges := []int{0, t.TopK, 2 * t.TopK, 4 * t.TopK, t.Experts}
	hits, all := make([]int, len(edges)), make([]int, len(edges))
	last := map[int]*Batch{} // by layer: that of the token before
	for i := range t.Batches {
		b := &t.Batches[i]
		if b.Prefill || len(b.Scores) == 0 {
			continue
		}
		if before := last[b.Layer]; before != nil && before.Step == b.Step-1 {
			for rank, e := range ranking(before.Scores) {
				band, _ := slices.BinarySearch(edges, rank+1)
				all[band]++
				if slices.Contains(b.Experts, e) {
					hits[band]++
				}
			}
		}
		last[b.Layer] = b
	}
	var bands []Band
	for i := 1; i < len(edges); i++ {
		if all[i] > 0 {
			bands = append(bands, Band{edges[i-1] + 1, edges[i], float64(hits[i]) / float64(all[i])})
		}
	}
	return bands
}

// ranking returns the experts, the best score first.
func ranking(scores []float32) []int32 {
	list := make([]int32, len(scores))
	for i := range list {
		list[i] = int32(i)
	}
	slices.SortStableFunc(list, func(a, b int32) int {
		switch {
		case scores[a] > scores[b]:
			return -1
		case scores[a] < scores[b]:
			return 1
		}
		return 0
	})
	return list
}
