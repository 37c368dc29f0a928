#pragma once

// Where flags change nothing. Each is asked once it is known how the engine will run; what it says
// is what SettleForRun (apps/engine_settings.h) makes of the engine's configuration.

#include "flags/flag.h"

namespace baltoro {

inline constexpr Idle kWithoutGpu = {"where no GPU is used",
                                     [](const RunFacts& facts) { return !facts.gpu; }};
inline constexpr Idle kCacheSizeIsGiven = {
    "where no GPU is used, and beside --kv-cache-memory-bytes",
    [](const RunFacts& facts) { return !facts.gpu || facts.kv_bytes; }};
inline constexpr Idle kStepsCannotOverlap = {
    "where no GPU is used, with several stages or nodes, and with experts that replicas share",
    [](const RunFacts& facts) {
      return !facts.gpu || facts.pipeline > 1 || facts.nodes > 1 ||
             (facts.replicas > 1 && facts.whole_experts);
    }};
inline constexpr Idle kOneTensorRank = {"with one tensor rank",
                                        [](const RunFacts& facts) { return facts.tensor == 1; }};
inline constexpr Idle kOneExpertRank = {
    "with one tensor rank of one replica",
    [](const RunFacts& facts) { return facts.tensor == 1 && facts.replicas == 1; }};
inline constexpr Idle kSlicedExperts = {
    "without --enable-expert-parallel on several ranks",
    [](const RunFacts& facts) { return kOneExpertRank.holds(facts) || !facts.whole_experts; }};
inline constexpr Idle kSharesNoExperts = {
    "unless replicas share experts (--data-parallel-size with --enable-expert-parallel)",
    [](const RunFacts& facts) { return facts.replicas == 1 || !facts.whole_experts; }};
inline constexpr Idle kSendsNoRows = {
    "unless replicas share experts on GPUs (--data-parallel-size with --enable-expert-parallel)",
    [](const RunFacts& facts) { return kSharesNoExperts.holds(facts) || !facts.gpu; }};
inline constexpr Idle kRanksExchange = {"with several ranks", [](const RunFacts& facts) {
                                          return facts.tensor * facts.pipeline > 1 ||
                                                 (facts.replicas > 1 && facts.whole_experts);
                                        }};
inline constexpr Idle kOneNode = {"on one node",
                                  [](const RunFacts& facts) { return facts.nodes == 1; }};
inline constexpr Idle kOneReplica = {"with one replica",
                                     [](const RunFacts& facts) { return facts.replicas == 1; }};
inline constexpr Idle kKnowsNoNode = {
    "on one node", [](const RunFacts& facts) { return facts.nodes == 1 && !facts.over_nodes; }};
inline constexpr Idle kOwnReplicas = {
    "unless one web server has the replicas of several nodes", [](const RunFacts& facts) {
      return !facts.over_nodes && (facts.nodes == 1 || facts.replicas == 1 || !facts.whole_experts);
    }};
inline constexpr Idle kIsHead = {
    "on one node, and on the head of several",
    [](const RunFacts& facts) { return facts.node == 0 && !(facts.over_nodes && facts.headless); }};
inline constexpr Idle kTimesNoSteps = {
    "on a node that is not the head, and with experts that replicas share",
    [](const RunFacts& facts) {
      return facts.node > 0 || (facts.replicas > 1 && facts.whole_experts);
    }};
inline constexpr Idle kInProcess = {"with --engine-in-process",
                                    [](const RunFacts& facts) { return facts.in_process; }};
inline constexpr Idle kNoScales = {"where the KV cache has no scale a layer",
                                   [](const RunFacts& facts) { return !facts.scaled_cache; }};

}  // namespace baltoro
