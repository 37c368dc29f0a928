#pragma once

// Which constraints an engine process holds: the bytes of each travel once, with the first request
// that has it, and the later ones name it. Guarded by its owner.

#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "request/shared_bytes.h"

namespace baltoro {

class CarriedConstraints {
 public:
  static constexpr int64_t kBytesMax = int64_t{60} << 20;  // one of them fits a frame
  static constexpr size_t kIdleMax = 256;                  // held that no open request uses

  // What has to be sent before the request.
  struct Use {
    uint64_t name = 0;              // from 1 on, never given twice
    bool is_new = false;            // its bytes must be sent
    std::vector<uint64_t> dropped;  // names that stand for nothing any more
  };

  explicit CarriedConstraints(int64_t bytes_max = kBytesMax) : bytes_max_(bytes_max) {}

  // The constraint is used until it is released once for each Take. kInvalidArgument if it alone is
  // larger than what may be held, kResourceExhausted if it does not fit beside those in use.
  Result<Use> Take(const SharedBytes& constraint);
  // What then is one too many is dropped; the next Take tells.
  void Release(uint64_t name);
  // The process is gone, and all that it held.
  void Clear();

  int64_t num_bytes() const { return bytes_; }
  size_t num_idle() const { return idle_.size(); }

 private:
  struct Entry {
    SharedBytes constraint;
    uint64_t name = 0;
    int64_t users = 0;
  };
  using Place = std::list<Entry>::iterator;
  struct Hash {
    size_t operator()(const SharedBytes& bytes) const { return bytes.hash(); }
  };

  void DropOldestIdle();

  const int64_t bytes_max_;
  std::list<Entry> used_, idle_;  // idle_: the longest idle first
  std::unordered_map<SharedBytes, Place, Hash> by_bytes_;
  std::unordered_map<uint64_t, Place> by_name_;
  uint64_t last_name_ = 0;
  int64_t bytes_ = 0, used_bytes_ = 0;
  std::vector<uint64_t> dropped_;  // that the process has not been told of
};

}  // namespace baltoro
