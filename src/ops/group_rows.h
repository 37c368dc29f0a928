#pragma once

// Which rows of an ExpertExchange are whose, and who sends which to whom: plain arithmetic, for
// every way that they travel. Ranks are those of the group, one for each replica.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <span>
#include <vector>

#include "base/check.h"
#include "ops/expert_exchange.h"
#include "tensor/tensor_view.h"

namespace baltoro {

// What an expert bank takes grows with its rows: those of a group are computed in parts of so many,
// or as many as one replica has in any case. Each part reads the weights: 16 replicas that decode
// 256 rows each are one part.
inline constexpr int64_t kGroupRowsAtOnce = 4096;

inline int64_t RowBytes(const TensorView& x) {
  return x.dim(1) * SizeOf(x.dtype);
}

// Whether these tensors can be exchanged; the bytes of one row of all of them.
inline int64_t CheckGathered(std::span<const ExpertExchange::Gathered> tensors,
                             std::span<const int64_t> rows,
                             size_t self) {
  const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  int64_t row_bytes = 0;
  for (const ExpertExchange::Gathered& one : tensors) {
    BT_CHECK(one.all.rank == 2 && one.own.rank == 2 && one.all.dtype == one.own.dtype);
    BT_CHECK(one.all.dim(0) == total && one.own.dim(0) == rows[self]);
    BT_CHECK(one.all.dim(1) == one.own.dim(1) && one.all.contiguous() && one.own.contiguous());
    row_bytes += RowBytes(one.all);
  }
  return row_bytes;
}

inline void CheckAddedBack(const TensorView& own,
                           const TensorView& all,
                           std::span<const int64_t> rows,
                           size_t self) {
  BT_CHECK(all.rank == 2 && own.rank == 2 && all.dim(1) == own.dim(1));
  BT_CHECK(all.dim(0) == std::accumulate(rows.begin(), rows.end(), int64_t{0}));
  BT_CHECK(own.dim(0) == rows[self] && own.contiguous() && all.contiguous());
}

// Of the ranks of a group, each with the host that it lies on: how many lie on each host, where
// they are equally many, one after the other; 0 where they are not.
inline int64_t RanksOfHost(std::span<const int32_t> hosts) {
  std::set<int32_t> seen;
  const auto block = [&](size_t first) {
    size_t end = first;
    while (end < hosts.size() && hosts[end] == hosts[first]) ++end;
    return end - first;
  };
  const size_t ranks = hosts.empty() ? 0 : block(0);
  for (size_t first = 0; first < hosts.size(); first += ranks) {
    if (block(first) != ranks || !seen.insert(hosts[first]).second) return 0;
  }
  return static_cast<int64_t>(ranks);
}

struct RowRange {
  int64_t begin = 0, count = 0;  // of the rows of all
  bool operator==(const RowRange&) const = default;
};

// Of each rank, the rows `first` to `first + most` of its own, as they lie among those of all.
inline std::vector<RowRange> RowsOfPart(std::span<const int64_t> rows,
                                        int64_t first,
                                        int64_t most) {
  std::vector<RowRange> part;
  int64_t before = 0;
  for (const int64_t count : rows) {
    const int64_t begin = std::min(first, count);
    part.push_back({before + begin, std::min(most, count - begin)});
    before += count;
  }
  return part;
}

// Two messages with another rank, where rows are sent one rank at a time: either may have none, and
// is not sent then.
struct RowMessages {
  size_t other = 0;
  RowRange sent, received;  // of the rows of all
};
// Everybody's rows go to everybody.
inline std::vector<RowMessages> MessagesOfGather(std::span<const RowRange> part, size_t self) {
  std::vector<RowMessages> messages;
  for (size_t other = 0; other < part.size(); ++other) {
    if (other != self) messages.push_back({other, part[self], part[other]});
  }
  return messages;
}
// What a rank has for the rows of another goes there.
inline std::vector<RowMessages> MessagesOfAddBack(std::span<const RowRange> part, size_t self) {
  std::vector<RowMessages> messages;
  for (size_t other = 0; other < part.size(); ++other) {
    if (other != self) messages.push_back({other, part[other], part[self]});
  }
  return messages;
}

}  // namespace baltoro
