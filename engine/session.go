package engine

import (
	"context"
	"fmt"
	"maps"
	"math"
	"reflect"
	"time"

	"github.com/bigmoe/bigmoe/engine/expert"
	"github.com/bigmoe/bigmoe/engine/sample"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Session is one text. It remembers which tokens the backend's states hold, so that a request which continues the
// text evaluates only what is new. It needs no closing.
//
// Generate and Score may be called from several goroutines, and take turns with those of all other sessions of the
// engine. Both return soon after their context ends, with its error, also while they wait for their turn or for a read
// that hangs; the next call works, and evaluates the text afresh. Functions given to them are called from the calling
// goroutine; they must not call Generate, Score or Close, which would wait for themselves.
type Session struct {
	e      *Engine
	tokens []int32 // evaluated: the states cover exactly these
}

// NewSession starts an empty text.
func (e *Engine) NewSession() *Session { return &Session{e: e} }

// Request is what to generate.
type Request struct {
	// Prompt is a text to be continued as it is. What spells a special token becomes that token: do not put in the words of
	// people who must not be able to end a turn. For them see Tokens.
	Prompt    string
	Tokens    []int32       // instead of Prompt, for example from Engine.Tokenizer
	MaxTokens int           // at most; 0 = until the text ends or the context is full
	Sampling  sample.Params // the zero value is sample.Default(); sample.Greedy() gives the same text each time
	IgnoreEnd bool          // go on after a token that ends the text
}

// sampling is what Sampling means.
func (r *Request) sampling() sample.Params {
	if reflect.ValueOf(r.Sampling).IsZero() {
		return sample.Default()
	}
	return r.Sampling
}

// Token is one generated token.
type Token struct {
	ID   int32  // -1: no token, but the rest of the text at its end
	Text string // what has become certain with it; may be empty in the middle of a character
}

// StopReason says why a text ended.
type StopReason string

// The reasons.
const (
	StopEnd     StopReason = "end"     // the model ended it
	StopLength  StopReason = "length"  // MaxTokens
	StopContext StopReason = "context" // no room left
)

// Result is a finished generation and what it cost.
type Result struct {
	Text         string     `json:"text"` // of Tokens
	PromptTokens int        `json:"prompt_tokens"`
	ReusedTokens int        `json:"reused_tokens"` // of the prompt, already evaluated
	Tokens       []int32    `json:"tokens"`
	Stop         StopReason `json:"stop"`
	Prefill      Cost       `json:"prefill"`
	Decode       Cost       `json:"decode"`
}

// Cost is what evaluating some tokens took.
type Cost struct {
	Tokens       int     `json:"tokens"`
	Seconds      float64 `json:"seconds"`
	StallSeconds float64 `json:"stall_seconds"` // the backend waited for reads
	Requested    int64   `json:"experts_requested"`
	Hits         int64   `json:"experts_hit"`      // in the cache, prefetched ones not counted
	Foreseen     int64   `json:"experts_foreseen"` // prefetched in time, or at least begun
	MissBytes    int64   `json:"miss_bytes"`       // payload of the experts that had to be read, prefetched ones included
	ReadBytes    int64   `json:"read_bytes"`       // by system calls, alignment included
	DriveSeconds float64 `json:"drive_seconds"`    // experts were being read; ReadBytes ÷ this is what the drive gave
}

// TokensPerSecond returns the speed, or 0 when nothing was measured.
func (c Cost) TokensPerSecond() float64 {
	if c.Seconds <= 0 {
		return 0
	}
	return float64(c.Tokens) / c.Seconds
}

// HitRate returns the share of experts found in the cache, 0 to 1.
func (c Cost) HitRate() float64 {
	if c.Requested == 0 {
		return 0
	}
	return float64(c.Hits) / float64(c.Requested)
}

// Generate evaluates the prompt and writes tokens until the text ends, calling emit, unless it is nil, for each. When
// ctx ends or emit fails, Generate returns that error together with what there is so far, or nil if that is nothing. A
// request that cannot be meant is refused as [fault.User]: no prompt, one that fills the context, ids outside the
// vocabulary, impossible sampling.
func (s *Session) Generate(ctx context.Context, req Request, emit func(Token) error) (res *Result, err error) {
	err = s.e.request(ctx, func(ctx context.Context) error {
		res, err = s.generate(ctx, req, emit)
		return err
	})
	return res, err
}

func (s *Session) generate(ctx context.Context, req Request, emit func(Token) error) (*Result, error) {
	e := s.e
	prompt := req.Tokens
	switch {
	case prompt == nil:
		prompt = e.Tokenizer.Encode(req.Prompt, e.promptOptions())
	case req.Prompt != "":
		return nil, fault.Userf("a prompt both as text and as tokens: give one of them")
	}
	if req.MaxTokens < 0 {
		return nil, fault.Userf("%d tokens wanted: expected 0 or more", req.MaxTokens)
	}
	if emit == nil {
		emit = func(Token) error { return nil }
	}
	if len(prompt) == 0 {
		return nil, fault.Userf("the prompt is empty and the model has no token to begin with")
	}
	if len(prompt) >= e.Context {
		return nil, fault.Userf("the prompt has %d tokens, a context of %d leaves no room for an answer: use a larger --ctx", len(prompt), e.Context)
	}
	if err := e.checkTokens(prompt); err != nil {
		return nil, err
	}
	sampler, err := sample.New(e.suppress(req.sampling()))
	if err != nil {
		return nil, err
	}
	for _, id := range prompt {
		sampler.Accept(id)
	}
	res := &Result{PromptTokens: len(prompt)}
	stream := e.Tokenizer.Stream(false)
	defer func() { res.Text = stream.Text() }()

	// The last prompt token is always evaluated: its logits are the first thing sampled.
	keep, err := s.rewind(ctx, prompt[:len(prompt)-1])
	if err != nil {
		return nil, err
	}
	res.ReusedTokens = keep
	meter := e.meter()
	logits := e.logits[:e.vocabulary()]
	if err := s.prefill(ctx, prompt[keep:], logits); err != nil {
		return res, err
	}
	res.Prefill = meter.cost(len(prompt) - keep)

	meter = e.meter()
	for {
		id, err := sampler.Sample(logits)
		if err != nil {
			return res, fmt.Errorf("token %d: %w", len(s.tokens), err)
		}
		end := e.Tokenizer.EOG(id) && !req.IgnoreEnd
		if !end {
			sampler.Accept(id)
			t := Token{ID: id, Text: stream.Push(id)}
			res.Tokens = append(res.Tokens, id)
			if err := emit(t); err != nil {
				return res, err
			}
		}
		switch {
		case end:
			res.Stop = StopEnd
		case req.MaxTokens > 0 && len(res.Tokens) >= req.MaxTokens:
			res.Stop = StopLength
		case len(s.tokens) >= e.Context:
			res.Stop = StopContext
		}
		if res.Stop != "" {
			if rest := stream.Flush(); rest != "" {
				return res, emit(Token{ID: -1, Text: rest})
			}
			return res, nil
		}
		if err := s.eval(ctx, res.Tokens[len(res.Tokens)-1:], false, logits); err != nil {
			return res, err
		}
		res.Decode = meter.cost(res.Decode.Tokens + 1)
	}
}

// checkTokens refuses ids that the model does not have.
func (e *Engine) checkTokens(ids []int32) error {
	for _, id := range ids {
		if id < 0 || int(id) >= e.vocabulary() {
			return fault.Userf("token id %d is outside the vocabulary of %d", id, e.vocabulary())
		}
	}
	return nil
}

// suppress bans the tokens that the model's file says must never be sampled (specs/gemma4.md section 1), unless the
// request has an opinion of its own about them. Logits that Score shows are not touched.
func (e *Engine) suppress(p sample.Params) sample.Params {
	if len(e.suppressed) == 0 {
		return p
	}
	bias := make(map[int32]float32, len(p.LogitBias)+len(e.suppressed))
	for _, id := range e.suppressed {
		bias[id] = float32(math.Inf(-1))
	}
	maps.Copy(bias, p.LogitBias)
	p.LogitBias = bias
	return p
}

// Score evaluates tokens after the text so far and calls visit with the position and logits of each: one logit per
// token of the vocabulary, for what comes next. Batches have at most batch tokens (0 = any number) and no more than
// Config.LogitRows, which a program that scores much text sets to some hundreds. The slice given to visit is only valid
// during the call. A new session scores a text from its beginning.
func (s *Session) Score(ctx context.Context, tokens []int32, batch int, visit func(position int, logits []float32) error) error {
	return s.e.request(ctx, func(ctx context.Context) error { return s.score(ctx, tokens, batch, visit) })
}

func (s *Session) score(ctx context.Context, tokens []int32, batch int, visit func(position int, logits []float32) error) error {
	e := s.e
	if err := s.claim(ctx); err != nil {
		return err
	}
	if len(s.tokens)+len(tokens) > e.Context {
		return fault.Userf("%d tokens do not fit a context of %d", len(s.tokens)+len(tokens), e.Context)
	}
	if err := e.checkTokens(tokens); err != nil {
		return err
	}
	if batch <= 0 || batch > min(e.batch, e.logitRows) {
		batch = min(e.batch, e.logitRows)
	}
	v := e.vocabulary()
	for len(tokens) > 0 {
		n := min(batch, len(tokens))
		first := len(s.tokens)
		logits := e.logits[:n*v]
		if err := s.eval(ctx, tokens[:n], true, logits); err != nil {
			return err
		}
		for i := range n {
			if err := visit(first+i, logits[i*v:(i+1)*v]); err != nil {
				return err
			}
		}
		tokens = tokens[n:]
	}
	return nil
}

// claim makes the backend's states this session's: another session's text is forgotten, and so is a dead backend's.
func (s *Session) claim(ctx context.Context) error {
	if err := s.e.revive(ctx); err != nil {
		return err
	}
	if s.e.owner == s {
		return nil
	}
	s.e.owner = s
	tokens := s.tokens
	s.tokens = s.tokens[:0]
	if err := s.e.sequence.Trim(0); err != nil {
		return err
	}
	if len(tokens) == 0 {
		return nil
	}
	return s.prefill(ctx, append([]int32(nil), tokens...), nil)
}

// rewind makes the evaluated text a prefix of want, keeping as much as the states allow, and returns its length.
func (s *Session) rewind(ctx context.Context, want []int32) (int, error) {
	if err := s.e.revive(ctx); err != nil {
		return 0, err
	}
	if s.e.owner != s { // nothing to keep
		s.tokens = s.tokens[:0]
		s.e.owner = s
		return 0, s.e.sequence.Trim(0)
	}
	keep := 0
	for keep < len(want) && keep < len(s.tokens) && want[keep] == s.tokens[keep] {
		keep++
	}
	if keep == len(s.tokens) {
		return keep, nil
	}
	if !s.e.trimmable {
		keep = 0
	}
	err := s.e.sequence.Trim(keep)
	if keep > 0 && fault.KindOf(err) == fault.Unsupported { // a windowed state has lost what is needed
		keep, err = 0, s.e.sequence.Trim(0)
	}
	s.tokens = s.tokens[:keep]
	return keep, err
}

// prefill evaluates tokens in batches; the logits of the last one go to logits (nil = not wanted).
func (s *Session) prefill(ctx context.Context, tokens []int32, logits []float32) error {
	total := len(tokens)
	for len(tokens) > 0 {
		n := min(s.e.batch, len(tokens))
		var out []float32
		if n == len(tokens) {
			out = logits
		}
		if out == nil { // the backend always computes the last row: let it write where nobody looks
			out = s.e.logits[:s.e.vocabulary()]
		}
		if err := s.eval(ctx, tokens[:n], false, out); err != nil {
			return err
		}
		tokens = tokens[n:]
		s.e.progress(PhasePrefill, int64(total-len(tokens)), int64(total))
	}
	return nil
}

// eval runs one batch after the text so far.
func (s *Session) eval(ctx context.Context, tokens []int32, all bool, logits []float32) error {
	e := s.e
	if err := ctx.Err(); err != nil { // not every backend looks
		return err
	}
	rows, err := e.readRows(ctx, tokens)
	if err != nil {
		return err
	}
	e.router.begin()
	b := &e.input
	*b = compute.Batch{Tokens: tokens, Position: len(s.tokens), Rows: rows, All: all, Predict: e.router.welcome(len(tokens)), Logits: logits}
	err = e.router.finish(e.sequence.Eval(ctx, b, e.router.host()))
	e.stall += b.Stall
	if err != nil {
		// The states are undefined now: start over with the next call.
		s.tokens = s.tokens[:0]
		e.owner = nil
		return fmt.Errorf("position %d: %w", b.Position, err)
	}
	e.restarts.Worked()
	s.tokens = append(s.tokens, tokens...)
	return nil
}

// meter measures what happens from now on.
type meter struct {
	e     *Engine
	start time.Time
	stall time.Duration
	stats expert.Stats
}

func (e *Engine) meter() meter {
	return meter{e: e, start: time.Now(), stall: e.stall, stats: e.router.stats()}
}

// cost returns what evaluating tokens took since the meter was made.
func (m meter) cost(tokens int) Cost {
	now, was := m.e.router.stats(), m.stats
	return Cost{
		Tokens:       tokens,
		Seconds:      time.Since(m.start).Seconds(),
		StallSeconds: (m.e.stall - m.stall).Seconds(),
		Requested:    now.Requested.Experts - was.Requested.Experts,
		Hits:         now.Hits.Experts - was.Hits.Experts - (now.Used.Experts - was.Used.Experts),
		Foreseen:     now.Used.Experts - was.Used.Experts,
		MissBytes:    now.Misses.Bytes - was.Misses.Bytes + now.Prefetched.Bytes - was.Prefetched.Bytes - (now.Cancelled.Bytes - was.Cancelled.Bytes),
		ReadBytes:    now.SyscallBytes - was.SyscallBytes,
		DriveSeconds: (now.BusyTime - was.BusyTime).Seconds(),
	}
}
