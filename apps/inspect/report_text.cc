#include <fmt/format.h>
#include <fmt/ranges.h>

#include "inspect/checkpoint_report.h"

namespace baltoro {
namespace {

std::string Bytes(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= 1'000'000'000) return fmt::format("{:.2f} GB", value / 1e9);
  if (bytes >= 1'000'000) return fmt::format("{:.2f} MB", value / 1e6);
  if (bytes >= 1000) return fmt::format("{:.2f} kB", value / 1e3);
  return fmt::format("{} B", bytes);
}

std::string Forms(const RoleTotal& total) {
  std::string out;
  for (const auto& [form, count] : total.forms) {
    out += fmt::format("{}{} x {}", out.empty() ? "" : "; ", count, WeightFormName(form));
  }
  return out;
}

}  // namespace

std::string ReportText(const CheckpointReport& report) {
  std::string out = report.dir + "\n";
  if (!report.model_type.empty()) {
    out += fmt::format("{}, {} layers; ", report.model_type, report.layers);
  }
  out += fmt::format("{} tensors in {} files, {}\n\n", report.tensors, report.files,
                     Bytes(report.tensor_bytes));
  out += fmt::format("{:<18} {:>8} {:>11}  {}\n", "part", "tensors", "bytes", "matrices");
  for (const auto& [role, total] : report.roles) {
    out += fmt::format("{:<18} {:>8} {:>11}  {}\n", NameOf(role), total.tensors, Bytes(total.bytes),
                       Forms(total));
  }
  out += fmt::format("\n{:<18} {:<8} {:>7} {:>11}  {:<16} {}\n", "for", "type", "count", "bytes",
                     "shape", "tensor");
  for (const TensorKind& kind : report.kinds) {
    out += fmt::format("{:<18} {:<8} {:>7} {:>11}  {:<16} {}\n", NameOf(kind.role), kind.dtype,
                       kind.count, Bytes(kind.bytes),
                       fmt::format("[{}]", fmt::join(kind.shape, ", ")), kind.name);
  }
  out += report.problems.empty() ? "\nno problem found\n" : "\nproblems:\n";
  for (const ReportProblem& problem : report.problems) {
    out += fmt::format("  {}: {}{}\n", problem.where, problem.what,
                       problem.count > 1 ? fmt::format(" (and {} more)", problem.count - 1) : "");
  }
  return out;
}

Json ReportJson(const CheckpointReport& report) {
  Json out = {{"directory", report.dir},
              {"model_type", report.model_type},
              {"layers", report.layers},
              {"files", report.files},
              {"file_bytes", report.file_bytes},
              {"tensors", report.tensors},
              {"tensor_bytes", report.tensor_bytes},
              {"parts", Json::array()},
              {"kinds", Json::array()},
              {"problems", Json::array()}};
  for (const auto& [role, total] : report.roles) {
    Json forms = Json::object();
    for (const auto& [form, count] : total.forms) forms[WeightFormName(form)] = count;
    out["parts"].push_back({{"part", NameOf(role)},
                            {"tensors", total.tensors},
                            {"bytes", total.bytes},
                            {"matrices", forms}});
  }
  for (const TensorKind& kind : report.kinds) {
    out["kinds"].push_back({{"name", kind.name},
                            {"part", NameOf(kind.role)},
                            {"dtype", kind.dtype},
                            {"shape", kind.shape},
                            {"count", kind.count},
                            {"bytes", kind.bytes}});
  }
  for (const ReportProblem& problem : report.problems) {
    out["problems"].push_back(
        {{"where", problem.where}, {"what", problem.what}, {"count", problem.count}});
  }
  return out;
}

}  // namespace baltoro
