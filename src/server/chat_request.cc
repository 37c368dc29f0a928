#include "server/chat_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/keyed_hash.h"
#include "base/log.h"
#include "server/chat_body.h"
#include "server/given_video.h"
#include "server/refused_fields.h"
#include "server/root_object.h"

namespace baltoro {
namespace {

constexpr size_t kMessagesMax = 4096;
constexpr size_t kPartsMax = 1024;
constexpr size_t kToolsMax = 128;
constexpr size_t kToolNameBytesMax = 256;
constexpr size_t kCallsMax = 1024;  // of one message
constexpr size_t kToolBytesMax = 256 * 1024;
constexpr std::array<std::string_view, 6> kRoles = {"system",    "developer", "user",
                                                    "assistant", "tool",      "function"};

// What no model here reads.
bool IsOtherMedia(const Json& part) {
  static constexpr std::array<std::string_view, 5> kMedia = {"video", "input_video", "audio_url",
                                                             "input_audio", "image_embeds"};
  const auto type = part.find("type");
  return type != part.end() && type->is_string() &&
         std::find(kMedia.begin(), kMedia.end(), type->get_ref<const std::string&>()) !=
             kMedia.end();
}

// Where the pictures and videos of a conversation go. Those of a translated one are there already.
struct PicturePlaces {
  std::vector<GivenPicture>* pictures = nullptr;
  bool translated = false;
};

// What is wrong in a field of the body, for a client to read: BadPlace takes it apart.
Status At(const std::string& place, std::string_view why) {
  return InvalidArgument(fmt::format("{}: {}", place, why));
}

// Checks one part of a message's content, and takes the picture or the video out of it.
Status CheckPart(Json& part, const std::string& place, const PicturePlaces& places) {
  if (part.is_string()) return {};
  if (!part.is_object()) return At(place, "must be an object, or a string");
  if (IsPicturePart(part)) {
    if (places.translated) return {};
    BT_RETURN_IF_ERROR(TakePicture(part, place, *places.pictures));
    part = PicturePart();
    return {};
  }
  if (IsVideoPart(part) && !places.translated) {
    BT_RETURN_IF_ERROR(TakeVideo(part, place, *places.pictures));
    part = VideoPart();
    return {};
  }
  if (IsOtherMedia(part)) {
    return At(place + ".type",
              "audio parts and embeddings of images are not available; videos are taken as frames: "
              "{\"type\": \"video_url\", \"video_url\": {\"url\": "
              "\"data:video/jpeg;base64,FRAME,FRAME,...\"}}");
  }
  const auto text = part.find("text");
  if (text != part.end() && text->is_string()) return {};
  if (text != part.end()) return At(place + ".text", "must be a string");
  return At(place,
            "a content part must be {\"type\": \"text\", \"text\": \"...\"} or {\"type\": "
            "\"image_url\", \"image_url\": {\"url\": \"...\"}}");
}

// `parts`: of all messages so far.
Status CheckContent(Json& message,
                    const std::string& place,
                    const PicturePlaces& places,
                    size_t& parts) {
  const auto content = message.find("content");
  if (content == message.end() || content->is_null() || content->is_string()) return {};
  if (!content->is_array()) return At(place, "must be a string, null or a list of parts");
  for (size_t i = 0; i < content->size(); ++i) {
    if (++parts > kPartsMax)
      return At("messages", fmt::format("more than {} content parts", kPartsMax));
    BT_RETURN_IF_ERROR(CheckPart((*content)[i], fmt::format("{}[{}]", place, i), places));
  }
  return {};
}

Status CheckToolCall(Json& call, const std::string& place) {
  const auto function = call.is_object() ? call.find("function") : call.end();
  if (function == call.end() || !function->is_object()) {
    return At(place, "a tool call needs function.name");
  }
  if (StringMember(*function, "name") == nullptr) {
    return At(place + ".function.name", "must be a string");
  }
  // As text or as an object; a call without any has the empty object.
  const auto arguments = function->find("arguments");
  if (arguments == function->end() || arguments->is_null()) {
    (*function)["arguments"] = "{}";
  } else if (!arguments->is_string() && !arguments->is_object()) {
    return At(place + ".function.arguments", "must be a string or an object");
  }
  if (!call.contains("id") || call["id"].is_null()) call["id"] = "";
  return call["id"].is_string() ? Status() : At(place + ".id", "must be a string");
}

Status CheckToolCalls(Json& message, const std::string& place) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end()) return {};
  if (calls->is_null() || (calls->is_array() && calls->empty())) {
    message.erase("tool_calls");
    return {};
  }
  if (!calls->is_array()) return At(place, "must be a list");
  if (calls->size() > kCallsMax)
    return At(place, fmt::format("more than {} tool calls", kCallsMax));
  for (size_t i = 0; i < calls->size(); ++i) {
    BT_RETURN_IF_ERROR(CheckToolCall((*calls)[i], fmt::format("{}[{}]", place, i)));
  }
  return {};
}

// Upstream renders `reasoning_content`; clients send that or `reasoning`, or both, one of them
// null.
void UnifyReasoning(Json& message) {
  const auto content = message.find("reasoning_content");
  if (content != message.end() && !content->is_string()) message.erase("reasoning_content");
  if (message.contains("reasoning_content")) return;
  const auto reasoning = message.find("reasoning");
  if (reasoning == message.end() || !reasoning->is_string()) return;
  Json text = *reasoning;  // a copy: a new member moves the others
  message["reasoning_content"] = std::move(text);
}

Status CheckMessage(Json& message,
                    const std::string& place,
                    const PicturePlaces& places,
                    size_t& parts) {
  if (!message.is_object()) return At(place, "must be an object");
  // A copy: members come and go below, which moves the others.
  const std::string* given = StringMember(message, "role");
  const std::string role = given != nullptr ? *given : "";
  if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
    return At(place + ".role", "must be one of system, developer, user, assistant, tool");
  }
  if (message.contains("name") && !message["name"].is_string()) message.erase("name");
  BT_RETURN_IF_ERROR(CheckContent(message, place + ".content", places, parts));
  BT_RETURN_IF_ERROR(CheckToolCalls(message, place + ".tool_calls"));
  const bool says_something = message.contains("content") || message.contains("tool_calls");
  if (!says_something && role != "assistant") return At(place + ".content", "is required");
  if (!message.contains("content")) message["content"] = nullptr;
  // One without an id answers the calls before it in order.
  if (role == "tool" && message.contains("tool_call_id") && message["tool_call_id"].is_null()) {
    message.erase("tool_call_id");
  }
  if (role == "tool" && message.contains("tool_call_id") && !message["tool_call_id"].is_string()) {
    return At(place + ".tool_call_id", "must be a string");
  }
  if (message.contains("function_call") && !message["function_call"].is_null()) {
    return At(place + ".function_call", "is not supported any more; use tool_calls");
  }
  if (message.contains("audio") && !message["audio"].is_null()) {
    return At(place + ".audio", "is not kept here; send its transcript as content");
  }
  UnifyReasoning(message);
  return {};
}

void ReadMessages(FieldReader& reader, Json& out, std::vector<GivenPicture>& pictures) {
  const Json* field = reader.Find("messages");
  if (field == nullptr) return reader.Fail("messages", "is required");
  if (!field->is_array() || field->empty())
    return reader.Fail("messages", "must be a list of at least one message");
  if (field->size() > kMessagesMax)
    return reader.Fail("messages", fmt::format("more than {} messages", kMessagesMax));
  out = *field;
  size_t parts = 0;
  const PicturePlaces places{.pictures = &pictures, .translated = !pictures.empty()};
  for (size_t i = 0; i < out.size(); ++i) {
    const Status checked = CheckMessage(out[i], fmt::format("messages[{}]", i), places, parts);
    if (!checked.ok()) return reader.Fail(BadPlace(checked));
  }
}

// What is wrong with a declared function; empty if nothing is.
std::string WrongFunction(const Json& function) {
  const auto& name = function["name"].get_ref<const std::string&>();
  if (name.empty() || name.size() > kToolNameBytesMax) {
    return fmt::format("the name must have 1 to {} bytes", kToolNameBytesMax);
  }
  // The name is a part of what the model writes in front of the arguments.
  for (const char c : name) {
    if (static_cast<unsigned char>(c) <= ' ' || c == 0x7f) {
      return "the name must not hold blanks or control characters";
    }
  }
  const auto parameters = function.find("parameters");
  if (parameters != function.end() && !parameters->is_null() && !parameters->is_object()) {
    return "parameters must be an object";
  }
  if (parameters != function.end() && NeverAnObject(*parameters)) {
    return "arguments must be an object, and parameters allows none";
  }
  const auto strict = function.find("strict");
  if (strict != function.end() && !strict->is_null() && !strict->is_boolean()) {
    return "strict must be true or false";
  }
  return {};
}

void ReadTools(FieldReader& reader, Json& out) {
  const Json* field = reader.Find("tools");
  if (field == nullptr) return;
  if (!field->is_array()) return reader.Fail("tools", "must be a list");
  if (field->size() > kToolsMax)
    return reader.Fail("tools", fmt::format("more than {} tools", kToolsMax));
  for (size_t i = 0; i < field->size(); ++i) {
    const Json& tool = (*field)[i];
    const bool shaped = tool.is_object() && tool.value("type", Json("function")) == "function" &&
                        tool.contains("function") && tool["function"].is_object() &&
                        tool["function"].contains("name") && tool["function"]["name"].is_string();
    if (!shaped) {
      return reader.Fail(
          "tools", "each tool must be {\"type\": \"function\", \"function\": {\"name\": ...}}");
    }
    const auto& function = tool["function"];
    const std::string why = WrongFunction(function);
    if (!why.empty()) {
      return reader.FailAt("tools", fmt::format("tools[{}].function", i), why);
    }
  }
  std::unordered_map<std::string_view, const Json*, KeyedStringHash> functions;
  for (const Json& tool : *field) {
    const Json& function = tool["function"];
    const auto& name = function["name"].get_ref<const std::string&>();
    const Json& first = *functions.try_emplace(name, &function).first->second;
    if (&first == &function || first == function) continue;
    return reader.Fail("tools", fmt::format("the name {} is given twice", name));
  }
  if (field->dump(-1, ' ', false, Json::error_handler_t::replace).size() > kToolBytesMax) {
    return reader.Fail("tools", fmt::format("more than {} bytes of declarations", kToolBytesMax));
  }
  if (!field->empty()) out = *field;
}

bool IsDeclared(const Json& tools, const std::string& name) {
  return std::any_of(tools.begin(), tools.end(),
                     [&](const Json& tool) { return tool["function"]["name"] == name; });
}

void ReadNamedChoice(FieldReader& reader, const Json& field, ChatRequest& out) {
  const auto function = field.find("function");
  const bool named = field.value("type", Json("function")) == "function" &&
                     function != field.end() && function->is_object() &&
                     function->contains("name") && (*function)["name"].is_string();
  if (!named) {
    return reader.Fail("tool_choice",
                       "must be {\"type\": \"function\", \"function\": {\"name\": ...}}");
  }
  out.tool_choice = ToolChoice::kNamed;
  out.named_tool = (*function)["name"].get<std::string>();
  if (out.tools.is_null()) return reader.Fail("tool_choice", "a named function needs tools");
  if (!IsDeclared(out.tools, out.named_tool)) {
    reader.Fail("tool_choice", fmt::format("the function \"{}\" is not among tools",
                                           out.named_tool.substr(0, 64)));
  }
}

// Tools that are not allowed stay in the prompt, so that what is cached of it stays true.
void ReadAllowedTools(FieldReader& reader, const Json& field, ChatRequest& out) {
  const auto refuse = [&reader](const std::string& what) {
    reader.FailAt("tool_choice", "tool_choice.allowed_tools", what);
  };
  const Json inner = field.value("allowed_tools", Json());
  const Json mode = inner.is_object() ? inner.value("mode", Json()) : Json();
  const Json tools = inner.is_object() ? inner.value("tools", Json()) : Json();
  if ((mode != "auto" && mode != "required") || !tools.is_array()) {
    return refuse("must be {\"mode\": \"auto\" or \"required\", \"tools\": [...]}");
  }
  if (tools.size() > kToolsMax) return refuse(fmt::format("more than {} tools", kToolsMax));
  for (const Json& one : tools) {
    const Json function = one.is_object() ? one.value("function", Json()) : Json();
    const Json name = function.is_object() ? function.value("name", Json()) : Json();
    if (!name.is_string() || one.value("type", Json()) != "function") {
      return refuse("each tool must be {\"type\": \"function\", \"function\": {\"name\": ...}}");
    }
    if (out.tools.is_null() || !IsDeclared(out.tools, name.get<std::string>())) {
      return refuse(fmt::format("the function \"{}\" is not among tools",
                                name.get<std::string>().substr(0, 64)));
    }
    out.allowed_tools.push_back(name.get<std::string>());
  }
  if (out.allowed_tools.empty()) return refuse("tools must name at least one");
  out.tool_choice = mode == "required" ? ToolChoice::kRequired : ToolChoice::kAuto;
}

void ReadToolChoice(FieldReader& reader, ChatRequest& out) {
  out.tool_choice = out.tools.is_null() ? ToolChoice::kNone : ToolChoice::kAuto;
  const Json* field = reader.Find("tool_choice");
  if (field == nullptr) return;
  if (field->is_object() && field->value("type", Json()) == "allowed_tools") {
    return ReadAllowedTools(reader, *field, out);
  }
  if (field->is_object()) return ReadNamedChoice(reader, *field, out);
  const std::string name = field->is_string() ? field->get<std::string>() : "";
  if (name == "none") {
    out.tool_choice = ToolChoice::kNone;
  } else if (name == "required" && !out.tools.is_null()) {
    out.tool_choice = ToolChoice::kRequired;
  } else if (name == "required") {
    if (reader.Find("tools") == nullptr) {
      return reader.Fail("tool_choice", "\"required\" needs tools");
    }
    // Upstream's rule: clients that build the list themselves leave it empty.
    BT_LOG_LIMITED(Info,
                   "tool_choice \"required\" with an empty list of tools is taken as \"none\"");
    out.tool_choice = ToolChoice::kNone;
  } else if (name != "auto") {
    reader.Fail("tool_choice",
                "must be \"none\", \"auto\", \"required\", a function or allowed_tools");
  }
}

// True and false as some clients write them.
std::optional<bool> TruthOf(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (!value.is_string()) return std::nullopt;
  std::string text = value.get<std::string>();
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  if (text == "true") return true;
  if (text == "false") return false;
  return std::nullopt;
}

// {"type": "enabled" or "disabled", "budget_tokens": N}
void ReadThinkingObject(FieldReader& reader, ChatRequest& out) {
  const Json* thinking = reader.Find("thinking");
  if (thinking == nullptr) return;
  const bool typed =
      thinking->is_object() && thinking->contains("type") && (*thinking)["type"].is_string();
  const std::string type = typed ? (*thinking)["type"].get<std::string>() : "";
  if (type != "enabled" && type != "disabled") {
    return reader.Fail("thinking", "must be {\"type\": \"enabled\"} or {\"type\": \"disabled\"}");
  }
  out.template_kwargs["thinking"] = type == "enabled";
  FieldReader inner(*thinking);
  inner.Integer("budget_tokens", out.fields.thinking_budget, 0, INT32_MAX);
  if (!inner.ok()) reader.Fail("thinking", inner.error()->message);
}

// Every spelling of "think or not" becomes the one template variable, so that template and parser
// cannot disagree. The last of them counts: effort, thinking, enable_thinking, and the variable
// itself.
void ReadThinking(FieldReader& reader, ChatRequest& out) {
  // The server's own defaults may be spelled in any of these ways too.
  for (const char* name : {"enable_thinking", "thinking"}) {
    const auto given = out.template_kwargs.find(name);
    if (given == out.template_kwargs.end()) continue;
    if (const std::optional<bool> truth = TruthOf(*given)) out.template_kwargs["thinking"] = *truth;
  }
  if (const Json* effort = reader.Find("reasoning_effort"); effort != nullptr) {
    static constexpr std::array<std::string_view, 6> kEfforts = {"none",   "minimal", "low",
                                                                 "medium", "high",    "xhigh"};
    const std::string value = effort->is_string() ? effort->get<std::string>() : "";
    if (std::find(kEfforts.begin(), kEfforts.end(), value) == kEfforts.end()) {
      return reader.Fail("reasoning_effort", "must be none, minimal, low, medium, high or xhigh");
    }
    out.template_kwargs["reasoning_effort"] = value;
    if (value == "none") {
      out.include_reasoning = false;
      out.template_kwargs["thinking"] = false;
    }
  }
  ReadThinkingObject(reader, out);
  const Json* kwargs = reader.Find("chat_template_kwargs");
  if (kwargs == nullptr) return;
  if (!kwargs->is_object()) return reader.Fail("chat_template_kwargs", "must be an object");
  for (const auto& [key, value] : kwargs->items()) out.template_kwargs[key] = value;
  for (const char* name : {"enable_thinking", "thinking"}) {
    const auto given = kwargs->find(name);
    if (given == kwargs->end() || given->is_null()) continue;
    const std::optional<bool> truth = TruthOf(*given);
    if (!truth) {
      return reader.Fail("chat_template_kwargs", fmt::format("{} must be true or false", name));
    }
    out.template_kwargs[name] = *truth;
    out.template_kwargs["thinking"] = *truth;
  }
}

}  // namespace

void ReadConversation(FieldReader& reader, const Json& default_template_kwargs, ChatRequest& out) {
  out.template_kwargs =
      default_template_kwargs.is_object() ? default_template_kwargs : Json::object();
  ReadMessages(reader, out.messages, out.pictures);
  // What tools and tool_choice were once called.
  RefuseField(reader, "functions", "is not supported any more; use tools");
  RefuseField(reader, "function_call", "is not supported any more; use tool_choice");
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
  ReadGenerationFields(reader, limits, out.fields);
  reader.Integer("max_tokens", out.fields.max_tokens, 1, INT32_MAX);
  reader.Integer("max_completion_tokens", out.fields.max_tokens, 1, INT32_MAX);
  reader.Bool("include_reasoning", out.include_reasoning);
  reader.Bool("constrain_tools", out.constrain_tools);

  bool logprobs = false;
  reader.Bool("logprobs", logprobs);
  int64_t top = 0;
  ReadLogprobCount(reader, "top_logprobs", limits, top);
  if (top > 0 && !logprobs) reader.Fail("top_logprobs", "needs logprobs: true");
  if (logprobs) out.fields.sampling.logprobs = static_cast<int32_t>(top);
  return reader.error();
}

}  // namespace baltoro
