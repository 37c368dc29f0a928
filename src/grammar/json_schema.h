#pragma once

// JSON Schema (Draft 2020-12, and the older spellings of the same) as grammars: every text that is
// matched is valid against the schema.
//
// Not every valid text is matched. Keys that `properties` does not list are written only where the
// schema says so (additionalProperties, patternProperties); numbers and white space are bounded
// (json_text.h, json_number.h); strings that must match a pattern, and keys, have one spelling for
// each character.

#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "grammar/grammar_builder.h"
#include "grammar/json_text.h"

namespace baltoro {

struct JsonSchemaOptions {
  // What cannot be enforced is an error; otherwise it is listed, and the rest is enforced.
  bool strict = false;
  // How messages call the schema: "tools[0].function.parameters".
  std::string name;
  // Shared by the schemas of one builder; null: made for this one.
  JsonText* text = nullptr;
  // The value is all of its grammar: whether anything matches shows when that is built, and need
  // not be tried before.
  bool alone = false;
  // Of the grammar that is tried to see whether anything matches; without a budget of their own,
  // that of the builder is charged.
  GrammarLimits limits = {};
};

// One value of the schema. kInvalidArgument names path and keyword: an unsupported one when strict,
// and always a reference that leads nowhere, a keyword whose value has no meaning, and a schema
// under which nothing is valid. `unchecked` gets "path: keyword" for each demand that is not
// enforced, at most 64 and a last one that counts the others, with paths of at most 200 bytes; it
// may be null.
Result<GrammarBuilder::Expr> AddJsonSchema(GrammarBuilder& builder,
                                           const Json& schema,
                                           const JsonSchemaOptions& options,
                                           std::vector<std::string>* unchecked);

}  // namespace baltoro
