#include "model/fill_staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace baltoro {

namespace {

// Sizes are multiples of this, so that a buffer fits matrices of about its size as well.
constexpr size_t kUnit = size_t{1} << 20;

constexpr size_t Rounded(size_t bytes) {
  return (bytes + kUnit - 1) / kUnit * kUnit;
}

}  // namespace

FillStaging::FillStaging(const OpsTable& ops, std::vector<Place> places)
    : memory_(*ops.memory), staging_(ops.staging == nullptr ? HostMemory() : *ops.staging) {
  for (const Place& place : places) states_.push_back({.place = place, .host = {}});
}

Result<void*> FillStaging::Host(size_t place) {
  State& state = states_[place];
  std::unique_lock lock(mutex_);
  BT_CHECK(state.place.pieces > 0);
  begun_.wait(lock, [&] { return !state.beginning; });
  if (state.host.bytes() > 0) return state.host.data();
  state.beginning = true;
  Buffer host = TakeFree(state.place.bytes);
  lock.unlock();
  // Other places go on meanwhile: this takes milliseconds.
  const Status made = Prepare(state.place.bytes, host);
  lock.lock();
  state.beginning = false;
  begun_.notify_all();
  BT_RETURN_IF_ERROR(made);
  state.host = std::move(host);
  return state.host.data();
}

Buffer FillStaging::TakeFree(size_t bytes) {
  // The smallest that is large enough.
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->bytes() >= bytes && (best == free_.end() || it->bytes() < best->bytes())) best = it;
  }
  if (best == free_.end()) {
    bytes_reserved_ += Rounded(bytes);
    return {};
  }
  Buffer taken = std::move(*best);
  free_.erase(best);
  return taken;
}

Status FillStaging::Prepare(size_t bytes, Buffer& host) const {
  if (host.bytes() > 0) {
    // What no piece fills is zero, as in new memory.
    std::memset(host.data(), 0, bytes);
    return {};
  }
  BT_ASSIGN_OR_RETURN(host, Buffer::Create(Rounded(bytes), "weights on their way", staging_));
  return {};
}

Status FillStaging::Done(size_t place) {
  State& state = states_[place];
  {
    const std::lock_guard lock(mutex_);
    BT_CHECK(state.place.pieces > 0);
    if (--state.place.pieces > 0) return {};
  }
  const Status copied =
      memory_.CopyInBeside(state.place.target, state.host.data(), state.place.bytes);
  const std::lock_guard lock(mutex_);
  free_.push_back(std::exchange(state.host, Buffer()));
  return copied;
}

}  // namespace baltoro
