// Recurses without end.
#include "recipe.h"
static volatile int depth;
static __attribute__((noinline)) int deeper(int n) {
	depth++;
	return deeper(n + 1) * 3 + n;
}
EXPORT(bigmoe_plan) void bigmoe_plan(void) { deeper(0); }
