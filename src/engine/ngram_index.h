#pragma once

// The tokens of one sequence, and where their runs stood before: proposes what will come next where
// the end of the sequence repeats something earlier, as copies and edits of a prompt do.
//
// Memory is 24 bytes a token at most, the work of Append() is linear in what is appended, and
// Propose() looks at a bounded number of places. One thread.

#include <cstdint>
#include <span>
#include <vector>

#include "request/request.h"

namespace baltoro {

class NgramIndex {
 public:
  // Of all places where the last tokens stood before, the latest ones, as many as are looked at.
  static constexpr int32_t kPlacesMax = 64;

  // A place counts if at least `lookup_min` tokens before it are those at the end; the best is that
  // where most are, of at most `lookup_max`, and of several the latest. 1 <= min <= max.
  NgramIndex(int32_t lookup_min, int32_t lookup_max);

  void Append(std::span<const TokenId> tokens);
  // The tokens that followed at the best place, `count` of them: where they reach the end of the
  // sequence they go on with themselves, so that a loop goes on for ever. None if there is no
  // place.
  std::vector<TokenId> Propose(int32_t count) const;

  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }

 private:
  void Insert(int32_t position);
  void Grow();
  // How many tokens that end at either position are the same, up to lookup_max_.
  int32_t Common(int32_t earlier, int32_t later) const;

  int32_t lookup_min_, lookup_max_;
  uint64_t leaving_factor_ = 1;  // of the token that leaves the rolling hash
  uint64_t hash_ = 0;            // of the last lookup_min_ tokens
  std::vector<TokenId> tokens_;
  // By position: the position before it whose last lookup_min_ tokens fall into the same bucket;
  // -1: none.
  std::vector<int32_t> before_;
  std::vector<int32_t> latest_;  // by bucket; as many as a power of two, at least one a token
};

}  // namespace baltoro
