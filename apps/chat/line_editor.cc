#include "chat/line_editor.h"

#include <histedit.h>
#include <langinfo.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <string_view>

#include "base/utf8.h"
#include "chat/history_file.h"

namespace baltoro {

namespace {

// What the callbacks of libedit reach.
struct LineState {
  const char* prompt = "";
  bool forgotten = false;
};

// What libedit calls back has its EditLine alone, and the client data of that.
template <typename T>
T* ClientOf(EditLine* line) {
  void* client = nullptr;
  el_get(line, EL_CLIENTDATA, &client);
  return static_cast<T*>(client);
}

// Bytes above 127 are characters by the locale alone, and containers often have none.
void UseUtf8() {
  std::setlocale(LC_CTYPE, "");
  if (std::string_view(nl_langinfo(CODESET)) != "UTF-8") std::setlocale(LC_CTYPE, "C.UTF-8");
}

// As libedit wants it: 1, or 0 at the end, or -1. What is no UTF-8 is left out.
int ReadCharacter(EditLine* line, wchar_t* out) {
  constexpr char kCtrlC = 3, kCtrlZ = 26;
  std::string bytes;
  for (;;) {
    char byte = 0;
    const ssize_t count = read(STDIN_FILENO, &byte, 1);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return static_cast<int>(count);
    if (byte == kCtrlC) {
      ClientOf<LineState>(line)->forgotten = true;
      return 0;
    }
    if (byte == kCtrlZ) {
      el_set(line, EL_PREP_TERM, 0);
      std::raise(SIGTSTP);
      el_set(line, EL_PREP_TERM, 1);
      el_set(line, EL_REFRESH);
      continue;
    }
    bytes += byte;
    char32_t code = 0;
    if (Utf8Decode(bytes, code) > 0) {
      *out = static_cast<wchar_t>(code);
      return 1;
    }
    size_t begun = 0;
    if (!Utf8IncompleteTail(bytes, begun) || begun != bytes.size()) bytes.clear();
  }
}

}  // namespace

struct LineEditor::Parts {
  EditLine* line = nullptr;
  History* history = nullptr;
  LineState state;
};

LineEditor::LineEditor(std::FILE* screen, const std::vector<std::string>& history)
    : parts_(std::make_unique<Parts>()) {
  UseUtf8();
  parts_->history = history_init();
  parts_->line = el_init("baltoro", stdin, screen, stderr);
  if (parts_->line == nullptr || parts_->history == nullptr) return;  // Read says kEnd
  HistEvent event;
  ::history(parts_->history, &event, H_SETSIZE, static_cast<int>(HistoryFile::kLinesMax));
  ::history(parts_->history, &event, H_SETUNIQUE, 1);
  for (const std::string& line : history) Remember(line);

  EditLine* const line = parts_->line;
  el_set(line, EL_CLIENTDATA, &parts_->state);
  el_set(
      line, EL_PROMPT, +[](EditLine* asking) {
        return const_cast<char*>(
            ClientOf<LineState>(asking)->prompt);  // libedit's type; it only reads
      });
  el_set(line, EL_HIST, ::history, parts_->history);
  el_set(line, EL_EDITOR, "emacs");
  el_set(line, EL_SIGNAL, 1);  // the terminal is put in order before a stop, and measured anew
  // Ctrl-C and Ctrl-Z come as characters, for the first must forget the line and not end the
  // program.
  el_set(line, EL_SETTY, "-d", "-isig", nullptr);
  el_set(line, EL_GETCFN, ReadCharacter);
  el_set(line, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  el_set(line, EL_BIND, "\\e[3~", "ed-delete-next-char", nullptr);
  el_set(line, EL_BIND, "\\e[1;5C", "em-next-word", nullptr);
  el_set(line, EL_BIND, "\\e[1;5D", "ed-prev-word", nullptr);
  el_source(line, nullptr);
}

LineEditor::~LineEditor() {
  if (parts_->line != nullptr) el_end(parts_->line);
  if (parts_->history != nullptr) history_end(parts_->history);
}

LineEditor::Got LineEditor::Read(const char* prompt, std::string& line) {
  if (parts_->line == nullptr) return Got::kEnd;
  parts_->state.prompt = prompt;
  parts_->state.forgotten = false;
  // libedit shows the prompt first: a Ctrl-D that is typed at it then would get lost in the change.
  el_set(parts_->line, EL_PREP_TERM, 1);
  int count = 0;
  const char* typed = el_gets(parts_->line, &count);
  if (parts_->state.forgotten) return Got::kForgotten;
  if (typed == nullptr || count <= 0) return Got::kEnd;
  line = typed;
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  return Got::kLine;
}

void LineEditor::Remember(const std::string& line) {
  if (parts_->history == nullptr || line.empty()) return;
  HistEvent event;
  ::history(parts_->history, &event, H_ENTER, line.c_str());
}

}  // namespace baltoro
