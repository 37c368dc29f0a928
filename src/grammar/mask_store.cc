#include "grammar/mask_store.h"

#include <cstring>
#include <random>

#include "grammar/key_hash.h"

namespace baltoro {

namespace {
constexpr int64_t kEntryBytes = 96;  // of the maps, about
}

Key128 ProcessSalt() {
  static const Key128 salt = [] {
    std::random_device device;
    const auto draw = [&] { return uint64_t{device()} << 32 | device(); };
    return Key128{draw(), draw()};
  }();
  return salt;
}

void KeyHash::AddBytes(std::string_view bytes) {
  Add(bytes.size());
  while (!bytes.empty()) {
    uint64_t word = 0;
    const size_t size = std::min(bytes.size(), sizeof(word));
    std::memcpy(&word, bytes.data(), size);
    Add(word);
    bytes.remove_prefix(size);
  }
}

std::shared_ptr<const MaskStore::Value> MaskStore::Find(const Key128& key) {
  const std::lock_guard lock(mutex_);
  if (const auto found = young_.find(key); found != young_.end()) return found->second;
  const auto found = old_.find(key);
  if (found == old_.end()) return nullptr;
  std::shared_ptr<const Value> value = std::move(found->second);
  old_bytes_ -= value->num_bytes() + kEntryBytes;
  old_.erase(found);
  KeepLocked(key, value);
  return value;
}

void MaskStore::Keep(const Key128& key, std::shared_ptr<const Value> value) {
  const std::lock_guard lock(mutex_);
  KeepLocked(key, std::move(value));
}

void MaskStore::KeepLocked(const Key128& key, std::shared_ptr<const Value> value) {
  const int64_t bytes = value->num_bytes() + kEntryBytes;
  if (bytes > max_bytes_ / 2) return;
  if (young_bytes_ + bytes > max_bytes_ / 2) {
    old_ = std::move(young_);
    young_.clear();
    old_bytes_ = std::exchange(young_bytes_, 0);
  }
  if (young_.try_emplace(key, std::move(value)).second) young_bytes_ += bytes;
}

int64_t MaskStore::num_bytes() const {
  const std::lock_guard lock(mutex_);
  return young_bytes_ + old_bytes_;
}

}  // namespace baltoro
