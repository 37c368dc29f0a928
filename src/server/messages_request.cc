#include "server/messages_request.h"

#include <fmt/format.h>

#include "server/chat_body.h"
#include "server/field_reader.h"
#include "server/refused_fields.h"

namespace baltoro {
namespace {

using Error = std::optional<ApiError>;
using Pictures = std::vector<GivenPicture>;

constexpr size_t kToolsMax = 128;

const std::string* TypeOf(const Json& block) {
  return block.is_object() ? StringMember(block, "type") : nullptr;
}

std::string Place(std::string_view parent, size_t index) {
  return fmt::format("{}.{}", parent, index);
}

Error UnknownBlock(const std::string& place, const std::string* type) {
  if (type == nullptr) return BadPlace(place, "must be an object with a type");
  if (*type == "document") return BadPlace(place, "document blocks are not available yet");
  if (*type == "image") {
    return BadPlace(place, "pictures are taken in user messages and results of tools");
  }
  return BadPlace(place, "\"" + *type + "\" is not a block that this server knows here");
}

// A string, or a list of text blocks, as a string or text parts. With `pictures`, which get them,
// image blocks as well.
Error ReadText(const Json& content, const std::string& place, Pictures* pictures, Json& out) {
  if (content.is_string()) {
    out = content;
    return std::nullopt;
  }
  if (!content.is_array()) return BadPlace(place, "must be a string or a list of blocks");
  Json parts = Json::array();
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string here = Place(place, i);
    const std::string* type = TypeOf(content[i]);
    if (pictures != nullptr && type != nullptr && *type == "image") {
      if (const Status read = ReadPictureBlock(content[i], here, *pictures); !read.ok()) {
        return BadPlace(read);
      }
      parts.push_back(PicturePart());
      continue;
    }
    if (type == nullptr || *type != "text") return UnknownBlock(here, type);
    const std::string* text = StringMember(content[i], "text");
    if (text == nullptr) return BadPlace(here + ".text", "must be a string");
    parts.push_back(TextPart(*text));
  }
  out = ContentOf(std::move(parts));
  return std::nullopt;
}

// The model has no sign of its own for a call that failed, so the text says it.
void MarkAsError(Json& content) {
  constexpr const char* kMark = "Error: ";
  if (content.is_string()) {
    content = kMark + content.get<std::string>();
  } else if (content[0].contains("text")) {
    Json& first = content[0]["text"];
    first = kMark + first.get<std::string>();
  } else {
    content.insert(content.begin(), TextPart(kMark));
  }
}

Error ReadToolResult(const Json& block,
                     const std::string& place,
                     Pictures& pictures,
                     ChatMessages& out) {
  const std::string* id = StringMember(block, "tool_use_id");
  if (id == nullptr) return BadPlace(place + ".tool_use_id", "must be a string");
  Json content = "";
  const auto given = block.find("content");
  if (given != block.end() && !given->is_null()) {
    if (auto error = ReadText(*given, place + ".content", &pictures, content)) return error;
  }
  const auto failed = block.find("is_error");
  if (failed != block.end() && !failed->is_null()) {
    if (!failed->is_boolean()) return BadPlace(place + ".is_error", "must be true or false");
    if (failed->get<bool>()) MarkAsError(content);
  }
  out.AddToolResult(*id, std::move(content));
  return std::nullopt;
}

Error ReadUser(const Json& content,
               const std::string& place,
               Pictures& pictures,
               ChatMessages& out) {
  if (content.is_string()) {
    out.Add("user", content);
    return std::nullopt;
  }
  Json parts = Json::array();
  const auto flush = [&] {
    if (!parts.empty()) out.Add("user", ContentOf(std::move(parts)));
    parts = Json::array();
  };
  for (size_t i = 0; i < content.size(); ++i) {
    const Json& block = content[i];
    const std::string here = Place(place, i);
    const std::string* type = TypeOf(block);
    if (type != nullptr && *type == "tool_result") {
      flush();
      if (auto error = ReadToolResult(block, here, pictures, out)) return error;
    } else if (type != nullptr && *type == "text") {
      const std::string* text = StringMember(block, "text");
      if (text == nullptr) return BadPlace(here + ".text", "must be a string");
      parts.push_back(TextPart(*text));
    } else if (type != nullptr && *type == "image") {
      if (const Status read = ReadPictureBlock(block, here, pictures); !read.ok()) {
        return BadPlace(read);
      }
      parts.push_back(PicturePart());
    } else {
      return UnknownBlock(here, type);
    }
  }
  flush();
  return std::nullopt;
}

Error ReadToolUse(const Json& block, const std::string& place, ChatMessages& out) {
  const std::string* id = StringMember(block, "id");
  const std::string* name = StringMember(block, "name");
  if (id == nullptr) return BadPlace(place + ".id", "must be a string");
  if (name == nullptr) return BadPlace(place + ".name", "must be a string");
  const auto input = block.find("input");
  if (input == block.end() || !input->is_object()) {
    return BadPlace(place + ".input", "must be an object");
  }
  // As text: what the model wrote once is written the same again.
  out.AddToolCall(*id, *name, input->dump(-1, ' ', false, Json::error_handler_t::replace));
  return std::nullopt;
}

Error ReadAssistant(const Json& content, const std::string& place, ChatMessages& out) {
  out.EndMessage();
  if (content.is_string()) {
    out.AddAssistantText(content.get_ref<const std::string&>());
    return std::nullopt;
  }
  for (size_t i = 0; i < content.size(); ++i) {
    const Json& block = content[i];
    const std::string here = Place(place, i);
    const std::string* type = TypeOf(block);
    if (type == nullptr) return UnknownBlock(here, type);
    if (*type == "text") {
      const std::string* text = StringMember(block, "text");
      if (text == nullptr) return BadPlace(here + ".text", "must be a string");
      out.AddAssistantText(*text);
    } else if (*type == "thinking") {
      const std::string* thinking = StringMember(block, "thinking");
      if (thinking == nullptr) return BadPlace(here + ".thinking", "must be a string");
      out.AddReasoning(*thinking);
    } else if (*type == "tool_use") {
      if (auto error = ReadToolUse(block, here, out)) return error;
    } else if (*type != "redacted_thinking") {  // nobody here can read that one
      return UnknownBlock(here, type);
    }
  }
  return std::nullopt;
}

Error ReadOne(const Json& message,
              const std::string& place,
              Pictures& pictures,
              ChatMessages& out) {
  if (!message.is_object()) return BadPlace(place, "must be an object");
  const std::string* role = StringMember(message, "role");
  const auto content = message.find("content");
  const std::string inside = place + ".content";
  if (content == message.end() || !(content->is_string() || content->is_array())) {
    return BadPlace(inside, "must be a string or a list of blocks");
  }
  if (role != nullptr && *role == "user") return ReadUser(*content, inside, pictures, out);
  if (role != nullptr && *role == "assistant") return ReadAssistant(*content, inside, out);
  if (role == nullptr || *role != "system") {
    return BadPlace(place + ".role", "must be \"user\", \"assistant\" or \"system\"");
  }
  Json text;
  if (auto error = ReadText(*content, inside, nullptr, text)) return error;
  out.Add("system", std::move(text));
  return std::nullopt;
}

Error ReadConversationOf(FieldReader& reader, Pictures& pictures, Json& chat) {
  ChatMessages out;
  if (const Json* system = reader.Find("system"); system != nullptr) {
    Json text;
    if (auto error = ReadText(*system, "system", nullptr, text)) return error;
    if (text != "") out.Add("system", std::move(text));
  }
  const Json* messages = reader.Find("messages");
  if (messages == nullptr) return BadPlace("messages", "is required");
  if (!messages->is_array() || messages->empty()) {
    return BadPlace("messages", "must be a list of at least one message");
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    if (auto error = ReadOne((*messages)[i], Place("messages", i), pictures, out)) return error;
  }
  chat["messages"] = out.Take();
  if (chat["messages"].empty()) return BadPlace("messages", "must hold at least one block");
  // A last message of the assistant is the beginning of the answer.
  const Json& last = chat["messages"].back();
  if (last["role"] == "assistant" && !last.contains("tool_calls")) {
    chat["continue_final_message"] = true;
  }
  return std::nullopt;
}

Error ReadTools(FieldReader& reader, Json& chat) {
  const Json* tools = reader.Find("tools");
  if (tools == nullptr) return std::nullopt;
  if (!tools->is_array()) return BadPlace("tools", "must be a list");
  if (tools->size() > kToolsMax) {
    return BadPlace("tools", fmt::format("more than {} tools", kToolsMax));
  }
  for (size_t i = 0; i < tools->size(); ++i) {
    const Json& tool = (*tools)[i];
    const std::string place = Place("tools", i);
    if (!tool.is_object()) return BadPlace(place, "must be an object");
    FieldReader fields(tool);
    const Json* type = fields.Find("type");
    if (type != nullptr && *type != "custom") {
      return BadPlace(place + ".type", "only tools of the client's own (\"custom\") are available");
    }
    if (auto error =
            AddFunctionTool(tool, place, "input_schema", /*schema_required=*/true, chat["tools"])) {
      return error;
    }
  }
  return std::nullopt;
}

Error ReadToolChoice(FieldReader& reader, Json& chat) {
  const Json* choice = reader.Find("tool_choice");
  if (choice == nullptr) return std::nullopt;
  const std::string* type = TypeOf(*choice);
  if (type == nullptr) return BadPlace("tool_choice", "must be an object with a type");
  FieldReader fields(*choice);
  bool one = false;
  fields.Bool("disable_parallel_tool_use", one);
  if (!fields.ok()) return BadPlace("tool_choice", fields.error()->message);
  if (one) chat["parallel_tool_calls"] = false;
  if (*type == "none" || *type == "auto") {
    chat["tool_choice"] = *type;
  } else if (*type == "any") {
    if (!chat.contains("tools")) return BadPlace("tool_choice", "\"any\" needs tools");
    chat["tool_choice"] = "required";
  } else if (*type == "tool") {
    const std::string* name = StringMember(*choice, "name");
    if (name == nullptr) return BadPlace("tool_choice.name", "must be a string");
    chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", *name}}}};
  } else {
    return BadPlace("tool_choice.type", "must be auto, any, tool or none");
  }
  return std::nullopt;
}

Error ReadThinking(FieldReader& reader, MessagesRequest& out) {
  const Json* thinking = reader.Find("thinking");
  if (thinking == nullptr) return std::nullopt;
  const std::string* type = TypeOf(*thinking);
  if (type == nullptr) return BadPlace("thinking", "must be an object with a type");
  FieldReader fields(*thinking);
  std::string display;
  fields.String("display", display, 32);
  int64_t budget = -1;
  if (*type == "enabled") {
    if (fields.Find("budget_tokens") == nullptr) fields.Fail("budget_tokens", "is required");
    fields.Integer("budget_tokens", budget, 1, INT32_MAX);
  }
  if (!fields.ok()) return BadPlace("thinking", fields.error()->message);
  if (*type == "disabled") {
    out.chat["thinking"] = {{"type", "disabled"}};
    return std::nullopt;
  }
  if (*type != "enabled" && *type != "adaptive" && *type != "between_tools") {
    return BadPlace("thinking.type", "must be enabled, disabled, adaptive or between_tools");
  }
  out.chat["thinking"] = {{"type", "enabled"}};
  if (budget > 0) out.chat["thinking"]["budget_tokens"] = budget;
  out.show_thinking = display != "omitted";
  return std::nullopt;
}

Error ReadOutputConfig(FieldReader& reader, Json& chat) {
  const Json* format = reader.Find("output_format");  // its name in clients of 2025
  std::string place = "output_format";
  const Json* config = reader.Find("output_config");
  if (config != nullptr && !config->is_object()) {
    return BadPlace("output_config", "must be an object");
  }
  const Json* inner = config == nullptr ? nullptr : FieldReader(*config).Find("format");
  if (inner != nullptr && format != nullptr) {
    return BadPlace(place, "cannot be combined with output_config.format");
  }
  if (inner != nullptr) {
    format = inner;
    place = "output_config.format";
  }
  if (format == nullptr) return std::nullopt;
  const std::string* type = TypeOf(*format);
  if (type == nullptr || *type != "json_schema" || !format->contains("schema")) {
    return BadPlace(place, "must be {\"type\": \"json_schema\", \"schema\": {...}}");
  }
  chat["response_format"] = {
      {"type", "json_schema"},
      {"json_schema", {{"name", "output"}, {"schema", (*format)["schema"]}, {"strict", true}}}};
  return std::nullopt;
}

Error ReadSampling(FieldReader& reader, MessagesUse use, Json& chat) {
  const auto copy = [&](std::string_view name, std::string_view as) {
    if (const Json* field = reader.Find(name); field != nullptr) chat[std::string(as)] = *field;
  };
  if (use == MessagesUse::kGenerate && reader.Find("max_tokens") == nullptr) {
    return BadPlace("max_tokens", "is required");
  }
  copy("max_tokens", "max_tokens");
  copy("temperature", "temperature");
  copy("top_p", "top_p");
  copy("top_k", "top_k");
  copy("stream", "stream");
  copy("stop_sequences", "stop");
  if (const Json* metadata = reader.Find("metadata"); metadata != nullptr) {
    if (!metadata->is_object()) return BadPlace("metadata", "must be an object");
  }
  RefuseFields(reader);
  RefuseField(reader, "mcp_servers", "this server calls no others");
  RefuseField(reader, "container", "nothing is run on this server");
  if (!reader.ok()) return reader.error();
  // Half a conversation must not pass for a whole one.
  if (reader.Find(kThreadField) != nullptr) {
    return BadPlace(std::string(kThreadField),
                    "conversations are not kept here; send the whole one, without this field");
  }
  return std::nullopt;
}

}  // namespace

Error ReadMessagesRequest(const Json& body, MessagesUse use, MessagesRequest& out) {
  FieldReader reader(body);
  out.chat = Json::object();
  CopyExtensions(body, out.chat);
  if (const Json* model = reader.Find("model"); model != nullptr) out.chat["model"] = *model;
  if (auto error = ReadConversationOf(reader, out.pictures, out.chat)) return error;
  if (auto error = ReadTools(reader, out.chat)) return error;
  if (auto error = ReadToolChoice(reader, out.chat)) return error;
  if (auto error = ReadThinking(reader, out)) return error;
  if (auto error = ReadOutputConfig(reader, out.chat)) return error;
  return ReadSampling(reader, use, out.chat);
}

ApiError MessagesFieldNames(ApiError error) {
  return WithNames(std::move(error), {{"stop", "stop_sequences"},
                                      {"response_format", "output_config.format"},
                                      {"input_tokens", "messages"},
                                      {"continue_final_message", "messages"}});
}

}  // namespace baltoro
