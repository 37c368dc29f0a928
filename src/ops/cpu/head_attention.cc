// Attention with keys and values of their own for each head, or for several heads together. An item
// of work is the keys of one head and up to 32 of the rows (token and head) that read them: it
// walks the blocks of the sequence in order, by the same products as latent attention
// (attention.h).

#include <algorithm>

#include "base/check.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/cpu_ops.h"

namespace baltoro::cpu {
namespace {

class HeadForm {
 public:
  HeadForm(const OpContext& ctx, const HeadAttentionArgs& args)
      : ctx_(ctx),
        args_(args),
        act_(args.q.dtype),
        kernels_(KernelsFor(act_, act_)),
        width_(args.q.dim(2)),
        together_(args.q.dim(1) / args.key_heads),
        in_place_(kernels_.tile == act_ && width_ % kBlockK == 0) {}

  void Run() {
    int64_t count = 0;
    for (const AttentionSequence& sequence : args_.sequences) count += GroupsOf(sequence);
    Item* items = ctx_.scratch->AllocateArray<Item>(static_cast<size_t>(count * args_.key_heads));
    int64_t item_count = 0;
    for (const AttentionSequence& sequence : args_.sequences) {
      for (int32_t head = 0; head < args_.key_heads; ++head) {
        for (int64_t group = 0; group < GroupsOf(sequence); ++group) {
          items[item_count++] = {
              .sequence = &sequence, .key_head = head, .first_row = group * kGroupRows};
        }
      }
    }
    AllocateThreadMemory();
    ParallelFor(ctx_, item_count, [&](int64_t item, int thread) { Attend(items[item], thread); });
  }

 private:
  struct Item {
    const AttentionSequence* sequence;
    int64_t key_head;
    int64_t first_row;  // of the sequence's: tokens, and the heads of this key head in each
  };

  int64_t RowsOf(const AttentionSequence& sequence) const {
    return sequence.query_count * together_;
  }
  int64_t GroupsOf(const AttentionSequence& sequence) const {
    return CeilDiv(RowsOf(sequence), kGroupRows);
  }

  void AllocateThreadMemory() {
    const int64_t element = SizeOf(act_);
    rows_bytes_ = RoundUp(kGroupRows * width_ * element, 64);
    panel_bytes_ = RoundUp(PanelBytes(act_, width_), 64);
    tile_bytes_ = in_place_ ? 0 : RoundUp(TileBytes(kernels_.tile, kKeys, width_), 64);
    value_bytes_ = CeilDiv(width_, kPanelColumns) * PanelBytes(act_, kKeys);
    state_bytes_ = RoundUp(GroupStateFloats(width_) * static_cast<int64_t>(sizeof(float)), 64);
    thread_bytes_ = rows_bytes_ + panel_bytes_ + tile_bytes_ + value_bytes_ + state_bytes_ +
                    RoundUp(GroupScratch::kBytes, 64);
    thread_memory_ =
        ctx_.scratch->AllocateArray<char>(static_cast<size_t>(ThreadCount(ctx_) * thread_bytes_));
  }

  const char* QueryOf(const Item& item, int64_t row) const {
    const int64_t token = item.sequence->query_begin + row / together_;
    const int64_t head = item.key_head * together_ + row % together_;
    return static_cast<const char*>(args_.q.data) +
           (token * args_.q.stride[0] + head * args_.q.stride[1]) * SizeOf(act_);
  }

  void Attend(const Item& item, int thread) const {
    char* rows = thread_memory_ + thread * thread_bytes_;
    char* queries = rows + rows_bytes_;
    char* tiles = queries + panel_bytes_;
    char* values = tiles + tile_bytes_;
    const GroupState state = GroupStateAt(reinterpret_cast<float*>(values + value_bytes_), width_);
    const GroupScratch scratch(values + value_bytes_ + state_bytes_);
    const AttentionSequence& sequence = *item.sequence;
    const int64_t count = std::min(kGroupRows, RowsOf(sequence) - item.first_row);
    const int64_t query_bytes = width_ * SizeOf(act_);
    for (int64_t row = 0; row < count; ++row) {
      std::copy_n(QueryOf(item, item.first_row + row), query_bytes, rows + row * query_bytes);
    }
    kernels_.pack_panel(queries, rows, width_, count, width_);
    ClearGroupState(state, width_);
    for (int64_t at = 0; at < BlockCount(sequence); ++at) {
      const KeyBlock block = BlockAt(args_.cache, sequence, at);
      const int32_t largest = SetLimits(scratch.limits, count, block, [&](int64_t row) {
        return sequence.first_position + (item.first_row + row) / together_;
      });
      if (largest == 0) continue;
      const char* keys = block.data + item.key_head * query_bytes;
      const int64_t stride = args_.cache.latent + args_.cache.rope;
      if (!in_place_) {
        const RowSource source = {.data = keys, .dtype = act_, .stride = stride};
        FillTiles(kernels_, tiles, source, 0, block.keys, width_);
      }
      kernels_.pack_values(values, keys + args_.cache.latent * SizeOf(act_), act_, stride,
                           block.keys, width_, nullptr);
      AttendBlock(kernels_,
                  {.keys = KeysOf(keys, tiles),
                   .key_count = block.keys,
                   .queries = queries,
                   .k = width_,
                   .values = values,
                   .columns = width_,
                   .rows = count,
                   .scale = args_.scale,
                   .act = act_},
                  scratch, state);
    }
    for (int64_t row = 0; row < count; ++row) {
      float* out = state.out + row * ResultStride(width_);
      if (state.sum[row] != 0) kernels_.scale(out, 1.0f / state.sum[row], width_);
      const int64_t token = sequence.query_begin + (item.first_row + row) / together_;
      const int64_t head = item.key_head * together_ + (item.first_row + row) % together_;
      char* to = static_cast<char*>(args_.out.data) +
                 (token * args_.out.stride[0] + head * width_) * SizeOf(act_);
      StoreRow(kernels_, to, act_, out, width_);
    }
  }

  LeftOperand KeysOf(const char* keys, const char* tiles) const {
    if (!in_place_) return TilesAt(tiles, kernels_.tile, width_);
    const int64_t row = args_.cache.token_bytes();
    return {.data = keys, .row = row, .block = kBlockK * SizeOf(act_), .row_tile = kTileRows * row};
  }

  const OpContext& ctx_;
  const HeadAttentionArgs& args_;
  const DType act_;
  const Kernels& kernels_;
  const int64_t width_;
  const int64_t together_;  // heads that read the same keys
  const bool in_place_;     // the products read the cache as it lies

  char* thread_memory_ = nullptr;
  int64_t thread_bytes_ = 0, rows_bytes_ = 0, panel_bytes_ = 0, tile_bytes_ = 0;
  int64_t value_bytes_ = 0, state_bytes_ = 0;
};

}  // namespace

void HeadAttention(const OpContext& ctx, const HeadAttentionArgs& args) {
  BT_CHECK(args.q.rank == 3 && args.out.rank == 2 && args.out.dim(0) == args.q.dim(0));
  BT_CHECK(args.out.dim(1) == args.q.dim(1) * args.q.dim(2) && args.out.dtype == args.q.dtype);
  BT_CHECK(args.key_heads > 0 && args.q.dim(1) % args.key_heads == 0 && args.scale > 0);
  BT_CHECK(args.cache.latent == args.key_heads * args.q.dim(2));
  BT_CHECK(args.cache.rope == args.cache.latent);
  BT_CHECK(args.cache.form == PlainKvForm(args.q.dtype));
  for (const AttentionSequence& sequence : args.sequences) {
    BT_CHECK(sequence.query_begin >= 0 && sequence.query_count >= 0 && sequence.key_count >= 0);
    BT_CHECK(sequence.query_begin + sequence.query_count <= args.q.dim(0));
    BT_CHECK(static_cast<int64_t>(sequence.blocks.size()) >= BlockCount(sequence));
    BT_CHECK(sequence.block_positions.empty() ||
             sequence.block_positions.size() == sequence.blocks.size());
  }
  if (args.q.dim(0) == 0) return;
  BT_CHECK(ctx.scratch != nullptr);
  HeadForm(ctx, args).Run();
}

}  // namespace baltoro::cpu
