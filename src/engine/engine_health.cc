#include "engine/engine_health.h"

#include <algorithm>

#include "engine/engine.h"

namespace baltoro {

const char* Describe(EngineTrouble trouble) {
  switch (trouble) {
    case EngineTrouble::kNone:
      return "The engine serves.";
    case EngineTrouble::kSilent:
      return "The engine's process does not run.";
    case EngineTrouble::kStalled:
      return "A step of the engine lasts far longer than usual.";
    case EngineTrouble::kEnded:
      return "The engine's process ended.";
    case EngineTrouble::kRefused:
      return "The engine refused its files or settings.";
    case EngineTrouble::kNoMemory:
      return "There is not enough memory for the engine.";
    case EngineTrouble::kNoPeer:
      return "Another node of the engine is not there.";
    case EngineTrouble::kFailed:
      return "The engine reported an error.";
    case EngineTrouble::kCannotRun:
      return "The engine's program could not be run.";
  }
  return "";
}

EngineVerdict JudgeEngine(const EngineStats& stats,
                          Seconds age,
                          Seconds trial,
                          const HealthLimits& limits) {
  const bool expects = stats.turn_expected_seconds >= 0;
  const Seconds usual =
      std::max(expects ? stats.turn_expected_seconds : trial, stats.long_turn_seconds);
  if (age > limits.silence) {
    return {.trouble = EngineTrouble::kSilent, .lost = age > limits.lost};
  }
  if (stats.turn_seconds > std::max(limits.turn, limits.turns * usual)) {
    const Seconds patient = stats.step == 0 ? std::max(usual, trial) : usual;
    return {.trouble = EngineTrouble::kStalled,
            .lost = stats.turn_seconds > std::max(limits.lost, limits.turns_lost * patient)};
  }
  return {};
}

}  // namespace baltoro
