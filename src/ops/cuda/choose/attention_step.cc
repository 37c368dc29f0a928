#include "ops/cuda/choose/attention_step.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "ops/cuda/choose/launch_shape.h"

namespace baltoro::cuda {
namespace {

constexpr int32_t kBlock = KvLayerView::kBlockTokens;

int64_t BlocksOf(const AttentionSequence& sequence) {
  return SharesOf(sequence.key_count, kBlock);
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

class Chooser {
 public:
  Chooser(const AttentionPlanArgs& args, int64_t pass_bytes, const Card& card)
      : args_(args), pass_bytes_(pass_bytes), card_(card) {}

  AttentionStep Run() {
    absorbed_max_ = AbsorbedMax();
    Absorbed();
    Expanded();
    step_.why = step_.passes.empty() ? "few query tokens a sequence read latents as they are cached"
                : step_.runs.empty() ? "many query tokens a sequence pay for keys of their own"
                                     : "long sequences are expanded, short ones absorbed";
    return std::move(step_);
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
      if (s.query_count <= most) runs += SharesOf(s.query_count, each);
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
    const auto count = static_cast<int32_t>(args_.sequences.size());
    const int64_t even =
        std::clamp<int64_t>(SharesOf(args_.tokens, std::max(count, 1)), 1, kMlaMaxQueryTokens);
    const bool fixed = all && count > 0 && longest <= even;
    if (!fixed && tokens == 0) return;
    const auto most = static_cast<int32_t>(
        fixed ? even : std::clamp(longest, int32_t{1}, int32_t{kMlaMaxQueryTokens}));
    for (int32_t source = 0; source < count; ++source) {
      const AttentionSequence& s = args_.sequences[static_cast<size_t>(source)];
      if (fixed) {
        step_.runs.push_back({source, 0, s.query_count});
        continue;
      }
      if (s.query_count > absorbed_max_) continue;
      for (int32_t at = 0; at < s.query_count; at += most) {
        step_.runs.push_back({source, at, std::min(most, s.query_count - at)});
      }
    }
    step_.absorbed_rows = fixed ? args_.tokens : tokens;
    MlaDecodeLimits& limits = step_.limits;
    limits.heads = args_.heads;
    limits.sequences = static_cast<int>(step_.runs.size());
    limits.max_query_tokens = most;
    limits.multiprocessors = card_.multiprocessors;
    limits.cache_type = MlaCacheTypeOf(args_.form);
    if (args_.part_blocks <= 0) return;
    limits.chunk_blocks = args_.part_blocks;
    int64_t blocks = 0;
    for (const AbsorbedRun& run : step_.runs) {
      blocks += BlocksOf(args_.sequences[static_cast<size_t>(run.source)]);
    }
    const int64_t room = args_.blocks_max * static_cast<int64_t>(step_.runs.size());
    limits.max_total_blocks = std::max({room, blocks, int64_t{1}});
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
    for (size_t i = 0; i < step_.passes.size(); ++i) {
      ExpandedPass& pass = step_.passes[i];
      pass.first_merge = static_cast<int64_t>(step_.merges.size());
      DealKeys(tiles_[i]);
      pass.merges = static_cast<int64_t>(step_.merges.size()) - pass.first_merge;
      pass.first_tile = static_cast<int64_t>(step_.tiles.size());
      pass.tiles = static_cast<int64_t>(tiles_[i].size());
      // The long ones first, so that the short ones fill the gaps at the end.
      std::stable_sort(
          tiles_[i].begin(), tiles_[i].end(),
          [](const PrefillTile& a, const PrefillTile& b) { return a.key_tiles > b.key_tiles; });
      step_.tiles.insert(step_.tiles.end(), tiles_[i].begin(), tiles_[i].end());
      step_.pass_rows_max = std::max(step_.pass_rows_max, pass.rows);
    }
  }

  // Where a pass has fewer tiles than the card has multiprocessors, the keys of the long ones are
  // dealt over several thread blocks: as many as find room at once.
  void DealKeys(std::vector<PrefillTile>& tiles) {
    constexpr int32_t kLeastKeyTiles = 4;  // of one part
    const int64_t room = card_.multiprocessors / args_.heads;
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
      step_.merges.push_back(
          {tile.query_row, tile.query_count, static_cast<int32_t>(step_.partial_rows), parts});
      for (int32_t part = 0; part < parts; ++part) {
        const int32_t begin = tile.key_tiles * part / parts;
        PrefillTile share = tile;
        share.key_row += begin * kPrefillKeys;
        share.key_tiles = tile.key_tiles * (part + 1) / parts - begin;
        share.key_count -= begin * kPrefillKeys;
        share.partial_row = static_cast<int32_t>(step_.partial_rows);
        share.flags = 0;
        step_.partial_rows += tile.query_count;
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
      if (step_.passes.empty() || step_.passes.back().rows + kPrefillKeys > capacity) {
        step_.passes.push_back(
            {.rows = 0, .first_block = static_cast<int64_t>(step_.block_sources.size())});
        tiles_.emplace_back();
      }
      ExpandedPass& pass = step_.passes.back();
      const int64_t fits = (capacity - pass.rows) / kBlock;
      const int64_t end = std::min(blocks, begin + fits);
      segments.push_back({step_.passes.size() - 1, begin, end, pass.rows});
      const int64_t wide = SharesOf(end - begin, kTileBlocks) * kTileBlocks;
      for (int64_t b = begin; b < begin + wide; ++b) {
        const bool exists = b < end;
        BT_CHECK(!exists || s.blocks[b] >= 0);
        step_.block_sources.push_back(exists ? s.blocks[b] : -1);
        step_.block_valid.push_back(
            exists ? static_cast<int32_t>(std::min<int64_t>(kBlock, s.key_count - b * kBlock)) : 0);
        step_.block_positions.push_back(exists ? PositionOf(s, b) : 0);
      }
      pass.rows += wide * kBlock;
      begin = end;
    } while (begin < blocks);
    const auto first_partial = static_cast<int32_t>(step_.partial_rows);
    if (segments.size() > 1) step_.partial_rows += s.query_count;
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
      tile.key_tiles =
          static_cast<int32_t>(SharesOf((seen - segment.begin) * kBlock, kPrefillKeys));
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

  const AttentionPlanArgs& args_;
  const int64_t pass_bytes_;
  const Card card_;
  int32_t absorbed_max_ = kAbsorbedTokensMax;
  AttentionStep step_;
  std::vector<std::vector<PrefillTile>> tiles_;  // of each pass
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

bool ChooseRowsAlone(int32_t heads, int64_t rows, KvForm form, int64_t keys) {
  constexpr int64_t kRowsMax = 8, kFewRows = 4;
  constexpr int64_t kKeysOfFewMax = 12288, kKeysMax = 3072;
  if (heads != kMlaHeads8Rows || rows > kRowsMax || form == KvForm::kFp8Groups) return false;
  return keys <= (rows <= kFewRows ? kKeysOfFewMax : kKeysMax);
}

AttentionStep ChooseAttentionStep(const AttentionPlanArgs& args,
                                  int64_t pass_bytes,
                                  const Card& card) {
  Check(args);
  return Chooser(args, pass_bytes, card).Run();
}

std::string Text(const AttentionStep& step) {
  std::string text = step.runs.empty() ? "" : "absorbed";
  if (step.passes.empty()) return text;
  if (!text.empty()) text += " and ";
  text += "expanded in " + std::to_string(step.passes.size());
  return step.merges.empty() ? text : text + ", keys dealt";
}

}  // namespace baltoro::cuda
