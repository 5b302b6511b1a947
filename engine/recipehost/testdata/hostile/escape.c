// Refuses the file with a message that would clear the terminal, and that is not UTF-8.
#include "recipe.h"
EXPORT(bigmoe_plan) void bigmoe_plan(void) { fail(3, "\033[2J\033]0;owned\007\xff\xfe\nroot#", 21); }
