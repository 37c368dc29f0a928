#include "server/response_store.h"

#include <utility>

namespace baltoro {

void ResponseStore::Put(const std::string& id, std::string owner, StoredResponse stored) {
  const size_t bytes =
      2 * id.size() + owner.size() + stored.response.size() + stored.items.size() + sizeof(Entry);
  const std::lock_guard lock(mutex_);
  if (const auto known = by_id_.find(id); known != by_id_.end()) Remove(known->second);
  if (bytes > limits_.bytes) return;
  entries_.push_back({.id = id,
                      .owner = std::move(owner),
                      .stored = std::move(stored),
                      .at = clock_.Now(),
                      .bytes = bytes});
  by_id_[id] = std::prev(entries_.end());
  bytes_ += bytes;
  DropOld();
}

std::optional<StoredResponse> ResponseStore::Get(const std::string& id, const std::string& owner) {
  const std::lock_guard lock(mutex_);
  DropOld();
  const auto entry = Find(id, owner);
  if (entry == entries_.end()) return std::nullopt;
  return entry->stored;
}

bool ResponseStore::HoldsPictures(const std::string& id, const std::string& owner) const {
  const std::lock_guard lock(mutex_);
  const auto entry = Find(id, owner);
  return entry != entries_.end() && entry->stored.pictures;
}

bool ResponseStore::Erase(const std::string& id, const std::string& owner) {
  const std::lock_guard lock(mutex_);
  DropOld();
  const auto entry = Find(id, owner);
  if (entry == entries_.end()) return false;
  Remove(entry);
  return true;
}

size_t ResponseStore::entries() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

size_t ResponseStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

ResponseStore::Entries::const_iterator ResponseStore::Find(const std::string& id,
                                                           const std::string& owner) const {
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->owner != owner) return entries_.end();
  return found->second;
}

void ResponseStore::Remove(Entries::const_iterator entry) {
  bytes_ -= entry->bytes;
  by_id_.erase(entry->id);
  entries_.erase(entry);
}

void ResponseStore::DropOld() {
  const Seconds now = clock_.Now();
  while (!entries_.empty() && (entries_.size() > limits_.entries || bytes_ > limits_.bytes ||
                               now - entries_.front().at > limits_.age)) {
    Remove(entries_.begin());
  }
}

}  // namespace baltoro
