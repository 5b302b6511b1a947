// Takes all the memory there is, uses it, and wants more.
#include "recipe.h"
EXPORT(bigmoe_plan) void bigmoe_plan(void) {
	for (;;) {
		int32_t page = (int32_t)__builtin_wasm_memory_grow(0, 1);
		if (page < 0)
			__builtin_trap();
		*(volatile char *)(page << 16) = 1;
	}
}
