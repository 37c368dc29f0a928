#pragma once

// The grammar of an answer that may call tools, in the model's own format:
//
//   text <|tool_calls_section_begin|>
//     ( <|tool_call_begin|> functions.NAME:INDEX <|tool_call_argument_begin|> ARGUMENTS
//       <|tool_call_end|> )+
//   <|tool_calls_section_end|>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "grammar/grammar_builder.h"
#include "request/request.h"

namespace baltoro {

struct ToolMarks {
  TokenId section_begin = 0, section_end = 0;
  TokenId call_begin = 0, argument_begin = 0, call_end = 0;
};

struct CallableTool {
  std::string name;
  GrammarBuilder::Expr arguments{};
};

struct ToolFormat {
  ToolMarks marks = {};
  std::vector<CallableTool> tools = {};  // at least one; equal names are alternatives
  // The first call's INDEX, each further one has the next; none: each has any number. A grammar
  // that does not depend on the conversation is compiled once for all its turns, and its masks are
  // kept, so whoever gives calls their ids afterwards (EventParserOptions::first_call_index) leaves
  // it out.
  std::optional<int64_t> first_index = std::nullopt;
  int64_t max_calls = 1;  // at least 1; more cost states
  bool required = false;  // the answer is a section and nothing in front of it
  // What the answer is when no tool is called; none: any text, which a section may follow.
  std::optional<GrammarBuilder::Expr> text = std::nullopt;
};

// With a first_index each further call costs states for each tool: how many are reasonable.
int64_t MaxNumberedToolCalls(size_t tools);

GrammarBuilder::Expr AddToolFormat(GrammarBuilder& builder, const ToolFormat& format);

}  // namespace baltoro
