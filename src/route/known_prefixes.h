#pragma once

// Which blocks of prompts one replica has probably in its prefix cache, as far as the door can know
// it: those of the prompts that it sent there last. One thread at a time.

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>

#include "cache/prefix_names.h"

namespace baltoro {

class KnownPrefixes {
 public:
  // It remembers `blocks_max` blocks at most, as many as the replica's cache holds.
  explicit KnownPrefixes(int64_t blocks_max);

  // How many of a prompt's blocks, from its first on, are known.
  int32_t Known(std::span<const Hash128> names) const;
  // The prompt went there: the blocks that were used longest ago are forgotten for it, and of a
  // prompt its last ones before its first.
  void Use(std::span<const Hash128> names);
  // The replica began anew.
  void Clear();

  size_t size() const { return places_.size(); }

 private:
  size_t blocks_max_;
  std::list<Hash128> used_;  // the last one first
  std::unordered_map<Hash128, std::list<Hash128>::iterator, PrefixNameHash> places_;
};

}  // namespace baltoro
