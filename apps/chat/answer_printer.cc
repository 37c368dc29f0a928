#include "chat/answer_printer.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>

#include "terminal/safe_text.h"

namespace baltoro {
namespace {

constexpr std::string_view kDim = "\x1b[2m", kNormal = "\x1b[0m";

}  // namespace

void AnswerPrinter::Thinking(std::string_view text) {
  Came();
  if (!terminal_) return;
  if (!thinking_) Write(plain_ ? "[thinking] " : kDim);
  thinking_ = true;
  Write(WithoutControls(text));
}

void AnswerPrinter::Content(std::string_view text) {
  Came();
  EndThinking();
  // A file takes what the model said, byte by byte.
  Write(terminal_ ? WithoutControls(text) : std::string(text));
}

void AnswerPrinter::End(int64_t tokens) {
  EndThinking();
  if (!at_line_begin_) Write("\n");
  if (!terminal_ || !any_) return;
  std::string speed;
  if (tokens > 1 && last_ > first_)
    speed = fmt::format("{} tokens, {:.1f} tokens/s, ", tokens,
                        static_cast<double>(tokens - 1) / (last_ - first_));
  const std::string line = fmt::format("({}first token after {:.2f} s)", speed, first_ - asked_);
  Write(plain_ ? line + "\n" : fmt::format("{}{}{}\n", kDim, line, kNormal));
}

void AnswerPrinter::Came() {
  last_ = clock_.Now();
  if (!any_) first_ = last_;
  any_ = true;
}

void AnswerPrinter::EndThinking() {
  if (!thinking_) return;
  thinking_ = false;
  if (!plain_) Write(kNormal);
  if (!at_line_begin_) Write("\n");
  if (plain_) Write("[answer] ");
}

void AnswerPrinter::Write(std::string_view text) {
  if (text.empty() || error_ != 0) return;
  if (text != kDim && text != kNormal) at_line_begin_ = text.back() == '\n';
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0)
    return;
  error_ = errno != 0 ? errno : EIO;
}

}  // namespace baltoro
