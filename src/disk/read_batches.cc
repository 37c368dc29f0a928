#include "disk/read_batches.h"

#include <algorithm>
#include <numeric>

namespace baltoro {
namespace {

bool IsBefore(const FileRange& a, const FileRange& b) {
  return a.file != b.file ? a.file < b.file : a.offset < b.offset;
}

FileRange PlaceOf(const PieceRanges& piece) {
  FileRange largest;
  for (const FileRange& range : piece) {
    if (range.bytes > largest.bytes) largest = range;
  }
  return largest;
}

uint64_t BytesOf(const PieceRanges& piece) {
  uint64_t bytes = 0;
  for (const FileRange& range : piece) bytes += range.bytes;
  return bytes;
}

}  // namespace

std::vector<ReadBatch> GroupByPlace(const std::vector<PieceRanges>& pieces,
                                    const BatchRules& rules) {
  std::vector<FileRange> places;
  places.reserve(pieces.size());
  for (const PieceRanges& piece : pieces) places.push_back(PlaceOf(piece));
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return IsBefore(places[a], places[b]); });

  // The batches of each file, one after the other.
  std::vector<std::vector<ReadBatch>> files;
  uint64_t bytes = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t piece = order[i];
    if (i == 0 || places[piece].file != places[order[i - 1]].file) files.emplace_back();
    std::vector<ReadBatch>& batches = files.back();
    const uint64_t more = BytesOf(pieces[piece]);
    if (batches.empty() || (bytes + more > rules.bytes_max && bytes > 0)) {
      batches.emplace_back();
      bytes = 0;
    }
    bytes += more;
    batches.back().pieces.push_back(piece);
    batches.back().ranges.insert(batches.back().ranges.end(), pieces[piece].begin(),
                                 pieces[piece].end());
  }

  // A batch of each open file in turn; the next file takes the place of one that has ended.
  struct Lane {
    size_t file = 0, batch = 0;
  };
  std::vector<Lane> lanes;
  size_t next_file = 0;
  while (next_file < std::min(std::max<size_t>(rules.files_at_once, 1), files.size())) {
    lanes.push_back({.file = next_file++});
  }
  std::vector<ReadBatch> out;
  for (size_t lane = 0; !lanes.empty();) {
    if (lane >= lanes.size()) lane = 0;
    Lane& at = lanes[lane];
    out.push_back(std::move(files[at.file][at.batch++]));
    if (at.batch < files[at.file].size()) {
      ++lane;
    } else if (next_file < files.size()) {
      at = {.file = next_file++};
      ++lane;
    } else {
      lanes.erase(lanes.begin() + static_cast<int64_t>(lane));
    }
  }
  return out;
}

std::vector<FileRange> MergeRanges(std::vector<FileRange> ranges,
                                   uint64_t hole_max,
                                   uint64_t unit) {
  std::sort(ranges.begin(), ranges.end(), IsBefore);
  std::vector<FileRange> out;
  for (const FileRange& range : ranges) {
    if (range.bytes == 0) continue;
    const uint64_t begin = range.offset & ~(unit - 1);
    const uint64_t end = (range.end() + unit - 1) & ~(unit - 1);
    if (!out.empty() && out.back().file == range.file && begin <= out.back().end() + hole_max) {
      out.back().bytes = std::max(out.back().end(), end) - out.back().offset;
    } else {
      out.push_back({.file = range.file, .offset = begin, .bytes = end - begin});
    }
  }
  return out;
}

}  // namespace baltoro
