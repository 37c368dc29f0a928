#pragma once

// Masks and walks that were computed once, shared by all matchers of a process and bounded. Any
// thread.

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace baltoro {

// A hash wide enough to stand for what was hashed.
struct Key128 {
  uint64_t low = 0, high = 0;
  bool operator==(const Key128&) const = default;
};

class MaskStore {
 public:
  // A kept value; what it is follows from its key, which therefore starts from a salt of its kind.
  struct Value {
    virtual ~Value() = default;
    virtual int64_t num_bytes() const = 0;
  };

  explicit MaskStore(int64_t max_bytes = int64_t{64} << 20) : max_bytes_(max_bytes) {}

  std::shared_ptr<const Value> Find(const Key128& key);
  void Keep(const Key128& key, std::shared_ptr<const Value> value);
  int64_t num_bytes() const;

 private:
  struct Hash {
    size_t operator()(const Key128& key) const { return key.low; }
  };
  using Map = std::unordered_map<Key128, std::shared_ptr<const Value>, Hash>;
  void KeepLocked(const Key128& key, std::shared_ptr<const Value> value);

  const int64_t max_bytes_;
  mutable std::mutex mutex_;
  // Found again in the old half, a value moves to the young one. When the young one is half of what
  // is allowed, it becomes the old one, and what was old goes.
  Map young_, old_;
  int64_t young_bytes_ = 0, old_bytes_ = 0;
};

}  // namespace baltoro
