#pragma once

// What a tool's schema says of the arguments as a whole.

#include "base/json.h"

namespace baltoro {

// True if the schema as it stands allows no object at all: such a tool could never be called.
// References are not followed, so false may be wrong; true never is.
bool NeverAnObject(const Json& schema);

}  // namespace baltoro
