#pragma once

// Sets of characters as sorted ranges, for the classes of regular expressions.

#include <vector>

#include "grammar/grammar_builder.h"

namespace baltoro {

class CharSet {
 public:
  CharSet() = default;
  CharSet(std::initializer_list<CodePointRange> ranges);

  void Add(char32_t first, char32_t last);
  void Add(const CharSet& other);
  // Every character that is not in the set; surrogates are in neither.
  CharSet Complement() const;
  CharSet Without(const CharSet& other) const;

  bool Contains(char32_t code) const;
  bool empty() const { return ranges_.empty(); }
  // Sorted, apart from each other by at least one character, free of surrogates.
  const std::vector<CodePointRange>& ranges() const { return ranges_; }

 private:
  std::vector<CodePointRange> ranges_;
};

}  // namespace baltoro
