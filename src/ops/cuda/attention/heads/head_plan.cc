#include "ops/cuda/attention/heads/head_plan.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "ops/cuda/attention/attention_plan.h"
#include "ops/cuda/choose/launch_shape.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch/card.h"
#include "ops/gpu_limits.h"

namespace baltoro::cuda {
namespace {

constexpr int32_t kBlock = KvLayerView::kBlockTokens;
// Thread blocks that a multiprocessor is to have, one after the other: so many that a long sequence
// does not keep one busy when all others have ended.
constexpr int64_t kTurnsFew = 8, kTurnsMany = 4;

void Check(const AttentionPlanArgs& args) {
  BT_CHECK(GpuTakesHeadWidth(args.head_width));
  BT_CHECK(args.form == KvForm::kBf16 && args.key_heads > 0);
  BT_CHECK(args.heads > 0 && args.heads % args.key_heads == 0);
  BT_CHECK(args.blocks_max == 0 || !args.sequences.empty());
  for (const AttentionSequence& s : args.sequences) {
    BT_CHECK(s.query_begin >= 0 && s.query_count >= 0 && s.key_count >= 0);
    BT_CHECK(s.query_begin + s.query_count <= args.tokens && s.block_positions.empty());
    BT_CHECK(std::ssize(s.blocks) >= SharesOf(s.key_count, kBlock));
  }
}

class Planner {
 public:
  Planner(const OpContext& ctx, Arena& arena, const AttentionPlanArgs& args)
      : ctx_(ctx), arena_(arena), args_(args), group_(args.heads / args.key_heads) {}

  const HeadPlan* Run() {
    plan_.tokens = args_.tokens;
    plan_.heads = args_.heads;
    plan_.key_heads = args_.key_heads;
    plan_.width = args_.head_width;
    UploadTable();
    plan_.few = WorkOf(kHeadRowsFew);
    plan_.many = WorkOf(kHeadRowsMany);
    auto* const kept = static_cast<HeadPlan*>(ctx_.staging->Allocate(sizeof(HeadPlan)));
    *kept = plan_;
    return kept;
  }

 private:
  bool recorded() const { return args_.blocks_max > 0; }
  int64_t sequences() const { return std::ssize(args_.sequences); }

  // Of a recorded step the sizes alone decide, not what each sequence brings.
  int32_t TileRowsOf(const AttentionSequence& s) const {
    const int64_t tokens = recorded() ? SharesOf(args_.tokens, sequences()) : s.query_count;
    return tokens * group_ <= kHeadRowsFew ? kHeadRowsFew : kHeadRowsMany;
  }

  void UploadTable() {
    int64_t width = 0;
    for (const AttentionSequence& s : args_.sequences) {
      if (s.query_count > 0) width = std::max(width, SharesOf(s.key_count, kBlock));
    }
    BT_CHECK(!recorded() || width <= args_.blocks_max);
    plan_.table_stride = std::max(width, args_.blocks_max);
    plan_.block_table = UploadColumns(
        ctx_, arena_, sequences(), width, plan_.table_stride, [&](int64_t sequence, int64_t block) {
          const AttentionSequence& s = args_.sequences[sequence];
          const bool has = s.query_count > 0 && block < SharesOf(s.key_count, kBlock);
          BT_CHECK(!has || s.blocks[block] >= 0);
          return has ? s.blocks[block] : 0;
        });
  }

  static int64_t BlocksOf(const HeadTile& tile, int32_t group) {
    const int32_t last = tile.first_position + (tile.first + tile.rows - 1) / group;
    return SharesOf(std::clamp(last + 1, 0, tile.key_count), kBlock);
  }

  std::vector<HeadTile> TilesOf(int32_t tile_rows) const {
    std::vector<HeadTile> tiles;
    for (int32_t i = 0; i < sequences(); ++i) {
      const AttentionSequence& s = args_.sequences[i];
      if (TileRowsOf(s) != tile_rows) continue;
      const int32_t rows = s.query_count * group_;
      for (int32_t first = 0; first < rows; first += tile_rows) {
        tiles.push_back({.query_row = s.query_begin,
                         .first = first,
                         .rows = std::min(tile_rows, rows - first),
                         .first_position = s.first_position,
                         .key_count = s.key_count,
                         .table_row = i});
      }
    }
    return tiles;
  }

  // Blocks of keys of a part, and how many parts, partials and merges there can be: a recorded step
  // has as many; room for partials is taken for as many in any case, so that a trial step tells
  // what is needed. Where nothing else says it, a part is at most one of `wanted` equal shares of
  // all work: then fewer than that many tiles have several, at most twice as many between them.
  struct Cut {
    int64_t part_blocks = std::numeric_limits<int32_t>::max();
    int64_t parts = 0, partials = 0, merges = 0;
  };
  Cut CutOf(int32_t tile_rows, int64_t tiles, int64_t all_blocks) const {
    const bool few = tile_rows == kHeadRowsFew;
    if (args_.part_blocks > 0 && !few) return {.parts = tiles};
    if (args_.part_blocks > 0) {
      const int64_t parts = tiles * SharesOf(args_.blocks_max, args_.part_blocks);
      return {args_.part_blocks, std::max(parts, tiles), parts, tiles};
    }
    const int64_t turns = few ? kTurnsFew : kTurnsMany;
    const int64_t wanted = SharesOf(turns * ThisCard().multiprocessors, args_.key_heads);
    return {std::max<int64_t>(SharesOf(all_blocks, wanted), 1), tiles + wanted, 2 * wanted,
            std::min(tiles, wanted)};
  }

  HeadWork WorkOf(int32_t tile_rows) {
    std::vector<HeadTile> tiles = TilesOf(tile_rows);
    const bool may_have = recorded() && TileRowsOf({}) == tile_rows;
    if (tiles.empty() && !may_have) return {};
    int64_t all_blocks = 0;
    for (const HeadTile& tile : tiles) all_blocks += BlocksOf(tile, group_);
    const int64_t most =
        recorded() ? sequences() + args_.tokens * group_ / tile_rows : std::ssize(tiles);
    const Cut cut = CutOf(tile_rows, most, all_blocks);
    std::vector<HeadPart> parts;
    std::vector<HeadMerge> merges;
    int64_t partials = 0;
    for (int32_t i = 0; i < std::ssize(tiles); ++i) {
      const int64_t blocks = BlocksOf(tiles[i], group_);
      const int64_t count = std::max<int64_t>(SharesOf(blocks, cut.part_blocks), 1);
      if (count > 1) {
        merges.push_back({i, static_cast<int32_t>(partials), static_cast<int32_t>(count)});
      }
      for (int64_t part = 0; part < count; ++part) {
        const int64_t begin = part * cut.part_blocks;
        parts.push_back({.tile = i,
                         .begin = static_cast<int32_t>(begin),
                         .end = static_cast<int32_t>(std::min(begin + cut.part_blocks, blocks)),
                         .partial = count > 1 ? static_cast<int32_t>(partials++) : -1});
      }
    }
    // The long ones first, so that the short ones fill the gaps at the end.
    std::stable_sort(parts.begin(), parts.end(), [](const HeadPart& a, const HeadPart& b) {
      return a.end - a.begin > b.end - b.begin;
    });
    if (recorded()) {
      BT_CHECK(std::ssize(tiles) <= most && std::ssize(parts) <= cut.parts);
      BT_CHECK(partials <= cut.partials && std::ssize(merges) <= cut.merges);
      tiles.resize(static_cast<size_t>(most));
      parts.resize(static_cast<size_t>(cut.parts));
      merges.resize(static_cast<size_t>(cut.merges));
    }
    return {.tiles = Bring(tiles),
            .parts = Bring(parts),
            .merges = Bring(merges),
            .part_count = std::ssize(parts),
            .merge_count = std::ssize(merges),
            .partials = std::max(partials, cut.partials)};
  }

  template <typename T>
  const T* Bring(const std::vector<T>& all) {
    return static_cast<const T*>(Upload(ctx_, arena_, all.data(), all.size() * sizeof(T)));
  }

  const OpContext& ctx_;
  Arena& arena_;
  const AttentionPlanArgs& args_;
  const int32_t group_;
  HeadPlan plan_;
};

}  // namespace

const HeadPlan* PlanHeads(const OpContext& ctx, Arena& arena, const AttentionPlanArgs& args) {
  BT_CHECK(ctx.staging != nullptr);
  Check(args);
  return Planner(ctx, arena, args).Run();
}

}  // namespace baltoro::cuda
