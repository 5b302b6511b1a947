// Command deepseek4 writes a GGUF file with the dimensions of DeepSeek V4 Flash (specs/deepseek4.md 0.3 and 2) and
// without its knowledge: random weights, and a tokenizer of bytes. Three of its layers are enough to have all kinds of
// attention and of routing, so that sizes and kernels can be tried where the 91 GB of the real thing do not fit.
//
//	go run ./testdata/gen/deepseek4 -out three.gguf             # 3 layers, 7.4 GB
//	go run ./testdata/gen/deepseek4 -out whole.gguf -sparse     # all 43, 91 GB that take no room: weights are a hole
//
// Types are those of section 9.1: experts IQ2_XXS with IQ3_XXS for down, matrices Q8_0, router, hyper-connections and
// norms F32. The bytes of a file depend on its number of layers only. Memory use is constant.
package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math"
	"math/rand/v2"
	"os"

	"github.com/bigmoe/bigmoe/sdk/dtype"
)

// The dimensions of Flash, called as in specs/deepseek4.md 0.3.
const (
	embd, streams                   = 4096, 4
	heads, headDim, rotated         = 64, 512, 64
	qRank, groups, outRank          = 1024, 8, 1024
	window                          = 128
	indexHeads, indexDim, indexTopK = 64, 128, 512
	experts, used, hidden           = 256, 6, 2048
	vocabulary                      = 129280
	flashLayers, flashHashed        = 43, 3
)

const align = 32 // of tensors, the default of the format

func main() {
	log.SetFlags(0)
	out := flag.String("out", "", "file to write")
	layers := flag.Int("layers", 3, "layers of a file with weights, at most 43; the first window only, then blocks of 4 and of 128 in turn")
	sparse := flag.Bool("sparse", false, "metadata and tensor table of all 43 layers, and a hole for the weights")
	flag.Parse()
	if *out == "" || flag.NArg() > 0 || *layers < 1 || *layers > flashLayers {
		flag.Usage()
		os.Exit(2)
	}
	ratios, hashed := shortRatios(*layers), 1
	if *sparse {
		ratios, hashed = flashRatios(), flashHashed
	}
	if err := write(*out, ratios, hashed, *sparse); err != nil {
		log.Fatal(err)
	}
}

// flashRatios are the positions in a compressed row, by layer (section 1.1).
func flashRatios() []int32 {
	return append([]int32{0}, shortRatios(flashLayers-1)...)
}

func shortRatios(layers int) []int32 {
	ratios := make([]int32, layers)
	for i := 1; i < layers; i++ {
		ratios[i] = [2]int32{128, 4}[i%2]
	}
	return ratios
}

func write(path string, ratios []int32, hashed int, sparse bool) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	tensors := list(ratios, hashed)
	head, dataBytes, err := header(ratios, hashed, tensors)
	if err != nil {
		return err
	}
	if _, err := f.Write(head); err != nil {
		return err
	}
	if sparse {
		return f.Truncate(int64(len(head)) + dataBytes)
	}
	w := bufio.NewWriterSize(f, 1<<20)
	rng := rand.NewChaCha8([32]byte{'d', 's', '4'})
	for _, t := range tensors {
		if err := t.write(w, rng); err != nil {
			return err
		}
	}
	return w.Flush()
}

// tensor is a tensor and how its elements are spread.
type tensor struct {
	name   string
	typ    dtype.Type
	dims   []int64
	around float64 // mean of floats
	spread float64 // standard deviation of elements, roughly where they are quantised
}

// list is what the file holds, in its order (section 2).
func list(ratios []int32, hashed int) (all []tensor) {
	floats := func(name string, around, spread float64, dims ...int64) {
		all = append(all, tensor{name, dtype.F32, dims, around, spread})
	}
	norm := func(name string, n int64) { floats(name, 1, 0.1, n) }
	// matrix keeps the length of what it multiplies.
	matrix := func(name string, typ dtype.Type, dims ...int64) {
		all = append(all, tensor{name, typ, dims, 0, 1 / math.Sqrt(float64(dims[0]))})
	}
	hyper := func(name string, outs, scales int64) {
		matrix(name+"_fn.weight", dtype.F32, streams*embd, outs)
		floats(name+"_base.weight", 0, 0.5, outs)
		floats(name+"_scale.weight", 0.75, 0.1, scales)
	}
	all = append(all, tensor{"token_embd.weight", dtype.Q8_0, []int64{embd, vocabulary}, 0, 1})
	for i, ratio := range ratios {
		blk := fmt.Sprintf("blk.%d.", i)
		hyper(blk+"hc_attn", streams*(2+streams), 3)
		norm(blk+"attn_norm.weight", embd)
		matrix(blk+"attn_q_a.weight", dtype.Q8_0, embd, qRank)
		norm(blk+"attn_q_a_norm.weight", qRank)
		matrix(blk+"attn_q_b.weight", dtype.Q8_0, qRank, heads*headDim)
		matrix(blk+"attn_kv.weight", dtype.Q8_0, embd, headDim)
		norm(blk+"attn_kv_a_norm.weight", headDim)
		floats(blk+"attn_sinks.weight", 0, 0.5, heads)
		matrix(blk+"attn_output_a.weight", dtype.Q8_0, heads*headDim/groups, groups*outRank)
		matrix(blk+"attn_output_b.weight", dtype.Q8_0, groups*outRank, embd)
		compressor := func(name string, dim int64) {
			width := dim
			if ratio == 4 { // blocks overlap
				width *= 2
			}
			matrix(blk+name+"_kv.weight", dtype.Q8_0, embd, width)
			matrix(blk+name+"_gate.weight", dtype.Q8_0, embd, width)
			matrix(blk+name+"_ape.weight", dtype.Q8_0, width, int64(ratio))
			norm(blk+name+"_norm.weight", dim)
		}
		if ratio != 0 {
			compressor("attn_compressor", headDim)
		}
		if ratio == 4 {
			matrix(blk+"indexer.attn_q_b.weight", dtype.Q8_0, qRank, indexHeads*indexDim)
			matrix(blk+"indexer.proj.weight", dtype.Q8_0, embd, indexHeads)
			compressor("indexer_compressor", indexDim)
		}
		hyper(blk+"hc_ffn", streams*(2+streams), 3)
		norm(blk+"ffn_norm.weight", embd)
		matrix(blk+"ffn_gate_inp.weight", dtype.F32, embd, experts)
		if i < hashed {
			all = append(all, tensor{name: blk + "ffn_gate_tid2eid.weight", typ: dtype.I32, dims: []int64{used, vocabulary}})
		} else {
			floats(blk+"exp_probs_b.bias", 0, 0.1, experts)
		}
		matrix(blk+"ffn_gate_exps.weight", dtype.IQ2_XXS, embd, hidden, experts)
		matrix(blk+"ffn_up_exps.weight", dtype.IQ2_XXS, embd, hidden, experts)
		matrix(blk+"ffn_down_exps.weight", dtype.IQ3_XXS, hidden, embd, experts)
		matrix(blk+"ffn_gate_shexp.weight", dtype.Q8_0, embd, hidden)
		matrix(blk+"ffn_up_shexp.weight", dtype.Q8_0, embd, hidden)
		matrix(blk+"ffn_down_shexp.weight", dtype.Q8_0, hidden, embd)
	}
	hyper("output_hc", streams, 1)
	norm("output_norm.weight", embd)
	matrix("output.weight", dtype.Q8_0, embd, vocabulary)
	return all
}

func (t *tensor) bytes() (int64, error) {
	n, err := t.typ.RowBytes(t.dims[0])
	for _, d := range t.dims[1:] {
		n *= d
	}
	if err != nil {
		return 0, fmt.Errorf("tensor %s: %w", t.name, err)
	}
	return n, nil
}

// unitSpread is the standard deviation of random blocks whose scale is 1, roughly: that of the type's integers or
// grid, times the mean factor of its groups.
var unitSpread = map[dtype.Type]float64{dtype.Q8_0: 74, dtype.IQ2_XXS: 45, dtype.IQ3_XXS: 130}

// write writes the tensor and its padding. A random block is a valid one: only its scale, a half at its start, has to
// be chosen.
func (t *tensor) write(w io.Writer, rng *rand.ChaCha8) error {
	total, err := t.bytes()
	if err != nil {
		return err
	}
	block := t.typ.BlockBytes()
	var half uint16 // a power of two
	if unit, ok := unitSpread[t.typ]; ok {
		half = uint16(15+math.Round(math.Log2(t.spread/unit))) << 10
	}
	float := rand.New(rng)
	buf := make([]byte, 1024*used*block) // whole blocks, and whole rows of experts of a token
	for left := total; left > 0; {
		chunk := buf[:min(left, int64(len(buf)))]
		left -= int64(len(chunk))
		switch t.typ {
		case dtype.F32:
			for i := 0; i < len(chunk); i += 4 {
				x := t.around + t.spread*float.NormFloat64()
				binary.LittleEndian.PutUint32(chunk[i:], math.Float32bits(float32(x)))
			}
		case dtype.I32: // experts of a token: any, but no two alike
			for i := 0; i < len(chunk); i += 4 * used {
				first := float.Uint32()
				for k := range uint32(used) {
					binary.LittleEndian.PutUint32(chunk[i+4*int(k):], (first+43*k)%experts)
				}
			}
		default:
			if _, err := rng.Read(chunk); err != nil {
				return err
			}
			for i := 0; i < len(chunk); i += block {
				binary.LittleEndian.PutUint16(chunk[i:], half)
			}
		}
		if _, err := w.Write(chunk); err != nil {
			return err
		}
	}
	_, err = w.Write(make([]byte, pad(total)))
	return err
}

func pad(n int64) int64 { return (align - n%align) % align }

// header is the file up to its first tensor, and how long the rest is.
func header(ratios []int32, hashed int, tensors []tensor) (head []byte, dataBytes int64, err error) {
	pairs := metadata(ratios, hashed)
	head = binary.LittleEndian.AppendUint32([]byte("GGUF"), 3)
	head = binary.LittleEndian.AppendUint64(head, uint64(len(tensors)))
	head = binary.LittleEndian.AppendUint64(head, uint64(len(pairs)))
	for _, p := range pairs {
		head = appendValue(appendString(head, p.key), p.value)
	}
	for _, t := range tensors {
		head = binary.LittleEndian.AppendUint32(appendString(head, t.name), uint32(len(t.dims)))
		for _, d := range t.dims {
			head = binary.LittleEndian.AppendUint64(head, uint64(d))
		}
		head = binary.LittleEndian.AppendUint32(head, uint32(t.typ))
		head = binary.LittleEndian.AppendUint64(head, uint64(dataBytes))
		n, err := t.bytes()
		if err != nil {
			return nil, 0, err
		}
		dataBytes += n + pad(n)
	}
	return append(head, make([]byte, pad(int64(len(head))))...), dataBytes, nil
}

type pair struct {
	key   string
	value any // uint32, float32, bool, string, []int32 or []string
}

// metadata is what section 1 asks for.
func metadata(ratios []int32, hashed int) []pair {
	texts, types := tokens()
	pairs := []pair{
		{"general.architecture", "deepseek4"},
		{"general.name", fmt.Sprintf("random weights, Flash dimensions, %d layers", len(ratios))},
	}
	for _, p := range []pair{
		{"block_count", uint32(len(ratios))},
		{"context_length", uint32(1 << 20)},
		{"embedding_length", uint32(embd)},
		{"vocab_size", uint32(vocabulary)},
		{"attention.head_count", uint32(heads)},
		{"attention.head_count_kv", uint32(1)},
		{"attention.key_length", uint32(headDim)},
		{"attention.value_length", uint32(headDim)},
		{"attention.layer_norm_rms_epsilon", float32(1e-6)},
		{"attention.q_lora_rank", uint32(qRank)},
		{"attention.output_lora_rank", uint32(outRank)},
		{"attention.output_group_count", uint32(groups)},
		{"attention.sliding_window", uint32(window)},
		{"attention.compress_ratios", ratios},
		{"attention.compress_rope_freq_base", float32(160000)},
		{"attention.indexer.head_count", uint32(indexHeads)},
		{"attention.indexer.key_length", uint32(indexDim)},
		{"attention.indexer.top_k", uint32(indexTopK)},
		{"rope.dimension_count", uint32(rotated)},
		{"rope.freq_base", float32(10000)},
		{"rope.scaling.type", "yarn"},
		{"rope.scaling.factor", float32(16)},
		{"rope.scaling.original_context_length", uint32(65536)},
		{"rope.scaling.yarn_beta_fast", float32(32)},
		{"rope.scaling.yarn_beta_slow", float32(1)},
		{"expert_count", uint32(experts)},
		{"expert_used_count", uint32(used)},
		{"expert_shared_count", uint32(1)},
		{"expert_feed_forward_length", uint32(hidden)},
		{"expert_weights_scale", float32(1.5)},
		{"expert_weights_norm", true},
		{"expert_gating_func", uint32(4)},
		{"swiglu_clamp_exp", float32(10)},
		{"hash_layer_count", uint32(hashed)},
		{"hyper_connection.count", uint32(streams)},
		{"hyper_connection.sinkhorn_iterations", uint32(20)},
		{"hyper_connection.epsilon", float32(1e-6)},
	} {
		pairs = append(pairs, pair{"deepseek4." + p.key, p.value})
	}
	return append(pairs,
		pair{"tokenizer.ggml.model", "gpt2"},
		pair{"tokenizer.ggml.pre", "joyai-llm"},
		pair{"tokenizer.ggml.tokens", texts},
		pair{"tokenizer.ggml.token_type", types},
		pair{"tokenizer.ggml.merges", []string{"h e"}},
		pair{"tokenizer.ggml.bos_token_id", uint32(0)},
		pair{"tokenizer.ggml.eos_token_id", uint32(1)},
		pair{"tokenizer.ggml.add_bos_token", false},
	)
}

// tokens is a vocabulary in which every text is spelled byte by byte, and as many more words as the model has rows.
func tokens() (texts []string, types []int32) {
	const normal, control = 1, 3
	add := func(text string, typ int32) { texts, types = append(texts, text), append(types, typ) }
	add("<｜begin▁of▁sentence｜>", control)
	add("<｜end▁of▁sentence｜>", control)
	spare := rune(256) // bytes that do not print are spelled as the letters from here on
	for b := range rune(256) {
		if b > ' ' && b < 0x7F || b > 0xA0 && b != 0xAD {
			add(string(b), normal)
		} else {
			add(string(spare), normal)
			spare++
		}
	}
	add("he", normal)
	for len(texts) < vocabulary {
		add(fmt.Sprintf("w%d", len(texts)), normal)
	}
	return texts, types
}

func appendString(out []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(out, uint64(len(s))), s...)
}

// appendValue appends a value behind the id of its type (specs/gguf.md 1.4).
func appendValue(out []byte, value any) []byte {
	u32, u64 := binary.LittleEndian.AppendUint32, binary.LittleEndian.AppendUint64
	switch v := value.(type) {
	case uint32:
		return u32(u32(out, 4), v)
	case float32:
		return u32(u32(out, 6), math.Float32bits(v))
	case bool:
		out = append(u32(out, 7), 0)
		if v {
			out[len(out)-1] = 1
		}
		return out
	case string:
		return appendString(u32(out, 8), v)
	case []int32:
		out = u64(u32(u32(out, 9), 5), uint64(len(v)))
		for _, n := range v {
			out = u32(out, uint32(n))
		}
		return out
	case []string:
		out = u64(u32(u32(out, 9), 8), uint64(len(v)))
		for _, s := range v {
			out = appendString(out, s)
		}
		return out
	}
	panic(fmt.Sprintf("no encoding of %T", value))
}
