#include "chat/chat.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "chat/answer_printer.h"
#include "chat/conversation.h"
#include "chat/history_file.h"
#include "chat/interrupt.h"
#include "chat/line_editor.h"
#include "chat/typed_message.h"
#include "client/api_client.h"
#include "client/picture_file.h"
#include "terminal/safe_text.h"

namespace baltoro {
namespace {

constexpr size_t kErrorBytesMax = 8192;

void Say(std::string_view text) {
  fmt::print(stderr, "baltoro chat: {}\n", text);
}

// The question of a pipe or a file.
Result<std::string> ReadStandardInput() {
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t count = read(STDIN_FILENO, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return InvalidArgument(fmt::format("standard input: {}", std::strerror(errno)));
    if (count == 0) break;
    text.append(buffer, static_cast<size_t>(count));
    if (text.size() > TypedMessage::kBytesMax) {
      return InvalidArgument(fmt::format("standard input: a question has at most {} MiB",
                                         TypedMessage::kBytesMax >> 20));
    }
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    return InvalidArgument(
        "nothing is asked: give the question as words, by a pipe, or start this on a terminal");
  }
  return text;
}

class Chat {
 public:
  Chat(const ChatOptions& options, ApiClient client, std::string model)
      : options_(options),
        client_(std::move(client)),
        model_(model),
        conversation_(options, std::move(model)) {}

  // Of the next question.
  Status AddPicture(const std::string& path, std::string_view flag) {
    // Other servers have no such route, and say themselves what is too much.
    if (!picture_bytes_max_) {
      const Result<Json> info = client_.Get("/server_info");
      picture_bytes_max_ = PictureBytesMaxOf(info.ok() ? info.value() : Json());
    }
    BT_ASSIGN_OR_RETURN(std::string url, ReadPictureUrl(path, flag, *picture_bytes_max_));
    pictures_.push_back(std::move(url));
    return {};
  }

  // Of one answer.
  int Once(const std::string& question) { return Turn(question) ? 0 : 1; }

  // Until the person leaves.
  int Talk() {
    // Where the answers go to a file, the person is at the other end of standard error.
    std::FILE* const screen = terminal_ ? stdout : stderr;
    HistoryFile file(options_.history);
    const Result<std::vector<std::string>> known = file.Load();
    if (!known.ok()) Say("no history: " + known.status().message());
    LineEditor editor(screen, known.ok() ? known.value() : std::vector<std::string>());
    fmt::print(screen, "Talking to {}. /help lists the commands; Ctrl-D leaves.\n",
               ForTerminal(model_));
    TypedMessage message;
    std::string line;
    for (;;) {
      std::fflush(screen);
      const std::string prompt = pictures_.empty() ? "> " : fmt::format("({}) > ", Waiting());
      const LineEditor::Got got = editor.Read(message.begun() ? "... " : prompt.c_str(), line);
      if (got != LineEditor::Got::kLine) std::fputs("\n", screen);
      if (got == LineEditor::Got::kEnd) return 0;
      if (got == LineEditor::Got::kForgotten) {
        message.Take();
        continue;
      }
      editor.Remember(line);
      if (const Status kept = file.Add(line); !kept.ok() && !std::exchange(history_failed_, true))
        Say("no history: " + kept.message());
      if (const Status status = message.Add(line); !status.ok()) Say(status.message());
      if (!message.complete()) continue;
      const bool command = !message.block();
      const std::string text = message.Take();
      if (text.find_first_not_of(" \t\n") == std::string::npos) continue;
      if (!command || text.front() != '/') {
        Turn(text);
        if (output_failed_) return 1;
      } else if (!Obey(text, screen)) {
        return 0;
      }
    }
  }

 private:
  std::string Waiting() const {
    return pictures_.size() == 1 ? "1 picture" : fmt::format("{} pictures", pictures_.size());
  }

  // False: to leave.
  bool Obey(const std::string& text, std::FILE* screen) {
    const Result<ChatCommand> command = ParseChatCommand(text);
    if (!command.ok()) {
      Say(ForTerminal(command.status().message()));
      return true;
    }
    const std::string& argument = command.value().argument;
    Status status;
    std::string done;
    switch (command.value().verb) {
      case ChatVerb::kQuit:
        return false;
      case ChatVerb::kHelp:
        std::fputs(kChatHelp, screen);
        return true;
      case ChatVerb::kSystem:
        status = conversation_.SetSystem(argument);
        done = argument.empty() ? "no system prompt from the next question on"
                                : "the system prompt holds from the next question on";
        break;
      case ChatVerb::kImage:
        if (argument.empty()) {
          pictures_.clear();
        } else {
          status = AddPicture(argument, "/image");
        }
        done = pictures_.empty() ? "no picture goes with the next question"
                                 : Waiting() + " for the next question";
        break;
      case ChatVerb::kClear:
        conversation_.Clear();
        done = conversation_.has_system() ? "a new conversation, with the same system prompt"
                                          : "a new conversation";
        break;
      case ChatVerb::kThinking:
        conversation_.set_thinking(argument == "on");
        done = "thinking is " + argument;
        break;
      case ChatVerb::kSave:
        status = conversation_.Save(argument);
        done = "the conversation is in " + argument;
        break;
    }
    if (status.ok()) {
      fmt::print(screen, "({})\n", ForTerminal(done));
    } else {
      Say(ForTerminal(status.message(), kErrorBytesMax));
    }
    return true;
  }

  // False: there is no answer, for a reason that has been told.
  bool Turn(const std::string& question) {
    const std::vector<std::string> pictures = std::exchange(pictures_, {});
    if (const Status status = conversation_.Ask(question, pictures); !status.ok()) {
      Say(status.message());
      return false;
    }
    ForgetInterrupt();
    AnswerPrinter printer(terminal_, options_.plain);
    std::string content, reasoning, finish;
    int64_t tokens = 0;
    const auto text_of = [](const Json& delta, const char* name) {
      const auto found = delta.find(name);
      return found != delta.end() && found->is_string() ? found->get<std::string>() : "";
    };
    Status status =
        client_.Stream("/v1/chat/completions", conversation_.Request(), [&](const Json& chunk) {
          if (chunk.contains("usage") && chunk["usage"].is_object())
            tokens = chunk["usage"].value("completion_tokens", int64_t{0});
          for (const Json& choice : chunk.value("choices", Json::array())) {
            if (choice.contains("finish_reason") && choice["finish_reason"].is_string())
              finish = choice["finish_reason"].get<std::string>();
            const Json delta = choice.value("delta", Json::object());
            const std::string thought = text_of(delta, "reasoning"),
                              said = text_of(delta, "content");
            reasoning += thought;
            content += said;
            if (!thought.empty()) printer.Thinking(thought);
            if (!said.empty()) printer.Content(said);
          }
          return printer.error() == 0 && !Interrupted();
        });
    printer.End(tokens);
    if (printer.error() != 0) {
      output_failed_ = true;
      Say(fmt::format("standard output: {}", std::strerror(printer.error())));
      std::clearerr(stdout);  // told; the end of the program need not
      return false;
    }
    const bool interrupted = Interrupted();
    if (interrupted) status = {};
    const bool answered = status.ok() && !(content.empty() && reasoning.empty());
    if (answered) {
      conversation_.Answer(content, reasoning);
    } else {
      conversation_.DropQuestion();
      pictures_ = pictures;
    }
    if (interrupted) {
      Say(answered ? "stopped; what there is of the answer stays in the conversation"
                   : "stopped before an answer came");
    } else if (!status.ok()) {
      Explain(status);
    } else if (finish == "length") {
      Say("the answer was cut off: --max-tokens or the model's context ended it");
    }
    return status.ok();
  }

  void Explain(const Status& status);

  const ChatOptions& options_;
  ApiClient client_;
  const std::string model_;
  Conversation conversation_;
  const bool terminal_ = isatty(STDOUT_FILENO) == 1;
  bool output_failed_ = false, history_failed_ = false;
  std::vector<std::string> pictures_;  // URLs, of the next question
  std::optional<uint64_t> picture_bytes_max_;
};

// What the server said, whole, and what can be done about it.
void Complain(const Status& status, ApiClient* client, const std::string& url) {
  Say(ForTerminal(status.message(), kErrorBytesMax));
  const int http = client == nullptr ? 0 : client->http_status();
  if (http == 0 && status.code() == Code::kUnavailable) {
    Say(fmt::format("is a server running at {}? `baltoro serve` starts one; --url names another",
                    url));
  } else if (http == 401 || http == 403) {
    Say("give the server's key by --api-key or VLLM_API_KEY");
  } else if (http == 404) {
    std::string names;
    if (const Result<Json> models = client->Get("/v1/models"); models.ok()) {
      for (const Json& model : models.value().value("data", Json::array()))
        names += (names.empty() ? "" : ", ") + model.value("id", "");
    }
    if (!names.empty()) Say("--model can be: " + ForTerminal(names, kErrorBytesMax));
  } else if (http == 429) {
    Say("the server has too much to do: ask again in a moment");
  } else if (http == 503) {
    Say(fmt::format("{}/health and the server's log say why it is not ready: ask again later",
                    url));
  } else if (http >= 500 || status.code() == Code::kInternal) {
    Say("the server's log says more: ask again, it may go on");
  }
}

void Chat::Explain(const Status& status) {
  Complain(status, &client_, options_.url);
  const bool refused = client_.http_status() == 400 || client_.http_status() == 413;
  if (!refused || isatty(STDIN_FILENO) != 1) return;
  if (!pictures_.empty()) Say("the pictures wait for another question: /image forgets them");
  if (conversation_.begun()) Say("if the conversation has become too long: /clear");
}

}  // namespace

int RunChat(const ChatOptions& options) {
  const bool conversation = options.prompt.empty() && isatty(STDIN_FILENO) == 1;
  std::string question = options.prompt;
  if (question.empty() && !conversation) {
    const Result<std::string> asked = ReadStandardInput();
    if (!asked.ok()) {
      Say(asked.status().message());
      return 1;
    }
    question = asked.value();
  }
  if (conversation) CatchInterrupts();
  Result<ApiClient> client = ApiClient::Connect(options.url, options.api_key, interrupt_fd());
  if (!client.ok()) {
    Say(client.status().message());
    return 2;
  }
  const Result<std::string> model = client.value().ModelName(options.model);
  if (!model.ok()) {
    Complain(model.status(), &client.value(), options.url);
    return 1;
  }
  Chat chat(options, std::move(client).value(), model.value());
  for (const std::string& path : options.images) {
    if (const Status status = chat.AddPicture(path, "--image"); !status.ok()) {
      Say(ForTerminal(status.message(), kErrorBytesMax));
      return 1;
    }
  }
  return conversation ? chat.Talk() : chat.Once(question);
}

}  // namespace baltoro
