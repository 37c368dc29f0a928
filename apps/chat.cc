#include "chat.h"

#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <string>

#include "client/api_client.h"

namespace baltoro {
namespace {

// Thinking is shown dimmed on a terminal and between marks elsewhere.
class Printer {
 public:
  explicit Printer(bool terminal) : terminal_(terminal) {}

  void Reasoning(const std::string& text) {
    if (!thinking_) Put(terminal_ ? "\033[2m" : "[thinking] ");
    thinking_ = true;
    Put(text);
  }
  void Content(const std::string& text) {
    EndThinking();
    Put(text);
  }
  void Done() {
    EndThinking();
    Put("\n");
  }

 private:
  void EndThinking() {
    if (!thinking_) return;
    thinking_ = false;
    Put(terminal_ ? "\033[0m\n" : "\n[answer] ");
  }
  // Control characters of a model's answer must not drive the terminal.
  void Put(const std::string& text) {
    for (const char c : text) {
      const bool ours = terminal_ && c == '\033' && (text == "\033[2m" || text == "\033[0m\n");
      if (ours || c == '\n' || c == '\t' || static_cast<unsigned char>(c) >= 0x20)
        std::fputc(c, stdout);
    }
    std::fflush(stdout);
  }

  bool terminal_;
  bool thinking_ = false;
};

Status Ask(ApiClient& client, const std::string& model, bool thinking, Json& messages) {
  const Json body = {{"model", model},
                     {"messages", messages},
                     {"stream", true},
                     {"chat_template_kwargs", {{"thinking", thinking}}}};
  Printer printer(isatty(STDOUT_FILENO) != 0);
  std::string content;
  std::string reasoning;
  const Status status = client.Stream("/v1/chat/completions", body, [&](const Json& chunk) {
    for (const Json& choice : chunk.value("choices", Json::array())) {
      const Json& delta = choice["delta"];
      if (delta.contains("reasoning") && delta["reasoning"].is_string()) {
        reasoning += delta["reasoning"].get<std::string>();
        printer.Reasoning(delta["reasoning"].get<std::string>());
      }
      if (delta.contains("content") && delta["content"].is_string() &&
          !delta["content"].get_ref<const std::string&>().empty()) {
        content += delta["content"].get<std::string>();
        printer.Content(delta["content"].get<std::string>());
      }
    }
    return true;
  });
  printer.Done();
  if (status.ok())
    messages.push_back(
        {{"role", "assistant"}, {"content", content}, {"reasoning_content", reasoning}});
  return status;
}

int Complain(const Status& status, const std::string& url) {
  std::fprintf(stderr, "baltoro chat: %s\n", status.message().c_str());
  if (status.code() == Code::kUnavailable) {
    std::fprintf(stderr, "Is a server running at %s? Start one with: baltoro serve\n", url.c_str());
  }
  return 1;
}

}  // namespace

int RunChat(const ChatOptions& options) {
  Result<ApiClient> client = ApiClient::Connect(options.url, options.api_key);
  if (!client.ok()) return Complain(client.status(), options.url);
  const Result<std::string> model = client.value().ModelName(options.model);
  if (!model.ok()) return Complain(model.status(), options.url);

  Json messages = Json::array();
  const auto turn = [&](const std::string& text) {
    messages.push_back({{"role", "user"}, {"content", text}});
    return Ask(client.value(), model.value(), options.thinking, messages);
  };
  if (!options.prompt.empty()) {
    const Status status = turn(options.prompt);
    return status.ok() ? 0 : Complain(status, options.url);
  }
  std::printf("Talking to %s. An empty line or Ctrl-D ends; /new starts afresh.\n",
              model.value().c_str());
  std::string line;
  while (std::printf("> "), std::fflush(stdout), std::getline(std::cin, line) && !line.empty()) {
    if (line == "/new") {
      messages = Json::array();
      continue;
    }
    if (const Status status = turn(line); !status.ok()) {
      Complain(status, options.url);
      messages.erase(messages.size() - 1);
    }
  }
  std::printf("\n");
  return 0;
}

}  // namespace baltoro
