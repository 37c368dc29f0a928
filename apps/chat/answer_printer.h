#pragma once

// An answer on standard output, as it comes. One thread.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace baltoro {

class AnswerPrinter {
 public:
  // What comes is shown so: on a terminal thinking is dim, or with marks where `plain`, and is
  // followed by the answer and by how fast both came. Elsewhere there is the answer alone.
  AnswerPrinter(bool terminal, bool plain)
      : terminal_(terminal), plain_(plain), asked_(clock_.Now()) {}

  void Thinking(std::string_view text);
  void Content(std::string_view text);
  // `tokens` are all of the answer, thinking included; 0: the server has not said.
  void End(int64_t tokens);

  // 0, or why standard output takes no more, as errno.
  int error() const { return error_; }

 private:
  void Came();
  void EndThinking();
  void Write(std::string_view text);

  const bool terminal_, plain_;
  const MonotonicClock clock_;
  const Seconds asked_;
  Seconds first_ = 0, last_ = 0;
  bool any_ = false, thinking_ = false, at_line_begin_ = true;
  int error_ = 0;
};

}  // namespace baltoro
