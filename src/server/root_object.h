#pragma once

// What a schema says of the value as a whole: arguments of a call, and the answer of a
// response_format, are objects.

#include "base/json.h"

namespace baltoro {

// True if the schema as it stands allows no object at all: no value could then satisfy both. Of
// references only those by place ("#/$defs/x") are followed, and not very many, so false may be
// wrong; true never is.
bool NeverAnObject(const Json& schema);

}  // namespace baltoro
