//! Qwen3 mixture-of-experts models in Rust: the same plan as recipes/qwen3moe makes, for files without fused tensors.

#[path = "../../../../sdk/recipe/rust/bigmoe.rs"]
mod bigmoe;
use bigmoe::*;

recipe!("qwen3moe", "1", build);

fn build(b: &mut Builder) {
    let layers = b.uint("block_count", 1, MAX_LAYERS);
    let context = b.uint("context_length", 1, MAX_CONTEXT);
    let width = b.uint("embedding_length", 1, MAX_WIDTH);
    let heads = b.uint("attention.head_count", 1, MAX_COUNT);
    let kv_heads = b.uint_or("attention.head_count_kv", heads, 1, MAX_COUNT);
    let head_dim = b.uint_or("attention.key_length", width / heads, 1, MAX_COUNT);
    let eps = b.float("attention.layer_norm_rms_epsilon", 1e-20, 1.0);
    let experts = b.uint("expert_count", 1, MAX_COUNT);
    let used = b.per_layer("expert_used_count", layers, 1, experts);
    let dense = b.uint_or("feed_forward_length", 0, 0, MAX_WIDTH);
    let hidden = b.per_layer_or("expert_feed_forward_length", dense / used[0], layers, 1, MAX_WIDTH);
    let vocabulary = b.vocabulary();
    if heads % kv_heads != 0 {
        refuse(CORRUPT, format!("qwen3moe.attention.head_count {heads} is not a multiple of attention.head_count_kv {kv_heads}"))
    }
    b.describe(layers, width, vocabulary, context, experts, used[0]);
    let rope = b.rope_scaling(head_dim, context);
    let (q_width, kv_width) = (heads * head_dim, kv_heads * head_dim);

    b.embedding();
    // Without a head of its own, the model reuses the embedding table, which then stays in memory.
    let (table, head) = if b.has_tensor("output.weight") {
        (b.rows("token_embd.weight", width, vocabulary), b.weight("output.weight", &[width, vocabulary]))
    } else {
        let table = b.weight("token_embd.weight", &[width, vocabulary]);
        (table.clone(), table)
    };
    let mut h = b.embed("h", &table);
    for i in 0..layers {
        b.layer(i);
        let blk = |name: &str| format!("blk.{i}.{name}.weight");

        let w = b.weight(&blk("attn_norm"), &[width]);
        let x = b.rms_norm("attn_norm", &h, &w, eps, 0);
        let wq = b.weight(&blk("attn_q"), &[width, q_width]);
        let wk = b.weight(&blk("attn_k"), &[width, kv_width]);
        let wv = b.weight(&blk("attn_v"), &[width, kv_width]);
        let (q, k, v) = (b.linear("q", &x, &wq), b.linear("k", &x, &wk), b.linear("v", &x, &wv));
        let w = b.weight(&blk("attn_q_norm"), &[head_dim]);
        let q = b.rms_norm("q_norm", &q, &w, eps, head_dim);
        let w = b.weight(&blk("attn_k_norm"), &[head_dim]);
        let k = b.rms_norm("k_norm", &k, &w, eps, head_dim);
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
        let [ids, weights] = b.route(&router, used[i as usize], "softmax", true);
        let bank = b.gated_bank(i, experts, width, hidden[i as usize], &blk("ffn_gate_exps"), &blk("ffn_up_exps"), &blk("ffn_down_exps"));
        let m = b.experts("moe", &x, &ids, &weights, &bank);
        h = b.add("h", &h, &m);
    }
    b.head();
    let w = b.weight("output_norm.weight", &[width]);
    let x = b.rms_norm("norm", &h, &w, eps, 0);
    b.linear("logits", &x, &head);
}
