// Returns a plan whose only op reads a weight that was never declared.
#include "recipe.h"
static const char bytes[] =
	"\x08\x01"                         // schema 1
	"\x1a\x0cinconsistent"             // recipe
	"\x2a\x04\x18\x02\x20\x08"         // model: vocabulary 2, context 8
	"\x4a\x16\x08\x01"                 // block: embedding
	"\x1a\x12\x0a\x05" "embed\x1a\x06" "absent\x32\x01h" // op
	"\x4a\x02\x08\x03";                // block: head
EXPORT(bigmoe_plan) void bigmoe_plan(void) { plan(bytes, sizeof bytes - 1); }
