#pragma once

// Whether an engine serves, and why not: one rule for an engine in this process and for one in
// another. A process that is stopped gives no sign of life, however long its steps are; one that
// computes does, and tells how long its present turn lasts.

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"

namespace baltoro {

struct EngineStats;

// Why an engine does not serve now, as far as a client may know; the log tells more.
enum class EngineTrouble : uint8_t {
  kNone,
  kSilent,     // its process does not run
  kStalled,    // a step lasts far longer than steps do
  kEnded,      // it is gone, and has not said why
  kRefused,    // it refused its files or settings
  kNoMemory,   // there was not enough memory, of any kind
  kNoPeer,     // another node was not there
  kFailed,     // it said something else
  kCannotRun,  // its program could not be run
};

// A whole sentence, the same for every such case.
const char* Describe(EngineTrouble trouble);

struct EngineHealth {
  EngineTrouble trouble = EngineTrouble::kNone;
  int failed_starts = 0;              // since it was last ready
  std::optional<Seconds> next_start;  // from now on; empty: one is under way, or none is needed
  // Of kNoPeer: the node that went, where it is known, and of replicas that share experts those
  // that went with it. They stay until all are back.
  int32_t lost_node = -1;
  std::vector<int32_t> lost_replicas = {};

  bool ok() const { return trouble == EngineTrouble::kNone; }
};

struct HealthLimits {
  Seconds silence = 2;  // between two signs of life: they come ten a second
  // What one turn of the loop may take: this, or so many times what a turn should take.
  Seconds turn = 2.5;
  double turns = 3;
  // Longer than this without a sign of life, or in one turn that also takes so many times what it
  // should, an engine is not waited for any more.
  Seconds lost = 60;
  double turns_lost = 20;
};

struct EngineVerdict {
  EngineTrouble trouble = EngineTrouble::kNone;  // or kSilent, kStalled
  bool lost = false;                             // it should be replaced
};

// Of an engine that is ready: what it said of itself `age` seconds ago. `trial` is the step that it
// took at its start, the largest that there is. A turn should take what its steps are expected to,
// or what turns were seen to take. The trial counts where nothing is expected of steps, as they are
// not measured, and for whether an engine is lost until a step has ended: the first may have to
// fetch the weights from where memory was swapped to, so that only the trial tells how slow it is.
EngineVerdict JudgeEngine(const EngineStats& stats,
                          Seconds age,
                          Seconds trial,
                          const HealthLimits& limits = {});

}  // namespace baltoro
