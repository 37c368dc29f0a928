#include "server/picture_cache.h"

#include <algorithm>

namespace baltoro {

std::optional<CutPicture> PictureCache::Find(const std::string& client, const Sha256Digest& file) {
  const std::lock_guard lock(mutex_);
  ++counts_.queries;
  const auto found = by_name_.find({client, file});
  if (found == by_name_.end()) return std::nullopt;
  ++counts_.hits;
  entries_.splice(entries_.end(), entries_, found->second);
  return found->second->picture;
}

void PictureCache::Put(const std::string& client,
                       const Sha256Digest& file,
                       const CutPicture& picture) {
  const size_t bytes = picture.picture.pixels.size() + kOverhead;
  if (bytes > bytes_max_ / 2) return;
  Entries made;
  made.push_back({.name = {client, file}, .picture = picture, .bytes = bytes});
  Entries dropped;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  if (by_name_.contains(made.front().name)) return;
  size_t& own = by_client_[client];
  while (own + bytes > bytes_max_ / 2) {
    const auto oldest = std::ranges::find(
        entries_, client, [](const Entry& entry) -> const auto& { return entry.name.first; });
    Drop(oldest, dropped);
  }
  own += bytes;
  bytes_ += bytes;
  by_name_.emplace(made.front().name, made.begin());
  entries_.splice(entries_.end(), made);
  while (bytes_ > bytes_max_) Drop(entries_.begin(), dropped);
  std::erase_if(by_client_, [](const auto& one) { return one.second == 0; });
}

size_t PictureCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

PictureCache::Counts PictureCache::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void PictureCache::Drop(Entries::iterator entry, Entries& out) {
  by_client_[entry->name.first] -= entry->bytes;
  bytes_ -= entry->bytes;
  by_name_.erase(entry->name);
  out.splice(out.end(), entries_, entry);
}

}  // namespace baltoro
