#include "replicas.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/cpu_topology.h"
#include "engine/engine_process.h"
#include "route/replica_group.h"
#include "route/shared_engine.h"

namespace baltoro {

Result<std::string> DevicesOfReplica(const char* visible, int32_t index, int32_t gpus) {
  std::vector<std::string> names;
  for (std::string_view rest = visible != nullptr ? visible : ""; !rest.empty();) {
    const size_t end = std::min(rest.find(','), rest.size());
    names.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  const int32_t end = (index + 1) * gpus;
  if (visible != nullptr && end > static_cast<int32_t>(names.size())) {
    return InvalidArgument(
        fmt::format("CUDA_VISIBLE_DEVICES={} names {} GPUs, and {} replicas of {} each want {}",
                    visible, names.size(), index + 1, gpus, end));
  }
  std::string out;
  for (int32_t gpu = index * gpus; gpu < end; ++gpu) {
    if (!out.empty()) out += ',';
    out += visible != nullptr ? names[static_cast<size_t>(gpu)] : std::to_string(gpu);
  }
  return out;
}

namespace {

// Replicas that share experts: one process, in which each has a number of its own.
Result<std::unique_ptr<Engine>> StartExpertGroup(const EngineConfig& config,
                                                 const EngineProcess& process,
                                                 const EventSink& sink,
                                                 const LoadProgress& progress) {
  const int32_t replicas = config.data_parallel_size;
  BT_ASSIGN_OR_RETURN(const std::shared_ptr<SharedEngine> shared,
                      SharedEngine::Start(replicas, [&](EventSink of_all) {
                        return StartEngineProcess(config, process, std::move(of_all), progress);
                      }));
  return ReplicaGroup::Start(
      replicas,
      [&](int32_t replica, EventSink of_replica) -> Result<std::unique_ptr<Engine>> {
        return SharedEngine::Member(shared, replica, std::move(of_replica));
      },
      sink);
}

}  // namespace

Result<std::unique_ptr<Engine>> StartReplicas(const ReplicaOptions& replicas,
                                              const EngineConfig& config,
                                              const std::string& program,
                                              double restart_timeout,
                                              const EventSink& sink,
                                              const LoadProgress& progress) {
  EngineProcess process{.program = program, .restart_timeout = restart_timeout};
  if (config.data_parallel_size > 1) return StartExpertGroup(config, process, sink, progress);
  if (replicas.here == 1) return StartEngineProcess(config, process, sink, progress);
  EngineConfig shared = config;
  const bool cpu = config.device == "cpu" || config.load_format == "stand-in";
  if (cpu && shared.threads == 0) {
    const int cores = ThreadsByDefault(ReadCpuTopology(CpuSet::Allowed()), ControlGroupCpus());
    shared.threads = std::max(1, cores / replicas.here);
  }
  const auto start = [&](int32_t index, EventSink of_replica) -> Result<std::unique_ptr<Engine>> {
    EngineProcess one = process;
    one.replica = replicas.first + index;
    if (!cpu) {
      const int32_t gpus = config.tensor_parallel_size * config.pipeline_parallel_size;
      BT_ASSIGN_OR_RETURN(one.visible_devices,
                          DevicesOfReplica(std::getenv("CUDA_VISIBLE_DEVICES"), index, gpus));
    }
    // All load the same: the first one tells how far it is.
    return StartEngineProcess(shared, one, std::move(of_replica),
                              index == 0 ? progress : LoadProgress());
  };
  return ReplicaGroup::Start(replicas.here, start, sink);
}

}  // namespace baltoro
