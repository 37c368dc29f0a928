#pragma once

// Which pieces of work are read together, and in which order: by their place in the files, so that
// a disk is read from front to back, in a few files at once.

#include <cstdint>
#include <vector>

#include "disk/file_set.h"

namespace baltoro {

// What one piece of work reads.
using PieceRanges = std::vector<FileRange>;

struct ReadBatch {
  std::vector<size_t> pieces;     // by their numbers
  std::vector<FileRange> ranges;  // of all of them; may overlap
};

struct BatchRules {
  uint64_t bytes_max = uint64_t{8} << 20;  // of a batch, unless a piece is larger alone
  size_t files_at_once = 4;
};

// Every piece is in one batch; pieces that read nothing are in the first ones. A piece lies where
// its largest range does.
std::vector<ReadBatch> GroupByPlace(const std::vector<PieceRanges>& pieces,
                                    const BatchRules& rules);

// The stretches to read for some ranges: in order, with the holes up to `hole_max` bytes between
// them, begun and ended at multiples of `unit` (a power of two).
std::vector<FileRange> MergeRanges(std::vector<FileRange> ranges, uint64_t hole_max, uint64_t unit);

}  // namespace baltoro
