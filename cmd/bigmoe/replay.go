package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/bigmoe/bigmoe/engine/budget"
	"github.com/bigmoe/bigmoe/engine/expert/policy"
	"github.com/bigmoe/bigmoe/engine/expert/replay"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

type replayFlags struct {
	policies []string
	caches   []string
	scores   string
	json     bool
}

func (a *app) replayCommand() *cobra.Command {
	f := &replayFlags{}
	cmd := &cobra.Command{
		Use:     "replay [flags] TRACE",
		Short:   "Try cache policies and sizes on a recording",
		Example: `  bigmoe replay routes.csv.gz --policy lru,forecast,belady --cache 500M,1G,2G`,
		Long: `TRACE is what trace wrote, compressed or not; - is standard input. For every policy and cache the table says how many of the
experts that were asked for were there, and how much had to be read for a token, for the prompt and for the text. A batch
asks for each of its experts once. Nothing is computed or read: this is the arithmetic of the cache alone.

belady knows the future and evicts what is needed last: no policy can do better.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fault.Userf("%d traces given, expected one", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return a.replay(cmd.Context(), f, args[0]) },
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringSliceVar(&f.policies, "policy", []string{"lru", "frequency", "forecast", "belady"}, "`NAMES` of policies: lru, frequency (decayed), forecast, belady")
	fs.StringSliceVar(&f.caches, "cache", nil, "`SIZES` of the cache, such as 500M,1G; default: an eighth, a quarter and half of all experts")
	fs.StringVar(&f.scores, "scores", "", "`FILE` that trace --scores wrote: also say how well scores foretell the next token's choice")
	fs.BoolVar(&f.json, "json", false, "one JSON object")
	return cmd
}

// replayOutput is what --json prints.
type replayOutput struct {
	Model        string         `json:"model"`
	Experts      int            `json:"experts"`      // of a layer
	ExpertsUsed  int            `json:"experts_used"` // by a token, in a layer
	ExpertBytes  int64          `json:"expert_bytes"` // all experts of the model
	PromptTokens int            `json:"prompt_tokens"`
	Tokens       int            `json:"tokens"`
	Results      []replayResult `json:"results"`
	Scores       []replay.Band  `json:"score_ranks,omitempty"`
}

type replayResult struct {
	Policy     string       `json:"policy"`
	CacheBytes int64        `json:"cache_bytes"`
	Prefill    replayCounts `json:"prefill"`
	Decode     replayCounts `json:"decode"`
}

// replayCounts has the figures of run by the same names.
type replayCounts struct {
	Requested       int64   `json:"experts_requested"`
	Hits            int64   `json:"experts_hit"`
	HitRate         float64 `json:"hit_rate"`
	MissBytes       int64   `json:"miss_bytes"`
	MissMiBPerToken float64 `json:"miss_mib_per_token"`
}

func countsOf(t replay.Totals, tokens int) replayCounts {
	return replayCounts{Requested: t.Lookups(), Hits: t.Hits, HitRate: t.HitRate(), MissBytes: t.MissBytes,
		MissMiBPerToken: float64(t.MissBytes) / (1 << 20) / float64(max(tokens, 1))}
}

func (a *app) replay(ctx context.Context, f *replayFlags, path string) error {
	trace, err := a.readTrace(ctx, path)
	if err != nil {
		return err
	}
	if f.scores != "" {
		if err := trace.OpenScores(f.scores); err != nil {
			return err
		}
	}
	out := replayOutput{Scores: trace.ScoreBands(), Model: trace.Model, Experts: trace.Experts, ExpertsUsed: trace.TopK, Results: []replayResult{}}
	for _, bytes := range trace.ExpertBytes {
		out.ExpertBytes += bytes * int64(trace.Experts)
	}
	caches, err := f.cacheSizes(out.ExpertBytes, slices.Max(trace.ExpertBytes))
	if err != nil {
		return err
	}
	for _, cache := range caches {
		for _, name := range f.policies {
			if err := ctx.Err(); err != nil {
				return err
			}
			p, err := replayPolicy(name, trace)
			if err != nil {
				return err
			}
			r := replay.Run(trace, p, cache)
			out.PromptTokens, out.Tokens = r.PromptTokens, r.Tokens
			out.Results = append(out.Results, replayResult{Policy: name, CacheBytes: cache,
				Prefill: countsOf(r.Prefill, r.PromptTokens), Decode: countsOf(r.Decode, r.Tokens)})
		}
	}
	if f.json {
		return writeJSON(a.stdout, &out)
	}
	return out.table(a)
}

func (a *app) readTrace(ctx context.Context, path string) (*replay.Trace, error) {
	if path != "-" {
		return replay.Open(path)
	}
	text, err := a.readStdin(ctx, "a trace")
	if err != nil {
		return nil, err
	}
	t, err := replay.Read(strings.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("standard input: %w", err)
	}
	return t, nil
}

// cacheSizes returns the sizes asked for. The largest expert has to fit into each.
func (f *replayFlags) cacheSizes(allBytes, largestBytes int64) ([]int64, error) {
	var sizes []int64
	for _, text := range f.caches {
		n, err := budget.ParseSize(text)
		if err != nil {
			return nil, err
		}
		if n < largestBytes {
			return nil, fault.Userf("--cache %s: an expert of this model takes %s", text, budget.Size(largestBytes))
		}
		sizes = append(sizes, n)
	}
	if len(sizes) == 0 {
		for _, share := range []int64{8, 4, 2} {
			sizes = append(sizes, max(allBytes/share, largestBytes))
		}
	}
	return sizes, nil
}

// replayPolicy returns the policy with a name of the command line.
func replayPolicy(name string, t *replay.Trace) (policy.Policy, error) {
	switch name {
	case "lru", "forecast":
		return policy.New(name)
	case "frequency":
		return policy.New("decayed")
	case "belady":
		return replay.Belady(t), nil
	}
	return nil, fault.Userf("--policy %q: expected lru, frequency, forecast or belady", name)
}

// table prints the results for people.
func (o *replayOutput) table(a *app) error {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "cache\tpolicy\tprompt hits\tMiB per token\ttext hits\tMiB per token\t\n")
	for _, r := range o.Results {
		fmt.Fprintf(w, "%s\t%s\t", budget.Size(r.CacheBytes), r.Policy)
		for _, c := range []replayCounts{r.Prefill, r.Decode} {
			fmt.Fprintf(w, "%.1f %%\t%.2f\t", 100*c.HitRate, c.MissMiBPerToken)
		}
		fmt.Fprintln(w)
	}
	if err := w.Flush(); err != nil || len(o.Scores) == 0 {
		return err
	}
	fmt.Fprintln(a.stdout)
	fmt.Fprintln(w, "rank by score\tchosen for the next token\t")
	for _, b := range o.Scores {
		fmt.Fprintf(w, "%d to %d\t%.1f %%\t\n", b.From, b.To, 100*b.Next)
	}
	return w.Flush()
}
