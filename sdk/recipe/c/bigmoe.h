// Recipes in C for bigmoe: the calls of docs/recipe-abi.md, and functions to write a plan with. No library is needed, not
// even C's. Include it in one source file, which defines build and names the recipe:
//
//	#include "bigmoe.h"
//	RECIPE("olmoe", "1")
//	void build(void) { … }
//
//	clang --target=wasm32 -nostdlib -Os -Wl,--no-entry -Wl,--strip-all -o olmoe.wasm main.c
//
// There are no errors to handle: a key or tensor that is missing, or not as it is asked for, ends the recipe with a message.
// Texts are never freed. Ops without a function of their own are written with op_begin; docs/ops.md has them all.
#ifndef BIGMOE_H
#define BIGMOE_H

#include <stdarg.h>
#include <stdint.h>

// ---------------------------------------------------------------------------------------------------------- the host

#define HOST(name) __attribute__((import_module("bigmoe_v1"), import_name(#name)))
#define EXPORT(name) __attribute__((export_name(#name)))

HOST(meta_find) int32_t meta_find(const char *key, int32_t size);
HOST(meta_type) int32_t meta_type(int32_t handle);
HOST(meta_len) int32_t meta_len(int32_t handle);
HOST(meta_int) int64_t meta_int(int32_t handle, int32_t index);
HOST(meta_float) double meta_float(int32_t handle, int32_t index);
HOST(meta_text) int32_t meta_text(int32_t handle, int32_t index, char *buf, int32_t cap);
HOST(tensor_count) int32_t tensor_count(void);
HOST(tensor_find) int32_t tensor_find(const char *name, int32_t size);
HOST(tensor_name) int32_t tensor_name(int32_t index, char *buf, int32_t cap);
HOST(tensor_type) int32_t tensor_type(int32_t index);
HOST(tensor_dims) int32_t tensor_dims(int32_t index, uint64_t dims[4]);
HOST(fail) _Noreturn void fail(int32_t kind, const char *message, int32_t size);
HOST(warn) void warn(const char *message, int32_t size);
HOST(plan) void plan(const void *bytes, int32_t size);

#ifndef BIGMOE_ABI_ONLY // which leaves the writing of plans to the recipe

enum { CORRUPT = 1, UNSUPPORTED = 3, BUG = 4 };                          // kinds of failure
enum { MAX_LAYERS = 1000, MAX_COUNT = 1 << 16, MAX_WIDTH = 1 << 24 };    // bounds for sizes
static const int64_t MAX_CONTEXT = 1ll << 40;

static void build(void);
static const char *recipe_name, *recipe_version;
static void finish(void);
static const char *architecture;
static const char *text_key(const char *key);

#define RECIPE(name, version)                                                       \
	EXPORT(bigmoe_abi_version) int32_t bigmoe_abi_version(void) { return 2; }   \
	EXPORT(bigmoe_plan) void bigmoe_plan(void) {                                \
		recipe_name = name, recipe_version = version;                       \
		architecture = text_key("general.architecture");                    \
		build();                                                            \
		finish();                                                           \
	}

// --------------------------------------------------------------------------------------------------------------- text

static int32_t length(const char *s) {
	int32_t n = 0;
	while (s[n])
		n++;
	return n;
}

static char text_memory[1 << 22];
static int32_t text_used;

static void text_put(char c) {
	if (text_used == sizeof text_memory)
		fail(BUG, "out of memory for texts", 23);
	text_memory[text_used++] = c;
}

// vformat knows %s and %d, which takes an int64_t.
static const char *vformat(const char *f, va_list args) {
	const char *start = text_memory + text_used;
	for (; *f; f++) {
		if (*f != '%') {
			text_put(*f);
		} else if (*++f == 's') {
			for (const char *s = va_arg(args, const char *); *s; s++)
				text_put(*s);
		} else {
			int64_t v = va_arg(args, int64_t);
			uint64_t n = v < 0 ? -(uint64_t)v : (uint64_t)v;
			char digits[20];
			int k = 0;
			do
				digits[k++] = '0' + n % 10;
			while (n /= 10);
			if (v < 0)
				text_put('-');
			while (k)
				text_put(digits[--k]);
		}
	}
	text_put(0);
	return start;
}

// format returns a text; %d takes an int64_t, so cast what is not one.
static const char *format(const char *f, ...) {
	va_list args;
	va_start(args, f);
	const char *s = vformat(f, args);
	va_end(args);
	return s;
}

// refuse ends the recipe with a message.
static _Noreturn void refuse(int kind, const char *f, ...) {
	va_list args;
	va_start(args, f);
	const char *s = vformat(f, args);
	va_end(args);
	fail(kind, s, length(s));
}

// --------------------------------------------------------------------------------------------------------------- keys

enum { FLOAT32 = 6, BOOL = 7, STRING = 8, FLOAT64 = 12, ARRAY = 256 };

static int starts(const char *s, const char *with) {
	while (*with && *s == *with)
		s++, with++;
	return !*with;
}

// find_key takes keys without the architecture's prefix, except those of the general and tokenizer groups.
static int32_t find_key(const char *key, const char **full) {
	*full = starts(key, "general.") || starts(key, "tokenizer.") ? key : format("%s.%s", architecture, key);
	return meta_find(*full, length(*full));
}

static int has_key(const char *key) {
	const char *full;
	return find_key(key, &full) >= 0;
}

static int32_t require_key(const char *key, const char **full) {
	int32_t handle = find_key(key, full);
	if (handle < 0)
		refuse(CORRUPT, "key \"%s\" is missing", *full);
	return handle;
}

// integer returns element i of a key that holds one integer, or n of them.
static int64_t integer(const char *key, int32_t i, int64_t n, int64_t min, int64_t max) {
	const char *full;
	int32_t handle = require_key(key, &full), type = meta_type(handle) & ~ARRAY, count = meta_len(handle);
	if (type == FLOAT32 || type == FLOAT64 || type == BOOL || type == STRING)
		refuse(CORRUPT, "key \"%s\": expected an integer", full);
	if (count != 1 && count != n)
		refuse(CORRUPT, "key \"%s\": expected one integer or %d, found %d", full, n, (int64_t)count);
	int64_t v = meta_int(handle, count == 1 ? 0 : i);
	if (v < min || v > max)
		refuse(CORRUPT, "key \"%s\": expected %d to %d, found %d", full, min, max, v);
	return v;
}

static int64_t uint_key(const char *key, int64_t min, int64_t max) { return integer(key, 0, 1, min, max); }
static int64_t uint_key_or(const char *key, int64_t missing, int64_t min, int64_t max) {
	return has_key(key) ? uint_key(key, min, max) : missing;
}

// layer_key is uint_key for keys that hold one number for all layers or one for each.
static int64_t layer_key(const char *key, int64_t layer, int64_t layers, int64_t min, int64_t max) {
	return integer(key, (int32_t)layer, layers, min, max);
}

static double float_key(const char *key, double min, double max) {
	const char *full;
	int32_t handle = require_key(key, &full), type = meta_type(handle);
	if (type != FLOAT32 && type != FLOAT64)
		refuse(CORRUPT, "key \"%s\": expected a number", full);
	double v = meta_float(handle, 0);
	if (!(v >= min && v <= max)) // also refuses what is not a number
		refuse(CORRUPT, "key \"%s\" is out of range", full);
	return v;
}
static double float_key_or(const char *key, double missing, double min, double max) {
	return has_key(key) ? float_key(key, min, max) : missing;
}

static const char *text_key(const char *key) {
	const char *full;
	int32_t handle = require_key(key, &full);
	if (meta_type(handle) != STRING)
		refuse(CORRUPT, "key \"%s\": expected a string", full);
	int32_t n = meta_text(handle, 0, text_memory + text_used, 0);
	if (n >= (int32_t)sizeof text_memory - text_used)
		refuse(CORRUPT, "key \"%s\" is too long", full);
	char *s = text_memory + text_used;
	meta_text(handle, 0, s, n);
	text_used += n;
	text_put(0);
	return s;
}

// vocabulary is the number of tokens.
static int64_t vocabulary(void) {
	const char *full;
	int32_t handle = require_key("tokenizer.ggml.tokens", &full);
	if (meta_type(handle) != (STRING | ARRAY) || meta_len(handle) < 1 || meta_len(handle) > MAX_WIDTH)
		refuse(CORRUPT, "key \"%s\": expected 1 to %d strings", full, (int64_t)MAX_WIDTH);
	return meta_len(handle);
}

// ----------------------------------------------------------------------------------------- protobuf (docs/plan.md, plan.proto)

typedef struct {
	uint8_t *bytes;
	int32_t used, size;
} wire;

#define WIRE(name, size_bytes)                     \
	static uint8_t name##_memory[size_bytes];  \
	static wire name = {name##_memory, 0, size_bytes};

WIRE(weights, 4 << 20)
WIRE(banks, 1 << 20)
WIRE(states, 1 << 20)
WIRE(blocks, 4 << 20)
WIRE(unused, 1 << 20)
WIRE(model, 1 << 10)
WIRE(whole, 12 << 20)

static void put(wire *w, uint8_t b) {
	if (w->used == w->size)
		refuse(BUG, "out of memory for the plan");
	w->bytes[w->used++] = b;
}
static void varint(wire *w, uint64_t v) {
	for (; v >= 128; v >>= 7)
		put(w, v | 128);
	put(w, v);
}
static void tag(wire *w, int field, int kind) { varint(w, field << 3 | kind); }
static void number_field(wire *w, int field, uint64_t v) {
	if (v)
		tag(w, field, 0), varint(w, v);
}
static void text_field(wire *w, int field, const char *s) {
	int32_t n = length(s);
	tag(w, field, 2);
	varint(w, n);
	for (int32_t i = 0; i < n; i++)
		put(w, s[i]);
}
// open starts a nested message, close moves it to make room for its length.
static int32_t open(wire *w, int field) {
	tag(w, field, 2);
	return w->used;
}
static void close(wire *w, int32_t start) {
	int32_t n = w->used - start, extra;
	varint(w, n);
	extra = w->used - start - n;
	w->used -= extra;
	for (int32_t i = n; i-- > 0;)
		w->bytes[start + extra + i] = w->bytes[start + i];
	w->used = start;
	varint(w, n);
	w->used = start + extra + n;
}
static void append(wire *w, const wire *x) {
	for (int32_t i = 0; i < x->used; i++)
		put(w, x->bytes[i]);
}

// ------------------------------------------------------------------------------------------------ weights, banks, states

typedef const char *weight, *value, *state, *bank;

typedef struct {
	int64_t d[4]; // the contiguous size first, 0 after the last
} shape;

static int has_tensor(const char *name) { return tensor_find(name, length(name)) >= 0; }

static void check_shape(const char *name, shape s) {
	uint64_t dims[4];
	int32_t t = tensor_find(name, length(name));
	if (t < 0)
		refuse(CORRUPT, "tensor \"%s\" is missing", name);
	tensor_dims(t, dims);
	for (int i = 0; i < 4; i++)
		if (dims[i] != (uint64_t)(s.d[i] ? s.d[i] : 1))
			refuse(CORRUPT, "tensor \"%s\": expected [%d %d %d %d], found [%d %d %d %d]", name, s.d[0], s.d[1], s.d[2], s.d[3],
			       dims[0], dims[1], dims[2], dims[3]);
}

enum { RESIDENT = 0, BY_ROW = 1, ANY_TYPE = -1, F32 = 0 };

// declare_weight names a tensor as a weight. Each tensor is declared once; keep the result to use it again.
static weight declare_weight(const char *tensor, shape s, int residency, int type) {
	check_shape(tensor, s);
	wire *w = &weights;
	int32_t start = open(w, 6), at;
	text_field(w, 1, tensor);
	at = open(w, 2);
	text_field(w, 1, tensor);
	close(w, at);
	at = open(w, 3);
	for (int i = 0; i < 4 && s.d[i]; i++)
		varint(w, s.d[i]);
	close(w, at);
	number_field(w, 4, residency);
	if (type != ANY_TYPE) {
		at = open(w, 5);
		varint(w, type);
		close(w, at);
	}
	close(w, start);
	return tensor;
}

static weight vector(const char *tensor, int64_t n) { return declare_weight(tensor, (shape){{n}}, RESIDENT, ANY_TYPE); }
static weight matrix(const char *tensor, int64_t in, int64_t out) {
	return declare_weight(tensor, (shape){{in, out}}, RESIDENT, ANY_TYPE);
}

static void put_part(int role, const char *tensor, int64_t in, int64_t out, int64_t experts) {
	check_shape(tensor, (shape){{in, out, experts}});
	int32_t part = open(&banks, 4);
	number_field(&banks, 1, role);
	text_field(&banks, 2, tensor);
	number_field(&banks, 3, in);
	number_field(&banks, 4, out);
	close(&banks, part);
}

// gated_bank declares the experts of a layer, each three matrices: gate, up {width, hidden} and down {hidden, width}.
static bank gated_bank(int64_t layer, int64_t experts, int64_t width, int64_t hidden, const char *gate, const char *up, const char *down) {
	const char *name = format("l%d.experts", layer);
	int32_t start = open(&banks, 7);
	text_field(&banks, 1, name);
	number_field(&banks, 2, layer);
	number_field(&banks, 3, experts);
	put_part(1, gate, width, hidden, experts);
	put_part(2, up, width, hidden, experts);
	put_part(3, down, hidden, width, experts);
	close(&banks, start);
	return name;
}

static const char *prefix = ""; // of the names in the block

// kv declares a cache of keys and values, one entry for each position, or for the last window of them.
static state kv(const char *name, int64_t key_width, int64_t value_width, int64_t window) {
	name = format("%s%s", prefix, name);
	int32_t start = open(&states, 8);
	text_field(&states, 1, name);
	number_field(&states, 2, 1);
	number_field(&states, 3, key_width);
	number_field(&states, 4, value_width);
	number_field(&states, 5, window);
	close(&states, start);
	return name;
}

static void leave_out(const char *tensor, const char *reason) {
	int32_t start = open(&unused, 10);
	text_field(&unused, 1, tensor);
	text_field(&unused, 2, reason);
	close(&unused, start);
}

// describe states the sizes that people ask for.
static void describe(int64_t layers, int64_t width, int64_t vocabulary, int64_t context, int64_t experts, int64_t used) {
	int64_t fields[] = {layers, width, vocabulary, context, experts, used};
	for (int i = 0; i < 6; i++)
		number_field(&model, i + 1, fields[i]);
}

// -------------------------------------------------------------------------------------------------------- blocks and ops

static int32_t block_start = -1, op_start;

static void end_block(void) {
	if (block_start >= 0)
		close(&blocks, block_start);
	block_start = -1;
}
static void start_block(int kind, int64_t layer) {
	end_block();
	prefix = kind == 2 ? format("l%d.", layer) : "";
	block_start = open(&blocks, 9);
	number_field(&blocks, 1, kind);
	number_field(&blocks, 2, layer);
}
static void embedding_block(void) { start_block(1, 0); }
static void layer_block(int64_t layer) { start_block(2, layer); }
static void head_block(void) { start_block(3, 0); }

// An op is op_begin, then its operands in the order of docs/ops.md, results and attributes, then op_end. The empty text
// leaves an operand out that others follow.
static void op_begin(const char *kind) {
	if (block_start < 0)
		refuse(BUG, "op %s outside a block", kind);
	op_start = open(&blocks, 3);
	text_field(&blocks, 1, kind);
}
static void op_in(value v) { text_field(&blocks, 2, v); }
static void op_weight(weight v) { text_field(&blocks, 3, v); }
static void op_state(state v) { text_field(&blocks, 4, v); }
static void op_bank(bank v) { text_field(&blocks, 5, v); }
static value op_out(const char *name) {
	name = format("%s%s", prefix, name);
	text_field(&blocks, 6, name);
	return name;
}
static int32_t open_attr(const char *name) {
	int32_t start = open(&blocks, 7);
	text_field(&blocks, 1, name);
	return start;
}
// Attributes of value zero are left out, which means the default.
static void op_int(const char *name, int64_t v) {
	if (v) {
		int32_t start = open_attr(name);
		number_field(&blocks, 2, v);
		close(&blocks, start);
	}
}
static void op_float(const char *name, double v) {
	if (v) {
		int32_t start = open_attr(name);
		union {
			double d;
			uint8_t b[8];
		} bits = {v};
		tag(&blocks, 3, 1);
		for (int i = 0; i < 8; i++)
			put(&blocks, bits.b[i]);
		close(&blocks, start);
	}
}
static void op_text(const char *name, const char *v) {
	int32_t start = open_attr(name);
	text_field(&blocks, 4, v);
	close(&blocks, start);
}
static void op_flag(const char *name, int v) {
	if (v) {
		int32_t start = open_attr(name);
		number_field(&blocks, 5, 1);
		close(&blocks, start);
	}
}
static void op_end(void) { close(&blocks, op_start); }

static value embed(const char *name, weight table) {
	op_begin("embed");
	op_weight(table);
	value v = op_out(name);
	op_end();
	return v;
}

// rms_norm normalises groups of elements, or the whole row if group is 0.
static value rms_norm(const char *name, value x, weight w, double eps, int64_t group) {
	op_begin("rms_norm");
	op_in(x);
	op_weight(w);
	value v = op_out(name);
	op_float("eps", eps);
	op_int("group", group);
	op_end();
	return v;
}

// linear multiplies by a matrix and adds a bias, which may be "". exact keeps activations in 32 bits: routers need it.
static value linear(const char *name, value x, weight w, weight bias, int exact) {
	op_begin("linear");
	op_in(x);
	op_weight(w);
	if (*bias)
		op_weight(bias);
	value v = op_out(name);
	op_flag("exact", exact);
	op_end();
	return v;
}

static value rope(const char *name, value x, int64_t head_dim, int64_t rotated, double base) {
	op_begin("rope");
	op_in(x);
	value v = op_out(name);
	op_int("head_dim", head_dim);
	op_int("n_rot", rotated);
	op_float("base", base);
	op_float("magnitude", 1);
	op_end();
	return v;
}

static value attention(const char *name, value q, value k, value v, state cache, int64_t heads, int64_t kv_heads, int64_t head_dim,
                       double scale) {
	op_begin("attention");
	op_in(q);
	op_in(k);
	op_in(v);
	op_state(cache);
	value out = op_out(name);
	op_int("heads", heads);
	op_int("kv_heads", kv_heads);
	op_int("head_dim", head_dim);
	op_float("scale", scale);
	op_end();
	return out;
}

// route chooses experts; gating is softmax, sigmoid, … The results are called ids and weights.
static value route(value logits, int64_t top_k, const char *gating, int normalize, value *weights) {
	op_begin("route");
	op_in(logits);
	value ids = op_out("ids");
	*weights = op_out("weights");
	op_int("top_k", top_k);
	op_text("gating", gating);
	op_flag("normalize", normalize);
	op_end();
	return ids;
}

static value experts(const char *name, value x, value ids, value weights, bank b) {
	op_begin("experts");
	op_in(x);
	op_in(ids);
	op_in(weights);
	op_bank(b);
	value v = op_out(name);
	op_end();
	return v;
}

static value add(const char *name, value x, value y) {
	op_begin("add");
	op_in(x);
	op_in(y);
	value v = op_out(name);
	op_end();
	return v;
}

static void finish(void) {
	end_block();
	number_field(&whole, 1, 1); // version of the plan's schema
	text_field(&whole, 2, architecture);
	text_field(&whole, 3, recipe_name);
	text_field(&whole, 4, recipe_version);
	int32_t at = open(&whole, 5);
	append(&whole, &model);
	close(&whole, at);
	append(&whole, &weights);
	append(&whole, &banks);
	append(&whole, &states);
	append(&whole, &blocks);
	append(&whole, &unused);
	plan(whole.bytes, whole.used);
}

#endif
#endif
