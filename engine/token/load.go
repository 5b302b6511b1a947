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
	for _, step := range []func() error{l.model, l.tokens, l.merges, l.ends, l.flags} {
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
	pre  pretokenizer
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
	if model != "gpt2" {
		return fault.Unsupportedf("%s: %smodel is %q: only byte-level BPE (\"gpt2\") is supported", l.meta.Path(), prefix, model)
	}
	name := "default"
	if v, ok := l.get("pre"); ok {
		if name, err = v.String(); err != nil {
			return err
		}
	} else {
		l.warnf("%spre is missing: splitting text the default way, which may not be how the model was trained", prefix)
	}
	pre, ok := pretokenizers(name)
	if !ok {
		return fault.Unsupportedf("%s: %spre: unknown pre-tokenizer %q", l.meta.Path(), prefix, name)
	}
	l.pre = pre
	l.t.stages, l.t.ignoreMerges, l.t.addBOS = pre.stages, pre.ignoreMerges, pre.addBOS
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

func (l *loader) merges() error {
	v, _ := l.get("merges")
	texts, err := v.Strings()
	if err != nil {
		return err
	}
	vocab := l.t.vocab
	lost := 0
	for b := range l.t.byteID {
		l.t.byteID[b] = vocab.symbol(appendAlphabet(nil, string([]byte{byte(b)})))
		inUTF8 := b < 0xC0 || b >= 0xC2 && b < 0xF5
		if inUTF8 && int(l.t.byteID[b]) >= l.t.Vocab() {
			lost++
		}
	}
	if lost > 0 {
		l.warnf("%stokens lacks %d single bytes: text that needs them is encoded without them", prefix, lost)
	}
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

// tokenID reads a key that holds the id of a token; -1 if it is missing.
func (l *loader) tokenID(key string) (int32, error) {
	v, ok := l.get(key)
	if !ok {
		return -1, nil
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
	if t.bos, err = l.boundary("bos_token_id"); err != nil {
		return err
	}
	if l.pre.clearBOS {
		t.bos = -1
	}
	if t.eos, err = l.boundary("eos_token_id"); err != nil {
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
		id, err := l.tokenID(k.key)
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
	slices.Sort(t.eog)
	t.eog = slices.Compact(t.eog)
	if len(t.eog) == 0 {
		l.warnf("no token ends a generation")
	}
	return nil
}

// boundary reads the id of BOS or EOS. llama.cpp takes a missing one for Falcon's; that is right only where that token
// is a control token, and would otherwise end a generation at a comma.
func (l *loader) boundary(key string) (int32, error) {
	id, err := l.tokenID(key)
	if id < 0 && err == nil && falconEnd < l.t.Vocab() && l.t.vocab.typ[falconEnd] == Control {
		id = falconEnd
	}
	return id, err
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

// flags reads what overrides the defaults of the pre-tokenizer.
func (l *loader) flags() error {
	if err := l.flag("add_bos_token", &l.t.addBOS); err != nil {
		return err
	}
	return l.flag("add_eos_token", &l.t.addEOS)
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
