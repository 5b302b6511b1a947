// Says something and leaves.
#include "recipe.h"
__attribute__((import_module("wasi_snapshot_preview1"), import_name("fd_write"))) int32_t fd_write(
	int32_t, const void *, int32_t, int32_t *);
__attribute__((import_module("wasi_snapshot_preview1"), import_name("proc_exit"))) void proc_exit(int32_t);
EXPORT(bigmoe_plan) void bigmoe_plan(void) {
	struct {
		const char *text;
		int32_t size;
	} out = {"good bye", 8};
	int32_t written;
	fd_write(2, &out, 1, &written);
	proc_exit(3);
}
