#pragma once

// Makes the grammar of an answer: from the form that a client asked for and the tools it declared.
// Grammars are kept, because clients send the same ones again and again.

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "grammar/compile_budget.h"
#include "grammar/grammar.h"
#include "grammar/tool_format.h"
#include "server/output_form.h"
#include "text/tokenizer.h"

namespace baltoro {

// The tools of a request as far as the answer's form depends on them.
struct ToolUse {
  const Json* tools = nullptr;            // the request's list, checked
  std::string named = {};                 // the only one that may be called, and once; empty: any
  std::vector<std::string> allowed = {};  // those that may be called; empty: all
  bool must_call = false;
  bool parallel = true;
  std::optional<int64_t> first_index = std::nullopt;  // ToolFormat::first_index
};

// What a grammar is made of.
struct FormSpec {
  struct Tool {
    std::string name;
    std::string path;  // of its schema in the request
    Json parameters;   // a schema
    bool strict = false;
  };

  std::string key;  // equal keys, equal grammars
  OutputForm form;
  std::vector<Tool> tools;
  bool must_call = false;
  bool parallel = true;
  std::optional<int64_t> first_index;

  static FormSpec Of(OutputForm form);
  static FormSpec Of(OutputForm form, const ToolUse& use);
  // The request's field that an error of Compile is about.
  std::string ParamOf(std::string_view message) const;
};

struct CompiledForm {
  Grammar grammar;
  // What the grammar does not enforce: the path of a schema's keyword, and the keyword. Only of
  // tools that are not strict.
  std::vector<std::string> unchecked;
};

struct FormCacheLimits {
  size_t entries = 256;
  size_t bytes = size_t{64} << 20;
};

// Any thread may call any function at any time.
class FormCompiler {
 public:
  // `tokenizer` names the marks of tool calls; it is not kept. `cost` bounds each Compile.
  explicit FormCompiler(const Tokenizer& tokenizer,
                        const FormCacheLimits& limits = {},
                        const CompileLimits& cost = {});

  // False: the vocabulary has no marks of tool calls, and specs must have no tools.
  bool knows_tools() const { return marks_.has_value(); }
  // The tokens that tool calls are written with; empty if the vocabulary lacks one of them.
  std::vector<TokenId> tool_marks() const;
  // Null if it was never compiled, or is forgotten.
  std::shared_ptr<const CompiledForm> Find(const FormSpec& spec);
  // May take up to two seconds. Errors are the request's fault and begin with the path of the field
  // at fault.
  Result<std::shared_ptr<const CompiledForm>> Compile(const FormSpec& spec);

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const CompiledForm> form;
    size_t bytes = 0;
  };

  void Tell(const std::vector<std::string>& unchecked);
  // The form that is kept under the key: this one, or an earlier one.
  std::shared_ptr<const CompiledForm> Keep(const std::string& key,
                                           std::shared_ptr<const CompiledForm> form);

  std::optional<ToolMarks> marks_;
  const FormCacheLimits limits_;
  const CompileLimits cost_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // the latest used first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> by_key_;  // keys lie in entries_
  size_t bytes_ = 0;
  std::unordered_set<std::string> told_;  // lines of the log
};

}  // namespace baltoro
