#include "text/chat_template.h"

#include <algorithm>

#include "base/file.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_parser.h"
#include "text/tool_declaration.h"

namespace baltoro {
namespace {

constexpr char kTypescriptName[] = "tools_ts_str";

bool IsReserved(const std::string& name) {
  return name == "messages" || name == "tools" || name == kTypescriptName ||
         name == "add_generation_prompt";
}

// A tokenizer configuration holds one template, or a list of named ones.
Result<std::string> TemplateOfConfig(const std::string& path) {
  constexpr char kNone[] = ": no chat_template, and no chat_template.jinja beside it";
  if (!FileExists(path)) return Status(Code::kNotFound, path + kNone);
  BT_ASSIGN_OR_RETURN(const Json config, ReadJsonFile(path));
  const auto found = config.is_object() ? config.find("chat_template") : config.end();
  if (found == config.end() || found->is_null()) {
    return Status(Code::kNotFound, path + kNone);
  }
  if (found->is_string()) return found->get<std::string>();
  if (found->is_array()) {
    for (const Json& entry : *found) {
      if (entry.is_object() && entry.value("name", Json("")) == "default" &&
          entry.contains("template") && entry["template"].is_string()) {
        return entry["template"].get<std::string>();
      }
    }
  }
  return InvalidArgument(path + ": chat_template is neither text nor a list with a 'default'");
}

}  // namespace

ChatTemplate::ChatTemplate(std::string source, std::unique_ptr<jinja::Template> parsed)
    : source_(std::move(source)),
      parsed_(std::move(parsed)),
      wants_typescript_(parsed_->FindSymbol(kTypescriptName) >= 0) {
  const Json messages = Json::array({{{"role", "user"}, {"content", "1"}},
                                     {{"role", "assistant"}, {"content", "2"}},
                                     {{"role", "user"}, {"content", "3"}}});
  const auto rendered = Render({.messages = &messages, .add_generation_prompt = false});
  renders_thinking_ =
      rendered.ok() &&
      std::any_of(rendered.value().begin(), rendered.value().end(), [](const TextSegment& segment) {
        return segment.text.find("<think>") != std::string::npos;
      });
}

ChatTemplate::~ChatTemplate() = default;

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(const std::string& source,
                                                          std::string name) {
  auto parsed = jinja::ParseTemplate(source);
  if (!parsed.ok()) return InvalidArgument(name + ": " + parsed.status().message());
  return std::unique_ptr<ChatTemplate>(
      new ChatTemplate(source, std::make_unique<jinja::Template>(std::move(parsed).value())));
}

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::LoadFromDir(const std::string& model_dir) {
  const std::string path = model_dir + "/chat_template.jinja";
  if (FileExists(path)) {
    BT_ASSIGN_OR_RETURN(const std::string source, ReadFile(path, size_t{1} << 20));
    return Parse(source, path);
  }
  const std::string config = model_dir + "/tokenizer_config.json";
  BT_ASSIGN_OR_RETURN(const std::string source, TemplateOfConfig(config));
  return Parse(source, config + ": chat_template");
}

Result<std::vector<TextSegment>> ChatTemplate::Render(const ChatTemplateInput& input) const {
  jinja::Interpreter interpreter(*parsed_);
  if (input.extra != nullptr && input.extra->is_object()) {
    for (const auto& [name, value] : input.extra->items()) {
      if (!IsReserved(name)) BT_RETURN_IF_ERROR(interpreter.Define(name, value));
    }
  }
  if (input.messages == nullptr || !input.messages->is_array()) {
    return InvalidArgument("messages must be a list");
  }
  BT_RETURN_IF_ERROR(interpreter.Define("messages", *input.messages));
  BT_RETURN_IF_ERROR(
      interpreter.Define("add_generation_prompt", Json(input.add_generation_prompt)));
  if (input.tools == nullptr || !wants_typescript_) {
    BT_RETURN_IF_ERROR(interpreter.Define("tools", input.tools == nullptr ? Json() : *input.tools));
  } else {
    const Json sorted = SortKeys(*input.tools);
    BT_RETURN_IF_ERROR(interpreter.Define("tools", sorted));
    auto typescript = ToolsTypescript(sorted);
    // Without it the template prints the JSON, which is the vendor's answer to such schemas too.
    if (typescript.ok()) {
      BT_RETURN_IF_ERROR(interpreter.Define(kTypescriptName, Json(std::move(typescript).value())));
    }
  }
  BT_ASSIGN_OR_RETURN(const jinja::Text text, interpreter.Run());
  std::vector<TextSegment> segments;
  text.ForEachRun(0, text.size(), [&](std::string_view bytes, bool trusted) {
    segments.push_back({std::string(bytes), trusted});
  });
  return segments;
}

}  // namespace baltoro
