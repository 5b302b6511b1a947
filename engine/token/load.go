package token

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Metadata is the header of a model file, as [gguf.File] has it.
type Metadata interface {
	Path() string
	Get(key string) (gguf.Value, bool)
}

const prefix = "tokenizer.ggml."

// New builds the tokenizer that a file describes (specs/tokenizers.md section 1). Nothing of the metadata is kept, so
// its arrays can be dropped afterwards. Errors name the file, the key and what was found; they are of kind
// [fault.Corrupt] if the keys contradict themselves and [fault.Unsupported] if the model or the pre-tokenizer is not
// one of ours.
func New(meta Metadata) (*Tokenizer, error) {
	l := loader{meta: meta, t: &Tokenizer{bos: -1, eos: -1}}
	for _, step := range []func() error{l.model, l.tokens, l.spelling, l.order, l.ends, l.flags} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	l.t.special = newSpecials(l.t.vocab, Control, Unknown, UserDefined)
	l.t.userDefined = newSpecials(l.t.vocab, UserDefined)
	return l.t, nil
}

type loader struct {
	meta Metadata
	t    *Tokenizer

	clearBOS bool // the pre-tokenizer goes with a vocabulary whose BOS is not to be used
}

func (l *loader) corruptf(key, format string, args ...any) error {
	return fault.Corruptf("%s: %s%s: %s", l.meta.Path(), prefix, key, fmt.Sprintf(format, args...))
}

func (l *loader) warnf(format string, args ...any) {
	l.t.warnings = append(l.t.warnings, fmt.Sprintf(format, args...))
}

// get returns the value of a key, and whether there is one.
func (l *loader) get(key string) (gguf.Value, bool) { return l.meta.Get(prefix + key) }

// model finds out whether the vocabulary is one of ours, before anything large is read.
func (l *loader) model() error {
	v, _ := l.get("model")
	model, err := v.String()
	if err != nil {
		return err
	}
	pre, hasPre := "", false
	if v, ok := l.get("pre"); ok {
		if pre, err = v.String(); err != nil {
			return err
		}
		hasPre = true
	}
	_, hasMerges := l.get("merges")
	switch {
	case model == "gemma4", pre == "gemma4" && (model == "gpt2" || model == "llama" && hasMerges): // some converters say llama
		l.t.family, l.t.stages, l.t.addBOS = ranked, []matcher{lineRuns}, true
		return nil
	case model == "llama":
		l.t.family, l.t.spacePrefix, l.t.addBOS = scored, true, true
		return nil
	case model != "gpt2":
		return fault.Unsupportedf("%s: %smodel is %q: supported are \"gpt2\", \"llama\" and \"gemma4\"", l.meta.Path(), prefix, model)
	}
	if !hasPre {
		pre = "default"
		l.warnf("%spre is missing: splitting text the default way, which may not be how the model was trained", prefix)
	}
	p, ok := pretokenizers(pre)
	if !ok {
		return fault.Unsupportedf("%s: %spre: unknown pre-tokenizer %q", l.meta.Path(), prefix, pre)
	}
	l.t.stages, l.t.ignoreMerges, l.t.addBOS, l.clearBOS = p.stages, p.ignoreMerges, p.addBOS, p.clearBOS
	return nil
}

func (l *loader) tokens() error {
	v, _ := l.get("tokens")
	texts, err := v.Strings()
	if err != nil {
		return err
	}
	total := 0
	for _, s := range texts {
		total += len(s)
	}
	if len(texts) > math.MaxInt32 || total > math.MaxUint32/2 {
		return l.corruptf("tokens", "%d texts of %d bytes are too many", len(texts), total)
	}
	vocab := newVocab(len(texts))
	vocab.text = make([]byte, 0, total)
	var text []byte
	for id, s := range texts {
		if s == "" {
			s = "[EMPTY_" + strconv.Itoa(id) + "]"
		}
		text = append(text[:0], s...)
		if first, ok := vocab.find(text); ok {
			return l.corruptf("tokens", "duplicate token %q: ids %d and %d", text, first, id)
		}
		vocab.append(text)
	}
	l.t.vocab = vocab
	if v, ok := l.get("scores"); ok && v.Len() < len(texts) {
		return l.corruptf("scores", "%d scores for %d tokens", v.Len(), len(texts))
	}
	for id := range vocab.typ {
		vocab.typ[id] = Normal
	}
	v, ok := l.get("token_type")
	if !ok {
		return nil
	}
	types, err := v.Ints()
	if err != nil {
		return err
	}
	if len(types) < len(texts) {
		return l.corruptf("token_type", "%d types for %d tokens", len(types), len(texts))
	}
	for id := range vocab.typ {
		if types[id] < int64(Undefined) || types[id] > int64(Byte) {
			return l.corruptf("token_type", "type %d of token %d is out of range 0 to %d", types[id], id, Byte)
		}
		vocab.typ[id] = Type(types[id])
	}
	return nil
}

// spelling finds the symbol of every single byte.
func (l *loader) spelling() error {
	t := l.t
	unknown := int32(-1)
	if t.family == scored {
		var err error
		if unknown, err = l.tokenID("unknown_token_id", 0); err != nil {
			return err
		}
	}
	lost := 0
	for b := range t.byteID {
		raw := []byte{byte(b)}
		switch id, ok := t.Lookup(fmt.Sprintf("<0x%02X>", b)); {
		case t.family == byteLevel:
			t.byteID[b] = t.vocab.symbol(appendAlphabet(nil, raw))
		case ok:
			t.byteID[b] = uint32(id)
		case t.family == scored:
			t.byteID[b] = uint32(unknown) // none is noSymbol
			if id, ok := t.Lookup(string(raw)); ok {
				t.byteID[b] = uint32(id)
			}
		default:
			t.byteID[b] = noSymbol
		}
		inUTF8 := b < 0xC0 || b >= 0xC2 && b < 0xF5
		if inUTF8 && t.byteID[b] >= uint32(t.Vocab()) {
			lost++
		}
	}
	if lost > 0 {
		l.warnf("%stokens lacks %d single bytes: text that needs them is encoded without them", prefix, lost)
	}
	return nil
}

// order reads what decides which symbols are joined first.
func (l *loader) order() error {
	if l.t.family == scored {
		return l.scores()
	}
	return l.merges()
}

// scores keeps the scores as numbers that grow as the score falls.
func (l *loader) scores() error {
	v, _ := l.get("scores")
	scores, err := v.Floats()
	if err != nil {
		return err
	}
	l.t.scores = make([]uint32, l.t.Vocab())
	for id := range l.t.scores {
		score := float32(scores[id])
		if score != score {
			return l.corruptf("scores", "score of token %d is not a number", id)
		}
		bits := math.Float32bits(score + 0) // -0 becomes 0
		if bits>>31 == 0 {
			bits = ^(bits | 1<<31)
		}
		l.t.scores[id] = bits // a negative float is the larger as an integer the lower it is
	}
	return nil
}

func (l *loader) merges() error {
	v, _ := l.get("merges")
	texts, err := v.Strings()
	if err != nil {
		return err
	}
	vocab := l.t.vocab
	merges := newMerges(len(texts))
	var buf []byte
	for rank, s := range texts {
		gap := 0
		if len(s) > 1 {
			gap = 1 + strings.IndexByte(s[1:], ' ')
		}
		if gap < 1 || gap == len(s)-1 {
			return l.corruptf("merges", "entry %d is %q: expected two texts with a space between them", rank, s)
		}
		buf = append(append(buf[:0], s[:gap]...), s[gap+1:]...)
		left, right := vocab.symbol(buf[:gap]), vocab.symbol(buf[gap:])
		merges.add(left, right, vocab.symbol(buf))
	}
	l.t.merges = merges
	return nil
}

// tokenID reads a key that holds the id of a token. Where it is missing the id is otherwise, or -1 if that is no token.
func (l *loader) tokenID(key string, otherwise int32) (int32, error) {
	v, ok := l.get(key)
	if !ok {
		if int(otherwise) >= l.t.Vocab() {
			return -1, nil
		}
		return otherwise, nil
	}
	id, err := v.Int()
	if err != nil {
		return -1, err
	}
	if id < 0 || id >= int64(l.t.Vocab()) {
		return -1, l.corruptf(key, "id %d is outside the vocabulary of %d tokens", id, l.t.Vocab())
	}
	return int32(id), nil
}

// endKeys are ids that end a generation. Where the file does not give one, a token of one of these texts is taken,
// the first in this order (specs/tokenizers.md section 1.1).
var endKeys = []struct {
	key   string
	texts []string
}{
	{"eot_token_id", []string{"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>",
		"_<EOT>", "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>"}},
	{"eom_token_id", []string{"<|eom_id|>"}},
	{"fim_pad_token_id", []string{"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"}},
	{"fim_rep_token_id", []string{"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}},
	{"fim_sep_token_id", []string{"<|file_sep|>"}},
}

// endTexts end a generation whatever the keys say.
var endTexts = []string{"<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
	"<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>",
	"<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["}

// falconEnd is the id that files without a bos or eos key mean: they stem from Falcon, where it is <|endoftext|>.
const falconEnd = 11

// ends finds the tokens that begin and end a text and those that end a generation, and corrects token types
// accordingly (specs/tokenizers.md section 1.1).
func (l *loader) ends() error {
	t := l.t
	var err error
	if t.bos, err = l.boundary("bos_token_id", 1); err != nil {
		return err
	}
	if l.clearBOS {
		t.bos = -1
	}
	if t.eos, err = l.boundary("eos_token_id", 2); err != nil {
		return err
	}
	end := func(id int32) {
		t.eog = append(t.eog, id)
		t.vocab.typ[id] = Control
	}
	if t.eos >= 0 {
		end(t.eos)
	}
	for _, k := range endKeys {
		id, err := l.tokenID(k.key, -1)
		if err != nil {
			return err
		}
		for _, text := range k.texts {
			if id >= 0 {
				break
			}
			if found, ok := t.Lookup(text); ok {
				id = found
			}
		}
		if id >= 0 {
			end(id)
		}
	}
	for _, text := range endTexts {
		if id, ok := t.Lookup(text); ok {
			end(id)
		}
	}
	l.harmony()
	l.handover()
	slices.Sort(t.eog)
	t.eog = slices.Compact(t.eog)
	if len(t.eog) == 0 {
		l.warnf("no token ends a generation")
	}
	return nil
}

// boundary reads the id of BOS or EOS, whose default in SPM is spm. For byte-level BPE, llama.cpp takes a
// missing one for Falcon's; that is right only where that token is a control token, and would otherwise end a
// generation at a comma.
func (l *loader) boundary(key string, spm int32) (int32, error) {
	switch t := l.t; {
	case t.family == scored:
		return l.tokenID(key, spm)
	case t.family == byteLevel && falconEnd < t.Vocab() && t.vocab.typ[falconEnd] == Control:
		return l.tokenID(key, falconEnd)
	}
	return l.tokenID(key, -1)
}

// harmony makes the marks between the parts of a gpt-oss answer visible. Its <|end|> ends a part, not the answer.
func (l *loader) harmony() {
	t := l.t
	ends := func(texts ...string) bool {
		for _, text := range texts {
			if id, ok := t.Lookup(text); !ok || !slices.Contains(t.eog, id) {
				return false
			}
		}
		return true
	}
	if ends("<|return|>", "<|call|>", "<|end|>") || ends("<|calls|>", "<|flush|>", "<|end|>") ||
		ends("<|call|>", "<|flush|>", "<|end|>") {
		id, _ := t.Lookup("<|end|>")
		t.eog = slices.DeleteFunc(t.eog, func(e int32) bool { return e == id })
		t.vocab.typ[id] = UserDefined
	}
	for _, text := range []string{"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"} {
		if id, ok := t.Lookup(text); ok {
			t.vocab.typ[id] = UserDefined
		}
	}
}

// handover is for Gemma 4, which ends its turn at <|tool_response> to be given one: </s> is an ordinary word of its
// vocabulary.
func (l *loader) handover() {
	t := l.t
	if _, ok := t.Lookup("<|tool_response>"); !ok {
		return
	}
	if id, ok := t.Lookup("</s>"); ok {
		t.eog = slices.DeleteFunc(t.eog, func(e int32) bool { return e == id })
		t.vocab.typ[id] = Normal
	}
}

// flags reads what overrides the defaults.
func (l *loader) flags() error {
	t := l.t
	if t.family == scored {
		if err := l.flag("add_space_prefix", &t.spacePrefix); err != nil {
			return err
		}
	}
	if err := l.flag("add_eos_token", &t.addEOS); err != nil {
		return err
	}
	if t.family != ranked {
		return l.flag("add_bos_token", &t.addBOS)
	}
	if t.bos < 0 { // without BOS such a model writes nonsense, so it is added whatever add_bos_token says
		return l.corruptf("bos_token_id", "missing, and these vocabularies have no default")
	}
	return nil
}

func (l *loader) flag(key string, to *bool) error {
	v, ok := l.get(key)
	if !ok {
		return nil
	}
	var err error
	*to, err = v.Bool()
	return err
}
