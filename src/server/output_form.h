#pragma once

// What form a client wants the answer's text to have: response_format, structured_outputs and the
// older guided_* fields, in one struct.

#include <string>
#include <vector>

#include "base/json.h"
#include "server/field_reader.h"

namespace baltoro {

enum class OutputFormKind { kFree, kJsonObject, kJsonSchema, kRegex, kChoice, kGrammar };

struct OutputForm {
  OutputFormKind kind = OutputFormKind::kFree;
  Json schema;                       // kJsonSchema: an object or a truth value
  std::string text;                  // kRegex: the pattern; kGrammar: its rules
  std::vector<std::string> choices;  // kChoice: at least one
  // Where it stands in the request, to begin an error with: "response_format.json_schema.schema".
  std::string path;

  bool operator==(const OutputForm&) const = default;
};

// Reads all of those fields. At most one of them may ask for a form; {"type": "text"} asks for
// none.
void ReadOutputForm(FieldReader& reader, OutputForm& out);

}  // namespace baltoro
