#include "server/form_compiler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "grammar/grammar_builder.h"
#include "grammar/grammar_text.h"
#include "grammar/json_schema.h"
#include "grammar/json_text.h"
#include "grammar/regex.h"

namespace baltoro {
namespace {

using Expr = GrammarBuilder::Expr;

constexpr int64_t kCallsMax = 64;       // of one answer
constexpr size_t kToldMax = 8;          // in one line of the log
constexpr size_t kToldBytesMax = 1024;  // of that line
constexpr size_t kToldLinesMax = 1000;  // remembered, so as not to be told twice
constexpr size_t kUncheckedMax = 64;    // of one form; what is beyond is counted

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Arguments are always an object, also where the schema forgets to say so.
Json ParametersOf(const Json& function) {
  const auto found = function.find("parameters");
  if (found == function.end() || found->is_null()) {
    return {{"type", "object"}, {"properties", Json::object()}, {"additionalProperties", false}};
  }
  Json parameters = *found;
  if (!parameters.contains("type")) parameters["type"] = "object";
  return parameters;
}

// A schema's own errors do not know where in the request it stands.
Status Placed(const std::string& path, const Status& status) {
  const std::string& message = status.message();
  const bool placed = message.starts_with(path);
  const char* between = message.starts_with(".") || message.starts_with("[") ? "" : ": ";
  return InvalidArgument(placed ? message : path + between + message);
}

std::optional<ToolMarks> MarksOf(const Tokenizer& tokenizer) {
  ToolMarks marks;
  const std::pair<TokenId*, const char*> wanted[] = {
      {&marks.section_begin, "<|tool_calls_section_begin|>"},
      {&marks.section_end, "<|tool_calls_section_end|>"},
      {&marks.call_begin, "<|tool_call_begin|>"},
      {&marks.argument_begin, "<|tool_call_argument_begin|>"},
      {&marks.call_end, "<|tool_call_end|>"}};
  for (const auto& [mark, name] : wanted) {
    const std::optional<TokenId> id = tokenizer.SpecialId(name);
    if (!id) return std::nullopt;
    *mark = *id;
  }
  return marks;
}

// What one grammar is made with.
struct Work {
  explicit Work(std::shared_ptr<CompileBudget> budget) : builder({.budget = std::move(budget)}) {}

  GrammarBuilder builder;
  JsonText text{builder};
  std::vector<std::string> unchecked;
};

Result<Expr> AddSchema(
    Work& work, const Json& schema, bool strict, bool alone, const std::string& path) {
  JsonSchemaOptions options;
  options.strict = strict;
  options.name = path;
  options.alone = alone;
  options.text = &work.text;
  return AddJsonSchema(work.builder, schema, options, &work.unchecked);
}

// The text of the answer, where its form is not free; `alone`: and nothing but it. Forms are always
// strict.
Result<Expr> AddForm(Work& work, const OutputForm& form, bool alone) {
  switch (form.kind) {
    case OutputFormKind::kJsonObject:
      return work.text.Object();
    case OutputFormKind::kJsonSchema:
      return AddSchema(work, form.schema, /*strict=*/true, alone, form.path);
    case OutputFormKind::kRegex: {
      auto expr = AddRegex(work.builder, form.text, {.anchored = true});
      if (!expr.ok()) return Placed(form.path, expr.status());
      return expr;
    }
    case OutputFormKind::kChoice:
      return AddChoice(work.builder, form.choices);
    case OutputFormKind::kGrammar: {
      const auto rule = AddGrammarText(work.builder, form.text);
      if (!rule.ok()) return Placed(form.path, rule.status());
      return work.builder.Call(rule.value());
    }
    case OutputFormKind::kFree:
      break;
  }
  return Status(Code::kInternal, "a form that is free has no grammar");
}

Result<Expr> AddAnswer(Work& work,
                       const FormSpec& spec,
                       const std::optional<ToolMarks>& marks,
                       bool any_arguments) {
  if (spec.tools.empty()) return AddForm(work, spec.form, /*alone=*/true);
  if (!marks) return Status(Code::kInternal, "the vocabulary has no marks of tool calls");
  ToolFormat format;
  format.marks = *marks;
  format.first_index = spec.first_index;
  const int64_t many = spec.first_index ? MaxNumberedToolCalls(spec.tools.size()) : kCallsMax;
  format.max_calls = spec.parallel ? many : 1;
  format.required = spec.must_call;
  for (const FormSpec::Tool& tool : spec.tools) {
    if (any_arguments && !tool.strict) {
      work.unchecked.push_back(tool.path + ": too large, with the other tools, for a grammar");
      format.tools.push_back({tool.name, work.text.Object()});
      continue;
    }
    BT_ASSIGN_OR_RETURN(const Expr arguments,
                        AddSchema(work, tool.parameters, tool.strict, /*alone=*/false, tool.path));
    format.tools.push_back({tool.name, arguments});
  }
  if (!spec.must_call && spec.form.kind != OutputFormKind::kFree) {
    BT_ASSIGN_OR_RETURN(format.text, AddForm(work, spec.form, /*alone=*/false));
  }
  return AddToolFormat(work.builder, format);
}

}  // namespace

FormSpec FormSpec::Of(OutputForm form) {
  FormSpec spec;
  spec.key = fmt::format("{}\n{}\n{}\n{}\n", static_cast<int>(form.kind), form.path,
                         Dump(form.schema), form.text);
  for (const std::string& choice : form.choices) {
    spec.key += fmt::format("{}:{}", choice.size(), choice);
  }
  spec.form = std::move(form);
  return spec;
}

FormSpec FormSpec::Of(OutputForm form, const ToolUse& use) {
  FormSpec spec = Of(std::move(form));
  spec.must_call = use.must_call;
  spec.parallel = use.parallel && use.named.empty();
  spec.first_index = use.first_index;
  spec.key += fmt::format("\n{}{}{}", spec.must_call, spec.parallel, use.first_index.value_or(-1));
  for (size_t i = 0; i < use.tools->size(); ++i) {
    const Json& function = (*use.tools)[i]["function"];
    Tool tool;
    tool.name = function["name"].get<std::string>();
    if (!use.named.empty() && tool.name != use.named) continue;
    if (!use.allowed.empty() && std::ranges::find(use.allowed, tool.name) == use.allowed.end()) {
      continue;
    }
    // Tools of one name are equal, or the door refused them: a second branch would add nothing.
    const auto same = [&](const Tool& other) { return other.name == tool.name; };
    if (std::any_of(spec.tools.begin(), spec.tools.end(), same)) continue;
    tool.path = fmt::format("tools[{}].function.parameters", i);
    tool.parameters = ParametersOf(function);
    const auto strict = function.find("strict");
    tool.strict = strict != function.end() && *strict == true;
    spec.key += fmt::format("\n{}\n{}\n{}{}", i, tool.name, tool.strict, Dump(tool.parameters));
    spec.tools.push_back(std::move(tool));
  }
  return spec;
}

std::string FormSpec::ParamOf(std::string_view message) const {
  if (form.path.empty() || message.starts_with("tools[")) return "tools";
  return form.path.substr(0, form.path.find('.'));
}

FormCompiler::FormCompiler(const Tokenizer& tokenizer,
                           const FormCacheLimits& limits,
                           const CompileLimits& cost)
    : marks_(MarksOf(tokenizer)), limits_(limits), cost_(cost) {}

std::shared_ptr<const CompiledForm> FormCompiler::Find(const FormSpec& spec) {
  const std::lock_guard lock(mutex_);
  const auto found = by_key_.find(spec.key);
  if (found == by_key_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return entries_.front().form;
}

Result<std::shared_ptr<const CompiledForm>> FormCompiler::Compile(const FormSpec& spec) {
  // Requests that waited for the same grammar find it made.
  if (auto known = Find(spec)) return known;
  const MonotonicClock clock;
  const Seconds start = clock.Now();
  auto compiled = std::make_shared<CompiledForm>();
  const auto budget = std::make_shared<CompileBudget>(cost_);  // of all that follows
  Result<Grammar> built = Status(Code::kInternal, "nothing was built");
  for (const bool any_arguments : {false, true}) {
    Work work(budget);
    BT_ASSIGN_OR_RETURN(const Expr answer, AddAnswer(work, spec, marks_, any_arguments));
    const GrammarBuilder::Rule root = work.builder.DeclareRule("answer");
    work.builder.DefineRule(root, answer);
    built = work.builder.Build(root);
    compiled->unchecked = std::move(work.unchecked);
    // What fails here, although each schema is sound, is too large together.
    if (built.ok() || spec.tools.empty()) break;
  }
  if (!built.ok()) return Placed(spec.tools.empty() ? spec.form.path : "tools", built.status());
  compiled->grammar = std::move(built).value();
  if (compiled->unchecked.size() > kUncheckedMax) {
    const size_t more = compiled->unchecked.size() - kUncheckedMax;
    compiled->unchecked.resize(kUncheckedMax);
    compiled->unchecked.push_back(fmt::format("and {} more", more));
  }
  Tell(compiled->unchecked);
  BT_LOG_LIMITED(Debug, "Compiled a grammar of {} states in {:.1f} ms",
                 compiled->grammar.num_states(), 1000 * (clock.Now() - start));
  return Keep(spec.key, std::move(compiled));
}

std::vector<TokenId> FormCompiler::tool_marks() const {
  if (!marks_) return {};
  return {marks_->section_begin, marks_->section_end, marks_->call_begin, marks_->argument_begin,
          marks_->call_end};
}

void FormCompiler::Tell(const std::vector<std::string>& unchecked) {
  if (unchecked.empty()) return;
  const size_t shown = std::min(unchecked.size(), kToldMax);
  const std::string more =
      shown < unchecked.size() ? fmt::format(" and {} more", unchecked.size() - shown) : "";
  std::string line =
      fmt::format("{}", fmt::join(unchecked.begin(), unchecked.begin() + shown, "; "));
  if (line.size() > kToldBytesMax) {
    size_t end = kToldBytesMax;
    while (end > 0 && (line[end] & 0xC0) == 0x80) --end;  // whole characters
    line = line.substr(0, end) + "...";
  }
  line += more;
  const std::lock_guard lock(mutex_);
  if (told_.size() >= kToldLinesMax) told_.clear();
  if (told_.insert(line).second) BT_LOG_LIMITED(Warning, "Not enforced by a grammar: {}", line);
}

std::shared_ptr<const CompiledForm> FormCompiler::Keep(const std::string& key,
                                                       std::shared_ptr<const CompiledForm> form) {
  size_t bytes = key.size() + static_cast<size_t>(form->grammar.num_bytes());
  for (const std::string& entry : form->unchecked) bytes += sizeof(entry) + entry.size();
  const std::lock_guard lock(mutex_);
  // Another thread may have made the same one meanwhile.
  if (const auto known = by_key_.find(key); known != by_key_.end()) return known->second->form;
  if (bytes > limits_.bytes) return form;
  entries_.push_front({key, form, bytes});
  by_key_.emplace(entries_.front().key, entries_.begin());
  bytes_ += bytes;
  while (entries_.size() > limits_.entries || bytes_ > limits_.bytes) {
    bytes_ -= entries_.back().bytes;
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
  return form;
}

}  // namespace baltoro
