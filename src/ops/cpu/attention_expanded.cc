// The expanded form: the keys and values of one head are made from the cached
// latents, 64 tokens at a time, and serve every query of the item. An item is
// one head of one sequence and a chunk of its queries, so that expanding costs
// little beside attending when there are many.

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/cpu_ops.h"

namespace baltoro::cpu {
namespace {

constexpr int64_t kQueriesMax = 1024;  // of one item: its state stays in the second cache
constexpr int64_t kQueriesMin = 128;

struct Item {
  const AttentionSequence* sequence = nullptr;
  int32_t first = 0;  // query tokens [first, first + count) of the sequence
  int32_t count = 0;
  int32_t head = 0;
};

class ExpandedForm {
 public:
  ExpandedForm(const OpContext& ctx, const MlaAttentionArgs& args)
      : ctx_(ctx),
        args_(args),
        act_(args.q.dtype),
        kernels_(KernelsFor(act_, PlainType(args.kv_b.form))),
        inner_(KernelsFor(act_, act_)),
        depth_(args.nope + args.rope),
        width_(args.latent + args.rope) {}

  void Run() {
    MakeItems();
    if (item_count_ == 0) return;
    int64_t queries = 0;
    for (int64_t i = 0; i < item_count_; ++i) {
      queries = std::max<int64_t>(queries, items_[i].count);
    }
    groups_max_ = CeilDiv(queries, kGroupRows);
    thread_bytes_ = 0;
    for (const int64_t bytes : PartBytes()) thread_bytes_ += bytes;
    char* memory =
        ctx_.scratch->AllocateArray<char>(static_cast<size_t>(ThreadCount(ctx_) * thread_bytes_));
    ParallelFor(ctx_, item_count_, [&](int64_t item, int thread) {
      Attend(items_[item], Layout(memory + thread * thread_bytes_));
    });
  }

 private:
  // One thread's memory.
  struct Memory {
    char* block = nullptr;      // [64, R + P], where the cache holds another type
    float* expanded = nullptr;  // [64, N + V]
    char* latents = nullptr;    // tiles [64, R], where the cache cannot be read in place
    char* keys = nullptr;       // tiles [64, N + P]
    char* values = nullptr;     // panels [64, V]
    char* queries = nullptr;    // panels, one a group
    float* states = nullptr;
    char* group = nullptr;
  };

  // Of the parts of a thread's memory, in their order.
  std::array<int64_t, 8> PartBytes() const {
    std::array<int64_t, 8> bytes = {
        WideBlockBytes(args_.cache, act_),
        kKeys * ResultStride(args_.nope + args_.value + kPanelColumns) * 4,
        TileBytes(kernels_.tile, kKeys, args_.latent),
        TileBytes(inner_.tile, kKeys, depth_),
        CeilDiv(args_.value, kPanelColumns) * PanelBytes(act_, kKeys),
        groups_max_ * PanelBytes(act_, depth_),
        groups_max_ * GroupStateFloats(args_.value) * 4,
        GroupScratch::kBytes};
    for (int64_t& each : bytes) each = RoundUp(each, 64);
    return bytes;
  }

  Memory Layout(char* at) const {
    const std::array<int64_t, 8> bytes = PartBytes();
    size_t part = 0;
    const auto take = [&] {
      char* taken = at;
      at += bytes[part++];
      return taken;
    };
    Memory m;
    m.block = take();
    m.expanded = reinterpret_cast<float*>(take());
    m.latents = take();
    m.keys = take();
    m.values = take();
    m.queries = take();
    m.states = reinterpret_cast<float*>(take());
    m.group = take();
    return m;
  }

  void MakeItems() {
    int64_t tokens = 0;
    for (const AttentionSequence& sequence : args_.sequences) tokens += FirstAbsorbed(sequence);
    if (tokens == 0) return;
    // Shorter chunks only where heads alone would leave threads idle.
    const int64_t threads = ThreadCount(ctx_);
    const int64_t wanted = CeilDiv(2 * threads, args_.heads);
    const int64_t chunk =
        std::clamp(RoundUp(CeilDiv(tokens, wanted), kGroupRows), kQueriesMin, kQueriesMax);
    int64_t count = 0;
    for (const AttentionSequence& sequence : args_.sequences) {
      count += CeilDiv(FirstAbsorbed(sequence), chunk) * args_.heads;
    }
    items_ = ctx_.scratch->AllocateArray<Item>(static_cast<size_t>(count));
    for (const AttentionSequence& sequence : args_.sequences) {
      const int32_t end = FirstAbsorbed(sequence);
      for (int64_t first = 0; first < end; first += chunk) {
        for (int32_t head = 0; head < args_.heads; ++head) {
          items_[item_count_++] = {
              .sequence = &sequence,
              .first = static_cast<int32_t>(first),
              .count = static_cast<int32_t>(std::min<int64_t>(chunk, end - first)),
              .head = head};
        }
      }
    }
  }

  void Attend(const Item& item, const Memory& m) const {
    PackQueries(item, m);
    const int64_t groups = CeilDiv(item.count, kGroupRows);
    for (int64_t group = 0; group < groups; ++group) {
      ClearGroupState(StateOf(m, group), args_.value);
    }
    const int64_t last = item.sequence->first_position + item.first + item.count - 1;
    for (int64_t i = 0; i < BlockCount(*item.sequence); ++i) {
      const KeyBlock held = BlockAt(args_.cache, *item.sequence, i);
      if (held.position > last) continue;
      const KeyBlock block = WideBlock(args_.cache, act_, held, m.block);
      Expand(item, block, m);
      for (int64_t group = 0; group < groups; ++group) AttendGroup(item, block, group, m);
    }
    for (int64_t row = 0; row < item.count; ++row) StoreResult(item, row, m);
  }

  void PackQueries(const Item& item, const Memory& m) const {
    const int64_t row = item.sequence->query_begin + item.first;
    const char* q = static_cast<const char*>(args_.q.data) +
                    (row * args_.q.stride[0] + item.head * args_.q.stride[1]) * SizeOf(act_);
    for (int64_t done = 0; done < item.count; done += kGroupRows) {
      inner_.pack_panel(m.queries + done / kGroupRows * PanelBytes(act_, depth_),
                        q + done * args_.q.stride[0] * SizeOf(act_), args_.q.stride[0],
                        std::min<int64_t>(kGroupRows, item.count - done), depth_);
    }
  }

  // K (tiles) and V (panels) of one block of one head, rounded to the
  // activation type.
  void Expand(const Item& item, const KeyBlock& block, const Memory& m) const {
    const int64_t width = args_.nope + args_.value;
    const int64_t begin = item.head * width;
    LeftOperand latents;
    if (kernels_.tile == act_ && args_.latent % kBlockK == 0) {
      latents = CacheRows(block);
    } else {
      const RowSource source = {.data = block.data, .dtype = act_, .stride = width_};
      FillTiles(kernels_, m.latents, source, 0, block.keys, args_.latent);
      latents = TilesAt(m.latents, kernels_.tile, args_.latent);
    }
    const float* expanded = MultiplyColumns(kernels_, latents, block.keys, args_.kv_b, begin,
                                            begin + width, m.expanded);
    const int64_t stride = ProductStride(begin, begin + width);
    StoreTiles(inner_, m.keys, depth_, act_, expanded, stride, 0, block.keys, 0, args_.nope);
    StoreRope(block, m);
    inner_.pack_values(m.values, expanded + args_.nope, DType::kF32, stride, block.keys,
                       args_.value, nullptr);
  }

  void StoreRope(const KeyBlock& block, const Memory& m) const {
    const LeftOperand keys = TilesAt(m.keys, inner_.tile, depth_);
    const int64_t size = SizeOf(act_);
    const bool copied =
        inner_.tile == act_ && args_.nope % kBlockK == 0 && args_.rope % kBlockK == 0;
    for (int64_t key = 0; key < block.keys; ++key) {
      const char* rope = block.data + (key * width_ + args_.latent) * size;
      char* out = m.keys + key / kTileRows * keys.row_tile + key % kTileRows * keys.row +
                  args_.nope / kBlockK * keys.block;
      for (int64_t i = 0; copied && i < args_.rope; i += kBlockK, out += keys.block) {
        std::memcpy(out, rope + i * size, static_cast<size_t>(kBlockK * size));
      }
    }
    if (copied) return;
    float wide[kKeys];
    for (int64_t begin = 0; begin < args_.rope; ++begin) {
      for (int64_t key = 0; key < block.keys; ++key) {
        const char* at = block.data + (key * width_ + args_.latent + begin) * size;
        LoadRow(inner_, wide + key, at, act_, 1);
      }
      StoreTiles(inner_, m.keys, depth_, act_, wide, 1, 0, block.keys, args_.nope + begin, 1);
    }
  }

  LeftOperand CacheRows(const KeyBlock& block) const {
    const int64_t row = width_ * SizeOf(act_);
    return {.data = block.data,
            .row = row,
            .block = kBlockK * SizeOf(act_),
            .row_tile = kTileRows * row};
  }

  void AttendGroup(const Item& item, const KeyBlock& block, int64_t group, const Memory& m) const {
    const GroupScratch scratch(m.group);
    const int64_t first = group * kGroupRows;
    const int64_t rows = std::min(kGroupRows, item.count - first);
    const int64_t position = item.sequence->first_position + item.first + first;
    const int32_t largest =
        SetLimits(scratch.limits, rows, block, [position](int64_t row) { return position + row; });
    if (largest == 0) return;
    AttendBlock(inner_,
                {.keys = TilesAt(m.keys, inner_.tile, depth_),
                 .key_count = block.keys,
                 .queries = m.queries + group * PanelBytes(act_, depth_),
                 .k = depth_,
                 .values = m.values,
                 .columns = args_.value,
                 .rows = rows,
                 .scale = args_.scale,
                 .act = act_},
                scratch, StateOf(m, group));
  }

  GroupState StateOf(const Memory& m, int64_t group) const {
    return GroupStateAt(m.states + group * GroupStateFloats(args_.value), args_.value);
  }

  void StoreResult(const Item& item, int64_t row, const Memory& m) const {
    const GroupState state = StateOf(m, row / kGroupRows);
    const int64_t lane = row % kGroupRows;
    float* out = state.out + lane * ResultStride(args_.value);
    if (state.sum[lane] != 0) inner_.scale(out, 1.0f / state.sum[lane], args_.value);
    const int64_t token = item.sequence->query_begin + item.first + row;
    char* to = static_cast<char*>(args_.out.data) +
               (token * args_.out.stride[0] + item.head * args_.value) * SizeOf(act_);
    StoreRow(inner_, to, act_, out, args_.value);
    if (args_.lse) {
      args_.lse.row<float>(token)[item.head] = LogSumExp(state.highest[lane], state.sum[lane]);
    }
  }

  const OpContext& ctx_;
  const MlaAttentionArgs& args_;
  const DType act_;
  const Kernels& kernels_;  // with the weights
  const Kernels& inner_;    // among activations
  const int64_t depth_;
  const int64_t width_;  // of a key block
  Item* items_ = nullptr;
  int64_t item_count_ = 0;
  int64_t groups_max_ = 0;
  int64_t thread_bytes_ = 0;
};

}  // namespace

void AttendExpanded(const OpContext& ctx, const MlaAttentionArgs& args) {
  ExpandedForm(ctx, args).Run();
}

}  // namespace baltoro::cpu
