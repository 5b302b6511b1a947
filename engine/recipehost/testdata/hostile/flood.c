// Prints without end.
#include "recipe.h"
__attribute__((import_module("wasi_snapshot_preview1"), import_name("fd_write"))) int32_t fd_write(int32_t, const void *, int32_t, int32_t *);
static volatile char page[65536];
EXPORT(bigmoe_plan) void bigmoe_plan(void) {
	struct {
		const char *text;
		int32_t size;
	} out = {page, sizeof page};
	int32_t written;
	for (int i = 0; i < sizeof page; i++)
		page[i] = 'x';
	for (;;)
		fd_write(2, &out, 1, &written);
}
