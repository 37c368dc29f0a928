#include "engine/carried_things.h"

#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <unordered_set>
#include <utility>

#include "base/check.h"

namespace baltoro {

CarriedKey CarriedKey::OfBytes(const SharedBytes& bytes) {
  CarriedKey key;
  key.number_ = bytes.hash();
  key.bytes_ = bytes;
  return key;
}

CarriedKey CarriedKey::OfHash(const std::array<uint8_t, 16>& hash, const std::string& salt) {
  CarriedKey key;
  std::memcpy(&key.number_, hash.data(), sizeof(key.number_));
  key.number_ ^= std::hash<std::string>{}(salt);
  key.hash_ = hash;
  key.salt_ = salt;
  return key;
}

Result<int64_t> CarriedThings::CheckRoom(std::span<const CarriedThing> things) const {
  std::unordered_set<CarriedKey, KeyHash> seen;
  int64_t all = 0, unused = 0, fresh = 0;
  for (const CarriedThing& thing : things) {
    if (!seen.insert(thing.key).second) continue;
    all += thing.size;
    const auto found = by_key_.find(thing.key);
    if (found == by_key_.end()) fresh += thing.size;
    if (found == by_key_.end() || found->second->users == 0) unused += thing.size;
  }
  if (all > limits_.bytes_max && !limits_.always_one_request) {
    return InvalidArgument(fmt::format("{} of {} bytes; at most {} are supported", limits_.what,
                                       all, limits_.bytes_max));
  }
  const bool alone = limits_.always_one_request && used_bytes_ == 0;
  if (unused > 0 && !alone && used_bytes_ + unused > limits_.bytes_max) {
    return Status(
        Code::kResourceExhausted,
        fmt::format("the queue is full: {} of {} MiB are in use", limits_.what, used_bytes_ >> 20));
  }
  return fresh;
}

CarriedThings::Use CarriedThings::Take(const CarriedThing& thing, uint64_t& last_name) {
  if (const auto found = by_key_.find(thing.key); found != by_key_.end()) {
    const Place place = found->second;
    if (place->users++ == 0) {
      used_.splice(used_.end(), idle_, place);
      used_bytes_ += thing.size;
    }
    return {.name = place->name, .is_new = false};
  }
  while (!idle_.empty() && bytes_ + thing.size > limits_.bytes_max) DropOldestIdle();
  used_.push_back({.thing = thing, .name = ++last_name, .users = 1});
  const Place place = std::prev(used_.end());
  by_key_.emplace(thing.key, place);
  by_name_.emplace(place->name, place);
  bytes_ += thing.size;
  used_bytes_ += thing.size;
  return {.name = place->name, .is_new = true};
}

void CarriedThings::Release(uint64_t name) {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return;
  const Place place = found->second;
  BT_CHECK(place->users > 0);
  if (--place->users > 0) return;
  used_bytes_ -= place->thing.size;
  idle_.splice(idle_.end(), used_, place);
  while (idle_.size() > limits_.idle_max ||
         (!idle_.empty() &&
          (bytes_ - used_bytes_ > limits_.idle_bytes_max || bytes_ > limits_.bytes_max))) {
    DropOldestIdle();
  }
}

std::vector<uint64_t> CarriedThings::TakeDropped() {
  return std::exchange(dropped_, {});
}

void CarriedThings::DropOldestIdle() {
  const Entry& oldest = idle_.front();
  dropped_.push_back(oldest.name);
  bytes_ -= oldest.thing.size;
  by_name_.erase(oldest.name);
  by_key_.erase(CarriedKey(oldest.thing.key));
  idle_.pop_front();
}

void CarriedThings::Clear() {
  by_key_.clear();
  by_name_.clear();
  used_.clear();
  idle_.clear();
  dropped_.clear();
  bytes_ = used_bytes_ = 0;
}

}  // namespace baltoro
