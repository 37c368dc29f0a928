#include "verify/reply.h"

#include <fmt/format.h>

namespace baltoro {
namespace {

const Json* Member(const Json& object, std::string_view name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(std::string(name));
  return found == object.end() ? nullptr : &*found;
}

std::string TextOf(const Json& object, std::string_view name) {
  const Json* text = Member(object, name);
  return text != nullptr && text->is_string() ? text->get<std::string>() : "";
}

int64_t CountOf(const Json* object, std::string_view name) {
  const Json* count = object == nullptr ? nullptr : Member(*object, name);
  return count != nullptr && count->is_number_integer() ? count->get<int64_t>() : -1;
}

// Empty where it is no list of numbers.
std::vector<int64_t> IdsOf(const Json* list) {
  std::vector<int64_t> ids;
  if (list == nullptr || !list->is_array()) return ids;
  for (const Json& id : *list) {
    if (!id.is_number_integer()) return {};
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

double NumberOf(const Json& object, std::string_view name) {
  const Json* number = Member(object, name);
  return number != nullptr && number->is_number() ? number->get<double>() : 0;
}

std::vector<TokenChance> ChancesOf(const Json& choice) {
  std::vector<TokenChance> out;
  const Json* logprobs = Member(choice, "logprobs");
  const Json* content = logprobs == nullptr ? nullptr : Member(*logprobs, "content");
  if (content == nullptr || !content->is_array()) return out;
  for (const Json& token : *content) {
    TokenChance chance{.text = TextOf(token, "token"), .logprob = NumberOf(token, "logprob")};
    if (const Json* top = Member(token, "top_logprobs"); top != nullptr && top->is_array()) {
      for (const Json& other : *top) {
        chance.top.emplace_back(TextOf(other, "token"), NumberOf(other, "logprob"));
      }
    }
    out.push_back(std::move(chance));
  }
  return out;
}

}  // namespace

Result<ModelReply> ReadReply(const Json& answer) {
  const Json* choices = Member(answer, "choices");
  if (choices == nullptr || !choices->is_array() || choices->empty()) {
    return InvalidArgument("the answer has no choices");
  }
  const Json& choice = choices->front();
  const Json* message = Member(choice, "message");
  if (message == nullptr || !message->is_object()) {
    return InvalidArgument("the answer's choice has no message");
  }
  ModelReply out;
  out.content = TextOf(*message, "content");
  out.thinking = TextOf(*message, "reasoning");
  if (out.thinking.empty()) out.thinking = TextOf(*message, "reasoning_content");
  out.finish_reason = TextOf(choice, "finish_reason");
  if (const Json* calls = Member(*message, "tool_calls"); calls != nullptr && calls->is_array()) {
    for (const Json& call : *calls) {
      const Json* function = Member(call, "function");
      if (function == nullptr) return InvalidArgument("a tool call of the answer has no function");
      out.calls.push_back({TextOf(*function, "name"), TextOf(*function, "arguments")});
    }
  }
  out.chances = ChancesOf(choice);
  out.ids = IdsOf(Member(choice, "token_ids"));
  out.prompt_ids = IdsOf(Member(answer, "prompt_token_ids"));
  const Json* usage = Member(answer, "usage");
  out.prompt_tokens = CountOf(usage, "prompt_tokens");
  out.tokens = CountOf(usage, "completion_tokens");
  return out;
}

Result<std::vector<double>> ReadEcho(const Json& answer, size_t count) {
  const Json* choices = Member(answer, "choices");
  const bool has = choices != nullptr && choices->is_array() && !choices->empty();
  const Json* logprobs = has ? Member(choices->front(), "logprobs") : nullptr;
  const Json* values = logprobs == nullptr ? nullptr : Member(*logprobs, "token_logprobs");
  if (values == nullptr || !values->is_array()) {
    return InvalidArgument("the completion has no token_logprobs");
  }
  if (values->size() < count) {
    return InvalidArgument(
        fmt::format("the completion has {} log-probabilities for a prompt of "
                    "{} tokens: it leaves out the prompt's",
                    values->size(), count));
  }
  std::vector<double> out(count);
  for (size_t i = 1; i < count; ++i) {
    const Json& value = (*values)[i];
    if (!value.is_number()) return InvalidArgument("a log-probability is no number");
    out[i] = value.get<double>();
  }
  return out;
}

Result<std::vector<int64_t>> ReadTokens(const Json& answer) {
  std::vector<int64_t> ids = IdsOf(Member(answer, "tokens"));
  if (ids.empty()) return InvalidArgument("the answer of /tokenize has no tokens");
  return ids;
}

}  // namespace baltoro
