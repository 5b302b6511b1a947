// Has no bigmoe_plan.
#include "recipe.h"
