#!/usr/bin/env python3
"""Reference outputs of a small model, from a forward pass that is written as a paper would write it.

    python3 golden.py model.gguf 261 265 34 101 >model.json

takes a model whose weights are 32-bit or 16-bit floats and some token ids, and writes what `bigmoe recipe check` compares
(docs/tutorial-recipe.md). It needs nothing but Python, and is slow: made for models of a few MB with random weights.

It describes a llama-like mixture of experts. Change what your architecture does differently: everything that architectures
disagree on is in the settings and in the functions attention, experts and logits_of. Write it from the definition of the
architecture, not from your recipe: two copies of one mistake agree.
"""
import json, math, struct, sys
from operator import mul

LAYOUT = "neox"       # element i turns with i + half; "interleaved": with its neighbour (llama.cpp's "norm")
NORMALIZE = True      # the weights of the chosen experts add up to 1
EMBEDDING_SCALE = RESIDUAL_SCALE = LOGIT_SCALE = 1.0
ATTENTION_SCALE = None  # None: 1 / sqrt(head_dim)
GREEDY = 8            # tokens of text after the prompt


class File:
    """Metadata, and tensors as lists of rows."""

    def __init__(self, path):
        self.data, self.at = open(path, "rb").read(), 8  # behind magic and version
        tensors, keys = self.take("<QQ")
        self.meta = {self.text(): self.value(self.take("<I")[0]) for _ in range(keys)}
        self.infos = {}
        for _ in range(tensors):
            name, dims = self.text(), self.take("<I")[0]
            self.infos[name] = self.take("<%dQ" % dims), *self.take("<IQ")
        align = self.meta.get("general.alignment", 32)
        self.start = (self.at + align - 1) // align * align
        self.arch = self.meta["general.architecture"]

    def take(self, form):
        found = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return found

    def text(self):
        (size,) = self.take("<Q")
        self.at += size
        return self.data[self.at - size:self.at].decode("utf-8", "replace")

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            of, size = self.take("<IQ")
            return [self.value(of) for _ in range(size)]
        return self.take("<" + "BbHhIif?__Qqd"[kind])[0]

    def key(self, name, default=None):
        found = self.meta.get(self.arch + "." + name, default)
        if found is None:
            sys.exit("key %s.%s is missing" % (self.arch, name))
        return found

    def rows(self, name):
        (width, *rest), kind, offset = self.infos[name]
        if kind not in (0, 1):
            sys.exit("tensor %s: type %d, expected 32-bit or 16-bit floats" % (name, kind))
        count = math.prod(rest)
        all = struct.unpack_from("<%d%s" % (width * count, "fe"[kind]), self.data, self.start + offset)
        return [all[i * width:(i + 1) * width] for i in range(count)]


def dot(a, b): return sum(map(mul, a, b))
def product(matrix, x): return [dot(row, x) for row in matrix]
def add(a, b, scale): return [x + scale * y for x, y in zip(a, b)]
def silu(x): return x / (1 + math.exp(-x))


def softmax(x):
    top = max(x)
    e = [math.exp(v - top) for v in x]
    total = sum(e)
    return [v / total for v in e]


def rms_norm(x, weight, eps):
    """Normalises as many elements at a time as the weight has: a head, or the whole row."""
    out = []
    for i in range(0, len(x), len(weight)):
        part = x[i:i + len(weight)]
        scale = 1 / math.sqrt(dot(part, part) / len(part) + eps)
        out += [v * scale * w for v, w in zip(part, weight)]
    return out


class Model:
    def __init__(self, f):
        self.f, self.layers = f, f.key("block_count")
        self.heads = f.key("attention.head_count")
        self.kv_heads = f.key("attention.head_count_kv", self.heads)
        self.head_dim = f.key("attention.key_length", f.key("embedding_length") // self.heads)
        self.eps = f.key("attention.layer_norm_rms_epsilon")
        self.base, self.used = f.key("rope.freq_base", 10000.0), f.key("expert_used_count")
        self.weights = {name: f.rows(name) for name in f.infos}
        self.cache = [[] for _ in range(self.layers)]  # keys and values by position
        self.chosen = [([], []) for _ in range(self.layers)]  # experts and their weights by position

    def w(self, layer, name): return self.weights["blk.%d.%s.weight" % (layer, name)]

    def norm(self, x, layer, name):
        if "blk.%d.%s.weight" % (layer, name) not in self.weights:
            return x
        return rms_norm(x, self.w(layer, name)[0], self.eps)

    def rope(self, x, position):
        half, out = self.head_dim // 2, list(x)
        for head in range(0, len(x), self.head_dim):
            for i in range(half):
                a, b = (head + i, head + i + half) if LAYOUT == "neox" else (head + 2 * i, head + 2 * i + 1)
                angle = position * self.base ** (-2 * i / self.head_dim)
                out[a] = x[a] * math.cos(angle) - x[b] * math.sin(angle)
                out[b] = x[a] * math.sin(angle) + x[b] * math.cos(angle)
        return out

    def attention(self, layer, x):
        cache, n = self.cache[layer], self.head_dim
        q, k = [self.rope(self.norm(product(self.w(layer, name), x), layer, name + "_norm"), len(cache))
                for name in ("attn_q", "attn_k")]
        cache.append((k, product(self.w(layer, "attn_v"), x)))
        out = []
        for head in range(self.heads):
            own, kv = q[head * n:(head + 1) * n], head // (self.heads // self.kv_heads) * n
            scale = ATTENTION_SCALE or 1 / math.sqrt(n)
            shares = softmax([scale * dot(own, keys[kv:kv + n]) for keys, _ in cache])
            out += [sum(share * values[kv + i] for share, (_, values) in zip(shares, cache)) for i in range(n)]
        return product(self.w(layer, "attn_output"), out)

    def experts(self, layer, x):
        shares = softmax(product(self.w(layer, "ffn_gate_inp"), x))
        best = sorted(range(len(shares)), key=lambda e: -shares[e])[:self.used]
        weights = [shares[e] for e in best]
        if NORMALIZE:
            total = sum(weights)
            weights = [w / total for w in weights]
        self.chosen[layer][0].append(best)
        self.chosen[layer][1].append(weights)
        gate, up, down = [self.w(layer, "ffn_%s_exps" % name) for name in ("gate", "up", "down")]
        hidden, out = len(gate) // len(shares), [0.0] * len(x)
        for e, weight in zip(best, weights):
            rows = range(e * hidden, (e + 1) * hidden)
            inner = [silu(dot(gate[r], x)) * dot(up[r], x) for r in rows]
            out = add(out, product(down[e * len(x):(e + 1) * len(x)], inner), weight)
        return out

    def logits_of(self, token):
        h = [v * EMBEDDING_SCALE for v in self.weights["token_embd.weight"][token]]
        for layer in range(self.layers):
            h = add(h, self.attention(layer, self.norm(h, layer, "attn_norm")), RESIDUAL_SCALE)
            h = add(h, self.experts(layer, self.norm(h, layer, "ffn_norm")), RESIDUAL_SCALE)
        h = rms_norm(h, self.weights["output_norm.weight"][0], self.eps)
        head = self.weights.get("output.weight") or self.weights["token_embd.weight"]
        return [v * LOGIT_SCALE for v in product(head, h)]


def main(path, *ids):
    model, ids = Model(File(path)), [int(i) for i in ids]
    if not ids:
        sys.exit("no token ids: bigmoe tokenize -m %s writes some" % path)
    positions = []
    for token in ids:
        logits = model.logits_of(token)
        top = sorted(range(len(logits)), key=lambda i: -logits[i])[:8]
        most = max(logits)
        lse = most + math.log(sum(math.exp(v - most) for v in logits))
        positions.append({"lse": lse, "top": [[i, logits[i]] for i in top]})
    final, text = logits, []
    while len(text) < GREEDY:
        text.append(max(range(len(logits)), key=lambda i: logits[i]))
        if len(text) < GREEDY:
            logits = model.logits_of(text[-1])
    rms = math.sqrt(dot(final, final) / len(final))
    routing = {"experts": [c[0] for c in model.chosen], "weights": [c[1] for c in model.chosen]}
    json.dump({
        "prompt": {"ids": ids},
        "tolerance": {"f32": {"logit_abs": 1e-4 * rms, "routing_weight_abs": 1e-5}},
        "runs": {"f32": {"positions": positions, "final_logits": final, "greedy": {"ids": text}, "routing": routing}},
    }, sys.stdout)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
