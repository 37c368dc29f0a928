#pragma once

// What the door's clients are told of an engine (EngineInfo), where several engines are loaded at
// once and some may come much later: what the first that is ready says holds for all.

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>

#include "engine/engine.h"

namespace baltoro {

class AgreedInfo {
 public:
  // Any thread. An engine is ready: what has been agreed on, which is its own if it is the first.
  EngineInfo Agree(const EngineInfo& info);
  // None will be ready in time: who waits hears why.
  void GiveUp(const Status& why);
  // Blocks until an engine is ready, or why none will be.
  Result<EngineInfo> Wait();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<EngineInfo> info_;
  Status why_;
};

// Empty if a door that has told its clients of `agreed` may have requests computed by an engine
// that says `info`; else what differs, with both values. Sizes of caches may differ.
std::string DifferenceOf(const EngineInfo& agreed, const EngineInfo& info);

}  // namespace baltoro
