package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bigmoe/bigmoe/cmd/bigmoe/internal/term"
	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/engine/budget"
	"github.com/bigmoe/bigmoe/engine/expert"
	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/engine/model"
	"github.com/bigmoe/bigmoe/sdk/dtype"
)

type inspectFlags struct {
	modelFlags
	context     int
	kv          choice
	expertsUsed int
	json        bool
}

func (a *app) inspectCommand() *cobra.Command {
	f := &inspectFlags{kv: choice{"f16", []string{"f16", "f32"}}}
	cmd := &cobra.Command{
		Use:     "inspect [flags] [MODEL]",
		Short:   "Tell what is in a model file and what memory it wants",
		Example: `  bigmoe inspect Qwen3-30B-A3B-Q4_K_M.gguf`,
		Long: `Sizes of the dense weights, the experts, one expert and what one token demands; the types of the weights; and which cache
some memory limits leave. No weights are read, so it takes moments whatever the size. Any GGUF file that can be opened is
described; without a recipe for its architecture only as a container. Without MODEL the built-in demo model is taken.`,
		Args: modelArgument,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				f.model = args[0]
			}
			return a.inspect(cmd.Context(), f)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	f.addRecipe(fs)
	fs.IntVar(&f.context, "ctx", 0, "`TOKENS` of context to count the states for; default: 4096, or less if the model was trained for less")
	fs.Var(&f.kv, "kv", "precision of the key-value cache: f16 or f32")
	fs.IntVar(&f.expertsUsed, "experts-used", 0, "experts per token and layer instead of the model's own `NUMBER`")
	fs.BoolVar(&f.json, "json", false, "one JSON object")
	return cmd
}

func (a *app) inspect(ctx context.Context, f *inspectFlags) error {
	path, _, remove, err := modelPath(f.model)
	if err != nil {
		return err
	}
	defer remove()
	file, err := gguf.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	r, name, err := f.registry()
	if err != nil {
		return err
	}
	out := describeContainer(file)
	out.Note, err = noModel(file, r, name)
	switch {
	case err != nil:
	case out.Note == "":
		var o *engine.Opened
		o, err = engine.Inspect(ctx, engine.Config{Model: path, Recipe: name, Recipes: r, Context: f.context, ExpertsUsed: f.expertsUsed,
			Log: a.logger(false, true)})
		if err == nil {
			defer o.File.Close()
			kvBytes := int64(2)
			if f.kv.value == "f32" {
				kvBytes = 4
			}
			out.Warnings = append(out.Warnings, o.Tokenizer.Warnings()...)
			out.Model, err = describeModel(o.Model, f.context, kvBytes)
		}
	}
	if f.json {
		return errors.Join(writeJSON(a.stdout, out), err)
	}
	return errors.Join(out.print(a.stdout), err)
}

// noModel says why a healthy container is not a model that this program can understand, if that is so. A recipe that
// was asked for by name has to exist.
func noModel(file *gguf.File, recipes engine.Recipes, name string) (note string, err error) {
	if name != "" {
		_, err := recipes.Find(name)
		return "", err
	}
	if _, ok := file.Get("general.architecture"); !ok {
		return "general.architecture is missing: not a model", nil
	}
	arch, err := engine.Architecture(file)
	if err != nil {
		return "", err
	}
	if _, err := recipes.Find(arch); err != nil {
		return fmt.Sprintf("architecture %q: %v", arch, err), nil
	}
	return "", nil
}

// container is a model file as such.
type container struct {
	Path         string       `json:"path"`
	Shards       []shard      `json:"shards"`
	Version      int          `json:"gguf_version"`
	Bytes        int64        `json:"bytes"`
	Keys         int          `json:"metadata_keys"`
	Name         string       `json:"name,omitempty"`
	Architecture string       `json:"architecture,omitempty"`
	Tensors      int          `json:"tensors"`
	Types        []typeCount  `json:"types"`
	Warnings     []string     `json:"warnings,omitempty"`
	Note         string       `json:"note,omitempty"` // why there is no model part
	Model        *modelFigure `json:"model,omitempty"`
}

type shard struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
}

type typeCount struct {
	Type    string `json:"type"`
	Tensors int    `json:"tensors"`
	Bytes   int64  `json:"bytes"`
}

func describeContainer(f *gguf.File) *container {
	c := &container{Path: f.Path(), Version: f.Version(), Keys: len(f.Keys()), Tensors: len(f.Tensors()),
		Warnings: slices.Clone(f.Warnings()), Types: []typeCount{}}
	for _, s := range f.Shards() {
		c.Shards = append(c.Shards, shard{s.Path, s.Size})
		c.Bytes += s.Size
	}
	text := func(key string) string {
		v, _ := f.Get(key)
		s, _ := v.String() // missing or of another type: not for display
		return term.Clean(s)
	}
	c.Name, c.Architecture = text("general.name"), text("general.architecture")
	count := map[dtype.Type]typeCount{}
	for _, t := range f.Tensors() {
		n := count[t.Type]
		count[t.Type] = typeCount{t.Type.String(), n.Tensors + 1, n.Bytes + t.Bytes}
	}
	for _, n := range count {
		c.Types = append(c.Types, n)
	}
	slices.SortFunc(c.Types, func(a, b typeCount) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), strings.Compare(a.Type, b.Type))
	})
	return c
}

// modelFigure is a model in figures, as its recipe sees it.
type modelFigure struct {
	Recipe        string   `json:"recipe"`
	RecipeVersion string   `json:"recipe_version"`
	Layers        uint32   `json:"layers"`
	MoELayers     int      `json:"moe_layers"`
	Embedding     uint32   `json:"embedding"`
	Vocabulary    uint32   `json:"vocabulary"`
	ContextLength uint32   `json:"context_length"`
	Experts       uint32   `json:"experts"`      // per layer
	ExpertsUsed   int      `json:"experts_used"` // per token and layer
	DenseBytes    int64    `json:"dense_bytes"`  // resident
	RowsBytes     int64    `json:"rows_bytes"`   // read row by row
	ExpertsBytes  int64    `json:"experts_bytes"`
	ExpertBytes   [2]int64 `json:"expert_bytes"` // the smallest and the largest one
	TokenBytes    int64    `json:"token_bytes"`  // experts of one token, all layers
	Context       int      `json:"context"`
	StateBytes    int64    `json:"state_bytes"` // for Context
	Unused        []unused `json:"unused"`
	Fits          []fit    `json:"fits"`
}

type unused struct {
	Tensor string `json:"tensor"`
	Reason string `json:"reason"`
}

// fit is what a memory limit leaves for the cache.
type fit struct {
	MemoryBytes int64   `json:"mem_bytes"`
	CacheBytes  int64   `json:"cache_bytes"`
	Share       float64 `json:"share"` // of all experts
}

func describeModel(m *model.Model, context int, kvBytes int64) (*modelFigure, error) {
	p := m.Plan.Model
	if context == 0 {
		context = min(engine.DefaultContext, int(p.ContextLength))
	}
	f := &modelFigure{
		Recipe: m.Plan.Recipe, RecipeVersion: m.Plan.RecipeVersion, Layers: p.Layers, MoELayers: len(m.Banks), Embedding: p.Embedding,
		Vocabulary: p.Vocabulary, ContextLength: p.ContextLength, Experts: p.Experts, ExpertsUsed: m.MaxTopK(),
		DenseBytes: m.DenseBytes(), ExpertsBytes: m.ExpertBytes(), TokenBytes: m.TokenBytes(), Context: context,
		StateBytes: m.StateBytes(int64(context), kvBytes), Unused: []unused{}, Fits: []fit{},
	}
	for i := range m.Weights {
		if w := &m.Weights[i]; !w.Resident() {
			f.RowsBytes += w.Bytes()
		}
	}
	for i := range m.Banks {
		n := m.Banks[i].ExpertBytes()
		if i == 0 {
			f.ExpertBytes = [2]int64{n, n}
		}
		f.ExpertBytes = [2]int64{min(f.ExpertBytes[0], n), max(f.ExpertBytes[1], n)}
	}
	for _, u := range m.Plan.Unused {
		f.Unused = append(f.Unused, unused{u.Tensor, u.Reason})
	}
	var err error
	f.Fits, err = fits(m, f.DenseBytes+f.StateBytes)
	return f, err
}

// overheadBytes stands for code, scratch and bookkeeping of both processes in the table of what would fit. The exact
// sum needs a backend and is made when the model is opened.
const overheadBytes = 256 << 20

// fits tells for some round limits what they leave for the cache, from the first that is enough to the first that
// takes all experts.
func fits(m *model.Model, fixedBytes int64) ([]fit, error) {
	list := []fit{}
	all := m.ExpertBytes()
	if all == 0 {
		return list, nil
	}
	banks, topK := m.StoreBanks(), m.MaxTopK()
	least, err := expert.Plan(banks, topK, 0)
	if err != nil {
		return nil, err
	}
	needs := budget.Needs{
		Fixed: []budget.Item{{Name: "all but the cache", Bytes: fixedBytes + overheadBytes}}, ExpertBytes: all, MinCache: least.MinBudgetBytes,
		ArenaBytes: func(cacheBytes int64) int64 {
			l, err := expert.Plan(banks, topK, cacheBytes)
			if err != nil {
				return 1 << 62
			}
			return l.PhysicalBytes
		},
	}
	for mem := int64(512 << 20); mem < 1<<50; mem *= 2 {
		for _, limit := range []int64{mem, mem + mem/2} {
			fitted, err := budget.Fit(limit, needs)
			if err != nil {
				continue // too small
			}
			list = append(list, fit{limit, fitted.CacheBytes, float64(fitted.CacheBytes) / float64(all)})
			if fitted.CacheBytes == all {
				return list, nil
			}
		}
	}
	return list, nil
}

// mostUnused bounds the unused tensors that are printed for people.
const mostUnused = 8

func (c *container) print(w io.Writer) error {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	size := budget.Size
	if c.Name != "" {
		line("name", "%s", c.Name)
	}
	if c.Architecture != "" {
		line("architecture", "%s", c.Architecture)
	}
	line("file", "%s, %s, GGUF v%d, %d tensors, %d keys", c.Path, size(c.Bytes), c.Version, c.Tensors, c.Keys)
	if len(c.Shards) > 1 {
		line("shards", "%d", len(c.Shards))
	}
	for i, t := range c.Types {
		name := ""
		if i == 0 {
			name = "types"
		}
		line(name, "%-8s %10s in %d tensors", t.Type, size(t.Bytes), t.Tensors)
	}
	if m := c.Model; m != nil {
		line("recipe", "%s, version %s", m.Recipe, m.RecipeVersion)
		line("layers", "%d of width %d, vocabulary %d, trained for a context of %d", m.Layers, m.Embedding, m.Vocabulary, m.ContextLength)
		if m.RowsBytes > 0 {
			line("dense", "%s stay in memory, %s are read row by row", size(m.DenseBytes), size(m.RowsBytes))
		} else {
			line("dense", "%s stay in memory", size(m.DenseBytes))
		}
		if m.MoELayers > 0 {
			each := size(m.ExpertBytes[0])
			if m.ExpertBytes[0] != m.ExpertBytes[1] {
				each += " to " + size(m.ExpertBytes[1])
			}
			line("experts", "%s: %d layers of %d, %s each", size(m.ExpertsBytes), m.MoELayers, m.Experts, each)
			line("one token", "%s of experts: %d in each layer", size(m.TokenBytes), m.ExpertsUsed)
		}
		line("states", "%s for a context of %d", size(m.StateBytes), m.Context)
		for i, u := range m.Unused {
			if i == mostUnused {
				line("unused", "… %d tensors in all", len(m.Unused))
				break
			}
			line("unused", "%s: %s", term.Clean(u.Tensor), term.Clean(u.Reason))
		}
	}
	for _, warning := range c.Warnings {
		line("warning", "%s", term.Clean(warning))
	}
	if c.Note != "" {
		line("note", "%s", c.Note)
	}
	if m := c.Model; m != nil && len(m.Fits) > 0 {
		fmt.Fprintf(&b, "\nwhat would fit, roughly:\n%10s  %10s  %s\n", "--mem", "cache", "share of experts")
		for _, f := range m.Fits {
			fmt.Fprintf(&b, "%10s  %10s  %3.0f %%\n", size(f.MemoryBytes), size(f.CacheBytes), 100*f.Share)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
