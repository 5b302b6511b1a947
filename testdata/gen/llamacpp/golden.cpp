// Writes what llama.cpp makes of a prompt in the form that `bigmoe recipe check` compares with (docs/tutorial-recipe.md):
//
//	golden MODEL.gguf TOKENS "PROMPT" >MODEL.json
//
// TOKENS is how many of the most likely ones to go on with. Written for llama.cpp v0.4.0; where LLAMA is its source tree and LIB
// the folder of its libraries:
//
//	c++ -O2 -ILLAMA/include -ILLAMA/ggml/include golden.cpp -o golden -LLIB -lllama -lggml -lggml-base -Wl,-rpath,LIB
//
// Libraries that load their CPU back end at run time look for it in the folder that GGML_DIR names. One thread, flash attention
// and repacking off, a 32-bit key-value cache: the most exact it can do. For models whose weights are not quantised; activations
// are rounded before products with those that are.
#include "ggml-backend.h"
#include "llama.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

static void die(const char *what) {
	fprintf(stderr, "golden: %s\n", what);
	exit(1);
}

static llama_token best(const float *logits, int vocabulary) {
	return llama_token(std::max_element(logits, logits + vocabulary) - logits);
}

// position prints the log-sum-exp of the logits and the eight highest.
static void position(const float *logits, int vocabulary) {
	std::vector<int> order(vocabulary);
	std::iota(order.begin(), order.end(), 0);
	int top = std::min(8, vocabulary);
	std::partial_sort(order.begin(), order.begin() + top, order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
	double sum = 0, highest = logits[order[0]];
	for (int i = 0; i < vocabulary; i++)
		sum += std::exp(logits[i] - highest);
	printf("{\"lse\":%.9g,\"top\":[", highest + std::log(sum));
	for (int i = 0; i < top; i++)
		printf("%s[%d,%.9g]", i ? "," : "", order[i], logits[order[i]]);
	printf("]}");
}

int main(int argc, char **argv) {
	if (argc != 4)
		die("usage: golden MODEL.gguf TOKENS PROMPT");
	int more = atoi(argv[2]);
	std::string prompt = argv[3];
	llama_log_set([](ggml_log_level level, const char *text, void *) { if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr); }, nullptr);
	if (const char *dir = getenv("GGML_DIR"))
		ggml_backend_load_all_from_path(dir);
	llama_model_params mp = llama_model_default_params();
	mp.use_extra_bufts = false;
	mp.n_gpu_layers = 0;
	llama_model *model = llama_model_load_from_file(argv[1], mp);
	if (!model)
		die("cannot load the model");
	const llama_vocab *vocab = llama_model_get_vocab(model);
	int vocabulary = llama_vocab_n_tokens(vocab);

	std::vector<llama_token> ids(prompt.size() + 8);
	int n = llama_tokenize(vocab, prompt.data(), int(prompt.size()), ids.data(), int(ids.size()), true, true);
	if (n <= 0)
		die("no tokens");
	ids.resize(n);
	llama_context_params cp = llama_context_default_params();
	cp.n_ctx = cp.n_batch = cp.n_ubatch = n + more + 1;
	cp.n_threads = cp.n_threads_batch = 1;
	cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
	cp.type_k = cp.type_v = GGML_TYPE_F32;
	llama_context *ctx = llama_init_from_model(model, cp);
	if (!ctx)
		die("no context");
	llama_batch batch = llama_batch_init(n, 0, 1);
	batch.n_tokens = n;
	for (int i = 0; i < n; i++) {
		batch.token[i] = ids[i];
		batch.pos[i] = i;
		batch.n_seq_id[i] = 1;
		batch.seq_id[i][0] = 0;
		batch.logits[i] = 1;
	}
	if (llama_decode(ctx, batch))
		die("cannot evaluate the prompt");

	printf("{\"prompt\":{\"ids\":[");
	for (int i = 0; i < n; i++)
		printf("%s%d", i ? "," : "", ids[i]);
	const float *last = llama_get_logits_ith(ctx, n - 1);
	double square = 0;
	for (int i = 0; i < vocabulary; i++)
		square += double(last[i]) * last[i];
	printf("]},\n\"tolerance\":{\"f32\":{\"logit_abs\":%.3g}},\n\"runs\":{\"f32\":{\"positions\":[", 1e-4 * std::sqrt(square / vocabulary));
	for (int i = 0; i < n; i++) {
		printf("%s", i ? "," : "");
		position(llama_get_logits_ith(ctx, i), vocabulary);
	}
	printf("],\n\"final_logits\":[");
	for (int i = 0; i < vocabulary; i++)
		printf("%s%.9g", i ? "," : "", last[i]);
	printf("],\n\"greedy\":{\"ids\":[");
	for (int i = 0; i < more; i++) {
		llama_token next = best(last, vocabulary);
		printf("%s%d", i ? "," : "", next);
		if (llama_decode(ctx, llama_batch_get_one(&next, 1)))
			die("cannot evaluate a token");
		last = llama_get_logits_ith(ctx, 0);
	}
	printf("]}}}}\n");
}
