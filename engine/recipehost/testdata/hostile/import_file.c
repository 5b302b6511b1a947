// Wants to open files.
#include "recipe.h"
__attribute__((import_module("wasi_snapshot_preview1"), import_name("path_open"))) int32_t path_open(
	int32_t, int32_t, const char *, int32_t, int32_t, int64_t, int64_t, int32_t, int32_t *);
EXPORT(bigmoe_plan) void bigmoe_plan(void) {
	int32_t fd;
	path_open(3, 0, "etc/passwd", 10, 0, -1, -1, 0, &fd);
}
