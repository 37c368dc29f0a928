#pragma once

// The model's own chat template: turns a request's messages and tools into the prompt's text, in
// which every byte is known to come either from the template or from the request.

#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "text/segment.h"

namespace baltoro {

namespace jinja {
struct Template;
}

struct ChatTemplateInput {
  const Json* messages = nullptr;  // an array
  const Json* tools = nullptr;     // an array, or null
  const Json* extra = nullptr;     // an object of further variables (thinking, ...), or null;
                                   // it cannot replace the others
  bool add_generation_prompt = true;
};

// Immutable: any thread may render.
class ChatTemplate {
 public:
  // Errors begin with `name` and name the line.
  static Result<std::unique_ptr<ChatTemplate>> Parse(const std::string& source, std::string name);
  // chat_template.jinja, or else the field chat_template of tokenizer_config.json.
  static Result<std::unique_ptr<ChatTemplate>> LoadFromDir(const std::string& model_dir);

  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  const std::string& source() const { return source_; }
  // It writes <think> in front of earlier answers: the model's answers begin with thinking, also
  // where the template leaves it to the model to open it. That its text names the mark, to take it
  // out of the history for example, does not count.
  bool renders_thinking() const { return renders_thinking_; }

  // Neighbouring segments differ in special_allowed. Every error is the request's fault
  // (kInvalidArgument): the template refused it, or it is over a limit.
  Result<std::vector<TextSegment>> Render(const ChatTemplateInput& input) const;

 private:
  ChatTemplate(std::string source, std::unique_ptr<jinja::Template> parsed);

  std::string source_;
  std::unique_ptr<jinja::Template> parsed_;
  bool renders_thinking_ = false;
  bool wants_typescript_;  // it mentions tools_ts_str, so it expects the vendor's preparation
};

}  // namespace baltoro
