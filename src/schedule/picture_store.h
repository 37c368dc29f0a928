#pragma once

// Which pictures have their rows in the ranks' memory, and where: as many rows there as in this
// account, those of one picture contiguous. A picture is known by its hash and the salt of its
// request, so that one that comes again, or in several requests of a salt, is encoded once, and
// nobody learns from the time that it takes what comes under another salt. Room for another is made
// by forgetting the one that was used least lately, of those that nobody holds.
//
// Plans are executed in their order: what a plan reads from a place is read before a later plan has
// the place written, so places may be given away as soon as all plans that read them are made.
//
// Engine thread only.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

namespace baltoro {

using PictureName = std::array<uint8_t, 16>;  // a keyed hash of both

class PictureStore {
 public:
  struct Place {
    PictureName name{};
    int32_t begin = 0, rows = 0;
    int32_t holders = 0;
    bool encoded = false;  // by the plans made so far
    uint64_t used = 0;     // rises
  };

  explicit PictureStore(int32_t rows);

  int32_t rows() const { return rows_; }
  // Null: it has none. What is found stays where it is while somebody holds it.
  Place* Find(const PictureName& name);
  // Its place, which it gets now if it has none. Null: no room while others are held; never where
  // nobody is and `rows` is no more than there are.
  Place* Take(const PictureName& name, int32_t rows);
  void Hold(Place& place);
  void Release(const PictureName& name);
  // What its rows hold is not to be trusted: whoever needs them next has them encoded anew.
  void Distrust(const PictureName& name);
  // Nobody holds it.
  void Forget(const PictureName& name);
  int32_t held() const { return held_; }  // pictures

 private:
  struct NameHash {
    size_t operator()(const PictureName& name) const;
  };
  using Run = std::pair<int32_t, int32_t>;  // how many rows, and the first of them

  // The smallest free run that has as many rows, and of those the first; below 0: there is none.
  int32_t Gap(int32_t rows) const;
  bool ForgetOldest();
  void Free(int32_t begin, int32_t rows);
  void Occupy(int32_t begin, int32_t rows);

  const int32_t rows_;
  std::unordered_map<PictureName, Place, NameHash> places_;
  std::map<uint64_t, PictureName> idle_;  // of those that nobody holds, by when they were used
  std::map<int32_t, int32_t> free_;       // from the first row of a run to behind its last
  std::set<Run> free_by_size_;            // the same
  int32_t held_ = 0;
  uint64_t uses_ = 0;
};

}  // namespace baltoro
