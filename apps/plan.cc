#include "plan.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/log.h"
#include "engine_settings.h"
#include "model_location.h"
#include "serve.h"

namespace baltoro {
namespace {

constexpr const char* kGpuOfDescribed = "h200-141g";

bool HasWeights(const std::string& dir) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(dir, ignored)) {
    if (entry.path().extension() == ".safetensors") return true;
  }
  return false;
}

// What lies here, as `serve` would find it; else what config.json or the name says of weights that
// are elsewhere.
Result<PlannedModel> FindModel(const ServeOptions& options, const std::string& program) {
  const Result<std::string> dir = LocateModel(options.model, program);
  if (dir.ok()) {
    const bool is_here = options.load_format == "dummy" || options.load_format == "stand-in" ||
                         HasWeights(dir.value());
    if (is_here) return PlannedModel{.dir = dir.value()};
  }
  Result<ModelDescription> known = DescribeModel(dir.ok() ? dir.value() : options.model);
  if (known.ok()) {
    return PlannedModel{.dir = dir.ok() ? dir.value() : "", .described = std::move(known).value()};
  }
  if (dir.ok()) return known.status();
  return Status(dir.status().code(),
                dir.status().message() + "; to plan without files: " + known.status().message());
}

struct Planned {
  HostPlan run = {};
  bool described = false;
};

Result<Planned> MakePlan(const PlanCommand& command, const std::string& program) {
  BT_ASSIGN_OR_RETURN(const PlannedModel model, FindModel(command.serve, program));
  std::string gpu = command.gpu;
  if (gpu.empty() && model.described && command.serve.device != "cpu") gpu = kGpuOfDescribed;
  std::optional<DeviceSpec> device;
  if (!gpu.empty()) {
    BT_ASSIGN_OR_RETURN(device, FindDevice(gpu));
  }
  BT_ASSIGN_OR_RETURN(Launch launch, PrepareLaunch(command.serve, program, model, device));
  Planned planned{.run = std::move(launch.plan), .described = model.described.has_value()};
  const Result<std::string> key = FindClusterKey(command.serve, launch.engine);
  if (!key.ok()) {
    // It is for where the nodes are.
    if (!planned.described && !device) return key.status();
    planned.run.notices.push_back("serve wants one thing more: " + key.status().message());
  }
  return planned;
}

Json NoticesJson(const PlanCommand& command, const std::vector<std::string>& of_run) {
  Json notices = command.serve.notices;
  for (const std::string& notice : of_run) notices.push_back(notice);
  return notices;
}

std::vector<FlagEntry> FlagsOf(const PlanCommand& command, const HostPlan& run) {
  std::vector<std::string> notices = command.serve.notices;
  notices.insert(notices.end(), run.notices.begin(), run.notices.end());
  return ReportFlags(command.serve.given_flags, notices, {});
}

std::string AsText(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

int Refuse(const PlanCommand& command, const Status& status) {
  if (command.json) {
    std::fputs(RefusalJson(status.message()).c_str(), stdout);
  } else if (command.flags) {
    std::fputs(FlagReportText(ReportUnplaced(command.serve)).c_str(), stdout);
  }
  fmt::print(stderr, "baltoro plan: error: {}\n", status.message());
  return 1;
}

}  // namespace

int RunPlan(const PlanCommand& command, const std::string& program) {
  // The first line is the verdict; what there is to say about flags follows behind the plan.
  InitLog("Plan", LogLevel::kError);
  const Result<Planned> planned = MakePlan(command, program);
  if (!planned.ok()) return Refuse(command, planned.status());
  const HostPlan& run = planned.value().run;
  const bool fits = run.misfit.empty();
  const std::string fit = run.memory ? FitText(*run.memory) : "Fits: a stand-in has no model";
  if (command.json) {
    Json out = {{"verdict", fits ? "fits" : "does not fit"},
                {"reason", fits ? fit : run.misfit},
                {"weights_are_here", !planned.value().described}};
    if (run.memory) out.update(PlanJson(*run.memory, command.lengths));
    out["notices"] = NoticesJson(command, run.notices);
    out["flags"] = FlagReportJson(FlagsOf(command, run));
    std::fputs(AsText(out).c_str(), stdout);
    return fits ? 0 : 1;
  }
  std::string text = fits ? fit : "Does not fit: " + run.misfit;
  text += "\n";
  if (run.memory) text += PlanText(*run.memory, command.lengths);
  if (planned.value().described) {
    text += "  The weights are not here: planned of what is known of the model.\n";
  }
  if (command.flags) text += "Flags:\n" + FlagReportText(FlagsOf(command, run));
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
  for (const std::string& notice : command.serve.notices) fmt::print(stderr, "{}\n", notice);
  for (const std::string& notice : run.notices) fmt::print(stderr, "{}\n", notice);
  return fits ? 0 : 1;
}

}  // namespace baltoro
