#include "grammar/tool_format.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/check.h"

namespace baltoro {
namespace {

using Expr = GrammarBuilder::Expr;

constexpr int64_t kCallsMax = 32;
constexpr int64_t kCallsMin = 4;
constexpr int64_t kIndexDigitsMax = 4;
constexpr int64_t kBranchesMax = 1024;  // calls times tools

Expr SequenceOf(GrammarBuilder& builder, std::initializer_list<Expr> parts) {
  return builder.Sequence(std::span(parts.begin(), parts.size()));
}

Expr RuleOf(GrammarBuilder& builder, std::string name, Expr body) {
  const GrammarBuilder::Rule rule = builder.DeclareRule(std::move(name));
  builder.DefineRule(rule, body);
  return builder.Call(rule);
}

struct Tool {
  Expr name, rest;
};

Expr CallOf(GrammarBuilder& builder,
            const ToolFormat& format,
            const std::vector<Tool>& tools,
            Expr index) {
  std::vector<Expr> branches;
  for (const Tool& tool : tools) {
    branches.push_back(SequenceOf(builder, {tool.name, index, tool.rest}));
  }
  return SequenceOf(builder, {builder.Token(format.marks.call_begin), builder.Literal("functions."),
                              builder.Choice(branches)});
}

Expr Calls(GrammarBuilder& builder, const ToolFormat& format) {
  std::vector<Tool> tools;
  for (const CallableTool& tool : format.tools) {
    // Rules, so that a call of each index costs a few states and not the schema.
    const Expr rest = SequenceOf(builder, {builder.Token(format.marks.argument_begin),
                                           tool.arguments, builder.Token(format.marks.call_end)});
    tools.push_back({RuleOf(builder, "name of " + tool.name, builder.Literal(tool.name)),
                     RuleOf(builder, "arguments of " + tool.name, rest)});
  }
  const int64_t count = format.max_calls;
  if (!format.first_index) {
    const Expr digit = builder.Bytes('0', '9');
    const Expr index =
        SequenceOf(builder, {builder.Literal(":"), builder.Repeat(digit, 1, kIndexDigitsMax)});
    return builder.Repeat(CallOf(builder, format, tools, index), 1, count);
  }
  // From the last to the first: each says its own index.
  Expr calls = builder.Empty();
  for (int64_t i = count; i-- > 0;) {
    const Expr index = builder.Literal(":" + std::to_string(*format.first_index + i));
    const Expr call = CallOf(builder, format, tools, index);
    calls = SequenceOf(builder, {call, i + 1 == count ? calls : builder.Optional(calls)});
  }
  return calls;
}

}  // namespace

int64_t MaxNumberedToolCalls(size_t tools) {
  BT_CHECK(tools > 0);
  return std::clamp(kBranchesMax / static_cast<int64_t>(tools), kCallsMin, kCallsMax);
}

GrammarBuilder::Expr AddToolFormat(GrammarBuilder& builder, const ToolFormat& format) {
  BT_CHECK(!format.tools.empty());
  const Expr section =
      SequenceOf(builder, {builder.Token(format.marks.section_begin), Calls(builder, format),
                           builder.Token(format.marks.section_end)});
  if (format.required) return section;
  if (format.text) {
    const std::array<Expr, 2> either = {section, *format.text};
    return builder.Choice(either);
  }
  const Expr text = builder.Repeat(builder.AnyText(), 0, GrammarBuilder::kUnbounded);
  return SequenceOf(builder, {text, builder.Optional(section)});
}

}  // namespace baltoro
