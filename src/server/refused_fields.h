#pragma once

// Fields of the APIs that would change what an answer is, and that nothing here acts on. To ignore
// one would answer another question, so each is refused with a sentence of its own, unless its
// value asks for nothing: null, false, an empty text, list or object. Fields that change nothing
// are ignored; docs/api.md names them.

#include "server/field_reader.h"

namespace baltoro {

// Those of any generating endpoint, looked for in a request's own body.
void RefuseFields(FieldReader& reader);

// One field of an API's own.
void RefuseField(FieldReader& reader, std::string_view name, const char* why);

}  // namespace baltoro
