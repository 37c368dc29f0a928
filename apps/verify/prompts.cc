#include "verify/prompts.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <set>

#include "base/gzip.h"

namespace baltoro {
namespace {

constexpr size_t kPromptsMax = 10'000;
constexpr int kTopLogprobs = 5;

Result<VerifyPrompt> ParseLine(Json line) {
  VerifyPrompt out;
  if (!line.is_object()) return InvalidArgument("not a JSON object");
  if (line.contains("custom_id") || (line.contains("body") && line.contains("url"))) {
    const Json url = line.value("url", Json("/v1/chat/completions"));
    if (url != Json("/v1/chat/completions")) {
      return InvalidArgument("\"url\" is not /v1/chat/completions, which is all that is compared");
    }
    if (!line.contains("body") || !line["body"].is_object()) {
      return InvalidArgument("a line of the batch format needs \"body\", an object");
    }
    const Json id = line.value("custom_id", Json(""));
    out.id = id.is_string() ? id.get<std::string>() : id.dump();
    out.body = line["body"];
  } else {
    out.body = std::move(line);
  }
  const auto messages = out.body.find("messages");
  if (messages == out.body.end() || !messages->is_array() || messages->empty()) {
    return InvalidArgument("the body needs \"messages\", a list that is not empty");
  }
  return out;
}

}  // namespace

Result<std::vector<VerifyPrompt>> ParsePrompts(std::string_view text, const std::string& path) {
  std::vector<VerifyPrompt> out;
  std::set<std::string> ids;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const auto bad = [&](const std::string& why) {
      return InvalidArgument(fmt::format("--prompts {}:{}: {}", path, number, why));
    };
    Result<Json> parsed = ParseJson(line);
    if (!parsed.ok()) return bad(parsed.status().message());
    Result<VerifyPrompt> prompt = ParseLine(std::move(parsed).value());
    if (!prompt.ok()) return bad(prompt.status().message());
    if (prompt.value().id.empty()) prompt.value().id = fmt::format("line {}", number);
    if (!ids.insert(prompt.value().id).second) {
      return bad(fmt::format("\"custom_id\" {} is there twice", prompt.value().id));
    }
    if (out.size() == kPromptsMax) {
      return bad(fmt::format("more than {} prompts; split the file", kPromptsMax));
    }
    out.push_back(std::move(prompt).value());
  }
  if (out.empty()) return InvalidArgument(fmt::format("--prompts {}: no prompt is in it", path));
  return out;
}

Result<std::vector<VerifyPrompt>> ReadPrompts(const std::string& path) {
  BT_ASSIGN_OR_RETURN(const std::string text, ReadPlainOrGzip(path, kTextBytesMax, "--prompts"));
  return ParsePrompts(text, path);
}

Result<std::vector<VerifyPrompt>> ChoosePrompts(std::vector<VerifyPrompt> prompts,
                                                const std::vector<std::string>& patterns) {
  if (patterns.empty()) return prompts;
  std::vector<bool> chosen(prompts.size());
  for (const std::string& pattern : patterns) {
    bool fits = false;
    for (size_t i = 0; i < prompts.size(); ++i) {
      if (fnmatch(pattern.c_str(), prompts[i].id.c_str(), 0) != 0) continue;
      chosen[i] = fits = true;
    }
    if (fits) continue;
    return InvalidArgument(
        fmt::format("--only {}: fits no prompt's name; the first of {} is \"{}\"", pattern,
                    prompts.size(), prompts.front().id));
  }
  size_t at = 0;
  std::erase_if(prompts, [&](const VerifyPrompt&) { return !chosen[at++]; });
  return prompts;
}

Json BodyToSend(const Json& body, const SentAs& as) {
  Json out = body;
  for (const char* field : {"model", "stream", "stream_options", "n", "seed", "logprobs",
                            "top_logprobs", "temperature", "top_p", "top_k", "min_p"}) {
    out.erase(field);
  }
  out["model"] = as.model;
  out["temperature"] = 0;
  // Under the name that the client used.
  const char* const length = body.contains("max_tokens") ? "max_tokens" : "max_completion_tokens";
  const auto given = body.find(length);
  int64_t most = as.max_tokens;
  if (given != body.end() && given->is_number_integer()) {
    most = std::min(most, given->get<int64_t>());
  }
  out[given == body.end() ? "max_tokens" : length] = most;
  if (as.logprobs) {
    out["logprobs"] = true;
    out["top_logprobs"] = kTopLogprobs;
  }
  if (as.token_ids) out["return_token_ids"] = true;
  if (as.streamed) {
    out["stream"] = true;
    out["stream_options"] = {{"include_usage", true}};
  }
  return out;
}

Json BodyToTokenize(const Json& body, const std::string& model) {
  Json out = {{"model", model}};
  for (const char* field : {"messages", "tools", "chat_template", "chat_template_kwargs",
                            "add_generation_prompt", "continue_final_message"}) {
    if (body.contains(field)) out[field] = body[field];
  }
  return out;
}

}  // namespace baltoro
