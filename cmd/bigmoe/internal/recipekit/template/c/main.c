// Recipe for NAME models: describes a file of this architecture as a plan, see docs/tutorial-recipe.md of bigmoe.
//
// It starts as a plain mixture of experts: attention with rotary positions, then the experts, each with a norm before
// and the residual around. Change what your architecture does differently.
#include "bigmoe.h"

RECIPE("NAME", "1")

static void build(void) {
	// Keys are given without their prefix "NAME.". Each getter ends the recipe with a message when the key is missing or
	// out of range.
	int64_t layers = uint_key("block_count", 1, MAX_LAYERS);
	int64_t context = uint_key("context_length", 1, MAX_CONTEXT);
	int64_t width = uint_key("embedding_length", 1, MAX_WIDTH);
	int64_t heads = uint_key("attention.head_count", 1, MAX_COUNT);
	int64_t kv_heads = uint_key_or("attention.head_count_kv", heads, 1, MAX_COUNT);
	int64_t head_dim = uint_key_or("attention.key_length", width / heads, 1, MAX_COUNT);
	double eps = float_key("attention.layer_norm_rms_epsilon", 1e-20, 1);
	double base = float_key_or("rope.freq_base", 10000, 1e-3, 1e12);
	int64_t count = uint_key("expert_count", 1, MAX_COUNT);
	int64_t used = uint_key("expert_used_count", 1, count);
	int64_t hidden = uint_key("expert_feed_forward_length", 1, MAX_WIDTH);
	int64_t tokens = vocabulary();
	if (heads % kv_heads)
		refuse(CORRUPT, "NAME.attention.head_count %d is not a multiple of attention.head_count_kv %d", heads, kv_heads);
	describe(layers, width, tokens, context, count, used);

	embedding_block();
	value h = embed("h", declare_weight("token_embd.weight", (shape){{width, tokens}}, BY_ROW, ANY_TYPE));
	for (int64_t i = 0; i < layers; i++) {
		layer_block(i);
#define BLK(name) format("blk.%d." name ".weight", i)
		value x = rms_norm("attn_norm", h, vector(BLK("attn_norm"), width), eps, 0);
		value q = linear("q", x, matrix(BLK("attn_q"), width, heads * head_dim), "", 0);
		value k = linear("k", x, matrix(BLK("attn_k"), width, kv_heads * head_dim), "", 0);
		value v = linear("v", x, matrix(BLK("attn_v"), width, kv_heads * head_dim), "", 0);
		q = rope("q_rope", q, head_dim, head_dim, base);
		k = rope("k_rope", k, head_dim, head_dim, base);
		state cache = kv("kv", kv_heads * head_dim, kv_heads * head_dim, 0);
		value o = attention("attn", q, k, v, cache, heads, kv_heads, head_dim, 1 / __builtin_sqrt(head_dim));
		o = linear("attn_out", o, matrix(BLK("attn_output"), heads * head_dim, width), "", 0);
		h = add("h_attn", h, o);

		x = rms_norm("ffn_norm", h, vector(BLK("ffn_norm"), width), eps, 0);
		weight router = declare_weight(BLK("ffn_gate_inp"), (shape){{width, count}}, RESIDENT, F32);
		value shares, ids = route(linear("router", x, router, "", 1), used, "softmax", 1, &shares);
		bank b = gated_bank(i, count, width, hidden, BLK("ffn_gate_exps"), BLK("ffn_up_exps"), BLK("ffn_down_exps"));
		h = add("h", h, experts("moe", x, ids, shares, b));
	}
	head_block();
	value x = rms_norm("norm", h, vector("output_norm.weight", width), eps, 0);
	linear("logits", x, matrix("output.weight", width, tokens), "", 0);
}
