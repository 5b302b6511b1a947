// Wants to accept connections.
#include "recipe.h"
__attribute__((import_module("wasi_snapshot_preview1"), import_name("sock_accept"))) int32_t sock_accept(int32_t, int32_t, int32_t *);
EXPORT(bigmoe_plan) void bigmoe_plan(void) {
	int32_t fd;
	sock_accept(3, 0, &fd);
}
