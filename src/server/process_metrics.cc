#include "server/process_metrics.h"

#include <utility>

namespace baltoro {
namespace {

struct Fact {
  const char *name, *help;
  prometheus::MetricType type;
  double (*value)(const ProcessUse& use);
};

constexpr Fact kFacts[] = {
    {"process_cpu_seconds_total", "Processor time used, in seconds.",
     prometheus::MetricType::Counter, [](const ProcessUse& use) { return use.cpu_seconds; }},
    {"process_resident_memory_bytes", "Memory in use, in bytes.", prometheus::MetricType::Gauge,
     [](const ProcessUse& use) { return static_cast<double>(use.resident_bytes); }},
    {"process_virtual_memory_bytes", "Address space in use, in bytes.",
     prometheus::MetricType::Gauge,
     [](const ProcessUse& use) { return static_cast<double>(use.virtual_bytes); }},
    {"process_open_fds", "Open file descriptors, sockets among them.",
     prometheus::MetricType::Gauge,
     [](const ProcessUse& use) { return static_cast<double>(use.open_files); }},
    {"process_max_fds", "File descriptors that may be open.", prometheus::MetricType::Gauge,
     [](const ProcessUse& use) { return static_cast<double>(use.open_files_max); }},
    {"process_start_time_seconds", "Start of the process, in seconds since 1970.",
     prometheus::MetricType::Gauge, [](const ProcessUse& use) { return use.start_unix; }},
};

}  // namespace

std::vector<prometheus::MetricFamily> ProcessFamilies(std::span<const NamedProcess> processes) {
  std::vector<prometheus::MetricFamily> families;
  for (const Fact& fact : kFacts) {
    prometheus::MetricFamily family{
        .name = fact.name, .help = fact.help, .type = fact.type, .metric = {}};
    for (const auto& [name, use] : processes) {
      if (use.start_unix <= 0) continue;
      prometheus::ClientMetric& metric = family.metric.emplace_back();
      metric.label = {{"process", name}};
      if (fact.type == prometheus::MetricType::Counter) {
        metric.counter.value = fact.value(use);
      } else {
        metric.gauge.value = fact.value(use);
      }
    }
    if (!family.metric.empty()) families.push_back(std::move(family));
  }
  return families;
}

}  // namespace baltoro
