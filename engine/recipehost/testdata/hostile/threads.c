// Wants memory that it can share with others.
// flags: -matomics -mbulk-memory -Wl,--shared-memory -Wl,--max-memory=131072
#include "recipe.h"
EXPORT(bigmoe_plan) void bigmoe_plan(void) {}
