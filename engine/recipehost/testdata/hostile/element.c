// Reads beyond the end of an array.
#include "recipe.h"
EXPORT(bigmoe_plan) void bigmoe_plan(void) {
	char buf[8];
	meta_text(meta_find("tokenizer.ggml.tokens", 21), 1 << 30, buf, sizeof buf);
}
