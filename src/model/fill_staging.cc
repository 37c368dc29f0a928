#include "model/fill_staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace baltoro {

namespace {

// Sizes are multiples of this, so that a buffer fits matrices of about its size as well.
constexpr size_t kUnit = size_t{1} << 20;

}  // namespace

FillStaging::FillStaging(const OpsTable& ops, std::vector<Place> places)
    : memory_(*ops.memory), staging_(ops.staging == nullptr ? HostMemory() : *ops.staging) {
  for (const Place& place : places) states_.push_back({.place = place, .host = {}});
}

Result<void*> FillStaging::Host(size_t place) {
  const std::lock_guard lock(mutex_);
  State& state = states_[place];
  BT_CHECK(state.place.pieces > 0);
  if (state.host.bytes() > 0) return state.host.data();
  // The smallest that is large enough.
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->bytes() < state.place.bytes) continue;
    if (best == free_.end() || it->bytes() < best->bytes()) best = it;
  }
  if (best == free_.end()) {
    const size_t bytes = (state.place.bytes + kUnit - 1) / kUnit * kUnit;
    BT_ASSIGN_OR_RETURN(state.host, Buffer::Create(bytes, "weights on their way", staging_));
    bytes_reserved_ += bytes;
    return state.host.data();
  }
  state.host = std::move(*best);
  free_.erase(best);
  // What no piece fills is zero, as in new memory.
  std::memset(state.host.data(), 0, state.place.bytes);
  return state.host.data();
}

Status FillStaging::Done(size_t place) {
  State& state = states_[place];
  {
    const std::lock_guard lock(mutex_);
    BT_CHECK(state.place.pieces > 0);
    if (--state.place.pieces > 0) return {};
  }
  const Status copied = memory_.CopyIn(state.place.target, state.host.data(), state.place.bytes);
  const std::lock_guard lock(mutex_);
  free_.push_back(std::exchange(state.host, Buffer()));
  return copied;
}

}  // namespace baltoro
