// Entries sorted by expert, with all tables, against a plain loop.

#include <algorithm>

#include "device/cuda/device_info.h"
#include "ops/cuda/experts/bank_internal.h"
#include "ops/cuda/linear/tiles/tiles_test_support.h"

namespace baltoro::cuda {
namespace {

using namespace product_test;

struct Case {
  int32_t experts, slots, tokens, top_k, tile_rows, blocks;
  bool sums = false, holes = false;
  bool hot = false;  // half of all entries are of one expert
};

std::string Name(const Case& c) {
  return "experts " + std::to_string(c.experts) + " slots " + std::to_string(c.slots) + " T " +
         std::to_string(c.tokens) + " k " + std::to_string(c.top_k) + " rows " +
         std::to_string(c.tile_rows) + (c.sums ? " sum" : "") + (c.holes ? " holes" : "") +
         (c.hot ? " hot" : "");
}

struct Sorted {
  std::vector<int32_t> order, units, row_begin, block_of, counters;
  std::vector<MoeTile> tiles;
  std::vector<MoeStart> starts;
};

constexpr int32_t kSumBlocks = 66, kMaxUnits = 40;

Sorted Sort(const Case& c, const std::vector<int32_t>& ids, const std::vector<int32_t>& slot_of) {
  Context context;
  const size_t entries = ids.size(), slots = static_cast<size_t>(c.slots);
  const Buffer on_device = OnDevice(ids), table = OnDevice(slot_of);
  const auto memory = [](size_t words) { return OnDevice(std::vector<int32_t>(words, -77)); };
  const Buffer num_tiles = memory(1);
  const Buffer tiles = memory(4 * (slots + entries / static_cast<size_t>(c.tile_rows)));
  const Buffer starts = memory(2 * static_cast<size_t>(c.blocks + 1)), order = memory(entries);
  const Buffer ranks = memory(entries), units = memory(slots + 1), row_begin = memory(slots + 1);
  const Buffer block_of = memory(slots + 1), counters = memory(2 * kMaxSumChunks);
  MoeRows rows{.ids = static_cast<const int32_t*>(on_device.data()),
               .slot_of = c.holes ? static_cast<const int32_t*>(table.data()) : nullptr,
               .experts = c.experts,
               .slots = c.slots,
               .tokens = c.tokens,
               .top_k = c.top_k,
               .tile_rows = c.tile_rows,
               .blocks = c.blocks,
               .num_tiles = static_cast<int32_t*>(num_tiles.data()),
               .tiles = static_cast<MoeTile*>(tiles.data()),
               .starts = static_cast<MoeStart*>(starts.data()),
               .order = static_cast<int32_t*>(order.data()),
               .ranks = static_cast<int32_t*>(ranks.data()),
               .sort = ChooseExpertsSort(std::ssize(ids), c.slots)};
  if (c.sums) {
    rows.units = static_cast<int32_t*>(units.data());
    rows.row_begin = static_cast<int32_t*>(row_begin.data());
    rows.block_of = static_cast<int32_t*>(block_of.data());
    rows.counters = static_cast<uint32_t*>(counters.data());
    rows.sum_blocks = kSumBlocks;
    rows.max_units = kMaxUnits;
  }
  BT_CHECK(LaunchRowsByExpert(rows, StreamOf(context.get())).ok());
  context.Wait();
  const int32_t count = FromDevice<int32_t>(num_tiles.data(), 1)[0];
  BT_CHECK(count >= 0 && static_cast<size_t>(count) <= slots + entries);
  return {FromDevice<int32_t>(order.data(), entries),
          FromDevice<int32_t>(units.data(), slots + 1),
          FromDevice<int32_t>(row_begin.data(), slots + 1),
          FromDevice<int32_t>(block_of.data(), slots + 1),
          FromDevice<int32_t>(counters.data(), 2 * kMaxSumChunks),
          FromDevice<MoeTile>(tiles.data(), static_cast<size_t>(count)),
          FromDevice<MoeStart>(starts.data(), static_cast<size_t>(c.blocks + 1))};
}

int64_t Cost(int32_t rows) {
  return rows <= 8 ? 4 : rows <= 16 ? 6 : 12;
}

void CheckOrder(const Case& c, const Sorted& got, const std::vector<std::vector<int32_t>>& want) {
  size_t at = 0;
  for (const std::vector<int32_t>& entries : want) {
    std::vector<int32_t> made(got.order.begin() + static_cast<std::ptrdiff_t>(at),
                              got.order.begin() + static_cast<std::ptrdiff_t>(at + entries.size()));
    std::sort(made.begin(), made.end());
    if (made != entries) return Fail(Name(c) + ": other entries of an expert");
    at += entries.size();
  }
}

void CheckTiles(const Case& c, const Sorted& got, const std::vector<std::vector<int32_t>>& want) {
  std::vector<MoeTile> tiles = got.tiles;
  const auto size = [&](const MoeTile& tile) {
    const auto count = static_cast<int32_t>(want[static_cast<size_t>(tile.slot)].size());
    const int32_t passes = (count + c.tile_rows - 1) / c.tile_rows;
    return (count + 8 * passes - 1) / (8 * passes) * 8;
  };
  for (const MoeTile& tile : tiles) BT_CHECK(tile.slot >= 0 && tile.slot < c.slots);
  if (c.sums) {
    for (size_t i = 1; i < tiles.size(); ++i) {
      if (size(tiles[i - 1]) < size(tiles[i])) Fail(Name(c) + ": tiles not by their rows");
    }
    std::sort(tiles.begin(), tiles.end(),
              [](const MoeTile& a, const MoeTile& b) { return a.begin < b.begin; });
  }
  size_t at = 0;
  int32_t first_row = 0;
  std::vector<int64_t> before = {0};
  for (int32_t slot = 0; slot < c.slots; ++slot) {
    const auto count = static_cast<int32_t>(want[static_cast<size_t>(slot)].size());
    for (int32_t done = 0; done < count; ++at) {
      if (at == tiles.size()) return Fail(Name(c) + ": too few tiles");
      const MoeTile& tile = tiles[at];
      if (tile.slot != slot || tile.begin != first_row + done ||
          tile.count != std::min(size(tile), count - done)) {
        return Fail(Name(c) + ": tile " + std::to_string(at));
      }
      before.push_back(before.back() + Cost(tile.count));
      done += tile.count;
    }
    first_row += count;
  }
  if (at != tiles.size()) return Fail(Name(c) + ": too many tiles");
  for (int32_t b = 0; b <= c.blocks; ++b) {
    const int64_t target = (before.back() << 16) * b / c.blocks;
    size_t tile = 0;
    while (tile + 1 < before.size() && before[tile + 1] << 16 <= target) ++tile;
    int64_t part = 0;
    if (tile < tiles.size()) part = (target - (before[tile] << 16)) / Cost(tiles[tile].count);
    const MoeStart& start = got.starts[static_cast<size_t>(b)];
    if (start.tile != static_cast<int32_t>(tile) || start.part != part) {
      return Fail(Name(c) + ": start of block " + std::to_string(b));
    }
  }
}

void CheckUnits(const Case& c, const Sorted& got, const std::vector<std::vector<int32_t>>& want) {
  int32_t units = 0, row = 0, most = 0;
  std::vector<int32_t> loads(kSumBlocks), experts(kSumBlocks);
  for (size_t slot = 0; slot < want.size(); ++slot) {
    const auto count = static_cast<int32_t>(want[slot].size());
    if (got.units[slot] != units || got.row_begin[slot] != row) {
      return Fail(Name(c) + ": units of slot " + std::to_string(slot));
    }
    units += (count + 15) / 16;
    row += count;
    const int32_t block = got.block_of[slot];
    BT_CHECK(block >= 0 && block < kSumBlocks);
    ++experts[static_cast<size_t>(block)];
    most = std::max(most, loads[static_cast<size_t>(block)] += (count + 15) / 16);
  }
  if (got.units.back() != units || got.row_begin.back() != row) Fail(Name(c) + ": units in all");
  const bool holds = most <= kMaxUnits && most * 2 * kSumBlocks <= 3 * units + 4 * kSumBlocks;
  if (got.block_of.back() != (holds ? 1 : 0)) Fail(Name(c) + ": whether blocks hold");
  const int32_t each = (c.slots + kSumBlocks - 1) / kSumBlocks;
  if (*std::max_element(experts.begin(), experts.end()) > each) {
    Fail(Name(c) + ": experts of a block");
  }
  for (const int32_t counter : got.counters) {
    if (counter != 0) return Fail(Name(c) + ": counters");
  }
}

GPU_TEST(MoeSortTest, IsThatOfAPlainLoop) {
  std::mt19937 random(1);
  for (const Case& c :
       {Case{7, 5, 1, 3, 16, 3, false, true}, Case{384, 384, 16, 8, 16, 264},
        Case{384, 384, 150, 8, 16, 264, false, false, true}, Case{384, 384, 300, 8, 32, 66, true},
        Case{384, 384, 4096, 8, 128, 132, true}, Case{384, 300, 256, 8, 128, 1, true, true},
        Case{40, 40, 600, 7, 32, 100, false, true}, Case{384, 384, 1024, 8, 32, 66, true},
        Case{1000, 1000, 1030, 8, 128, 5, true, false, true},
        Case{12, 12, 4700, 7, 128, 66, true, true}, Case{256, 256, 8300, 8, 128, 512, true}}) {
    std::vector<int32_t> slot_of, ids;
    for (int32_t e = 0; e < c.experts; ++e) {
      slot_of.push_back(!c.holes ? e : e % 3 == 1 ? -1 : e * 5 % c.slots);
    }
    std::vector<std::vector<int32_t>> want(static_cast<size_t>(c.slots));
    for (int32_t entry = 0; entry < c.tokens * c.top_k; ++entry) {
      // Some are no expert's.
      const int32_t any = static_cast<int32_t>(random() % static_cast<uint32_t>(c.experts + 2)) - 1;
      ids.push_back(c.hot && random() % 2 == 0 ? 3 : any);
      if (ids.back() < 0 || ids.back() >= c.experts) continue;
      const int32_t slot = slot_of[static_cast<size_t>(ids.back())];
      if (slot >= 0) want[static_cast<size_t>(slot)].push_back(entry);
    }
    const Sorted got = Sort(c, ids, slot_of);
    CheckOrder(c, got, want);
    CheckTiles(c, got, want);
    if (c.sums) CheckUnits(c, got, want);
  }
}

}  // namespace
}  // namespace baltoro::cuda

int main(int argc, char** argv) {
  return baltoro::testing::RunGpuCases(argc, argv, baltoro::UsableDeviceCount());
}
