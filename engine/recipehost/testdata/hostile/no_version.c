// Says nothing about its version.
#include <stdint.h>
__attribute__((export_name("bigmoe_plan"))) void bigmoe_plan(void) {}
