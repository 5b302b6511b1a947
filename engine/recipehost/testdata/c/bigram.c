// A recipe without the SDK: a model that is an embedding and a head. It uses every call of the ABI.
#include "recipe.h"

enum { UINT32 = 4, FLOAT32 = 6, STRING = 8, ARRAY = 0x100, CORRUPT = 1 };

static int32_t length(const char *s) {
	int32_t n = 0;
	while (s[n])
		n++;
	return n;
}

static void need(int ok, const char *message) {
	if (!ok)
		fail(CORRUPT, message, length(message));
}

static int32_t key(const char *name, int32_t type) {
	int32_t handle = meta_find(name, length(name));
	need(handle >= 0, name);
	need(meta_type(handle) == type, name);
	return handle;
}

// A protobuf writer.
static uint8_t out[1 << 16];
static int32_t used;

static void varint(uint64_t v) {
	for (; v >= 128; v >>= 7)
		out[used++] = v | 128;
	out[used++] = v;
}
static void number(int field, uint64_t v) {
	varint(field << 3);
	varint(v);
}
static void bytes(int field, const char *s, int32_t n) {
	varint(field << 3 | 2);
	varint(n);
	for (int32_t i = 0; i < n; i++)
		out[used++] = s[i];
}
static void text(int field, const char *s) { bytes(field, s, length(s)); }

// open leaves one byte for the length of a message below 128 bytes.
static int32_t open(int field) {
	varint(field << 3 | 2);
	return used++;
}
static void close(int32_t at) {
	need(used - at - 1 < 128, "message too long");
	out[at] = used - at - 1;
}

static void weight(const char *name, uint64_t width, uint64_t rows, int by_row) {
	uint64_t dims[4];
	int32_t t = tensor_find(name, length(name));
	need(t >= 0, name);
	need(tensor_dims(t, dims) == 2 && dims[0] == width && dims[1] == rows && dims[2] == 1 && dims[3] == 1, name);
	int32_t w = open(6);
	text(1, name);
	int32_t s = open(2);
	text(1, name);
	close(s);
	s = open(3);
	varint(width);
	varint(rows);
	close(s);
	if (by_row)
		number(4, 1);
	else
		number(5, tensor_type(t)); // types, not packed: both forms are legal
	close(w);
}

static void op(const char *kind, const char *in, const char *weight, const char *result) {
	int32_t o = open(3);
	text(1, kind);
	if (in)
		text(2, in);
	text(3, weight);
	text(6, result);
	close(o);
}

EXPORT(bigmoe_plan) void bigmoe_plan(void) {
	static char arch[64];
	int32_t n = meta_text(key("general.architecture", STRING), 0, arch, sizeof arch);
	need(n == 8 && arch[0] == 'q', "general.architecture");
	int32_t tokens = meta_len(key("tokenizer.ggml.tokens", STRING | ARRAY));
	int64_t width = meta_int(key("qwen3moe.embedding_length", UINT32), 0);
	int64_t context = meta_int(key("qwen3moe.context_length", UINT32), 0);
	need(meta_float(key("qwen3moe.attention.layer_norm_rms_epsilon", FLOAT32), 0) < 1e-3, "epsilon");

	number(1, 1);
	bytes(2, arch, n);
	text(3, "bigram");
	text(4, "1");
	int32_t model = open(5);
	number(2, width);
	number(3, tokens);
	number(4, context);
	close(model);
	weight("token_embd.weight", width, tokens, 1);
	weight("output.weight", width, tokens, 0);
	int32_t block = open(9);
	number(1, 1);
	op("embed", 0, "token_embd.weight", "h");
	close(block);
	block = open(9);
	number(1, 3);
	op("linear", "h", "output.weight", "logits");
	close(block);
	for (int32_t i = 0, count = tensor_count(); i < count; i++) {
		char name[64];
		int32_t size = tensor_name(i, name, sizeof name); // the whole length, even if it does not fit
		need(size <= sizeof name, "long tensor name");
		if (size == 17 && name[0] == 't' || size == 13 && name[6] == '.') // the two above
			continue;
		int32_t unused = open(10);
		bytes(1, name, size);
		text(2, "not part of a bigram");
		close(unused);
	}
	static const char nothing[] = "experts are left out";
	warn(nothing, sizeof nothing - 1);
	plan(out, used);
}
