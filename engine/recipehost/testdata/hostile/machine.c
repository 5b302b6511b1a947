// Looks for something that differs between machines: clock, random bytes, arguments, environment.
#include "recipe.h"
__attribute__((import_module("wasi_snapshot_preview1"), import_name("clock_time_get"))) int32_t clock_time_get(int32_t, int64_t, uint64_t *);
__attribute__((import_module("wasi_snapshot_preview1"), import_name("random_get"))) int32_t random_get(void *, int32_t);
__attribute__((import_module("wasi_snapshot_preview1"), import_name("args_sizes_get"))) int32_t args_sizes_get(int32_t *, int32_t *);
__attribute__((import_module("wasi_snapshot_preview1"), import_name("environ_sizes_get"))) int32_t environ_sizes_get(int32_t *, int32_t *);
EXPORT(bigmoe_plan) void bigmoe_plan(void) {
	uint64_t seen[2];
	int32_t sizes[4];
	char text[33];
	clock_time_get(0, 0, &seen[0]);
	random_get(&seen[1], 8);
	args_sizes_get(&sizes[0], &sizes[1]);
	environ_sizes_get(&sizes[2], &sizes[3]);
	for (int i = 0; i < 16; i++) {
		text[i] = "0123456789abcdef"[seen[i / 8] >> (8 * (i % 8)) & 15];
		text[16 + i] = "0123456789abcdef"[((char *)sizes)[i] & 15];
	}
	fail(1, text, 32);
}
