#include "client/eval_case.h"

namespace baltoro {
namespace {

std::string Stripped(const std::string& text) {
  constexpr const char* kBlank = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

// Name and arguments of each call; arguments that are no JSON stay as text and match nothing.
Json CallsOf(const Json& message) {
  Json calls = Json::array();
  for (const Json& call : message.value("tool_calls", Json::array())) {
    const std::string text = call["function"]["arguments"].get<std::string>();
    const Result<Json> arguments = ParseJson(text);
    calls.push_back({{"name", call["function"]["name"]},
                     {"arguments", arguments.ok() ? arguments.value() : Json(text)}});
  }
  return calls;
}

// Objects compare without regard to the order of keys.
bool SameCalls(const Json& got, const Json& want) {
  return nlohmann::json::parse(got.dump()) == nlohmann::json::parse(want.dump());
}

}  // namespace

Result<EvalCase> EvalCase::Parse(const Json& line) {
  EvalCase out;
  const bool shaped = line.is_object() && line.contains("id") && line.contains("task") &&
                      line.contains("messages") && line.contains("expect") &&
                      line["expect"].contains("kind");
  if (!shaped)
    return InvalidArgument("a case needs id, task, messages and expect.kind: " +
                           line.dump().substr(0, 120));
  out.id = line["id"].is_string() ? line["id"].get<std::string>() : line["id"].dump();
  out.task = line["task"].get<std::string>();
  out.tier = line.value("tier", "easy");
  out.thinking = line.value("thinking", true);
  out.messages = line["messages"];
  if (line.contains("tools")) out.tools = line["tools"];
  out.expect = line["expect"];
  out.max_tokens = line.value("max_tokens", int64_t{512});
  return out;
}

Json EvalCase::Request(const std::string& model, bool constrained) const {
  Json body = {{"model", model},
               {"messages", messages},
               {"temperature", 0},
               {"max_tokens", max_tokens},
               {"chat_template_kwargs", {{"thinking", thinking}}}};
  if (has_tools()) body["tools"] = tools;
  if (!constrained) body["constrain_tools"] = false;
  return body;
}

EvalVerdict EvalCase::Judge(const Json& answer) const {
  EvalVerdict verdict;
  const Json& choice = answer["choices"][0];
  const Json& message = choice["message"];
  const std::string content =
      message["content"].is_string() ? Stripped(message["content"].get<std::string>()) : "";
  const Json calls = CallsOf(message);
  const std::string kind = expect["kind"].get<std::string>();
  if (kind == "tool_calls") {
    verdict.right = SameCalls(calls, expect["calls"]);
  } else if (kind == "exact") {
    verdict.right = calls.empty() && content == Stripped(expect["text"].get<std::string>());
  } else {  // contains, text
    verdict.right =
        calls.empty() && content.find(expect["text"].get<std::string>()) != std::string::npos;
  }
  verdict.got = calls.empty() ? Json(content) : calls;
  if (choice["finish_reason"] == "length") verdict.note = "cut by max_tokens";
  return verdict;
}

}  // namespace baltoro
