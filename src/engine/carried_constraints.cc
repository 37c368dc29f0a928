#include "engine/carried_constraints.h"

#include <fmt/format.h>

#include <utility>

namespace baltoro {

Result<CarriedConstraints::Use> CarriedConstraints::Take(const SharedBytes& constraint) {
  const auto size = static_cast<int64_t>(constraint.size());
  if (const auto found = by_bytes_.find(constraint); found != by_bytes_.end()) {
    const Place place = found->second;
    if (place->users++ == 0) {
      used_.splice(used_.end(), idle_, place);
      used_bytes_ += size;
    }
    return Use{.name = place->name, .is_new = false, .dropped = std::exchange(dropped_, {})};
  }
  if (size > bytes_max_) {
    return InvalidArgument(fmt::format("the output format takes {} bytes; at most {} are supported",
                                       size, bytes_max_));
  }
  if (used_bytes_ + size > bytes_max_) {
    return Status(
        Code::kResourceExhausted,
        fmt::format("the queue is full: output formats of {} MiB are in use", used_bytes_ >> 20));
  }
  while (!idle_.empty() && bytes_ + size > bytes_max_) DropOldestIdle();
  Use use{.name = ++last_name_, .is_new = true, .dropped = std::exchange(dropped_, {})};
  used_.push_back({.constraint = constraint, .name = use.name, .users = 1});
  const Place place = std::prev(used_.end());
  by_bytes_.emplace(constraint, place);
  by_name_.emplace(use.name, place);
  bytes_ += size;
  used_bytes_ += size;
  return use;
}

void CarriedConstraints::Release(uint64_t name) {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return;  // of a process that is gone
  const Place place = found->second;
  if (--place->users > 0) return;
  used_bytes_ -= static_cast<int64_t>(place->constraint.size());
  idle_.splice(idle_.end(), used_, place);
  if (idle_.size() > kIdleMax) DropOldestIdle();
}

void CarriedConstraints::DropOldestIdle() {
  const Entry& oldest = idle_.front();
  dropped_.push_back(oldest.name);
  bytes_ -= static_cast<int64_t>(oldest.constraint.size());
  by_name_.erase(oldest.name);
  by_bytes_.erase(oldest.constraint);
  idle_.pop_front();
}

void CarriedConstraints::Clear() {
  by_bytes_.clear();
  by_name_.clear();
  used_.clear();
  idle_.clear();
  dropped_.clear();
  bytes_ = used_bytes_ = 0;
}

}  // namespace baltoro
