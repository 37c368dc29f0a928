// An item of work is one head of a picture and up to 512 of its patches as queries. It walks the
// picture's patches, 64 keys at a time, by the same products as latent attention (attention.h):
// keys and values are packed once for all queries of the item, whose states stay in the second
// cache.

#include "ops/cpu/picture_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/cpu_ops.h"

namespace baltoro::cpu {
namespace {

constexpr int64_t kQueriesMax = 512;  // of one item
constexpr int64_t kGroups = kQueriesMax / kGroupRows;

// Bytes of the parts of a thread's memory.
struct Parts {
  int64_t queries = 0;  // of one panel of 32
  int64_t keys = 0;     // tiles [64, d]
  int64_t values = 0;   // panels [64, d]
  int64_t state = 0;    // of 32 queries

  Parts(DType act, DType tile, int64_t size)
      : queries(RoundUp(PanelBytes(act, size), 64)),
        keys(RoundUp(TileBytes(tile, kKeys, size), 64)),
        values(RoundUp(CeilDiv(size, kPanelColumns) * PanelBytes(act, kKeys), 64)),
        state(RoundUp(GroupStateFloats(size) * int64_t{sizeof(float)}, 64)) {}
  int64_t Total() const {
    return kGroups * (queries + state) + keys + values + RoundUp(GroupScratch::kBytes, 64);
  }
};

class PictureForm {
 public:
  PictureForm(const OpContext& ctx,
              const TensorView& qkv,
              std::span<const PictureGrid> grids,
              int32_t heads)
      : ctx_(ctx),
        qkv_(qkv),
        act_(qkv.dtype),
        kernels_(KernelsFor(act_, act_)),
        heads_(heads),
        size_(qkv.dim(1) / 3 / heads),
        parts_(act_, kernels_.tile, size_) {
    int64_t first = 0;
    for (const PictureGrid& grid : grids) {
      pictures_.push_back({.first = first, .patches = grid.patches(), .items_end = item_count_});
      item_count_ += CeilDiv(grid.patches(), kQueriesMax) * heads;
      pictures_.back().items_end = item_count_;
      first += grid.patches();
    }
  }

  void Run() const {
    char* memory =
        ctx_.scratch->AllocateArray<char>(static_cast<size_t>(ThreadCount(ctx_) * parts_.Total()));
    ParallelFor(ctx_, item_count_, [&](int64_t item, int thread) {
      const auto picture =
          std::upper_bound(pictures_.begin(), pictures_.end(), item,
                           [](int64_t at, const Picture& each) { return at < each.items_end; });
      const int64_t chunks = CeilDiv(picture->patches, kQueriesMax);
      const int64_t in_picture = item - (picture->items_end - chunks * heads_);
      Attend(*picture, in_picture / chunks, in_picture % chunks * kQueriesMax,
             memory + thread * parts_.Total());
    });
  }

 private:
  struct Picture {
    int64_t first = 0;  // patch of the batch
    int64_t patches = 0;
    int64_t items_end = 0;
  };

  // Of one head; `which`: 0 queries, 1 keys, 2 values.
  char* At(int64_t patch, int64_t which, int64_t head) const {
    const int64_t column = (which * heads_ + head) * size_;
    return static_cast<char*>(qkv_.data) + (patch * qkv_.stride[0] + column) * SizeOf(act_);
  }

  void Attend(const Picture& picture, int64_t head, int64_t first_query, char* memory) const {
    char* queries = memory;
    char* states = queries + kGroups * parts_.queries;
    char* keys = states + kGroups * parts_.state;
    char* values = keys + parts_.keys;
    const GroupScratch scratch(values + parts_.values);
    const auto state_of = [&](int64_t group) {
      return GroupStateAt(reinterpret_cast<float*>(states + group * parts_.state), size_);
    };
    const int64_t query = picture.first + first_query;
    const int64_t count = std::min(kQueriesMax, picture.patches - first_query);
    const int64_t groups = CeilDiv(count, kGroupRows);
    const auto rows_of = [&](int64_t group) {
      return std::min(kGroupRows, count - group * kGroupRows);
    };
    for (int64_t group = 0; group < groups; ++group) {
      kernels_.pack_panel(queries + group * parts_.queries, At(query + group * kGroupRows, 0, head),
                          qkv_.stride[0], rows_of(group), size_);
      ClearGroupState(state_of(group), size_);
    }
    for (int64_t done = 0; done < picture.patches; done += kKeys) {
      const int64_t key = picture.first + done;
      const int64_t key_count = std::min(kKeys, picture.patches - done);
      const RowSource source = {.data = At(key, 1, head), .dtype = act_, .stride = qkv_.stride[0]};
      FillTiles(kernels_, keys, source, 0, key_count, size_);
      kernels_.pack_values(values, At(key, 2, head), act_, qkv_.stride[0], key_count, size_,
                           nullptr);
      std::fill_n(scratch.limits, kGroupRows, static_cast<int32_t>(key_count));
      for (int64_t group = 0; group < groups; ++group) {
        AttendBlock(kernels_,
                    {.keys = TilesAt(keys, kernels_.tile, size_),
                     .key_count = key_count,
                     .queries = queries + group * parts_.queries,
                     .k = size_,
                     .values = values,
                     .columns = size_,
                     .rows = rows_of(group),
                     .scale = 1 / std::sqrt(static_cast<float>(size_)),
                     .act = act_},
                    scratch, state_of(group));
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      const GroupState state = state_of(i / kGroupRows);
      float* out = state.out + i % kGroupRows * ResultStride(size_);
      kernels_.scale(out, 1.0f / state.sum[i % kGroupRows], size_);
      StoreRow(kernels_, At(query + i, 0, head), act_, out, size_);
    }
  }

  const OpContext& ctx_;
  const TensorView qkv_;
  const DType act_;
  const Kernels& kernels_;
  const int64_t heads_;
  const int64_t size_;  // of a head
  const Parts parts_;
  std::vector<Picture> pictures_;
  int64_t item_count_ = 0;
};

}  // namespace

void PictureAttention(const OpContext& ctx,
                      TensorView qkv,
                      std::span<const PictureGrid> grids,
                      int32_t heads) {
  BT_CHECK(qkv.rank == 2 && heads > 0 && qkv.dim(1) % (int64_t{3} * heads) == 0);
  BT_CHECK(ctx.scratch != nullptr);
  PictureForm(ctx, qkv, grids, heads).Run();
}

int64_t PictureAttentionScratch(DType act, int64_t head_size, int threads) {
  return threads * Parts(act, KernelsFor(act, act).tile, head_size).Total();
}

}  // namespace baltoro::cpu
