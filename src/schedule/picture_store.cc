#include "schedule/picture_store.h"

#include <cstring>

#include "base/check.h"

namespace baltoro {

size_t PictureStore::NameHash::operator()(const PictureName& name) const {
  size_t first;  // of a hash already
  std::memcpy(&first, name.data(), sizeof(first));
  return first;
}

PictureStore::PictureStore(int32_t rows) : rows_(rows) {
  if (rows > 0) Free(0, rows);
}

PictureStore::Place* PictureStore::Find(const PictureName& name) {
  const auto found = places_.find(name);
  if (found == places_.end()) return nullptr;
  Place& place = found->second;
  const uint64_t before = std::exchange(place.used, ++uses_);
  if (place.holders > 0) return &place;
  auto node = idle_.extract(before);
  node.key() = place.used;
  idle_.insert(idle_.end(), std::move(node));
  return &place;
}

PictureStore::Place* PictureStore::Take(const PictureName& name, int32_t rows) {
  BT_CHECK(rows > 0);
  if (Place* const known = Find(name)) return known;
  int32_t begin = Gap(rows);
  while (begin < 0) {
    if (!ForgetOldest()) return nullptr;
    begin = Gap(rows);
  }
  Occupy(begin, rows);
  Place& place = places_[name];
  place = {.name = name, .begin = begin, .rows = rows, .used = ++uses_};
  idle_.emplace_hint(idle_.end(), place.used, name);
  return &place;
}

void PictureStore::Hold(Place& place) {
  if (place.holders++ > 0) return;
  idle_.erase(place.used);
  ++held_;
}

void PictureStore::Release(const PictureName& name) {
  Place* const place = Find(name);
  BT_CHECK(place != nullptr && place->holders > 0);
  if (--place->holders > 0) return;
  idle_.emplace(place->used, name);
  --held_;
}

// It keeps its place: others may hold it.
void PictureStore::Distrust(const PictureName& name) {
  const auto found = places_.find(name);
  if (found != places_.end()) found->second.encoded = false;
}

void PictureStore::Forget(const PictureName& name) {
  const auto found = places_.find(name);
  if (found == places_.end()) return;
  BT_CHECK(found->second.holders == 0);
  Free(found->second.begin, found->second.rows);
  idle_.erase(found->second.used);
  places_.erase(found);
}

int32_t PictureStore::Gap(int32_t rows) const {
  const auto found = free_by_size_.lower_bound({rows, 0});
  return found == free_by_size_.end() ? -1 : found->second;
}

bool PictureStore::ForgetOldest() {
  if (idle_.empty()) return false;
  Forget(PictureName(idle_.begin()->second));
  return true;
}

// Joined with the runs beside it.
void PictureStore::Free(int32_t begin, int32_t rows) {
  int32_t end = begin + rows;
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == end) {
    end = next->second;
    free_by_size_.erase({next->second - next->first, next->first});
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->second == begin) {
      begin = before->first;
      free_by_size_.erase({before->second - before->first, before->first});
      free_.erase(before);
    }
  }
  free_[begin] = end;
  free_by_size_.insert({end - begin, begin});
}

// The first rows of a free run.
void PictureStore::Occupy(int32_t begin, int32_t rows) {
  const auto run = free_.find(begin);
  BT_CHECK(run != free_.end() && run->second - begin >= rows);
  const int32_t end = run->second;
  free_by_size_.erase({end - begin, begin});
  free_.erase(run);
  if (begin + rows == end) return;
  free_[begin + rows] = end;
  free_by_size_.insert({end - begin - rows, begin + rows});
}

}  // namespace baltoro
