#include "quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "base/clock.h"
#include "model_location.h"
#include "terminal/progress_line.h"
#include "weights/quantize.h"

namespace baltoro {
namespace {

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
  ByteProgress rate;
  options.progress = [&](int64_t done, int64_t total) {
    if (line.due()) line.Show(rate.Text(done, total, MonotonicClock().Now()) + " read");
  };
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
