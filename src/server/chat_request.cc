#include "server/chat_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace baltoro {
namespace {

constexpr size_t kMessagesMax = 4096;
constexpr size_t kPartsMax = 1024;
constexpr size_t kToolsMax = 128;
constexpr size_t kToolBytesMax = 256 * 1024;
constexpr std::array<std::string_view, 6> kRoles = {"system",    "developer", "user",
                                                    "assistant", "tool",      "function"};

bool IsMedia(const Json& part) {
  static constexpr std::array<std::string_view, 8> kMedia = {
      "image",     "image_url", "input_image", "video",
      "video_url", "audio_url", "input_audio", "image_embeds"};
  const auto type = part.find("type");
  return type != part.end() && type->is_string() &&
         std::find(kMedia.begin(), kMedia.end(), type->get_ref<const std::string&>()) !=
             kMedia.end();
}

// Checks one message; fills `why` with what is wrong, for a client to read.
bool CheckContent(const Json& message, size_t& parts, std::string& why) {
  const auto content = message.find("content");
  if (content == message.end() || content->is_null() || content->is_string()) return true;
  if (!content->is_array()) {
    why = "content must be a string, null or a list of parts";
    return false;
  }
  for (const Json& part : *content) {
    if (++parts > kPartsMax) {
      why = fmt::format("more than {} content parts", kPartsMax);
      return false;
    }
    if (part.is_string()) continue;
    if (part.is_object() && IsMedia(part)) {
      why = "this model reads text only: image, video and audio parts are not available yet";
      return false;
    }
    const bool text = part.is_object() && part.contains("text") && part["text"].is_string();
    if (!text) {
      why = "a content part must be {\"type\": \"text\", \"text\": \"...\"}";
      return false;
    }
  }
  return true;
}

bool CheckToolCalls(Json& message, std::string& why) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end()) return true;
  if (calls->is_null() || (calls->is_array() && calls->empty())) {
    message.erase("tool_calls");
    return true;
  }
  if (!calls->is_array()) {
    why = "tool_calls must be a list";
    return false;
  }
  for (const Json& call : *calls) {
    const bool shaped =
        call.is_object() && call.contains("function") && call["function"].is_object() &&
        call["function"].contains("name") && call["function"]["name"].is_string() &&
        call["function"].contains("arguments") && call.contains("id") && call["id"].is_string();
    if (!shaped) {
      why = "a tool call needs id, function.name and function.arguments";
      return false;
    }
  }
  return true;
}

// Upstream renders `reasoning_content`; clients send that or `reasoning`.
void UnifyReasoning(Json& message) {
  const auto reasoning = message.find("reasoning");
  if (reasoning != message.end() && reasoning->is_string() &&
      !message.contains("reasoning_content")) {
    message["reasoning_content"] = *reasoning;
  }
  const auto content = message.find("reasoning_content");
  if (content != message.end() && !content->is_string()) message.erase("reasoning_content");
}

void ReadMessages(FieldReader& reader, Json& out) {
  const Json* field = reader.Find("messages");
  if (field == nullptr) return reader.Fail("messages", "is required");
  if (!field->is_array() || field->empty())
    return reader.Fail("messages", "must be a list of at least one message");
  if (field->size() > kMessagesMax)
    return reader.Fail("messages", fmt::format("more than {} messages", kMessagesMax));
  out = *field;
  size_t parts = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    Json& message = out[i];
    const auto fail = [&](const std::string& why) {
      reader.Fail("messages", fmt::format("message {}: {}", i, why));
    };
    if (!message.is_object()) return fail("must be an object");
    const auto role = message.find("role");
    const bool known = role != message.end() && role->is_string() &&
                       std::find(kRoles.begin(), kRoles.end(),
                                 role->get_ref<const std::string&>()) != kRoles.end();
    if (!known) return fail("role must be one of system, developer, user, assistant, tool");
    if (message.contains("name") && !message["name"].is_string()) message.erase("name");
    std::string why;
    if (!CheckContent(message, parts, why)) return fail(why);
    if (!CheckToolCalls(message, why)) return fail(why);
    const bool says_something = message.contains("content") || message.contains("tool_calls");
    if (!says_something && *role != "assistant") return fail("content is required");
    if (!message.contains("content")) message["content"] = nullptr;
    if (*role == "tool" &&
        !(message.contains("tool_call_id") && message["tool_call_id"].is_string())) {
      return fail("a tool message needs tool_call_id");
    }
    UnifyReasoning(message);
  }
}

void ReadTools(FieldReader& reader, Json& out) {
  const Json* field = reader.Find("tools");
  if (field == nullptr) return;
  if (!field->is_array()) return reader.Fail("tools", "must be a list");
  if (field->size() > kToolsMax)
    return reader.Fail("tools", fmt::format("more than {} tools", kToolsMax));
  for (const Json& tool : *field) {
    const bool shaped = tool.is_object() && tool.contains("function") &&
                        tool["function"].is_object() && tool["function"].contains("name") &&
                        tool["function"]["name"].is_string() &&
                        !tool["function"]["name"].get_ref<const std::string&>().empty();
    if (!shaped)
      return reader.Fail(
          "tools", "each tool must be {\"type\": \"function\", \"function\": {\"name\": ...}}");
  }
  if (field->dump(-1, ' ', false, Json::error_handler_t::replace).size() > kToolBytesMax) {
    return reader.Fail("tools", fmt::format("more than {} bytes of declarations", kToolBytesMax));
  }
  if (!field->empty()) out = *field;
}

void ReadToolChoice(FieldReader& reader, ChatRequest& out) {
  out.tool_choice = out.tools.is_null() ? ToolChoice::kNone : ToolChoice::kAuto;
  const Json* field = reader.Find("tool_choice");
  if (field == nullptr) return;
  const std::string name = field->is_string() ? field->get<std::string>() : "";
  if (name == "none") {
    out.tool_choice = ToolChoice::kNone;
  } else if (name == "required" && out.tools.is_null()) {
    out.tool_choice = ToolChoice::kNone;
  } else if (name == "required" || field->is_object()) {
    reader.Fail(
        "tool_choice",
        "\"required\" and a named function are not available yet in this version; use \"auto\"");
  } else if (name == "auto") {
    if (out.tools.is_null()) reader.Fail("tool_choice", "\"auto\" needs tools");
  } else {
    reader.Fail("tool_choice", "must be \"none\", \"auto\", \"required\" or a function");
  }
}

// Every spelling of "think or not" becomes the one template variable, so that template and parser
// cannot disagree.
void ReadThinking(FieldReader& reader, ChatRequest& out) {
  const auto set = [&](bool thinking) { out.template_kwargs["thinking"] = thinking; };
  if (const Json* effort = reader.Find("reasoning_effort"); effort != nullptr) {
    static constexpr std::array<std::string_view, 6> kEfforts = {"none",   "minimal", "low",
                                                                 "medium", "high",    "xhigh"};
    const std::string value = effort->is_string() ? effort->get<std::string>() : "";
    if (std::find(kEfforts.begin(), kEfforts.end(), value) == kEfforts.end()) {
      return reader.Fail("reasoning_effort", "must be none, minimal, low, medium, high or xhigh");
    }
    if (value == "none") {
      out.include_reasoning = false;
      set(false);
    }
  }
  if (const Json* thinking = reader.Find("thinking"); thinking != nullptr) {
    const bool typed =
        thinking->is_object() && thinking->contains("type") && (*thinking)["type"].is_string();
    const std::string type = typed ? (*thinking)["type"].get<std::string>() : "";
    if (type != "enabled" && type != "disabled") {
      return reader.Fail("thinking", "must be {\"type\": \"enabled\"} or {\"type\": \"disabled\"}");
    }
    set(type == "enabled");
  }
  const Json* kwargs = reader.Find("chat_template_kwargs");
  if (kwargs == nullptr) return;
  if (!kwargs->is_object()) return reader.Fail("chat_template_kwargs", "must be an object");
  for (const auto& [key, value] : kwargs->items()) out.template_kwargs[key] = value;
  if (kwargs->contains("thinking") && !(*kwargs)["thinking"].is_boolean()) {
    reader.Fail("chat_template_kwargs", "thinking must be true or false");
  }
}

void ReadResponseFormat(FieldReader& reader) {
  const Json* format = reader.Find("response_format");
  if (format == nullptr) return;
  const bool typed =
      format->is_object() && format->contains("type") && (*format)["type"].is_string();
  if (!typed) return reader.Fail("response_format", "must be an object with a type");
  if ((*format)["type"] != "text") {
    reader.Fail("response_format", "only {\"type\": \"text\"} is available yet in this version");
  }
}

}  // namespace

void ReadConversation(FieldReader& reader, const Json& default_template_kwargs, ChatRequest& out) {
  out.template_kwargs =
      default_template_kwargs.is_object() ? default_template_kwargs : Json::object();
  ReadMessages(reader, out.messages);
  ReadTools(reader, out.tools);
  ReadThinking(reader, out);
  if (reader.Find("chat_template") != nullptr) {
    reader.Fail("chat_template", "a template of the request's own is not accepted");
  }
  reader.Bool("add_generation_prompt", out.add_generation_prompt);
  reader.Bool("continue_final_message", out.continue_final_message);
  if (out.continue_final_message) {
    if (reader.Find("add_generation_prompt") != nullptr && out.add_generation_prompt) {
      reader.Fail("continue_final_message", "cannot be combined with add_generation_prompt");
    }
    out.add_generation_prompt = false;
  }
}

std::optional<ApiError> ReadChatRequest(const Json& body,
                                        const GenerationLimits& limits,
                                        const Json& default_template_kwargs,
                                        ChatRequest& out) {
  if (!body.is_object()) return BadRequest("", "the body must be a JSON object");
  FieldReader reader(body);
  ReadConversation(reader, default_template_kwargs, out);
  ReadToolChoice(reader, out);
  reader.Bool("parallel_tool_calls", out.parallel_tool_calls);
  ReadResponseFormat(reader);
  ReadGenerationFields(reader, limits, out.fields);
  reader.Integer("max_tokens", out.fields.max_tokens, 1, INT32_MAX);
  reader.Integer("max_completion_tokens", out.fields.max_tokens, 1, INT32_MAX);
  reader.Bool("include_reasoning", out.include_reasoning);

  bool logprobs = false;
  reader.Bool("logprobs", logprobs);
  int64_t top = 0;
  ReadLogprobCount(reader, "top_logprobs", limits, top);
  if (top > 0 && !logprobs) reader.Fail("top_logprobs", "needs logprobs: true");
  if (logprobs) out.fields.sampling.logprobs = static_cast<int32_t>(top);
  return reader.error();
}

}  // namespace baltoro
