//! Recipe for NAME models: describes a file of this architecture as a plan, see docs/tutorial-recipe.md of bigmoe.
//!
//! It starts as a plain mixture of experts: attention with rotary positions, then the experts, each with a norm before
//! and the residual around. Change what your architecture does differently.

mod bigmoe;
use bigmoe::*;

recipe!("NAME", "1", build);

fn build(b: &mut Builder) {
    // Keys are given without their prefix "NAME.". Each getter ends the recipe with a message when the key is missing or
    // out of range.
    let layers = b.uint("block_count", 1, MAX_LAYERS);
    let context = b.uint("context_length", 1, MAX_CONTEXT);
    let width = b.uint("embedding_length", 1, MAX_WIDTH);
    let heads = b.uint("attention.head_count", 1, MAX_COUNT);
    let kv_heads = b.uint_or("attention.head_count_kv", heads, 1, MAX_COUNT);
    let head_dim = b.uint_or("attention.key_length", width / heads, 1, MAX_COUNT);
    let eps = b.float("attention.layer_norm_rms_epsilon", 1e-20, 1.0);
    let experts = b.uint("expert_count", 1, MAX_COUNT);
    let used = b.uint("expert_used_count", 1, experts);
    let hidden = b.uint("expert_feed_forward_length", 1, MAX_WIDTH);
    let vocabulary = b.vocabulary();
    if heads % kv_heads != 0 {
        refuse(CORRUPT, format!("NAME.attention.head_count {heads} is not a multiple of attention.head_count_kv {kv_heads}"))
    }
    b.describe(layers, width, vocabulary, context, experts, used);
    let rope = b.rope_scaling(head_dim, context);
    let (q_width, kv_width) = (heads * head_dim, kv_heads * head_dim);

    b.embedding();
    let table = b.rows("token_embd.weight", width, vocabulary);
    let mut h = b.embed("h", &table);
    for i in 0..layers {
        b.layer(i);
        let blk = |name: &str| format!("blk.{i}.{name}.weight");

        let w = b.weight(&blk("attn_norm"), &[width]);
        let x = b.rms_norm("attn_norm", &h, &w, eps, 0);
        let w = b.weight(&blk("attn_q"), &[width, q_width]);
        let q = b.linear("q", &x, &w);
        let w = b.weight(&blk("attn_k"), &[width, kv_width]);
        let k = b.linear("k", &x, &w);
        let w = b.weight(&blk("attn_v"), &[width, kv_width]);
        let v = b.linear("v", &x, &w);
        let q = b.rope("q_rope", &q, head_dim, &rope);
        let k = b.rope("k_rope", &k, head_dim, &rope);
        let cache = b.kv("kv", kv_width, kv_width, 0);
        let o = b.attention("attn", [&q, &k, &v], &cache, [heads, kv_heads, head_dim], 1.0 / (head_dim as f64).sqrt());
        let w = b.weight(&blk("attn_output"), &[q_width, width]);
        let o = b.linear("attn_out", &o, &w);
        h = b.add("h_attn", &h, &o);

        let w = b.weight(&blk("ffn_norm"), &[width]);
        let x = b.rms_norm("ffn_norm", &h, &w, eps, 0);
        let w = b.weight_f32(&blk("ffn_gate_inp"), &[width, experts]);
        let router = b.linear_exact("router", &x, &w);
        let [ids, weights] = b.route(&router, used, "softmax", true);
        let bank = b.gated_bank(i, experts, width, hidden, &blk("ffn_gate_exps"), &blk("ffn_up_exps"), &blk("ffn_down_exps"));
        let m = b.experts("moe", &x, &ids, &weights, &bank);
        h = b.add("h", &h, &m);
    }
    b.head();
    let w = b.weight("output_norm.weight", &[width]);
    let x = b.rms_norm("norm", &h, &w, eps, 0);
    let w = b.weight("output.weight", &[width, vocabulary]);
    b.linear("logits", &x, &w);
}
