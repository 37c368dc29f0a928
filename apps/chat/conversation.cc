#include "chat/conversation.h"

#include <utility>

#include "base/utf8.h"
#include "chat/private_file.h"

namespace baltoro {

Conversation::Conversation(const ChatOptions& options, std::string model)
    : options_(options),
      model_(std::move(model)),
      system_(options.system),
      thinking_(options.thinking) {}

Status Conversation::Ask(const std::string& text, const std::vector<std::string>& pictures) {
  if (!IsValidUtf8(text)) return InvalidArgument("the question is no UTF-8 text");
  Json content = text;
  if (!pictures.empty()) {
    content = Json::array();
    for (const std::string& url : pictures) {
      content.push_back({{"type", "image_url"}, {"image_url", {{"url", url}}}});
    }
    content.push_back({{"type", "text"}, {"text", text}});
  }
  messages_.push_back({{"role", "user"}, {"content", std::move(content)}});
  return {};
}

void Conversation::Answer(const std::string& content, const std::string& reasoning) {
  messages_.push_back(
      {{"role", "assistant"}, {"content", content}, {"reasoning_content", reasoning}});
}

void Conversation::DropQuestion() {
  messages_.erase(messages_.size() - 1);
}

void Conversation::Clear() {
  messages_ = Json::array();
}

Status Conversation::SetSystem(const std::string& text) {
  if (!IsValidUtf8(text)) return InvalidArgument("the system prompt is no UTF-8 text");
  system_ = text;
  return {};
}

Json Conversation::Messages() const {
  Json out = Json::array();
  if (!system_.empty()) out.push_back({{"role", "system"}, {"content", system_}});
  for (const Json& message : messages_) out.push_back(message);
  return out;
}

Json Conversation::Request() const {
  Json body = {{"model", model_},
               {"messages", Messages()},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}},
               {"chat_template_kwargs", {{"thinking", thinking_}}}};
  if (options_.temperature) body["temperature"] = *options_.temperature;
  if (options_.max_tokens) body["max_tokens"] = *options_.max_tokens;
  return body;
}

Status Conversation::Save(const std::string& path) const {
  const Json saved = {{"model", model_}, {"messages", Messages()}};
  return CreatePrivate(path, saved.dump(1) + "\n");
}

}  // namespace baltoro
