#pragma once

// What the server's processes take of the machine, under the names that Prometheus' own clients
// use, with the process as a label.

#include <prometheus/metric_family.h>

#include <span>
#include <string>
#include <vector>

#include "base/process_use.h"

namespace baltoro {

// A process of which nothing is known has no series: an engine within the server, or one that is
// not there.
struct NamedProcess {
  std::string name;
  ProcessUse use;
};
std::vector<prometheus::MetricFamily> ProcessFamilies(std::span<const NamedProcess> processes);

}  // namespace baltoro
