#include "server/responses_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/chat_body.h"
#include "server/field_reader.h"
#include "server/refused_fields.h"

namespace baltoro {
namespace {

using Error = std::optional<ApiError>;
constexpr size_t kItemsMax = 8192;
constexpr size_t kToolsMax = 128;
constexpr size_t kMetadataMax = 16;
constexpr size_t kMetadataKeyBytesMax = 64;
constexpr size_t kMetadataValueBytesMax = 512;

std::string Place(std::string_view parent, size_t index) {
  return fmt::format("{}[{}]", parent, index);
}

// Where the pictures of a conversation go to while its items are read.
struct Shown {
  std::vector<GivenPicture>& given;
  std::vector<PictureText>& kept;
  bool earlier = false;  // the items were read once before
};

// Leaves the place of the picture in what is kept in the part.
Error ReadPicture(Json& part, const std::string& place, Shown& shown) {
  constexpr const char* kUrl = "image_url";
  if (const auto url = part.find(kUrl); shown.earlier && url != part.end()) {
    shown.given.push_back(
        {.place = "previous_response_id", .text = {}, .kept = shown.kept.at(url->get<size_t>())});
    return std::nullopt;
  }
  if (const Status taken = TakePicture(part, place, shown.given); !taken.ok()) {
    return BadPlace(taken);
  }
  GivenPicture& picture = shown.given.back();
  picture.kept = std::make_shared<const std::string>(std::move(picture.text));
  part[kUrl] = shown.kept.size();
  shown.kept.push_back(picture.kept);
  return std::nullopt;
}

// A string, or a list of text parts. With `shown`, of input_image as well.
Error ReadText(Json& content, const std::string& place, Shown* shown, Json& out) {
  if (content.is_string()) {
    out = content;
    return std::nullopt;
  }
  if (!content.is_array()) return BadPlace(place, "must be a string or a list of parts");
  Json parts = Json::array();
  for (size_t i = 0; i < content.size(); ++i) {
    Json& part = content[i];
    const std::string here = Place(place, i);
    const std::string* type = part.is_object() ? StringMember(part, "type") : nullptr;
    if (type == nullptr) return BadPlace(here, "must be an object with a type");
    if (*type == "input_image") {
      if (shown == nullptr) {
        return BadPlace(here,
                        "pictures are taken in messages of the roles user, system and developer, "
                        "and in outputs of "
                        "functions");
      }
      if (auto error = ReadPicture(part, here, *shown)) return error;
      parts.push_back(PicturePart());
      continue;
    }
    const bool refusal = *type == "refusal";
    if (!refusal && *type != "input_text" && *type != "output_text" && *type != "text" &&
        *type != "reasoning_text" && *type != "summary_text") {
      return BadPlace(here + ".type", "\"" + *type + "\" is not available yet");
    }
    const std::string* text = StringMember(part, refusal ? "refusal" : "text");
    if (text == nullptr) return BadPlace(here + ".text", "must be a string");
    parts.push_back(TextPart(*text));
  }
  out = ContentOf(std::move(parts));
  return std::nullopt;
}

std::string Joined(const Json& text) {
  if (text.is_string()) return text.get<std::string>();
  std::string out;
  for (const Json& part : text) out += part["text"].get_ref<const std::string&>();
  return out;
}

Error ReadMessage(Json& item, const std::string& place, Shown& shown, ChatMessages& out) {
  const std::string* role = StringMember(item, "role");
  if (role == nullptr ||
      (*role != "user" && *role != "assistant" && *role != "system" && *role != "developer")) {
    return BadPlace(place + ".role", "must be user, assistant, system or developer");
  }
  const auto content = item.find("content");
  if (content == item.end()) return BadPlace(place + ".content", "is required");
  Json text;
  Shown* const taken = *role == "assistant" ? nullptr : &shown;
  if (auto error = ReadText(*content, place + ".content", taken, text)) return error;
  if (*role == "assistant") {
    out.AddAssistantText(Joined(text));
  } else {
    out.Add(*role, std::move(text));
  }
  return std::nullopt;
}

Error ReadReasoning(Json& item, const std::string& place, ChatMessages& out) {
  // A summary is no reasoning, and what is encrypted cannot be read here.
  const auto content = item.find("content");
  if (content == item.end() || content->is_null()) return std::nullopt;
  Json text;
  if (auto error = ReadText(*content, place + ".content", nullptr, text)) return error;
  if (text != "") out.AddReasoning(Joined(text));
  return std::nullopt;
}

Error ReadItem(Json& item, const std::string& place, Shown& shown, ChatMessages& out) {
  if (!item.is_object()) return BadPlace(place, "must be an object");
  const std::string* type = StringMember(item, "type");
  if (type == nullptr || *type == "message") return ReadMessage(item, place, shown, out);
  if (*type == "reasoning") return ReadReasoning(item, place, out);
  if (*type == "function_call") {
    const std::string* id = StringMember(item, "call_id");
    const std::string* name = StringMember(item, "name");
    const std::string* arguments = StringMember(item, "arguments");
    if (id == nullptr) return BadPlace(place + ".call_id", "must be a string");
    if (name == nullptr) return BadPlace(place + ".name", "must be a string");
    if (arguments == nullptr) return BadPlace(place + ".arguments", "must be a string");
    out.AddToolCall(*id, *name, *arguments);
    return std::nullopt;
  }
  if (*type == "function_call_output") {
    const std::string* id = StringMember(item, "call_id");
    const auto output = item.find("output");
    if (id == nullptr) return BadPlace(place + ".call_id", "must be a string");
    if (output == item.end()) return BadPlace(place + ".output", "is required");
    Json text;
    if (auto error = ReadText(*output, place + ".output", &shown, text)) return error;
    out.AddToolResult(*id, std::move(text));
    return std::nullopt;
  }
  if (*type == "item_reference") {
    return BadPlace(place, "send the item itself, or continue with previous_response_id");
  }
  return BadPlace(place + ".type", "\"" + *type + "\" is not an item that this server knows");
}

// Takes the input out of the body.
Error ReadInput(FieldReader& reader, Json& body, EarlierItems earlier, ResponsesRequest& out) {
  if (reader.Find("input") == nullptr) return BadPlace("input", "is required");
  Json* const input = &body["input"];
  if (!input->is_string() && !input->is_array()) {
    return BadPlace("input", "must be a string or a list of items");
  }
  const size_t before = earlier.items.size();
  if (input->empty() && input->is_array() && before == 0) {
    return BadPlace("input", "must hold at least one item");
  }
  out.conversation = std::move(earlier);
  Json& items = out.conversation.items;
  if (input->is_string()) {
    items.push_back({{"type", "message"}, {"role", "user"}, {"content", std::move(*input)}});
  } else {
    for (Json& item : *input) items.push_back(std::move(item));
  }
  if (items.size() > kItemsMax) {
    return BadPlace("input", fmt::format("more than {} items", kItemsMax));
  }
  ChatMessages messages;
  std::string instructions;
  reader.String("instructions", instructions, SIZE_MAX);
  if (!reader.ok()) return reader.error();
  if (!instructions.empty()) messages.Add("system", instructions);
  for (size_t i = 0; i < items.size(); ++i) {
    // An earlier item was read once before, so the index of a wrong one is the input's own.
    const size_t own = i - std::min(i, before);
    Shown shown{.given = out.pictures, .kept = out.conversation.pictures, .earlier = i < before};
    if (auto error = ReadItem(items[i], Place("input", own), shown, messages)) return error;
  }
  out.chat["messages"] = messages.Take();
  return std::nullopt;
}

Error ReadTools(FieldReader& reader, Json& chat) {
  const Json* tools = reader.Find("tools");
  if (tools == nullptr) return std::nullopt;
  if (!tools->is_array()) return BadPlace("tools", "must be a list");
  if (tools->size() > kToolsMax) {
    return BadPlace("tools", fmt::format("more than {} tools", kToolsMax));
  }
  chat["tools"] = Json::array();  // an empty list is not the same as none
  for (size_t i = 0; i < tools->size(); ++i) {
    const Json& tool = (*tools)[i];
    const std::string place = Place("tools", i);
    if (!tool.is_object()) return BadPlace(place, "must be an object");
    FieldReader fields(tool);
    const Json* type = fields.Find("type");
    if (type == nullptr || *type != "function") {
      return BadPlace(place + ".type", "only functions of the client's own are available");
    }
    if (auto error =
            AddFunctionTool(tool, place, "parameters", /*schema_required=*/false, chat["tools"])) {
      return error;
    }
  }
  return std::nullopt;
}

// Chat completions have the same, written otherwise.
Error ReadAllowedTools(const Json& choice, Json& chat) {
  const Json listed = choice.value("tools", Json());
  if (!listed.is_array()) return BadPlace("tool_choice.tools", "must be a list");
  Json tools = Json::array();
  for (const Json& one : listed) {
    const std::string* name = one.is_object() ? StringMember(one, "name") : nullptr;
    if (name == nullptr || one.value("type", Json()) != "function") {
      return BadPlace("tool_choice.tools",
                      "each tool must be {\"type\": \"function\", \"name\": ...}");
    }
    tools.push_back({{"type", "function"}, {"function", {{"name", *name}}}});
  }
  chat["tool_choice"] = {
      {"type", "allowed_tools"},
      {"allowed_tools", {{"mode", choice.value("mode", Json("auto"))}, {"tools", tools}}}};
  return std::nullopt;
}

Error ReadToolChoice(FieldReader& reader, Json& chat) {
  const Json* choice = reader.Find("tool_choice");
  if (choice == nullptr) return std::nullopt;
  if (choice->is_string()) {
    chat["tool_choice"] = *choice;
    return std::nullopt;
  }
  const std::string* type = choice->is_object() ? StringMember(*choice, "type") : nullptr;
  if (type != nullptr && *type == "allowed_tools") return ReadAllowedTools(*choice, chat);
  const std::string* name = type != nullptr ? StringMember(*choice, "name") : nullptr;
  if (name == nullptr || *type != "function") {
    return BadPlace("tool_choice",
                    "must be \"none\", \"auto\", \"required\", "
                    "{\"type\": \"function\", \"name\": ...} or allowed_tools");
  }
  chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", *name}}}};
  return std::nullopt;
}

Error ReadTextFormat(FieldReader& reader, Json& chat) {
  const Json* text = reader.Find("text");
  if (text == nullptr) return std::nullopt;
  if (!text->is_object()) return BadPlace("text", "must be an object");
  FieldReader fields(*text);
  const Json* format = fields.Find("format");
  if (format == nullptr) return std::nullopt;
  const std::string* type = format->is_object() ? StringMember(*format, "type") : nullptr;
  if (type == nullptr) return BadPlace("text.format", "must be an object with a type");
  Json as_chat = {{"type", *type}};
  if (*type == "json_schema") {
    for (const char* name : {"name", "description", "schema", "strict"}) {
      const auto member = format->find(name);
      if (member != format->end()) as_chat["json_schema"][name] = *member;
    }
  }
  chat["response_format"] = std::move(as_chat);
  return std::nullopt;
}

Error ReadEffort(FieldReader& reader, Json& chat) {
  const Json* reasoning = reader.Find("reasoning");
  if (reasoning == nullptr) return std::nullopt;
  if (!reasoning->is_object()) return BadPlace("reasoning", "must be an object");
  FieldReader fields(*reasoning);
  if (const Json* effort = fields.Find("effort"); effort != nullptr) {
    chat["reasoning_effort"] = *effort;
  }
  return std::nullopt;
}

Error ReadMetadata(FieldReader& reader) {
  const Json* metadata = reader.Find("metadata");
  if (metadata == nullptr) return std::nullopt;
  if (!metadata->is_object()) return BadPlace("metadata", "must be an object");
  if (metadata->size() > kMetadataMax) {
    return BadPlace("metadata", fmt::format("more than {} entries", kMetadataMax));
  }
  for (const auto& [key, value] : metadata->items()) {
    const bool fits = key.size() <= kMetadataKeyBytesMax && value.is_string() &&
                      value.get_ref<const std::string&>().size() <= kMetadataValueBytesMax;
    if (!fits) {
      return BadPlace("metadata",
                      fmt::format("keys have at most {} bytes, values are strings of at most {}",
                                  kMetadataKeyBytesMax, kMetadataValueBytesMax));
    }
  }
  return std::nullopt;
}

// What would change the answer if it were ignored.
Error RefuseUnknownWays(FieldReader& reader) {
  bool background = false;
  reader.Bool("background", background);
  if (background) reader.Fail("background", "answers are not made in the background");
  for (const char* name : {"conversation", "prompt"}) {
    RefuseField(reader, name,
                "nothing of that name is kept here; use previous_response_id or input");
  }
  RefuseFields(reader);
  int64_t top_logprobs = 0;
  reader.Integer("top_logprobs", top_logprobs, 0, 20);
  if (top_logprobs > 0) {
    reader.Fail("top_logprobs", "is not available here; /v1/chat/completions has it");
  }
  if (const Json* include = reader.Find("include"); include != nullptr) {
    if (!include->is_array()) return BadPlace("include", "must be a list of strings");
    for (const Json& one : *include) {
      if (one == "message.output_text.logprobs") {
        reader.Fail("include", "log-probabilities: /v1/chat/completions has them");
      }
    }
  }
  std::string truncation = "disabled";
  reader.String("truncation", truncation, 32);
  if (truncation != "disabled" && truncation != "auto") {
    reader.Fail("truncation", "must be \"auto\" or \"disabled\"");
  }
  return reader.error();
}

Error ReadSampling(FieldReader& reader, Json& chat) {
  const auto copy = [&](std::string_view name, std::string_view as) {
    if (const Json* field = reader.Find(name); field != nullptr) chat[std::string(as)] = *field;
  };
  copy("model", "model");
  copy("max_output_tokens", "max_completion_tokens");
  copy("temperature", "temperature");
  copy("top_p", "top_p");
  copy("top_k", "top_k");
  copy("stop", "stop");
  copy("stream", "stream");
  copy("parallel_tool_calls", "parallel_tool_calls");
  copy("user", "user");
  int64_t calls = 0;  // of tools that a server has; this one has none
  reader.Integer("max_tool_calls", calls, 1, INT32_MAX);
  return reader.error();
}

void FillEcho(const Json& body, Json& echo) {
  const auto take = [&](const char* name, Json otherwise) {
    const auto found = body.find(name);
    const bool given = found != body.end() && !found->is_null();
    echo[name] = given ? *found : std::move(otherwise);
  };
  take("instructions", nullptr);
  take("max_output_tokens", nullptr);
  take("max_tool_calls", nullptr);
  take("metadata", Json::object());
  take("parallel_tool_calls", true);
  take("previous_response_id", nullptr);
  take("reasoning", {{"effort", nullptr}, {"summary", nullptr}});
  take("store", true);
  take("text", {{"format", {{"type", "text"}}}});
  take("tool_choice", "auto");
  take("tools", Json::array());
  take("truncation", "disabled");
  take("user", nullptr);
  echo["background"] = false;
  echo["service_tier"] = "default";
  echo["top_logprobs"] = 0;
}

}  // namespace

Error ReadPreviousId(const Json& body, std::string& out) {
  FieldReader reader(body);
  reader.String("previous_response_id", out, 256);
  return reader.error();
}

Error ReadResponsesRequest(Json body, EarlierItems earlier, ResponsesRequest& out) {
  FieldReader reader(body);
  out.chat = Json::object();
  CopyExtensions(body, out.chat);
  if (auto error = RefuseUnknownWays(reader)) return error;
  if (auto error = ReadInput(reader, body, std::move(earlier), out)) return error;
  if (auto error = ReadTools(reader, out.chat)) return error;
  if (auto error = ReadToolChoice(reader, out.chat)) return error;
  if (auto error = ReadTextFormat(reader, out.chat)) return error;
  if (auto error = ReadEffort(reader, out.chat)) return error;
  if (auto error = ReadMetadata(reader)) return error;
  reader.Bool("store", out.store);
  if (auto error = ReadSampling(reader, out.chat)) return error;
  FillEcho(body, out.echo);
  return std::nullopt;
}

ApiError ResponsesFieldNames(ApiError error) {
  return WithNames(std::move(error), {{"max_completion_tokens", "max_output_tokens"},
                                      {"max_tokens", "max_output_tokens"},
                                      {"response_format", "text.format"},
                                      {"reasoning_effort", "reasoning.effort"},
                                      {"messages", "input"},
                                      {"input_tokens", "input"}});
}

}  // namespace baltoro
