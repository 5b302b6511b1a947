// Uses instructions of the threads proposal, without shared memory.
// flags: -matomics
#include "recipe.h"
static int32_t word;
EXPORT(bigmoe_plan) void bigmoe_plan(void) { __atomic_fetch_add(&word, 1, __ATOMIC_SEQ_CST); }
