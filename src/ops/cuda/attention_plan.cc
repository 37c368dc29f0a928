#include "ops/cuda/attention_plan.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "ops/cuda/cuda_ops.h"

namespace baltoro::cuda {
namespace {

constexpr int32_t kBlock = KvLayerView::kBlockTokens;

int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t BlocksOf(const AttentionSequence& sequence) {
  return CeilDiv(sequence.key_count, kBlock);
}

int32_t PositionOf(const AttentionSequence& sequence, int64_t block) {
  return sequence.block_positions.empty() ? static_cast<int32_t>(block) * kBlock
                                          : sequence.block_positions[block];
}

void Check(const AttentionPlanArgs& args) {
  BT_CHECK(args.heads >= 1 && args.heads <= kMlaMaxHeads);
  BT_CHECK(args.nope == kAttentionNope && args.rope == kAttentionRope);
  BT_CHECK(args.value == kAttentionValue && args.latent == kMlaLatent);
  BT_CHECK(args.form != KvForm::kF32);
  for (const AttentionSequence& s : args.sequences) {
    BT_CHECK(s.query_begin >= 0 && s.query_count >= 0 && s.key_count >= 0);
    BT_CHECK(s.query_begin + s.query_count <= args.tokens);
    BT_CHECK(static_cast<int64_t>(s.blocks.size()) >= BlocksOf(s));
    BT_CHECK(s.block_positions.empty() || s.block_positions.size() >= s.blocks.size());
  }
}

int Multiprocessors() {
  int device = 0, count = 0;
  CheckCuda(cudaGetDevice(&device), "cudaGetDevice");
  CheckCuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
            "cudaDeviceGetAttribute");
  return count;
}

// Query tokens that MlaDecode takes as one sequence, with the keys of sequence `source`.
struct AbsorbedRun {
  const AttentionSequence* source;
  int32_t skipped;  // query tokens of the source before these
  int32_t count;
};

class Planner {
 public:
  Planner(const OpContext& ctx, Arena& arena, const AttentionPlanArgs& args, int64_t pass_bytes)
      : ctx_(ctx), arena_(arena), args_(args), pass_bytes_(pass_bytes) {}

  const AttentionPlan* Run() {
    plan_.tokens = args_.tokens;
    plan_.form = args_.form;
    plan_.heads = args_.heads;
    absorbed_max_ = AbsorbedMax();
    Absorbed();
    Expanded();
    auto* const kept = static_cast<AttentionPlan*>(ctx_.staging->Allocate(sizeof(AttentionPlan)));
    *kept = plan_;
    return kept;
  }

 private:
  // Query tokens of a sequence in absorbed form: fewer than else where MlaDecode would have to take
  // more sequences than it can.
  int32_t AbsorbedMax() const {
    int32_t most = kAbsorbedTokensMax;
    while (most > kMlaMaxQueryTokens && RunsOf(most) > kMlaMaxSequences) most /= 2;
    return most;
  }

  int64_t RunsOf(int32_t most) const {
    int32_t longest = 1;
    for (const AttentionSequence& s : args_.sequences) {
      if (s.query_count <= most) longest = std::max(longest, s.query_count);
    }
    const int32_t each = std::min(longest, int32_t{kMlaMaxQueryTokens});
    int64_t runs = 0;
    for (const AttentionSequence& s : args_.sequences) {
      if (s.query_count <= most) runs += CeilDiv(s.query_count, each);
    }
    return runs;
  }

  // The absorbed form. Without expanded sequences, and with at most ceil(T / sequences) query
  // tokens in each, every size depends on T and the number of sequences alone.
  void Absorbed() {
    int32_t longest = 0, tokens = 0;
    bool all = true;
    for (const AttentionSequence& s : args_.sequences) {
      if (s.query_count > absorbed_max_) {
        all = false;
        continue;
      }
      longest = std::max(longest, s.query_count);
      tokens += s.query_count;
    }
    const auto count = static_cast<int64_t>(args_.sequences.size());
    const int64_t even = std::clamp<int64_t>(CeilDiv(args_.tokens, std::max<int64_t>(count, 1)), 1,
                                             kMlaMaxQueryTokens);
    const bool fixed = all && count > 0 && longest <= even;
    if (!fixed && tokens == 0) return;
    const auto most = static_cast<int32_t>(
        fixed ? even : std::clamp(longest, int32_t{1}, int32_t{kMlaMaxQueryTokens}));
    std::vector<AbsorbedRun> runs;
    for (const AttentionSequence& s : args_.sequences) {
      if (fixed) {
        runs.push_back({&s, 0, s.query_count});
        continue;
      }
      if (s.query_count > absorbed_max_) continue;
      for (int32_t at = 0; at < s.query_count; at += most) {
        runs.push_back({&s, at, std::min(most, s.query_count - at)});
      }
    }
    plan_.absorbed_rows = fixed ? args_.tokens : tokens;
    plan_.limits.heads = args_.heads;
    plan_.limits.sequences = static_cast<int>(runs.size());
    plan_.limits.max_query_tokens = most;
    plan_.limits.multiprocessors = Multiprocessors();
    plan_.limits.cache_type = MlaCacheTypeOf(args_.form);
    if (args_.part_blocks > 0) {
      plan_.limits.chunk_blocks = args_.part_blocks;
      int64_t blocks = 0;
      for (const AbsorbedRun& run : runs) blocks += BlocksOf(*run.source);
      const int64_t room = args_.blocks_max * static_cast<int64_t>(runs.size());
      plan_.limits.max_total_blocks = std::max({room, blocks, int64_t{1}});
    }
    const std::vector<int32_t> numbers = UploadNumbers(runs);
    UploadTables(runs);
    const Result<size_t> bytes = MlaDecodeWorkspaceBytes(plan_.limits);
    CheckOk(bytes.status());
    plan_.workspace = arena_.Allocate(bytes.value());
    const Result<size_t> plan_bytes = MlaDecodePlanBytes(plan_.limits);
    CheckOk(plan_bytes.status());
    void* const image = ctx_.staging->Allocate(plan_bytes.value());
    CheckOk(
        PlanMlaDecodeOnHost(plan_.limits, numbers.data(), numbers.data() + runs.size() + 1, image));
    CheckCuda(cudaMemcpyAsync(plan_.workspace, image, plan_bytes.value(), cudaMemcpyHostToDevice,
                              StreamOf(ctx_)),
              "upload of the plan of MLA decode");
  }

  // Query begins [runs + 1], key counts and first positions [runs], rows.
  std::vector<int32_t> UploadNumbers(const std::vector<AbsorbedRun>& runs) {
    const size_t count = runs.size();
    std::vector<int32_t> numbers(3 * count + 1 + static_cast<size_t>(plan_.absorbed_rows), -1);
    int32_t* const begin = numbers.data();
    int32_t* const keys = begin + count + 1;
    int32_t* const firsts = keys + count;
    int32_t* const rows = firsts + count;
    int32_t row = 0;
    for (size_t i = 0; i < count; ++i) {
      const AbsorbedRun& run = runs[i];
      begin[i] = row;
      keys[i] = run.count > 0 ? run.source->key_count : 0;
      firsts[i] = run.source->first_position + run.skipped;
      for (int32_t j = 0; j < run.count; ++j) {
        rows[row++] = run.source->query_begin + run.skipped + j;
      }
    }
    begin[count] = row;
    const auto* const on_device = static_cast<const int32_t*>(
        Upload(ctx_, arena_, numbers.data(), numbers.size() * sizeof(int32_t)));
    plan_.sequences.query_begin = on_device;
    plan_.sequences.key_count = on_device + (keys - begin);
    plan_.sequences.first_position = on_device + (firsts - begin);
    plan_.rows = on_device + (rows - begin);
    return numbers;
  }

  void UploadTables(const std::vector<AbsorbedRun>& runs) {
    int64_t width = 0;
    bool given = false;
    for (const AbsorbedRun& run : runs) {
      if (run.count == 0) continue;
      width = std::max(width, BlocksOf(*run.source));
      given |= !run.source->block_positions.empty();
    }
    BT_CHECK(args_.blocks_max == 0 || width <= args_.blocks_max);
    const int64_t stride = std::max({width, args_.blocks_max, int64_t{1}});
    plan_.sequences.table_stride = stride;
    plan_.sequences.block_table = UploadColumns(runs, width, [](const auto& s, int64_t block) {
      BT_CHECK(s.blocks[block] >= 0);
      return s.blocks[block];
    });
    if (given) {
      plan_.sequences.block_positions = UploadColumns(
          runs, width, [](const auto& s, int64_t block) { return PositionOf(s, block); });
    } else if (args_.blocks_max > 0) {
      // A graph may be used for steps that give positions as well as for others.
      auto* const positions = arena_.AllocateArray<int32_t>(runs.size() * stride);
      const auto count = static_cast<int64_t>(runs.size());
      if (width > 0) LaunchFillPositions(positions, count, width, stride, StreamOf(ctx_));
      plan_.sequences.block_positions = positions;
    }
  }

  // A device array [runs, table_stride] of which the first `width` columns are written.
  template <typename ValueOf>
  const int32_t* UploadColumns(const std::vector<AbsorbedRun>& runs,
                               int64_t width,
                               ValueOf value_of) {
    const auto count = static_cast<int64_t>(runs.size());
    const int64_t stride = plan_.sequences.table_stride;
    auto* const to = arena_.AllocateArray<int32_t>(static_cast<size_t>(count * stride));
    if (width == 0) return to;
    auto* const staged =
        static_cast<int32_t*>(ctx_.staging->Allocate(static_cast<size_t>(count * width) * 4));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t blocks = runs[i].count > 0 ? BlocksOf(*runs[i].source) : 0;
      for (int64_t b = 0; b < width; ++b) {
        staged[i * width + b] = b < blocks ? value_of(*runs[i].source, b) : 0;
      }
    }
    CheckCuda(cudaMemcpy2DAsync(to, static_cast<size_t>(stride) * 4, staged,
                                static_cast<size_t>(width) * 4, static_cast<size_t>(width) * 4,
                                static_cast<size_t>(count), cudaMemcpyHostToDevice, StreamOf(ctx_)),
              "upload of block tables");
    return to;
  }

  // One segment: blocks [begin, end) of a sequence in one pass.
  struct Segment {
    size_t pass;
    int64_t begin, end;
    int64_t row;  // in the pass
  };

  void Expanded() {
    const int64_t key_bytes = int64_t{args_.heads} * (kAttentionNope + kAttentionValue) * 2;
    const int64_t capacity =
        std::max<int64_t>(pass_bytes_ / key_bytes / kPrefillKeys, 1) * kPrefillKeys;
    for (const AttentionSequence& s : args_.sequences) {
      if (s.query_count > absorbed_max_) AddSequence(s, capacity);
    }
    if (passes_.empty()) return;
    std::vector<PrefillTile> tiles;
    std::vector<PrefillMerge> merges;
    for (size_t i = 0; i < passes_.size(); ++i) {
      passes_[i].first_merge = static_cast<int64_t>(merges.size());
      DealKeys(tiles_[i], merges);
      passes_[i].merges = static_cast<int64_t>(merges.size()) - passes_[i].first_merge;
      passes_[i].first_tile = static_cast<int64_t>(tiles.size());
      passes_[i].tiles = static_cast<int64_t>(tiles_[i].size());
      // The long ones first, so that the short ones fill the gaps at the end.
      std::stable_sort(
          tiles_[i].begin(), tiles_[i].end(),
          [](const PrefillTile& a, const PrefillTile& b) { return a.key_tiles > b.key_tiles; });
      tiles.insert(tiles.end(), tiles_[i].begin(), tiles_[i].end());
      plan_.pass_rows_max = std::max(plan_.pass_rows_max, passes_[i].rows);
    }
    std::vector<int32_t> numbers = sources_;
    numbers.insert(numbers.end(), valid_.begin(), valid_.end());
    numbers.insert(numbers.end(), positions_.begin(), positions_.end());
    plan_.block_sources = static_cast<const int32_t*>(
        Upload(ctx_, arena_, numbers.data(), numbers.size() * sizeof(int32_t)));
    plan_.block_valid = plan_.block_sources + sources_.size();
    plan_.block_positions = plan_.block_valid + sources_.size();
    plan_.tiles = static_cast<const PrefillTile*>(
        Upload(ctx_, arena_, tiles.data(), tiles.size() * sizeof(PrefillTile)));
    plan_.merges = static_cast<const PrefillMerge*>(
        Upload(ctx_, arena_, merges.data(), merges.size() * sizeof(PrefillMerge)));
    auto* const kept =
        static_cast<ExpandedPass*>(ctx_.staging->Allocate(passes_.size() * sizeof(ExpandedPass)));
    std::copy(passes_.begin(), passes_.end(), kept);
    plan_.passes = kept;
    plan_.pass_count = static_cast<int64_t>(passes_.size());
  }

  // Where a pass has fewer tiles than the card has multiprocessors, the keys of the long ones are
  // dealt over several thread blocks: as many as find room at once.
  void DealKeys(std::vector<PrefillTile>& tiles, std::vector<PrefillMerge>& merges) {
    constexpr int32_t kLeastKeyTiles = 4;  // of one part
    const int64_t room = Multiprocessors() / args_.heads;
    if (static_cast<int64_t>(tiles.size()) >= room) return;
    int32_t longest = 0;
    for (const PrefillTile& tile : tiles) longest = std::max(longest, tile.key_tiles);
    const auto parts_of = [](const PrefillTile& tile, int32_t most) -> int32_t {
      const bool whole = tile.flags == PrefillTile::kIsLast;  // all of the tile's keys
      return whole && tile.key_tiles > most ? (tile.key_tiles + most - 1) / most : 1;
    };
    int32_t most = kLeastKeyTiles;
    for (; most < longest; ++most) {
      int64_t parts = 0;
      for (const PrefillTile& tile : tiles) parts += parts_of(tile, most);
      if (parts <= room) break;
    }
    std::vector<PrefillTile> dealt;
    for (const PrefillTile& tile : tiles) {
      const int32_t parts = parts_of(tile, most);
      if (parts == 1) {
        dealt.push_back(tile);
        continue;
      }
      merges.push_back(
          {tile.query_row, tile.query_count, static_cast<int32_t>(plan_.partial_rows), parts});
      for (int32_t part = 0; part < parts; ++part) {
        const int32_t begin = tile.key_tiles * part / parts;
        PrefillTile share = tile;
        share.key_row += begin * kPrefillKeys;
        share.key_tiles = tile.key_tiles * (part + 1) / parts - begin;
        share.key_count -= begin * kPrefillKeys;
        share.partial_row = static_cast<int32_t>(plan_.partial_rows);
        share.flags = 0;
        plan_.partial_rows += tile.query_count;
        dealt.push_back(share);
      }
    }
    tiles = std::move(dealt);
  }

  void AddSequence(const AttentionSequence& s, int64_t capacity) {
    constexpr int64_t kTileBlocks = kPrefillKeys / kBlock;
    std::vector<Segment> segments;
    const int64_t blocks = BlocksOf(s);
    int64_t begin = 0;
    do {
      if (passes_.empty() || passes_.back().rows + kPrefillKeys > capacity) {
        passes_.push_back({.rows = 0, .first_block = static_cast<int64_t>(sources_.size())});
        tiles_.emplace_back();
      }
      ExpandedPass& pass = passes_.back();
      const int64_t fits = (capacity - pass.rows) / kBlock;
      const int64_t end = std::min(blocks, begin + fits);
      segments.push_back({passes_.size() - 1, begin, end, pass.rows});
      const int64_t wide = CeilDiv(end - begin, kTileBlocks) * kTileBlocks;
      for (int64_t b = begin; b < begin + wide; ++b) {
        const bool exists = b < end;
        BT_CHECK(!exists || s.blocks[b] >= 0);
        sources_.push_back(exists ? s.blocks[b] : -1);
        valid_.push_back(
            exists ? static_cast<int32_t>(std::min<int64_t>(kBlock, s.key_count - b * kBlock)) : 0);
        positions_.push_back(exists ? PositionOf(s, b) : 0);
      }
      pass.rows += wide * kBlock;
      begin = end;
    } while (begin < blocks);
    const auto first_partial = static_cast<int32_t>(plan_.partial_rows);
    if (segments.size() > 1) plan_.partial_rows += s.query_count;
    for (int32_t at = 0; at < s.query_count; at += kPrefillRows) {
      PrefillTile tile = {};
      tile.query_row = s.query_begin + at;
      tile.query_count = std::min(kPrefillRows, s.query_count - at);
      tile.first_position = s.first_position + at;
      tile.partial_row = first_partial + at;
      AddTile(s, segments, tile);
    }
  }

  // The tile against each segment of which it sees something; if there is none, against no key.
  void AddTile(const AttentionSequence& s, const std::vector<Segment>& segments, PrefillTile tile) {
    const int32_t last_position = tile.first_position + tile.query_count - 1;
    PrefillTile* before = nullptr;
    for (const Segment& segment : segments) {
      int64_t seen = segment.end;  // behind the last block of which something is seen
      while (seen > segment.begin && PositionOf(s, seen - 1) > last_position) --seen;
      const bool last_chance = &segment == &segments.back() && before == nullptr;
      if (seen == segment.begin && !last_chance) continue;
      tile.key_row = static_cast<int32_t>(segment.row);
      tile.key_tiles = static_cast<int32_t>(CeilDiv((seen - segment.begin) * kBlock, kPrefillKeys));
      tile.key_count = static_cast<int32_t>(std::min<int64_t>(s.key_count, segment.end * kBlock) -
                                            segment.begin * kBlock);
      tile.flags = PrefillTile::kIsLast;
      if (before != nullptr) {
        before->flags &= ~PrefillTile::kIsLast;
        tile.flags |= PrefillTile::kHasPrevious;
      }
      tiles_[segment.pass].push_back(tile);
      before = &tiles_[segment.pass].back();
    }
  }

  const OpContext& ctx_;
  Arena& arena_;
  const AttentionPlanArgs& args_;
  const int64_t pass_bytes_;
  int32_t absorbed_max_ = kAbsorbedTokensMax;
  AttentionPlan plan_;
  std::vector<ExpandedPass> passes_;
  std::vector<std::vector<PrefillTile>> tiles_;       // of each pass
  std::vector<int32_t> sources_, valid_, positions_;  // of all passes' blocks
};

}  // namespace

MlaCacheType MlaCacheTypeOf(KvForm form) {
  switch (form) {
    case KvForm::kFp8:
      return MlaCacheType::kFp8E4m3;
    case KvForm::kFp8Groups:
      return MlaCacheType::kFp8Groups;
    default:
      return MlaCacheType::kBf16;
  }
}

const AttentionPlan* PlanAttentionInPasses(const OpContext& ctx,
                                           Arena& arena,
                                           const AttentionPlanArgs& args,
                                           int64_t pass_bytes) {
  Check(args);
  BT_CHECK(ctx.staging != nullptr);
  return Planner(ctx, arena, args, pass_bytes).Run();
}

const void* PlanAttention(const OpContext& ctx, Arena& arena, const AttentionPlanArgs& args) {
  return PlanAttentionInPasses(ctx, arena, args, kAttentionPassBytes);
}

}  // namespace baltoro::cuda
