#pragma once

// Whether a value that is known when the schema is read is valid: members of enums, constants.

#include <map>

#include "grammar/json_schema_context.h"
#include "grammar/json_value_set.h"

namespace baltoro {

// Ordered: the verdict on two demands together is the smaller one.
enum class Verdict { kNo, kUnknown, kYes };

class SchemaValidator {
 public:
  explicit SchemaValidator(SchemaContext& context) : context_(context) {}

  // kUnknown where a keyword is not understood, or the answer would take long.
  Verdict Check(const Json& schema, const Json& value) { return Check(schema, value, 0); }
  Verdict CheckAll(const std::vector<const Json*>& schemas, const Json& value);
  // Verdict on a regular expression's match of a text.
  Verdict Search(const std::string& pattern, const std::string& text);

 private:
  Verdict Check(const Json& schema, const Json& value, int depth);
  Verdict Keyword(
      const Json& schema, const std::string& key, const Json& demand, const Json& value, int depth);
  Verdict Combined(
      const Json& schema, const std::string& key, const Json& demand, const Json& value, int depth);
  Verdict Number(const Json& schema, const std::string& key, const Json& demand, const Json& value);
  Verdict String(const std::string& key, const Json& demand, const Json& value);
  Verdict Array(
      const Json& schema, const std::string& key, const Json& demand, const Json& value, int depth);
  Verdict Object(
      const Json& schema, const std::string& key, const Json& demand, const Json& value, int depth);
  Verdict Additional(const Json& schema, const Json& demand, const Json& value, int depth);

  SchemaContext& context_;
  std::map<const Json*, JsonValueSet> listed_;  // the values of each list that was asked about
};

// The set of types that the value of `type` names; false if it names one that does not exist.
bool TypesOf(const Json& demand, uint8_t& types);

// Keywords that say nothing about which values are valid.
bool IsAnnotation(std::string_view keyword);

// Characters of a valid UTF-8 text.
int64_t CountCharacters(std::string_view text);

}  // namespace baltoro
