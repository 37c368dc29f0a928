#pragma once

// The constraints of one replica's open requests, from the time they are made until their requests
// end: they outlive slots and preemptions. Kept where tokens are sampled, not in plans. On a node
// that is not the head each is in here for a step alone (followed_constraints.h). Any thread.

#include <memory>
#include <mutex>
#include <unordered_map>

#include "request/request.h"

namespace baltoro {

class ConstraintTable {
 public:
  void Add(RequestId id, std::shared_ptr<TokenConstraint> constraint) {
    const std::lock_guard lock(mutex_);
    constraints_[id] = std::move(constraint);
  }
  // A step under way may hold it a little longer.
  void Remove(RequestId id) {
    std::shared_ptr<TokenConstraint> last;  // destroyed outside of the lock
    const std::lock_guard lock(mutex_);
    const auto found = constraints_.find(id);
    if (found == constraints_.end()) return;
    last = std::move(found->second);
    constraints_.erase(found);
  }
  // Null if the request has ended.
  std::shared_ptr<TokenConstraint> Find(RequestId id) const {
    const std::lock_guard lock(mutex_);
    const auto found = constraints_.find(id);
    return found != constraints_.end() ? found->second : nullptr;
  }
  size_t size() const {
    const std::lock_guard lock(mutex_);
    return constraints_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<RequestId, std::shared_ptr<TokenConstraint>> constraints_;
};

}  // namespace baltoro
