#include "flags/profiler_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

namespace baltoro {
namespace {

// Upstream's, of PyTorch's profiler or of a cut of the recording.
constexpr std::string_view kIdleKeys[] = {"torch_profiler_with_stack",
                                          "torch_profiler_with_flops",
                                          "torch_profiler_dump_cuda_time_total",
                                          "torch_profiler_record_shapes",
                                          "torch_profiler_with_memory",
                                          "ignore_frontend",
                                          "delay_iterations",
                                          "max_iterations",
                                          "warmup_iterations",
                                          "active_iterations",
                                          "wait_iterations"};

Status Wrong(std::string_view key, std::string_view expected) {
  return InvalidArgument(fmt::format("--profiler-config: {}: expected {}", key, expected));
}

}  // namespace

Result<ProfilerOptions> ReadProfilerOptions(const Json& config, std::vector<std::string>& notices) {
  ProfilerOptions out;
  std::string profiler;
  std::vector<std::string> idle;
  for (const auto& [key, value] : config.items()) {
    if (key == "profiler") {
      if (value.is_null()) continue;
      if (!value.is_string()) return Wrong(key, "\"torch\"");
      profiler = value.get<std::string>();
    } else if (key == "torch_profiler_dir") {
      if (!value.is_string()) return Wrong(key, "a path");
      out.dir = value.get<std::string>();
    } else if (key == "torch_profiler_use_gzip") {
      if (!value.is_boolean()) return Wrong(key, "true or false");
      out.gzip = value.get<bool>();
    } else if (std::ranges::find(kIdleKeys, key) != std::end(kIdleKeys)) {
      idle.push_back(key);
    } else {
      return InvalidArgument(fmt::format("--profiler-config: {}: no such key", key));
    }
  }
  if (profiler == "cuda") {
    return InvalidArgument(
        "--profiler-config: profiler: \"cuda\" is not there: nsys profile records a whole run "
        "without it, and \"torch\" records what the engine does");
  }
  if (!profiler.empty() && profiler != "torch") return Wrong("profiler", "\"torch\"");
  if (profiler.empty() && !out.dir.empty()) {
    return InvalidArgument(
        "--profiler-config: torch_profiler_dir needs \"profiler\": \"torch\" beside it");
  }
  if (profiler.empty()) return ProfilerOptions{};
  if (!out.dir.starts_with('/')) {
    return Wrong("torch_profiler_dir", "an absolute path, the folder for recordings");
  }
  while (out.dir.size() > 1 && out.dir.ends_with('/')) out.dir.pop_back();
  if (!idle.empty()) {
    notices.push_back(
        fmt::format("--profiler-config: {}: no effect: the engine's own spans are recorded, from "
                    "/start_profile to /stop_profile",
                    fmt::join(idle, ", ")));
  }
  return out;
}

}  // namespace baltoro
