#include <fmt/format.h>

#include <chrono>
#include <memory>

#include "counted/work_case.h"
#include "grammar/constraint_factory.h"
#include "grammar/output_constraint.h"
#include "grammar/token_trie.h"
#include "server/form_compiler.h"

namespace baltoro::work {
namespace {

const std::shared_ptr<const TokenTrie>& Trie() {
  static const auto kTrie = TokenTrie::Make(Words(), Words().vocab_size());
  return kTrie;
}

std::shared_ptr<FormCompiler> NewCompiler() {
  // Under valgrind the limit in time would be met by what is quick.
  return std::make_shared<FormCompiler>(Words(), FormCacheLimits{},
                                        CompileLimits{.time = std::chrono::hours(1)});
}

// From the form to the first mask: the door's part and the engine's.
Work Prepare(FormSpec spec) {
  return
      [spec = std::move(spec), compiler = NewCompiler(), factory = MakeConstraintFactory(Trie())] {
        OutputConstraint constraint;
        constraint.grammar = Must(compiler->Compile(spec))->grammar;
        Request request;
        request.constraint = SharedBytes(constraint.Serialise());
        const auto output = Must(factory->Make(request));
        std::vector<uint32_t> mask(Trie()->words(), ~uint32_t{0});
        output->FillMask({}, mask);
        BT_CHECK(output->error().ok());
      };
}

OutputForm Schema(Json schema) {
  return {OutputFormKind::kJsonSchema, std::move(schema), "", {}, "schema"};
}
OutputForm Regex(std::string pattern) {
  return {OutputFormKind::kRegex, nullptr, std::move(pattern), {}, "regex"};
}

WorkCase FormCase(std::string name, size_t size, std::function<OutputForm(size_t)> write) {
  return {std::move(name), size, [write](size_t n) { return Prepare(FormSpec::Of(write(n))); }};
}

std::string Word(size_t i) {
  return fmt::format("value_{}", i * 7919 % 10007);
}

Json Object(size_t properties, bool required) {
  Json out = {{"type", "object"}, {"properties", Json::object()}, {"additionalProperties", false}};
  if (required) out["required"] = Json::array();
  for (size_t i = 0; i < properties; ++i) {
    out["properties"][Word(i)] = {{"type", i % 2 == 0 ? "string" : "integer"}};
    if (required) out["required"].push_back(Word(i));
  }
  return out;
}

Json Enum(size_t values) {
  Json out = {{"enum", Json::array()}};
  for (size_t i = 0; i < values; ++i) out["enum"].push_back(Word(i));
  return out;
}

// Each definition uses the next one.
Json Defs(size_t count) {
  Json out = {{"$ref", "#/$defs/d0"}, {"$defs", Json::object()}};
  for (size_t i = 0; i < count; ++i) {
    Json own = {{"type", "object"},
                {"properties", {{"name", {{"type", "string"}}}}},
                {"additionalProperties", false}};
    if (i + 1 < count) own["properties"]["next"] = {{"$ref", fmt::format("#/$defs/d{}", i + 1)}};
    out["$defs"][fmt::format("d{}", i)] = own;
  }
  return out;
}

// All definitions are used side by side.
Json WideDefs(size_t count) {
  Json out = {{"anyOf", Json::array()}, {"$defs", Json::object()}};
  for (size_t i = 0; i < count; ++i) {
    out["anyOf"].push_back({{"$ref", fmt::format("#/$defs/d{}", i)}});
    out["$defs"][fmt::format("d{}", i)] = {{"type", "object"},
                                           {"properties", {{Word(i), {{"type", "string"}}}}},
                                           {"required", {Word(i)}},
                                           {"additionalProperties", false}};
  }
  return out;
}

Json Nested(size_t depth) {
  Json out = {{"type", "string"}};
  for (size_t i = 0; i < depth; ++i) {
    out = {{"type", "object"},
           {"properties", {{"in", out}}},
           {"required", {"in"}},
           {"additionalProperties", false}};
  }
  return out;
}

Work PrepareTools(size_t size) {
  Json tools = Json::array();
  for (size_t i = 0; i < size; ++i) {
    tools.push_back({{"type", "function"},
                     {"function", {{"name", "tool_" + Word(i)}, {"parameters", Object(3, true)}}}});
  }
  return Prepare(FormSpec::Of({}, {.tools = &tools}));
}

OutputForm Choices(size_t size) {
  OutputForm form{OutputFormKind::kChoice, nullptr, "", {}, "choice"};
  for (size_t i = 0; i < size; ++i) form.choices.push_back(Word(i));
  return form;
}

OutputForm Rules(size_t size) {
  std::string text = "root ::= r0\n";
  for (size_t i = 0; i < size; ++i) {
    text += fmt::format("r{} ::= \"{}\" r{} | \"x\"\n", i, Word(i), (i + 1) % size);
  }
  return {OutputFormKind::kGrammar, nullptr, text, {}, "grammar"};
}

// A mask and a token, again and again, along what the grammar allows.
Work Follow(const OutputForm& form, const std::string& text) {
  OutputConstraint constraint;
  constraint.grammar = Must(NewCompiler()->Compile(FormSpec::Of(form)))->grammar;
  Request request;
  request.constraint = SharedBytes(constraint.Serialise());
  const auto factory = MakeConstraintFactory(Trie());
  return [ids = Words().Encode(text), request, factory] {
    const auto output = Must(factory->Make(request));
    for (const TokenId id : ids) {
      std::vector<uint32_t> mask(Trie()->words(), ~uint32_t{0});
      output->FillMask({}, mask);
      BT_CHECK(HasBit(mask, id) && output->Accept(id));
    }
  };
}

std::string NumberList(size_t size) {
  return '[' + Listed(size, [](size_t) { return std::string("12"); }) + ']';
}

}  // namespace

std::vector<WorkCase> GrammarCases() {
  const OutputForm any_list = Schema({{"type", "array"}, {"items", {{"type", "integer"}}}});
  const OutputForm any_string = Schema({{"type", "string"}});
  return {
      FormCase("schema_properties", 30, [](size_t n) { return Schema(Object(n, true)); }),
      FormCase("schema_optional", 30, [](size_t n) { return Schema(Object(n, false)); }),
      FormCase("schema_enum", 200, [](size_t n) { return Schema(Enum(n)); }),
      FormCase("schema_enum_of_numbers", 200,
               [](size_t n) {
                 Json schema = {{"enum", Json::array()}};
                 for (size_t i = 0; i < n; ++i) schema["enum"].push_back(3 * i);
                 return Schema(schema);
               }),
      FormCase("schema_two_enums", 200,
               [](size_t n) {
                 return Schema({{"allOf", {Enum(n), Enum(n + 1)}}});
               }),
      FormCase("schema_not_enum", 50,
               [](size_t n) {
                 return Schema({{"type", "string"}, {"not", Enum(n)}});
               }),
      FormCase("schema_defs", 10, [](size_t n) { return Schema(Defs(n)); }),
      FormCase("schema_any_of_defs", 10, [](size_t n) { return Schema(WideDefs(n)); }),
      FormCase("schema_nested", 5, [](size_t n) { return Schema(Nested(n)); }),
      FormCase("regex_literal", 100, [](size_t n) { return Regex(Times(n, "abcde ")); }),
      FormCase("regex_alternatives", 50,
               [](size_t n) { return Regex("start" + Times(n, "|value [0-9]") + "|end"); }),
      FormCase("regex_classes", 50, [](size_t n) { return Regex(Times(n, "[a-z]+é?,")); }),
      FormCase("regex_counted", 50, [](size_t n) { return Regex(Times(n, "[0-9]{3,5}-")); }),
      FormCase("choices", 100, Choices),
      FormCase("grammar_rules", 50, Rules),
      {"tool_grammar", 4, PrepareTools},
      {"mask_list", 200, [=](size_t n) { return Follow(any_list, NumberList(n)); }},
      {"mask_string", 400, [=](size_t n) { return Follow(any_string, '"' + Times(n, "a word ")); }},
  };
}

}  // namespace baltoro::work
