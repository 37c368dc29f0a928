#include "replicas.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "base/cpu_topology.h"
#include "base/log.h"
#include "engine/engine_process.h"
#include "engine/node_agreement.h"
#include "engine/remote_engine.h"
#include "route/node_replica.h"
#include "route/replica_group.h"
#include "route/shared_engine.h"

namespace baltoro {

Result<std::vector<std::string>> DealDevices(const char* visible,
                                             int32_t first,
                                             int32_t each,
                                             int32_t count) {
  std::vector<std::string> names;
  for (std::string_view rest = visible != nullptr ? visible : ""; !rest.empty();) {
    const size_t end = std::min(rest.find(','), rest.size());
    names.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  const int32_t wanted = first + each * count;
  if (visible != nullptr && wanted > static_cast<int32_t>(names.size())) {
    return InvalidArgument(fmt::format(
        "CUDA_VISIBLE_DEVICES={} names {} GPUs, and {} servers or replicas of {} each want {}{}",
        visible, names.size(), count, each, wanted,
        first > 0 ? fmt::format(", with the {} before them", first) : ""));
  }
  std::vector<std::string> out;
  for (int32_t i = 0; i < count; ++i) {
    std::string& devices = out.emplace_back();
    for (int32_t gpu = first + i * each; gpu < first + (i + 1) * each; ++gpu) {
      if (!devices.empty()) devices += ',';
      devices += visible != nullptr ? names[static_cast<size_t>(gpu)] : std::to_string(gpu);
    }
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

// The processes of the replicas that are here.
class LocalReplicas {
 public:
  LocalReplicas(const ReplicaOptions& replicas,
                const EngineConfig& config,
                const std::string& program,
                double restart_timeout)
      : first_(replicas.first),
        here_(replicas.here),
        config_(config),
        process_{.program = program, .restart_timeout = restart_timeout},
        cpu_(config.device == "cpu" || config.load_format == "stand-in") {
    if (!cpu_ || config_.threads != 0) return;
    const int cores = ThreadsByDefault(ReadCpuTopology(CpuSet::Allowed()), ControlGroupCpus());
    config_.threads = std::max(1, cores / std::max(1, replicas.here));
  }

  // Any thread; `index` counts from 0 on this node.
  Result<std::unique_ptr<Engine>> Start(int32_t index,
                                        EventSink sink,
                                        const LoadProgress& progress) const {
    EngineProcess one = process_;
    one.replica = first_ + index;
    if (!cpu_) {
      const int32_t gpus = config_.tensor_parallel_size * config_.pipeline_parallel_size;
      BT_ASSIGN_OR_RETURN(const std::vector<std::string> devices,
                          DealDevices(std::getenv("CUDA_VISIBLE_DEVICES"), 0, gpus, here_));
      one.visible_devices = devices[static_cast<size_t>(index)];
    }
    // All load the same: the first one tells how far it is.
    return StartEngineProcess(config_, one, std::move(sink),
                              index == 0 ? progress : LoadProgress());
  }

 private:
  const int32_t first_, here_;
  EngineConfig config_;
  const EngineProcess process_;
  const bool cpu_;
};

Result<ReplicaMeeting> MeetingOf(const ReplicaOptions& replicas,
                                 const EngineConfig& config,
                                 const std::string& cluster_key) {
  ReplicaMeeting out{.head = {.host = replicas.address, .port = replicas.port},
                     .cluster_key = cluster_key,
                     .replicas = replicas.total};
  BT_ASSIGN_OR_RETURN(out.fingerprint, FingerprintOfReplica(config));
  return out;
}

// The replicas of this node and, as they come, of others.
Result<std::unique_ptr<Engine>> StartOverNodes(const ReplicaOptions& replicas,
                                               const EngineConfig& config,
                                               const LocalReplicas& local,
                                               const ReplicaMeeting& meeting,
                                               const EventSink& sink,
                                               const LoadProgress& progress) {
  BT_ASSIGN_OR_RETURN(std::shared_ptr<ReplicaGate> gate, ReplicaGate::Open(meeting, replicas.here));
  const auto agreed = std::make_shared<AgreedInfo>();
  const auto start = [&](int32_t index, EventSink of_replica) -> Result<std::unique_ptr<Engine>> {
    if (index < replicas.here) {
      auto made = local.Start(index, std::move(of_replica), progress);
      if (!made.ok()) {
        agreed->GiveUp(made.status());
        return made;
      }
      const std::string difference =
          DifferenceOf(agreed->Agree(made.value()->info()), made.value()->info());
      if (difference.empty()) return made;
      return InvalidArgument(
          fmt::format("replica {} is not as the others are: {}", index, difference));
    }
    RemoteEngineOptions options;
    options.coming = {.name = fmt::format("Replica {}", index),
                      .take_connection =
                          [gate, index](const std::function<bool()>& stopped) {
                            return gate->Take(index, stopped);
                          },
                      .agreed = agreed};
    return RemoteEngine::Start(config, options, std::move(of_replica), LoadProgress());
  };
  return ReplicaGroup::Start(replicas.total, start, sink);
}

}  // namespace

Result<std::unique_ptr<Engine>> StartReplicas(const ReplicaOptions& replicas,
                                              const EngineConfig& config,
                                              const std::string& program,
                                              double restart_timeout,
                                              const std::string& cluster_key,
                                              const EventSink& sink,
                                              const LoadProgress& progress) {
  if (config.data_parallel_size > 1) {
    return StartExpertGroup(config, {.program = program, .restart_timeout = restart_timeout}, sink,
                            progress);
  }
  if (replicas.served() == 1) {
    return StartEngineProcess(config, {.program = program, .restart_timeout = restart_timeout},
                              sink, progress);
  }
  const LocalReplicas local(replicas, config, program, restart_timeout);
  if (replicas.over_nodes) {
    BT_ASSIGN_OR_RETURN(const ReplicaMeeting meeting, MeetingOf(replicas, config, cluster_key));
    return StartOverNodes(replicas, config, local, meeting, sink, progress);
  }
  return ReplicaGroup::Start(
      replicas.here,
      [&](int32_t index, EventSink of_replica) {
        return local.Start(index, std::move(of_replica), progress);
      },
      sink);
}

Status ServeForHead(const ReplicaOptions& replicas,
                    const EngineConfig& config,
                    const std::string& program,
                    double restart_timeout,
                    const std::string& cluster_key,
                    const HeadPatience& patience,
                    const LoadProgress& progress) {
  const auto local =
      std::make_shared<const LocalReplicas>(replicas, config, program, restart_timeout);
  BT_ASSIGN_OR_RETURN(const ReplicaMeeting meeting, MeetingOf(replicas, config, cluster_key));
  // Of what has ended; shared with threads that stay behind when one ends all.
  struct Ends {
    std::mutex mutex;
    std::condition_variable changed;
    int32_t count = 0;
    Status first;
    bool all = false;  // the start, or something that must be changed
  };
  const auto ends = std::make_shared<Ends>();
  for (int32_t index = 0; index < replicas.here; ++index) {
    std::thread([=] {
      const auto ready = std::make_shared<std::atomic<bool>>(false);
      NodeReplica replica({.replica = replicas.first + index,
                           .meeting = meeting,
                           .first_patience = patience.first,
                           .patience = patience.later,
                           .maker = [=](EventSink sink) {
                             auto made = local->Start(index, std::move(sink), progress);
                             *ready = made.ok();
                             return made;
                           }});
      const Status said = replica.Run();
      // First, since the process may end with what follows.
      if (!said.ok()) BT_LOG(Error, "{}", said.message());
      {
        const std::lock_guard lock(ends->mutex);
        ++ends->count;
        if (ends->first.ok()) ends->first = said;
        ends->all = ends->all || (!said.ok() && (!*ready || said.code() == Code::kInvalidArgument));
        ends->changed.notify_all();
      }
    }).detach();
  }
  std::unique_lock lock(ends->mutex);
  ends->changed.wait(lock, [&] { return ends->all || ends->count == replicas.here; });
  return ends->first;
}

}  // namespace baltoro
