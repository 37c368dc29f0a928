#pragma once

// Bytes that do not change and are shared by all copies: what many requests carry in common is in
// memory once. Any thread.

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
    if (bytes.empty()) return;
    const size_t hash = std::hash<std::string_view>{}(bytes);
    held_ = std::make_shared<const Held>(std::move(bytes), hash);
  }
  // NOLINTNEXTLINE(google-explicit-constructor)
  SharedBytes(const char* text) : SharedBytes(std::string(text)) {}

  bool empty() const { return held_ == nullptr; }
  size_t size() const { return held_ == nullptr ? 0 : held_->first.size(); }
  const std::string& str() const {
    static const std::string none;
    return held_ == nullptr ? none : held_->first;
  }
  // Of the bytes; known, not computed.
  size_t hash() const { return held_ == nullptr ? 0 : held_->second; }
  // Equal for copies of one another.
  const void* identity() const { return held_.get(); }

  friend bool operator==(const SharedBytes& left, const SharedBytes& right) {
    return left.held_ == right.held_ || left.str() == right.str();
  }

 private:
  using Held = std::pair<std::string, size_t>;  // the bytes and their hash
  std::shared_ptr<const Held> held_;            // null: empty
};

}  // namespace baltoro
