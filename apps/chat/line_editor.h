#pragma once

// A line from a person: edited with the keys of Emacs, or as ~/.editrc says, with a history. By
// libedit. One in a process, one thread.

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace baltoro {

class LineEditor {
 public:
  enum class Got {
    kLine,
    kForgotten,  // Ctrl-C
    kEnd,        // Ctrl-D, or the terminal has gone
  };

  // Reads standard input, and draws on `screen`. `history`: the oldest line first.
  LineEditor(std::FILE* screen, const std::vector<std::string>& history);
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;
  ~LineEditor();

  // `line` without its end. `prompt` outlives the call.
  Got Read(const char* prompt, std::string& line);
  // For the keys that go back.
  void Remember(const std::string& line);

 private:
  struct Parts;
  const std::unique_ptr<Parts> parts_;
};

}  // namespace baltoro
