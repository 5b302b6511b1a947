package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

type evalFlags struct {
	engineFlags
	tokens string
	chunk  int
	greedy int
	json   bool
}

func (a *app) evalCommand() *cobra.Command {
	f := &evalFlags{}
	cmd := &cobra.Command{
		Use:     "eval [flags] --tokens IDS.json",
		Short:   "Evaluate token ids and print logits and routing",
		Example: `  bigmoe eval -m model.gguf --tokens ids.json --greedy 32 --json`,
		Long: `For each position the highest logits and the logarithm of the sum of their exponentials, for the last one all logits, and
for each layer which experts were chosen with which weights. With --greedy N the N most likely tokens follow, those that end
a text included, and the routing goes on over all of them but the last. Unlike in run, keys and values are kept in f32.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.eval(cmd.Context(), f) },
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&f.tokens, "tokens", "", "JSON list of token ids in `FILE`; - is standard input")
	fs.IntVar(&f.chunk, "chunk", 0, "evaluate so many `TOKENS` at once; default: all, unless their logits take more than 64 MiB")
	fs.IntVar(&f.greedy, "greedy", 0, "then write so many `TOKENS`, the most likely ones")
	fs.BoolVar(&f.json, "json", false, "one JSON object")
	f.engineFlags.add(fs, "f32")
	return cmd
}

// maxLogitsBytes bounds the logits of one batch when nobody chose its size.
const maxLogitsBytes = 64 << 20

func (a *app) eval(ctx context.Context, f *evalFlags) error {
	if f.tokens == "" {
		return fault.Userf("no tokens: give a file with --tokens, or - for standard input")
	}
	if f.chunk < 0 || f.greedy < 0 {
		return fault.Userf("--chunk %d, --greedy %d: expected 0 or more", f.chunk, f.greedy)
	}
	tokens, err := a.readTokens(ctx, f.tokens)
	if err != nil {
		return err
	}
	path, _, remove, err := modelPath(f.model)
	if err != nil {
		return err
	}
	defer remove()
	cfg, err := f.config(a, path)
	if err != nil {
		return err
	}
	cfg.Progress = a.progress(f.quiet)
	if cfg.Batch = f.chunk; cfg.Batch == 0 {
		vocabulary, err := vocabularySize(path)
		if err != nil {
			return err
		}
		cfg.Batch = max(1, min(len(tokens), maxLogitsBytes/4/max(vocabulary, 1)))
	}
	cfg.LogitRows = cfg.Batch
	if cfg.Context == 0 {
		cfg.Context = len(tokens) + f.greedy
	}
	out := evalOutput{Positions: []position{}}
	cfg.OnRoute = out.Router.add

	err = withEngine(ctx, cfg, func(e *engine.Engine, _ time.Duration) error {
		out.Router.init(int(e.Plan.Model.Layers))
		return out.run(ctx, e.NewSession(), tokens, cfg.Batch, f.greedy)
	})
	if err != nil {
		return err
	}
	a.status.Clear()
	if f.json {
		return json.NewEncoder(a.stdout).Encode(&out)
	}
	for _, p := range out.Positions {
		best := p.Top[0]
		if _, err := fmt.Fprintf(a.stdout, "%6d  token %6d  next %6d  logit %10.5f  probability %.4f\n",
			p.Pos, p.Token, best.ID, best.Logit, math.Exp(float64(best.Logit)-p.LSE)); err != nil {
			return err
		}
	}
	if out.Greedy != nil {
		_, err = fmt.Fprintln(a.stdout, "greedy", out.Greedy.Tokens)
	}
	return err
}

func (a *app) readTokens(ctx context.Context, file string) ([]int32, error) {
	var text string
	var err error
	if file == "-" {
		file = "standard input"
		text, err = a.readStdin(ctx, "token ids")
	} else {
		text, err = readFile(file)
	}
	if err != nil {
		return nil, err
	}
	ids, err := parseIDs(text)
	if err == nil && len(ids) == 0 {
		err = fault.Userf("no token ids")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return ids, nil
}

// vocabularySize reads the number of tokens from a file's header.
func vocabularySize(path string) (int, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return 0, err
	}
	v, _ := f.Get("tokenizer.ggml.tokens")
	return v.Len(), f.Close()
}

// evalOutput is what --json prints. Its form is that of the reference outputs in testdata/golden.
type evalOutput struct {
	Positions   []position `json:"positions"`    // of the prompt
	FinalLogits []float32  `json:"final_logits"` // of the last one
	Router      router     `json:"router"`
	Greedy      *greedy    `json:"greedy,omitempty"`
}

type position struct {
	Pos   int        `json:"pos"`
	Token int32      `json:"token"`
	Top   []topLogit `json:"top"` // descending
	LSE   float64    `json:"lse"` // log-sum-exp of all logits
}

type greedy struct {
	Tokens []int32 `json:"tokens"`
}

// topLogit is [id, logit] in JSON.
type topLogit struct {
	ID    int32
	Logit float32
}

func (t topLogit) MarshalJSON() ([]byte, error) { return json.Marshal([2]any{t.ID, t.Logit}) }

// topCount is how many of the highest logits each position shows.
const topCount = 8

// run evaluates tokens and then writes n more, each the most likely one.
func (o *evalOutput) run(ctx context.Context, s *engine.Session, tokens []int32, batch, n int) error {
	err := s.Score(ctx, tokens, batch, func(pos int, logits []float32) error {
		p, err := summarise(logits)
		if err != nil {
			return fmt.Errorf("position %d: %w", pos, err)
		}
		p.Pos, p.Token = pos, tokens[pos]
		o.Positions = append(o.Positions, p)
		if pos == len(tokens)-1 {
			o.FinalLogits = append([]float32(nil), logits...)
		}
		return nil
	})
	if err != nil || n == 0 {
		return err
	}
	next := o.Positions[len(o.Positions)-1].Top[0].ID
	o.Greedy = &greedy{Tokens: []int32{next}}
	for len(o.Greedy.Tokens) < n {
		err := s.Score(ctx, []int32{next}, 1, func(pos int, logits []float32) error {
			p, err := summarise(logits)
			if err != nil {
				return fmt.Errorf("position %d: %w", pos, err)
			}
			next = p.Top[0].ID
			return nil
		})
		if err != nil {
			return err
		}
		o.Greedy.Tokens = append(o.Greedy.Tokens, next)
	}
	return nil
}

// summarise finds the highest logits, equal ones by id, and the log-sum-exp.
func summarise(logits []float32) (position, error) {
	var p position
	for id, l := range logits {
		if math.IsNaN(float64(l)) || math.IsInf(float64(l), 0) {
			return p, fmt.Errorf("the logit of token %d is %v", id, l)
		}
		at := len(p.Top)
		for at > 0 && p.Top[at-1].Logit < l {
			at--
		}
		if at == topCount {
			continue
		}
		if len(p.Top) < topCount {
			p.Top = append(p.Top, topLogit{})
		}
		copy(p.Top[at+1:], p.Top[at:])
		p.Top[at] = topLogit{int32(id), l}
	}
	highest := float64(p.Top[0].Logit)
	var sum float64
	for _, l := range logits {
		sum += math.Exp(float64(l) - highest)
	}
	p.LSE = highest + math.Log(sum)
	return p, nil
}

// router collects the choices of experts: [layer][position][k], best first. Layers without experts are null.
type router struct {
	IDs     [][][]int32   `json:"ids"`
	Weights [][][]float32 `json:"weights"`
}

func (r *router) init(layers int) {
	r.IDs, r.Weights = make([][][]int32, layers), make([][][]float32, layers)
}

// add takes the choices of one layer for the next len(ids)/k positions.
func (r *router) add(layer, k int, ids []int32, weights []float32) {
	for i := 0; i+k <= len(ids); i += k {
		r.IDs[layer] = append(r.IDs[layer], append([]int32(nil), ids[i:i+k]...))
		r.Weights[layer] = append(r.Weights[layer], append([]float32(nil), weights[i:i+k]...))
	}
}
