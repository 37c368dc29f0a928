// Renders chat templates for tests/template_vs_jinja2.py: one JSON object a line in, one out.
//
// In:  {"template": source or absent, "messages": [...], "tools": [...], "extra": {...},
//       "add_generation_prompt": bool}; without "template" the model directory named by the first
//       argument gives it. {"tools_only": [...]} prints the TypeScript declaration instead.
// Out: {"text": ..., "trusted": [[begin, end], ...]} or {"error": ...}

#include <iostream>
#include <string>

#include "base/json.h"
#include "text/chat_template.h"
#include "text/tool_declaration.h"

namespace {

using baltoro::ChatTemplate;
using baltoro::Json;

Json Render(const ChatTemplate& chat_template, const Json& line) {
  const Json nothing = Json::array();
  baltoro::ChatTemplateInput input;
  input.messages = line.contains("messages") ? &line["messages"] : &nothing;
  input.tools = line.contains("tools") && !line["tools"].is_null() ? &line["tools"] : nullptr;
  input.extra = line.contains("extra") ? &line["extra"] : nullptr;
  input.add_generation_prompt = line.value("add_generation_prompt", true);
  const auto segments = chat_template.Render(input);
  if (!segments.ok()) return {{"error", segments.status().message()}};
  std::string text;
  Json trusted = Json::array();
  for (const auto& segment : segments.value()) {
    if (segment.special_allowed) {
      trusted.push_back({text.size(), text.size() + segment.text.size()});
    }
    text += segment.text;
  }
  return {{"text", text}, {"trusted", trusted}};
}

Json Answer(const Json& line, const ChatTemplate* of_model) {
  if (line.contains("tools_only")) {
    const auto text = baltoro::ToolsTypescript(baltoro::SortKeys(line["tools_only"]));
    if (!text.ok()) return {{"error", text.status().message()}};
    return {{"text", text.value()}};
  }
  if (!line.contains("template")) return Render(*of_model, line);
  const auto parsed = ChatTemplate::Parse(line["template"].get<std::string>(), "template");
  if (!parsed.ok()) return {{"error", parsed.status().message()}};
  return Render(*parsed.value(), line);
}

}  // namespace

int main(int argc, char** argv) {
  std::unique_ptr<ChatTemplate> of_model;
  if (argc > 1) {
    auto loaded = ChatTemplate::LoadFromDir(argv[1]);
    if (!loaded.ok()) {
      std::cerr << loaded.status().message() << "\n";
      return 1;
    }
    of_model = std::move(loaded).value();
  }
  std::string text;
  while (std::getline(std::cin, text)) {
    const auto line = baltoro::ParseJson(text);
    if (!line.ok()) {
      std::cerr << line.status().message() << "\n";
      return 1;
    }
    std::cout << Answer(line.value(), of_model.get()).dump() << "\n";
  }
  return 0;
}
