#include "quantize.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "model_location.h"
#include "weights/quantize.h"

namespace baltoro {
namespace {

// One line that is written over on a terminal, and a line every ten seconds elsewhere.
class ProgressLine {
 public:
  void Show(int64_t done, int64_t total) {
    const double seconds = SecondsSince(start_);
    const bool last = done == total;
    if (!terminal_ && !last && SecondsSince(shown_) < kSecondsBetweenLines) return;
    shown_ = Clock::now();
    const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
    const double left = rate > 0 ? static_cast<double>(total - done) / rate : 0;
    fmt::print(stderr, "{}{:.2f} of {:.2f} GB read, {:.2f} GB/s, {:.0f} s left{}",
               terminal_ ? "\r\x1b[K" : "", static_cast<double>(done) / 1e9,
               static_cast<double>(total) / 1e9, rate / 1e9, left, terminal_ && !last ? "" : "\n");
    std::fflush(stderr);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr double kSecondsBetweenLines = 10;
  static double SecondsSince(Clock::time_point then) {
    return std::chrono::duration<double>(Clock::now() - then).count();
  }

  const bool terminal_ = isatty(STDERR_FILENO) == 1;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point shown_ = start_;
};

void PrintSummary(const QuantizeCommand& command, const QuantizeSummary& summary) {
  fmt::print("{:<18} {:<36} {:>8} {:>12} {:>12} {:>14}\n", "part", "form", "matrices", "MB before",
             "MB after", "relative error");
  for (const auto& [role, part] : summary.parts) {
    fmt::print("{:<18} {:<36} {:>8} {:>12.2f} {:>12.2f} {:>13.3f}%\n", NameOf(role),
               WeightFormName(part.form), part.matrices,
               static_cast<double>(part.bytes_before) / 1e6,
               static_cast<double>(part.bytes_after) / 1e6, part.relative() * 100);
  }
  fmt::print("{}: {} files, {:.2f} MB of tensors (before: {:.2f} MB)\n", command.target,
             summary.files, static_cast<double>(summary.bytes_after) / 1e6,
             static_cast<double>(summary.bytes_before) / 1e6);
}

Result<QuantizeSummary> Run(const QuantizeCommand& command,
                            const std::string& program,
                            QuantizeOptions options) {
  BT_ASSIGN_OR_RETURN(const std::string source, LocateModel(command.source, program));
  ProgressLine line;
  options.progress = [&line](int64_t done, int64_t total) { line.Show(done, total); };
  return QuantizeCheckpoint(source, command.target, options);
}

}  // namespace

int RunQuantize(const QuantizeCommand& command, const std::string& program) {
  const auto fail = [](const Status& why, int code) {
    fmt::print(stderr, "baltoro quantize: error: {}\n", why.message());
    return code;
  };
  QuantizeOptions options;
  const auto format = ParseQuantFormat(command.format);
  if (!format.ok()) return fail(format.status(), 2);
  options.format = format.value();
  if (!command.parts.empty()) {
    auto parts = ParseQuantParts(command.parts);
    if (!parts.ok()) return fail(parts.status(), 2);
    options.parts = std::move(parts).value();
  }
  options.shard_bytes = command.shard_bytes;
  options.threads = command.threads > 0
                        ? command.threads
                        : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const auto summary = Run(command, program, std::move(options));
  if (!summary.ok()) return fail(summary.status(), 1);
  PrintSummary(command, summary.value());
  return 0;
}

}  // namespace baltoro
