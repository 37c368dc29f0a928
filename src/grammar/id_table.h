#pragma once

// Finds numbered things by their content: the things lie with the caller, the table holds numbers.

#include <cstdint>
#include <vector>

namespace baltoro {

class IdTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // The number for which `equal(number)` holds, among those inserted with `hash`; kNone if there is
  // none.
  template <typename Equal>
  uint32_t Find(uint64_t hash, const Equal& equal) const {
    if (slots_.empty()) return kNone;
    for (size_t at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].id == kNone) return kNone;
      if (slots_[at].hash == static_cast<uint32_t>(hash >> 32) && equal(slots_[at].id)) {
        return slots_[at].id;
      }
    }
  }

  // `hash_of(number)` gives the hash of one inserted earlier.
  template <typename HashOf>
  void Insert(uint64_t hash, uint32_t id, const HashOf& hash_of) {
    if (2 * (count_ + 1) > slots_.size()) {
      std::vector<Slot> old(slots_.empty() ? 64 : 2 * slots_.size());
      old.swap(slots_);
      for (const Slot& slot : old) {
        if (slot.id != kNone) Put(hash_of(slot.id), slot.id);
      }
    }
    Put(hash, id);
    ++count_;
  }

  void Clear() {
    slots_.clear();
    count_ = 0;
  }
  int64_t num_bytes() const { return static_cast<int64_t>(slots_.size() * sizeof(Slot)); }

 private:
  struct Slot {
    uint32_t hash = 0;  // the upper half
    uint32_t id = kNone;
  };
  void Put(uint64_t hash, uint32_t id) {
    size_t at = hash & (slots_.size() - 1);
    while (slots_[at].id != kNone) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = {static_cast<uint32_t>(hash >> 32), id};
  }

  std::vector<Slot> slots_;
  size_t count_ = 0;
};

}  // namespace baltoro
