// Uses tail calls, which could go on for ever on a small stack.
// flags: -mtail-call
#include "recipe.h"
static void (*volatile next)(int32_t);
static void down(int32_t n) { __attribute__((musttail)) return next(n + 1); }
EXPORT(bigmoe_plan) void bigmoe_plan(void) {
	next = down;
	down(0);
}
