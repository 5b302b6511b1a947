// Qwen3 mixture-of-experts models in C: the same plan as recipes/qwen3moe makes, for files without YaRN and fused tensors.
#include "../../../../sdk/recipe/c/bigmoe.h"

RECIPE("qwen3moe", "1")

static void build(void) {
	int64_t layers = uint_key("block_count", 1, MAX_LAYERS);
	int64_t context = uint_key("context_length", 1, MAX_CONTEXT);
	int64_t width = uint_key("embedding_length", 1, MAX_WIDTH);
	int64_t heads = uint_key("attention.head_count", 1, MAX_COUNT);
	int64_t kv_heads = uint_key_or("attention.head_count_kv", heads, 1, MAX_COUNT);
	int64_t head_dim = uint_key_or("attention.key_length", width / heads, 1, MAX_COUNT);
	double eps = float_key("attention.layer_norm_rms_epsilon", 1e-20, 1);
	if (has_key("rope.scaling.type") || has_key("rope.scaling.factor") || has_key("rope.scale_linear"))
		refuse(UNSUPPORTED, "this recipe does not know scaled positions");
	double base = float_key_or("rope.freq_base", 10000, 1e-3, 1e12);
	int64_t count = uint_key("expert_count", 1, MAX_COUNT);
	int64_t used = layer_key("expert_used_count", 0, layers, 1, count);
	int64_t dense = uint_key_or("feed_forward_length", 0, 0, MAX_WIDTH);
	int64_t tokens = vocabulary();
	if (heads % kv_heads)
		refuse(CORRUPT, "qwen3moe.attention.head_count %d is not a multiple of attention.head_count_kv %d", heads, kv_heads);
	describe(layers, width, tokens, context, count, used);

	embedding_block();
	// Without a head of its own, the model reuses the embedding table, which then stays in memory.
	int tied = !has_tensor("output.weight");
	weight table = declare_weight("token_embd.weight", (shape){{width, tokens}}, tied ? RESIDENT : BY_ROW, ANY_TYPE);
	weight head = tied ? table : matrix("output.weight", width, tokens);
	value h = embed("h", table);
	for (int64_t i = 0; i < layers; i++) {
		layer_block(i);
#define BLK(name) format("blk.%d." name ".weight", i)
		int64_t top_k = layer_key("expert_used_count", i, layers, 1, count), hidden = dense / used;
		if (has_key("expert_feed_forward_length"))
			hidden = layer_key("expert_feed_forward_length", i, layers, 1, MAX_WIDTH);
		value x = rms_norm("attn_norm", h, vector(BLK("attn_norm"), width), eps, 0);
		weight wq = matrix(BLK("attn_q"), width, heads * head_dim), wk = matrix(BLK("attn_k"), width, kv_heads * head_dim);
		weight wv = matrix(BLK("attn_v"), width, kv_heads * head_dim);
		value q = linear("q", x, wq, "", 0), k = linear("k", x, wk, "", 0), v = linear("v", x, wv, "", 0);
		q = rms_norm("q_norm", q, vector(BLK("attn_q_norm"), head_dim), eps, head_dim);
		k = rms_norm("k_norm", k, vector(BLK("attn_k_norm"), head_dim), eps, head_dim);
		q = rope("q_rope", q, head_dim, head_dim, base);
		k = rope("k_rope", k, head_dim, head_dim, base);
		state cache = kv("kv", kv_heads * head_dim, kv_heads * head_dim, 0);
		value o = attention("attn", q, k, v, cache, heads, kv_heads, head_dim, 1 / __builtin_sqrt(head_dim));
		o = linear("attn_out", o, matrix(BLK("attn_output"), heads * head_dim, width), "", 0);
		h = add("h_attn", h, o);

		x = rms_norm("ffn_norm", h, vector(BLK("ffn_norm"), width), eps, 0);
		weight router = declare_weight(BLK("ffn_gate_inp"), (shape){{width, count}}, RESIDENT, F32);
		value shares, ids = route(linear("router", x, router, "", 1), top_k, "softmax", 1, &shares);
		bank b = gated_bank(i, count, width, hidden, BLK("ffn_gate_exps"), BLK("ffn_up_exps"), BLK("ffn_down_exps"));
		h = add("h", h, experts("moe", x, ids, shares, b));
	}
	head_block();
	value x = rms_norm("norm", h, vector("output_norm.weight", width), eps, 0);
	linear("logits", x, head, "", 0);
}
