#include "schedule/picture_store.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace baltoro {

size_t PictureStore::NameHash::operator()(const PictureName& name) const {
  size_t first;  // of a hash already
  std::memcpy(&first, name.data(), sizeof(first));
  return first;
}

PictureStore::Place* PictureStore::Find(const PictureName& name) {
  const auto found = begins_.find(name);
  if (found == begins_.end()) return nullptr;
  Place& place = places_.at(found->second);
  place.used = ++uses_;
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
  begins_.emplace(name, begin);
  Place& place = places_[begin];
  place = {.name = name, .begin = begin, .rows = rows, .used = ++uses_};
  return &place;
}

void PictureStore::Release(const PictureName& name) {
  Place* const place = Find(name);
  BT_CHECK(place != nullptr && place->holders > 0);
  --place->holders;
}

// It keeps its place: others may hold it.
void PictureStore::Distrust(const PictureName& name) {
  const auto found = begins_.find(name);
  if (found != begins_.end()) places_.at(found->second).encoded = false;
}

void PictureStore::Forget(const PictureName& name) {
  const auto found = begins_.find(name);
  if (found == begins_.end()) return;
  BT_CHECK(places_.at(found->second).holders == 0);
  places_.erase(found->second);
  begins_.erase(found);
}

int32_t PictureStore::held() const {
  return static_cast<int32_t>(
      std::ranges::count_if(places_, [](const auto& place) { return place.second.holders > 0; }));
}

int32_t PictureStore::Gap(int32_t rows) const {
  int32_t end = 0;
  for (const auto& [begin, place] : places_) {
    if (begin - end >= rows) return end;
    end = begin + place.rows;
  }
  return rows_ - end >= rows ? end : -1;
}

bool PictureStore::ForgetOldest() {
  const Place* oldest = nullptr;
  for (const auto& [begin, place] : places_) {
    if (place.holders > 0) continue;
    if (oldest == nullptr || place.used < oldest->used) oldest = &place;
  }
  if (oldest == nullptr) return false;
  Forget(PictureName(oldest->name));
  return true;
}

}  // namespace baltoro
