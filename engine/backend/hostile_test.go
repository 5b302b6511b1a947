package backend

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHostileBackends: whatever a running backend does, the call under way fails with a clear error, soon, and a new backend
// works in the same memory.
func TestHostileBackends(t *testing.T) {
	h := newBench(t)
	want := script(t, h, h.load(t, InProcess(fake{}, h.memory)))
	evaluates := func(token int32) func(*Process) error {
		return func(p *Process) error {
			seq, err := p.Load(t.Context(), h.model, h.layout)
			require.NoError(t, err)
			return seq.Eval(t.Context(), h.batch(0, false, token), h)
		}
	}
	prepares := func(p *Process) error {
		_, err := p.Prepare(t.Context(), h.model)
		return err
	}
	cases := map[string]struct {
		threads uint32
		do      func(*Process) error
		alive   bool // it did nothing that it must be killed for
		say     string
	}{
		"exits in prepare":          {906, prepares, false, "died: exit status 7; it last said: gone in prepare"},
		"closes its socket":         {908, prepares, false, "control connection"},
		"says it needs everything":  {907, prepares, true, "says that it takes 18446744073709551615 bytes"},
		"exits in load":             {909, func(p *Process) error { _, err := p.Load(t.Context(), h.model, h.layout); return err }, false, "gone in load"},
		"exits in a wave":           {1, evaluates(tokenExitWave), false, "gone in a wave"},
		"hangs in a wave":           {1, evaluates(tokenHangWave), false, "no sign of life for 1s during eval of 1 tokens at position 0, after wave 1 of the experts of layer 1"},
		"hangs in eval":             {1, evaluates(tokenHang), false, "no sign of life for 1s during eval of 1 tokens at position 0"},
		"leaves a process behind":   {1, evaluates(tokenOrphan), false, "gone in with a child"},
		"routes more than there is": {1, evaluates(tokenForge), false, "no sign of life"},
		"answers twice":             {1, evaluates(tokenForgeTwice), false, "message number 2, expected 1"},
		"answers what nobody knows": {1, evaluates(tokenForgeKind), false, "it answered eval with message kind 99"},
		"answers with endless text": {1, evaluates(tokenForgeLength), false, "at most 1024 fit"},
		"predicts for no layer":     {1, evaluates(tokenForgePredict), false, "no sign of life"},
		"floods standard error":     {1, func(p *Process) error { return evaluates(tokenFlood)(p) }, true, ""},
		"never comes back from a trim": {1, func(p *Process) error {
			seq, err := p.Load(t.Context(), h.model, h.layout)
			require.NoError(t, err)
			return seq.Trim(trimHangs)
		}, false, "no sign of life for 1s during trim"},
	}
	listed(t, slices.Collect(maps.Keys(cases)), "slow start", "linked to")
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			p := h.start(t, func(o *Options) {
				if strings.HasPrefix(c.say, "no sign of life") {
					impatient(o)
				}
			})
			h.model.Options.Threads = c.threads
			defer func() { h.model.Options.Threads = 1 }()
			within(t, func() {
				err := c.do(p)
				if c.say == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, c.say)
					require.Less(t, len(err.Error()), 4000)
				}
			})
			require.Equal(t, c.alive, p.Dead() == nil)
			h.model.Options.Threads = 1
			require.NoError(t, p.Close()) // it would read the next one's mail
			require.Equal(t, want, script(t, h, h.load(t, h.start(t))))
		})
	}
	t.Run("slow start", func(t *testing.T) {
		p := h.start(t, role("slow"))
		require.Equal(t, want, script(t, h, h.load(t, p)))
	})
	t.Run("linked to", func(t *testing.T) {
		p := h.start(t, func(o *Options) {
			link := filepath.Join(t.TempDir(), "link")
			require.NoError(t, os.Symlink(o.Path, link))
			o.Path = link
		})
		require.Equal(t, want, script(t, h, h.load(t, p)))
	})
}

// listed fails the test unless docs/hostile.md has exactly these cases, and the subtests more, under the heading that names
// the test.
func listed(t *testing.T, cases []string, more ...string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/hostile.md")
	require.NoError(t, err)
	_, section, ok := strings.Cut(string(page), "`"+t.Name()+"`\n")
	require.True(t, ok, "docs/hostile.md has no heading for %s", t.Name())
	section, _, _ = strings.Cut(section, "\n#")
	var names []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)`").FindAllStringSubmatch(section, -1) {
		names = append(names, row[1])
	}
	require.ElementsMatch(t, names, append(cases, more...))
}
