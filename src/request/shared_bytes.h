#pragma once

// Bytes that do not change and are shared by all copies: what many requests carry in common is in
// memory once. Any thread.

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace baltoro {

class SharedBytes {
 public:
  SharedBytes() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): a string becomes one where a request takes it
  SharedBytes(std::string bytes) {
    if (!bytes.empty()) held_ = std::make_shared<const Held>(std::move(bytes));
  }
  // NOLINTNEXTLINE(google-explicit-constructor)
  SharedBytes(const char* text) : SharedBytes(std::string(text)) {}

  bool empty() const { return held_ == nullptr; }
  size_t size() const { return held_ == nullptr ? 0 : held_->bytes.size(); }
  const std::string& str() const {
    static const std::string none;
    return held_ == nullptr ? none : held_->bytes;
  }
  // Of the bytes: computed by the first who asks, and known to all copies from then on.
  size_t hash() const { return held_ == nullptr ? 0 : held_->HashOnce(); }
  // Equal for copies of one another.
  const void* identity() const { return held_.get(); }

  friend bool operator==(const SharedBytes& left, const SharedBytes& right) {
    return left.held_ == right.held_ || left.str() == right.str();
  }

 private:
  struct Held {
    explicit Held(std::string text) : bytes(std::move(text)) {}
    // Two who ask at once come to the same.
    size_t HashOnce() const {
      size_t known = hash.load(std::memory_order_relaxed);
      if (known != 0) return known;
      known = std::hash<std::string_view>{}(bytes);
      hash.store(known, std::memory_order_relaxed);
      return known;
    }
    const std::string bytes;
    mutable std::atomic<size_t> hash{0};  // 0: not known
  };
  std::shared_ptr<const Held> held_;  // null: empty
};

}  // namespace baltoro
