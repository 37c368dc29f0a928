#include "inspect.h"

#include <fmt/format.h>

#include <cstdio>

#include "inspect/checkpoint_report.h"
#include "model_location.h"
#include "terminal/progress_line.h"
#include "terminal/safe_text.h"

namespace baltoro {

int RunInspect(const InspectCommand& command, const std::string& program) {
  const Result<std::string> dir = LocateModel(command.model, program);
  if (!dir.ok()) {
    fmt::print(stderr, "baltoro inspect: error: {}\n", dir.status().message());
    return 2;
  }
  ProgressLine line;
  int64_t files = 0;
  const CheckpointReport report = InspectCheckpoint(dir.value(), [&](const std::string& name) {
    line.Show(fmt::format("reading headers: file {}, {}", ++files, ForTerminal(name)));
  });
  line.End();
  const std::string text =
      command.json ? ReportJson(report).dump(2, ' ', false, Json::error_handler_t::replace) + "\n"
                   : ReportText(report);
  std::fputs(text.c_str(), stdout);
  return report.problems.empty() ? 0 : 1;
}

}  // namespace baltoro
