// Wants a function of a module that nobody offers.
#include "recipe.h"
__attribute__((import_module("env"), import_name("system"))) int32_t system(const char *);
EXPORT(bigmoe_plan) void bigmoe_plan(void) { system("true"); }
