#include <algorithm>

#include "engine/engine.h"

namespace baltoro {

EngineStats& EngineStats::operator+=(const EngineStats& other) {
  step += other.step;
  running += other.running;
  waiting += other.waiting;
  kv_usage = std::max(kv_usage, other.kv_usage);
  prefix_queries += other.prefix_queries;
  prefix_hits += other.prefix_hits;
  preemptions += other.preemptions;
  prompt_tokens_computed += other.prompt_tokens_computed;
  generation_tokens += other.generation_tokens;
  drafts += other.drafts;
  drafts_wanted = std::max(drafts_wanted, other.drafts_wanted);
  balance.rearrangements += other.balance.rearrangements;
  balance.moved_experts += other.balance.moved_experts;
  balance.balancedness_before =
      std::max(balance.balancedness_before, other.balance.balancedness_before);
  balance.balancedness_expected =
      std::max(balance.balancedness_expected, other.balance.balancedness_expected);
  balance.balancedness = std::max(balance.balancedness, other.balance.balancedness);
  step_tokens_last = std::max(step_tokens_last, other.step_tokens_last);
  step_seconds_last = std::max(step_seconds_last, other.step_seconds_last);
  step_seconds += other.step_seconds;
  turn_seconds = std::max(turn_seconds, other.turn_seconds);
  turn_expected_seconds = std::max(turn_expected_seconds, other.turn_expected_seconds);
  long_turn_seconds = std::max(long_turn_seconds, other.long_turn_seconds);
  restarts += other.restarts;
  log_drops.unread += other.log_drops.unread;
  log_drops.limited += other.log_drops.limited;
  process.cpu_seconds += other.process.cpu_seconds;
  process.resident_bytes += other.process.resident_bytes;
  process.virtual_bytes += other.process.virtual_bytes;
  process.open_files += other.process.open_files;
  process.open_files_max = std::max(process.open_files_max, other.process.open_files_max);
  process.start_unix = std::max(process.start_unix, other.process.start_unix);
  return *this;
}

EngineStats CountedSoFar(const EngineStats& past, const EngineStats& now) {
  EngineStats stats = now;
  stats.step += past.step;
  stats.step_seconds += past.step_seconds;
  stats.prefix_queries += past.prefix_queries;
  stats.prefix_hits += past.prefix_hits;
  stats.preemptions += past.preemptions;
  stats.prompt_tokens_computed += past.prompt_tokens_computed;
  stats.generation_tokens += past.generation_tokens;
  stats.drafts += past.drafts;
  stats.balance.rearrangements += past.balance.rearrangements;
  stats.balance.moved_experts += past.balance.moved_experts;
  return stats;
}

}  // namespace baltoro
