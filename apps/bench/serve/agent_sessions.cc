// Sessions of an agent: all begin with the same instructions and tools, and each prompt is the one
// before with what a tool, or at times the user, said since. What the model "said" in between is
// drawn as well, so that a run asks the same whatever the answers are.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "bench/serve/dataset_parts.h"
#include "bench/serve/random_text.h"

namespace baltoro {
namespace {

struct AgentTool {
  const char *name, *help, *argument;
};
constexpr AgentTool kTools[] = {
    {"read_file", "Reads a file of the project.", "path"},
    {"search", "Searches the project's files for a text.", "query"},
    {"run_command", "Runs a command in a shell and gives what it prints.", "command"},
    {"fetch_page", "Reads a page of the network.", "url"},
};
constexpr int64_t kUserEvery = 4;      // turns, the first among them, at which the user speaks
constexpr int64_t kSaidTokens = 24;    // of what the model said or called in between
constexpr int64_t kAroundTokens = 16;  // of the template, about, for each message

std::string ToolsJson() {
  Json tools = Json::array();
  for (const AgentTool& tool : kTools) {
    tools.push_back({{"type", "function"},
                     {"function",
                      {{"name", tool.name},
                       {"description", tool.help},
                       {"parameters",
                        {{"type", "object"},
                         {"properties", {{tool.argument, {{"type", "string"}}}}},
                         {"required", {tool.argument}}}}}}});
  }
  return tools.dump();
}

// Tokens of what all sessions begin with; without a template, about.
Result<int64_t> CountShared(const std::string& system, const Json& tools, const BenchText& text) {
  if (text.chat_template == nullptr) {
    return std::ssize(text.tokenizer->Encode(system)) +
           std::ssize(text.tokenizer->Encode(tools.dump()));
  }
  BT_ASSIGN_OR_RETURN(const Json messages, ParseJson("[" + system + "]"));
  BT_ASSIGN_OR_RETURN(const std::vector<TextSegment> prompt,
                      text.chat_template->Render({.messages = &messages, .tools = &tools}));
  return std::ssize(text.tokenizer->EncodeSegments(prompt));
}

// The messages from the answer before to the next request.
void AppendTurn(BenchSession& session,
                int64_t turn,
                int64_t tokens,
                const RandomText& words,
                std::mt19937_64& random) {
  std::string said, heard;
  words.Append(said, kSaidTokens, random);
  words.Append(heard, std::max<int64_t>(tokens, 1), random);
  std::string& out = session.text;
  if (turn % kUserEvery == 0) {
    if (turn > 0) {
      out += ',';
      AppendMessage(out, "assistant", said);
    }
    out += ',';
    return AppendMessage(out, "user", heard);
  }
  const AgentTool& tool = kTools[static_cast<size_t>(turn) % std::size(kTools)];
  const std::string id = fmt::format("functions.{}:{}", tool.name, turn);
  const Json call = {
      {"role", "assistant"},
      {"content", ""},
      {"tool_calls",
       {{{"id", id},
         {"type", "function"},
         {"function",
          {{"name", tool.name}, {"arguments", Json({{tool.argument, said.substr(1)}}).dump()}}}}}}};
  out +=
      fmt::format(",{},{{\"role\":\"tool\",\"tool_call_id\":\"{}\",\"content\":", call.dump(), id);
  AppendJsonString(out, heard);
  out += '}';
}

}  // namespace

Result<Dataset> BuildAgent(const DatasetOptions& options, const BenchText& text) {
  BT_ASSIGN_OR_RETURN(const RandomText words, RandomText::Create(*text.tokenizer));
  std::mt19937_64 random(options.seed);
  Dataset out;
  out.tools = ToolsJson();
  BT_ASSIGN_OR_RETURN(const Json tools, ParseJson(out.tools));
  std::string system;
  AppendMessage(system, "system", [&] {
    std::string instructions = "You work on a project with the tools that you have.";
    words.Append(instructions, options.agent_shared, random);
    return instructions;
  }());
  BT_ASSIGN_OR_RETURN(const int64_t shared, CountShared(system, tools, text));
  const double low = std::log(static_cast<double>(options.agent_context_min));
  const double high = std::log(static_cast<double>(options.agent_context_max));
  std::uniform_real_distribution<double> length(low, high);
  std::exponential_distribution<double> pause(1);
  uint64_t bytes = 0;
  for (int64_t left = options.prompts; left > 0;) {
    const int64_t turns = std::min(left, options.agent_turns);
    const auto context = static_cast<int64_t>(std::exp(length(random)));
    const int64_t each = (context - shared) / options.agent_turns - kSaidTokens - 2 * kAroundTokens;
    BenchSession session{.text = system, .turns = {}};
    int64_t tokens = shared;
    for (int64_t turn = 0; turn < turns; ++turn) {
      AppendTurn(session, turn, each, words, random);
      tokens += std::max<int64_t>(each, 1) + kSaidTokens + 2 * kAroundTokens;
      session.turns.push_back({.text_bytes = session.text.size(),
                               .prompt_tokens = tokens,
                               .output_tokens = options.agent_output,
                               .think = turn == 0 ? 0 : options.agent_think * pause(random)});
    }
    left -= turns;
    bytes += session.text.size();
    BT_RETURN_IF_ERROR(CheckBytes(static_cast<double>(bytes)));
    out.sessions.push_back(std::move(session));
  }
  return out;
}

}  // namespace baltoro
