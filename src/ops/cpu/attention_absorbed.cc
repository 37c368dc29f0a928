// The absorbed form: the key rows of kv_b are folded into the query and its
// value rows into the result, so that all heads attend to the cached latents
// themselves. Rows are (token, head) pairs, head fastest; 32 of them are a
// group. Four loops: fold the queries; attend, one item a run of groups of one
// sequence and a split of its keys; merge the splits; project the results.
//
// A split is 512 keys, counted from the start of the sequence, so that neither
// load nor the number of threads changes the order of any sum.

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/cpu_ops.h"

namespace baltoro::cpu {
namespace {

constexpr int64_t kSplitBlocks = 8;
constexpr int64_t kRowsMax = 256;                      // of one product with weights
constexpr int64_t kRunMax = 8;                         // groups that share the packing of a block
constexpr int64_t kStateBytesMax = int64_t{64} << 20;  // partial results held at once

struct Sequence {
  const AttentionSequence* sequence = nullptr;
  int64_t first_token = 0;  // of its absorbed tokens, among all absorbed tokens of the step
  int64_t tokens = 0;
  int64_t first_position = 0;
  int64_t splits = 0;
};

struct Group {
  const Sequence* sequence = nullptr;
  int64_t first_row = 0;  // of the sequence's rows
  int64_t rows = 0;
  char* queries = nullptr;  // panel
  float* states = nullptr;  // one a split
};

// Groups [first, first + count) of one sequence, one split.
struct Item {
  int64_t first = 0;
  int64_t count = 0;
  int64_t split = 0;
};

class AbsorbedForm {
 public:
  AbsorbedForm(const OpContext& ctx, const MlaAttentionArgs& args)
      : ctx_(ctx),
        args_(args),
        act_(args.q.dtype),
        kernels_(KernelsFor(act_, PlainType(args.kv_b.form))),
        inner_(KernelsFor(act_, act_)),
        threads_(ThreadCount(ctx)),
        heads_(args.heads),
        latent_(args.latent),
        width_(args.latent + args.rope),
        in_place_(inner_.tile == act_ && width_ % kBlockK == 0) {}

  void Run() {
    FindTokens();
    if (tokens_ == 0) return;
    product_floats_ =
        kRowsMax * ResultStride(std::max<int64_t>(latent_, args_.value) + kPanelColumns);
    products_ = Floats(threads_ * product_floats_);
    FoldQueries();
    MakeGroups();
    results_ = Bytes(tokens_ * heads_ * latent_ * SizeOf(act_));
    AttendInWaves();
    ProjectResults();
  }

 private:
  void FindTokens() {
    sequences_ = ctx_.scratch->AllocateArray<Sequence>(args_.sequences.size());
    for (const AttentionSequence& sequence : args_.sequences) {
      const int32_t first = FirstAbsorbed(sequence);
      if (first == sequence.query_count) continue;
      sequences_[sequence_count_++] = {
          .sequence = &sequence,
          .first_token = tokens_,
          .tokens = sequence.query_count - first,
          .first_position = sequence.first_position + first,
          .splits = std::max<int64_t>(1, CeilDiv(BlockCount(sequence), kSplitBlocks))};
      tokens_ += sequence.query_count - first;
    }
    rows_of_q_ = ctx_.scratch->AllocateArray<int32_t>(static_cast<size_t>(tokens_));
    for (int64_t i = 0; i < sequence_count_; ++i) {
      const AttentionSequence& sequence = *sequences_[i].sequence;
      for (int64_t t = 0; t < sequences_[i].tokens; ++t) {
        rows_of_q_[sequences_[i].first_token + t] = static_cast<int32_t>(
            sequence.query_begin + sequence.query_count - sequences_[i].tokens + t);
      }
    }
  }

  // Calls body(head, first token, tokens, thread) for chunks of all absorbed
  // tokens.
  template <typename Body>
  void ForEachHead(const Body& body) {
    const int64_t chunks = CeilDiv(tokens_, kRowsMax);
    ParallelFor(ctx_, heads_ * chunks, [&](int64_t item, int thread) {
      const int64_t first = item / heads_ * kRowsMax;
      body(item % heads_, first, std::min(kRowsMax, tokens_ - first), thread);
    });
  }

  // folded [tokens, heads, R + P] = q_nope * key rows, then q_rope.
  void FoldQueries() {
    folded_ = Bytes(tokens_ * heads_ * width_ * SizeOf(act_));
    const int64_t tile_bytes = TileBytes(kernels_.tile, std::min(tokens_, kRowsMax), args_.nope);
    char* tiles = Bytes(threads_ * tile_bytes);
    ForEachHead([&](int64_t head, int64_t first, int64_t count, int thread) {
      const char* q =
          static_cast<const char*>(args_.q.data) + head * args_.q.stride[1] * SizeOf(act_);
      const RowSource source = {
          .data = q, .dtype = act_, .stride = args_.q.stride[0], .index = rows_of_q_ + first};
      char* mine = tiles + thread * tile_bytes;
      FillTiles(kernels_, mine, source, 0, count, args_.nope);
      const float* c =
          MultiplyColumns(kernels_, TilesAt(mine, kernels_.tile, args_.nope), count,
                          args_.uk_t.at(head), 0, latent_, products_ + thread * product_floats_);
      for (int64_t i = 0; i < count; ++i) {
        char* out = folded_ + ((first + i) * heads_ + head) * width_ * SizeOf(act_);
        StoreRow(kernels_, out, act_, c + i * ProductStride(0, latent_), latent_);
        const char* rope = static_cast<const char*>(source.row(i)) + args_.nope * SizeOf(act_);
        std::copy_n(rope, args_.rope * SizeOf(act_), out + latent_ * SizeOf(act_));
      }
    });
  }

  void MakeGroups() {
    int64_t count = 0;
    for (int64_t i = 0; i < sequence_count_; ++i) {
      count += CeilDiv(sequences_[i].tokens * heads_, kGroupRows);
    }
    groups_ = ctx_.scratch->AllocateArray<Group>(static_cast<size_t>(count));
    const int64_t panel = PanelBytes(act_, width_);
    char* panels = Bytes(count * panel);
    for (int64_t i = 0; i < sequence_count_; ++i) {
      const int64_t rows = sequences_[i].tokens * heads_;
      for (int64_t row = 0; row < rows; row += kGroupRows) {
        groups_[group_count_] = {.sequence = &sequences_[i],
                                 .first_row = row,
                                 .rows = std::min(kGroupRows, rows - row),
                                 .queries = panels + group_count_ * panel};
        ++group_count_;
      }
    }
    ParallelFor(ctx_, group_count_, [&](int64_t item, int) {
      const Group& group = groups_[item];
      const int64_t row = group.sequence->first_token * heads_ + group.first_row;
      inner_.pack_panel(group.queries, folded_ + row * width_ * SizeOf(act_), width_, group.rows,
                        width_);
    });
  }

  // As many groups at a time as their partial results have room for.
  void AttendInWaves() {
    const int64_t state = GroupStateFloats(latent_);
    const auto bytes_of = [&](int64_t group) {
      return groups_[group].sequence->splits * state * static_cast<int64_t>(sizeof(float));
    };
    int64_t largest = 0;
    int64_t total = 0;
    int64_t splits_total = 0;
    for (int64_t i = 0; i < group_count_; ++i) {
      largest = std::max(largest, bytes_of(i));
      total += bytes_of(i);
      splits_total += groups_[i].sequence->splits;
    }
    const int64_t room = std::min(total, std::max(largest, kStateBytesMax));
    float* states = Floats(room / static_cast<int64_t>(sizeof(float)));
    items_ = ctx_.scratch->AllocateArray<Item>(static_cast<size_t>(splits_total));
    AllocateThreadMemory();
    for (int64_t first = 0; first < group_count_;) {
      int64_t end = first;
      float* at = states;
      int64_t used = 0;
      while (end < group_count_ && used + bytes_of(end) <= room) {
        groups_[end].states = at;
        at += groups_[end].sequence->splits * state;
        used += bytes_of(end++);
      }
      Wave(first, end);
      first = end;
    }
  }

  void Wave(int64_t first, int64_t end) {
    int64_t work = 0;
    for (int64_t i = first; i < end; ++i) work += groups_[i].sequence->splits;
    const int64_t run = std::clamp<int64_t>(work / (4 * threads_), 1, kRunMax);
    int64_t item_count = 0;
    for (int64_t i = first; i < end;) {
      int64_t count = 1;
      while (count < run && i + count < end && groups_[i + count].sequence == groups_[i].sequence) {
        ++count;
      }
      for (int64_t split = 0; split < groups_[i].sequence->splits; ++split) {
        items_[item_count++] = {.first = i, .count = count, .split = split};
      }
      i += count;
    }
    ParallelFor(ctx_, item_count, [&](int64_t item, int thread) { Attend(items_[item], thread); });
    ParallelFor(ctx_, end - first, [&](int64_t item, int) { Merge(groups_[first + item]); });
  }

  void AllocateThreadMemory() {
    tile_bytes_ = in_place_ ? 0 : RoundUp(TileBytes(inner_.tile, kKeys, width_), 64);
    value_bytes_ = CeilDiv(latent_, kPanelColumns) * PanelBytes(act_, kKeys);
    wide_bytes_ = WideBlockBytes(args_.cache, act_);
    thread_bytes_ = wide_bytes_ + tile_bytes_ + value_bytes_ + RoundUp(GroupScratch::kBytes, 64);
    thread_memory_ = Bytes(threads_ * thread_bytes_);
  }

  void Attend(const Item& item, int thread) const {
    const Sequence& sequence = *groups_[item.first].sequence;
    char* wide = thread_memory_ + thread * thread_bytes_;
    char* memory = wide + wide_bytes_;
    char* values = memory + tile_bytes_;
    const GroupScratch scratch(values + value_bytes_);
    for (int64_t i = 0; i < item.count; ++i) {
      ClearGroupState(StateOf(groups_[item.first + i], item.split), latent_);
    }
    const int64_t begin = item.split * kSplitBlocks;
    const int64_t end = std::min(BlockCount(*sequence.sequence), begin + kSplitBlocks);
    for (int64_t at = begin; at < end; ++at) {
      KeyBlock block = BlockAt(args_.cache, *sequence.sequence, at);
      bool packed = false;
      for (int64_t i = 0; i < item.count; ++i) {
        const Group& group = groups_[item.first + i];
        const int32_t largest = SetLimits(scratch.limits, group.rows, block, [&](int64_t row) {
          return sequence.first_position + (group.first_row + row) / heads_;
        });
        if (largest == 0) continue;
        // The packing of this block's values fetches the second half of the next block, the first
        // product with its keys the first half: of bytes to be widened that is nearly all.
        const char* next = nullptr;
        if (!packed) {
          block = WideBlock(args_.cache, act_, block, wide);
          if (at + 1 < end) next = BlockAt(args_.cache, *sequence.sequence, at + 1).data;
          const bool in_halves = next != nullptr && wide_bytes_ == 0;
          Pack(block, in_halves ? next + BlockBytes() / 2 : nullptr, memory, values);
        }
        packed = true;
        AttendBlock(inner_,
                    {.keys = KeysOf(block, memory),
                     .key_count = block.keys,
                     .queries = group.queries,
                     .k = width_,
                     .values = values,
                     .next = next,
                     .columns = latent_,
                     .rows = group.rows,
                     .scale = args_.scale,
                     .act = act_},
                    scratch, StateOf(group, item.split));
      }
    }
  }

  void Pack(const KeyBlock& block, const char* next, char* tiles, char* values) const {
    if (!in_place_) {
      const RowSource source = {.data = block.data, .dtype = act_, .stride = width_};
      FillTiles(inner_, tiles, source, 0, block.keys, width_);
    }
    inner_.pack_values(values, block.data, act_, width_, block.keys, latent_, next);
  }

  int64_t BlockBytes() const { return kKeys * width_ * SizeOf(act_); }

  LeftOperand KeysOf(const KeyBlock& block, const char* tiles) const {
    if (!in_place_) return TilesAt(tiles, inner_.tile, width_);
    const int64_t row = width_ * SizeOf(act_);
    return {.data = block.data,
            .row = row,
            .block = kBlockK * SizeOf(act_),
            .row_tile = kTileRows * row};
  }

  GroupState StateOf(const Group& group, int64_t split) const {
    return GroupStateAt(group.states + split * GroupStateFloats(latent_), latent_);
  }

  // Adds the splits up in the first one's place, in order.
  void Merge(const Group& group) const {
    const int64_t stride = ResultStride(latent_);
    const GroupState state = StateOf(group, 0);
    const Sequence& sequence = *group.sequence;
    for (int64_t lane = 0; lane < group.rows; ++lane) {
      float* out = state.out + lane * stride;
      float& highest = state.highest[lane];
      float& sum = state.sum[lane];
      for (int64_t split = 1; split < sequence.splits; ++split) {
        const GroupState other = StateOf(group, split);
        if (other.sum[lane] == 0) continue;
        const float now = std::max(highest, other.highest[lane]);
        const float keep = sum == 0 ? 0 : std::exp2(highest - now);
        const float add = std::exp2(other.highest[lane] - now);
        if (keep != 1.0f) inner_.scale(out, keep, latent_);
        inner_.add_scaled(out, add, other.out + lane * stride, latent_);
        sum = sum * keep + other.sum[lane] * add;
        highest = now;
      }
      if (sum != 0) inner_.scale(out, 1.0f / sum, latent_);
      const int64_t row = sequence.first_token * heads_ + group.first_row + lane;
      StoreRow(inner_, results_ + row * latent_ * SizeOf(act_), act_, out, latent_);
      if (args_.lse) {
        args_.lse.row<float>(rows_of_q_[row / heads_])[row % heads_] = LogSumExp(highest, sum);
      }
    }
  }

  // out[t, head] = results[t, head] * value rows
  void ProjectResults() {
    const int64_t tile_bytes = TileBytes(kernels_.tile, std::min(tokens_, kRowsMax), latent_);
    char* tiles = Bytes(threads_ * tile_bytes);
    ForEachHead([&](int64_t head, int64_t first, int64_t count, int thread) {
      const RowSource source = {.data = results_ + (first * heads_ + head) * latent_ * SizeOf(act_),
                                .dtype = act_,
                                .stride = heads_ * latent_};
      char* mine = tiles + thread * tile_bytes;
      FillTiles(kernels_, mine, source, 0, count, latent_);
      const int64_t begin = head * (args_.nope + args_.value) + args_.nope;
      const int64_t end = begin + args_.value;
      const float* c =
          MultiplyColumns(kernels_, TilesAt(mine, kernels_.tile, latent_), count, args_.kv_b, begin,
                          end, products_ + thread * product_floats_);
      for (int64_t i = 0; i < count; ++i) {
        char* out =
            static_cast<char*>(args_.out.data) +
            (rows_of_q_[first + i] * args_.out.stride[0] + head * args_.value) * SizeOf(act_);
        StoreRow(kernels_, out, act_, c + i * ProductStride(begin, end), args_.value);
      }
    });
  }

  char* Bytes(int64_t bytes) {
    return ctx_.scratch->AllocateArray<char>(static_cast<size_t>(bytes));
  }
  float* Floats(int64_t count) {
    return ctx_.scratch->AllocateArray<float>(static_cast<size_t>(count));
  }

  const OpContext& ctx_;
  const MlaAttentionArgs& args_;
  const DType act_;
  const Kernels& kernels_;  // with the weights
  const Kernels& inner_;    // among activations
  const int64_t threads_;
  const int64_t heads_;
  const int64_t latent_;
  const int64_t width_;
  const bool in_place_;  // the products read the cache as it lies

  Sequence* sequences_ = nullptr;
  int64_t sequence_count_ = 0;
  int64_t tokens_ = 0;
  int32_t* rows_of_q_ = nullptr;  // [tokens] row of q and out
  char* folded_ = nullptr;
  char* results_ = nullptr;  // [tokens, heads, R] act
  Group* groups_ = nullptr;
  int64_t group_count_ = 0;
  Item* items_ = nullptr;
  float* products_ = nullptr;
  int64_t product_floats_ = 0;
  char* thread_memory_ = nullptr;
  int64_t thread_bytes_ = 0;
  int64_t wide_bytes_ = 0;
  int64_t tile_bytes_ = 0;
  int64_t value_bytes_ = 0;
};

}  // namespace

void AttendAbsorbed(const OpContext& ctx, const MlaAttentionArgs& args) {
  AbsorbedForm(ctx, args).Run();
}

}  // namespace baltoro::cpu
