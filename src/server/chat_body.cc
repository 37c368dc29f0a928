#include "server/chat_body.h"

#include "server/field_reader.h"

#include <array>
#include <utility>

namespace baltoro {
namespace {

constexpr std::array<std::string_view, 19> kExtensions = {"seed",
                                                          "min_p",
                                                          "presence_penalty",
                                                          "frequency_penalty",
                                                          "repetition_penalty",
                                                          "logit_bias",
                                                          "allowed_token_ids",
                                                          "bad_words",
                                                          "stop_token_ids",
                                                          "min_tokens",
                                                          "ignore_eos",
                                                          "skip_special_tokens",
                                                          "truncate_prompt_tokens",
                                                          "chat_template_kwargs",
                                                          "structured_outputs",
                                                          "constrain_tools",
                                                          "cache_salt",
                                                          "priority",
                                                          "request_id"};

bool IsNameChar(char c) {
  return c == '_' || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

}  // namespace

Json& ChatMessages::Assistant() {
  if (assistant_.is_null()) assistant_ = {{"role", "assistant"}, {"content", nullptr}};
  return assistant_;
}

void ChatMessages::EndMessage() {
  if (assistant_.is_null()) return;
  // Nothing said and nothing called: the turn stays, as an empty text.
  if (assistant_["content"].is_null() && !assistant_.contains("tool_calls")) {
    assistant_["content"] = "";
  }
  messages_.push_back(std::exchange(assistant_, Json()));
}

void ChatMessages::Add(std::string_view role, Json content) {
  EndMessage();
  messages_.push_back({{"role", role}, {"content", std::move(content)}});
}

void ChatMessages::AddAssistantText(std::string_view text) {
  if (!assistant_.is_null() && assistant_.contains("tool_calls")) EndMessage();
  Json& content = Assistant()["content"];
  if (content.is_null()) content = "";
  content.get_ref<std::string&>() += text;
}

void ChatMessages::AddReasoning(std::string_view text) {
  const bool spoke = !assistant_.is_null() &&
                     (!assistant_["content"].is_null() || assistant_.contains("tool_calls"));
  if (spoke) EndMessage();
  Json& reasoning = Assistant()["reasoning_content"];
  if (reasoning.is_null()) reasoning = "";
  reasoning.get_ref<std::string&>() += text;
}

void ChatMessages::AddToolCall(std::string_view id, std::string_view name, Json arguments) {
  Json& message = Assistant();
  if (!message.contains("tool_calls")) message["tool_calls"] = Json::array();
  message["tool_calls"].push_back(
      {{"id", id},
       {"type", "function"},
       {"function", {{"name", name}, {"arguments", std::move(arguments)}}}});
}

void ChatMessages::AddToolResult(std::string_view id, Json content) {
  EndMessage();
  messages_.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(content)}});
}

Json ChatMessages::Take() {
  EndMessage();
  return std::exchange(messages_, Json::array());
}

Json TextPart(std::string_view text) {
  return {{"type", "text"}, {"text", text}};
}

Json ContentOf(Json parts) {
  if (parts.empty()) return "";
  if (parts.size() > 1 || !parts[0].contains("text")) return parts;
  return std::move(parts[0]["text"]);
}

std::optional<ApiError> AddFunctionTool(const Json& tool,
                                        const std::string& place,
                                        const std::string& schema_key,
                                        bool schema_required,
                                        Json& tools) {
  FieldReader fields(tool);
  const Json* name = fields.Find("name");
  if (name == nullptr || !name->is_string() || name->get_ref<const std::string&>().empty()) {
    return BadPlace(place + ".name", "must be a string that is not empty");
  }
  const Json* schema = fields.Find(schema_key);
  if (schema == nullptr ? schema_required : !schema->is_object()) {
    return BadPlace(place + "." + schema_key, "must be an object");
  }
  const Json* description = fields.Find("description");
  if (description != nullptr && !description->is_string()) {
    return BadPlace(place + ".description", "must be a string");
  }
  const Json* strict = fields.Find("strict");
  if (strict != nullptr && !strict->is_boolean()) {
    return BadPlace(place + ".strict", "must be true or false");
  }
  Json function = {{"name", *name}};
  if (description != nullptr) function["description"] = *description;
  if (schema != nullptr) function["parameters"] = *schema;
  if (strict != nullptr) function["strict"] = *strict;
  // Not by push_back: see ResponsesRequest.
  if (tools.is_null()) tools = Json::array();
  tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  return std::nullopt;
}

void CopyExtensions(const Json& body, Json& chat) {
  for (const std::string_view name : kExtensions) {
    if (const auto found = body.find(name); found != body.end()) chat[std::string(name)] = *found;
  }
}

std::span<const std::string_view> ExtensionFields() {
  return kExtensions;
}

ApiError WithNames(ApiError error, std::initializer_list<FieldName> names) {
  // Also of what is inside the field: "response_format.json_schema.schema".
  const auto rename = [](const FieldName& name, std::string& text) {
    const size_t size = name.chat.size();
    const bool whole =
        text.starts_with(name.chat) && (text.size() == size || !IsNameChar(text[size]));
    if (whole) text.replace(0, size, name.here);
    return whole;
  };
  // The messages of a translated conversation have other numbers than what the client sent.
  if (error.param && error.param->starts_with("messages[")) {
    if (const size_t why = error.message.find(": "); why != std::string::npos) {
      error.message.replace(0, why, "messages");
    }
    error.param = "messages";
  }
  for (const FieldName& name : names) {
    if (!error.param || !rename(name, *error.param)) continue;
    (void)rename(name, error.message);
    break;
  }
  return error;
}

ApiError BadPlace(std::string place, std::string_view why) {
  std::string message = place + ": ";
  message += why;
  return BadRequest(place, std::move(message));
}

ApiError BadPlace(const Status& status) {
  const std::string& message = status.message();
  return BadRequest(message.substr(0, message.find(": ")), message);
}

const std::string* StringMember(const Json& object, std::string_view name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string()) return nullptr;
  return &found->get_ref<const std::string&>();
}

}  // namespace baltoro
