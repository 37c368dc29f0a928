// The routed experts. Tokens are grouped by expert, so that each expert's
// weights are read once. Three loops: rows into tiles, one item an expert; gate
// and up, SiLU, one item an expert and a run of its intermediate columns; down,
// one item a run of output columns, in which a thread computes those columns
// for every expert and then adds them up for each token in the order of its
// choices.

#include <algorithm>

#include "base/check.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/weight_product.h"

namespace baltoro::cpu {
namespace {

constexpr int64_t kItemsPerThread = 8;
constexpr int64_t kDownItemsPerThread = 4;  // fewer: each goes through the rows of all experts
constexpr int64_t kRowsMax = 256;           // of one product: bounds the sums that a thread holds

// One expert that has rows in this step.
struct Group {
  int32_t slot = 0;
  int64_t first = 0;  // its rows are [first, first + rows) of the grouped order
  int64_t rows = 0;
  ProductInput x = {};       // [rows, H]
  ProductInput middle = {};  // [rows, I]
  float* whole = nullptr;    // [rows, I] before it is made ready, where that needs whole rows
};

struct Grouping {
  Group* groups = nullptr;
  int64_t count = 0;
  int32_t* token = nullptr;  // [rows] of each grouped row
  int64_t* place = nullptr;  // [T * k] where choice (t, j) lies in the grouped
                             // order; -1: not here
  int64_t rows = 0;
};

Grouping GroupByExpert(const ExpertBankArgs& args, Arena& scratch) {
  const int64_t tokens = args.x.dim(0);
  const int64_t top_k = args.ids.dim(1);
  const int64_t slots = args.gate_up.count;
  Grouping grouping;
  grouping.place = scratch.AllocateArray<int64_t>(static_cast<size_t>(tokens * top_k));
  grouping.token = scratch.AllocateArray<int32_t>(static_cast<size_t>(tokens * top_k));
  auto* rows_of = scratch.AllocateArray<int64_t>(static_cast<size_t>(slots));
  auto* group_of = scratch.AllocateArray<int64_t>(static_cast<size_t>(slots));
  std::fill(rows_of, rows_of + slots, 0);
  const auto slot_at = [&](int64_t t, int64_t j) {
    const int32_t expert = args.ids.row<int32_t>(t)[j];
    BT_CHECK(expert >= 0 && expert < static_cast<int64_t>(args.slot_of.size()));
    const int32_t slot = args.slot_of[static_cast<size_t>(expert)];
    BT_CHECK(slot < slots);
    return slot;
  };
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < top_k; ++j) {
      const int32_t slot = slot_at(t, j);
      if (slot >= 0) ++rows_of[slot];
    }
  }
  grouping.groups =
      scratch.AllocateArray<Group>(static_cast<size_t>(std::min(slots, tokens * top_k)));
  for (int64_t slot = 0; slot < slots; ++slot) {
    if (rows_of[slot] == 0) continue;
    group_of[slot] = grouping.count;
    grouping.groups[grouping.count++] =
        Group{.slot = static_cast<int32_t>(slot), .first = grouping.rows, .x = {}, .middle = {}};
    grouping.rows += rows_of[slot];
  }
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < top_k; ++j) {
      const int32_t slot = slot_at(t, j);
      if (slot < 0) {
        grouping.place[t * top_k + j] = -1;
        continue;
      }
      Group& group = grouping.groups[group_of[slot]];
      const int64_t row = group.first + group.rows++;
      grouping.place[t * top_k + j] = row;
      grouping.token[row] = static_cast<int32_t>(t);
    }
  }
  return grouping;
}

void Check(const ExpertBankArgs& args) {
  const int64_t tokens = args.x.dim(0);
  BT_CHECK(args.x.rank == 2 && args.out.rank == 2 && args.ids.rank == 2 && args.weights.rank == 2);
  BT_CHECK(args.out.dtype == DType::kF32 && args.weights.dtype == DType::kF32);
  BT_CHECK(args.ids.dtype == DType::kI32);
  BT_CHECK(args.out.dim(0) == tokens && args.ids.dim(0) == tokens && args.weights.dim(0) == tokens);
  BT_CHECK(args.weights.dim(1) == args.ids.dim(1));
  CheckPacked(args.gate_up);
  CheckPacked(args.down);
  BT_CHECK(args.gate_up.count == args.down.count);
  BT_CHECK(args.gate_up.n == 2 * args.down.k && args.gate_up.k == args.x.dim(1));
  BT_CHECK(args.down.n == args.out.dim(1));
}

// One step's work, so that the three loops share their sizes.
class Bank {
 public:
  Bank(const OpContext& ctx, const ExpertBankArgs& args)
      : ctx_(ctx),
        args_(args),
        up_product_(args.x.dtype, args.gate_up),
        down_product_(args.x.dtype, args.down),
        kernels_(up_product_.kernels()),
        threads_(ThreadCount(ctx)),
        hidden_(args.gate_up.k),
        inter_(args.down.k),
        grouping_(GroupByExpert(args, *ctx.scratch)) {}

  void Run() {
    if (grouping_.rows == 0) return;
    FillRows();
    GateUp();
    if (down_product_.quantises()) FillMiddle();
    Down();
  }

 private:
  void FillRows() {
    // A single token's row serves all of its experts.
    const bool shared = args_.x.dim(0) == 1;
    ProductInput one;
    for (int64_t i = 0; i < grouping_.count; ++i) {
      Group& group = grouping_.groups[i];
      if (!shared || i == 0) one = up_product_.Allocate(*ctx_.scratch, group.rows);
      group.x = one;
      group.middle = down_product_.Allocate(*ctx_.scratch, group.rows);
      if (down_product_.quantises()) {
        group.whole = ctx_.scratch->AllocateArray<float>(static_cast<size_t>(group.rows * inter_));
      }
    }
    const auto fill = [&](int64_t item, int) {
      const Group& group = grouping_.groups[item];
      const RowSource source = {.data = args_.x.data,
                                .dtype = args_.x.dtype,
                                .stride = args_.x.stride[0],
                                .index = grouping_.token + group.first};
      up_product_.Fill(group.x, source, 0, group.rows);
    };
    if (shared) {
      fill(0, 0);
    } else if (grouping_.rows * hidden_ < (1 << 16)) {
      for (int64_t i = 0; i < grouping_.count; ++i) fill(i, 0);
    } else {
      ParallelFor(ctx_, grouping_.count, fill);
    }
  }

  void FillMiddle() {
    const auto fill = [&](int64_t item, int) {
      const Group& group = grouping_.groups[item];
      const RowSource source = {.data = group.whole, .dtype = DType::kF32, .stride = inter_};
      down_product_.Fill(group.middle, source, 0, group.rows);
    };
    if (grouping_.rows * inter_ < (1 << 16)) {
      for (int64_t i = 0; i < grouping_.count; ++i) fill(i, 0);
    } else {
      ParallelFor(ctx_, grouping_.count, fill);
    }
  }

  void GateUp() {
    const int64_t blocks = CeilDiv(inter_, kBlockK);
    const int64_t rows_max = std::min(kRowsMax, LargestGroup());
    const int64_t run = std::clamp<int64_t>(grouping_.count * blocks / (kItemsPerThread * threads_),
                                            1, 4);  // blocks of an item
    const int64_t runs = CeilDiv(blocks, run);
    // Columns of `up` need not start on a panel.
    const int64_t buffer = rows_max * ResultStride((run + 1) * kPanelColumns);
    float* buffers = Floats(2 * buffer);
    ParallelFor(ctx_, grouping_.count * runs, [&](int64_t item, int thread) {
      const Group& group = grouping_.groups[item / runs];
      const int64_t begin = item % runs * run * kBlockK;
      const int64_t end = std::min(inter_, begin + run * kBlockK);
      const PackedMatrix w = args_.gate_up.at(group.slot);
      const void* next = nullptr;
      if (end < inter_) {
        next = PanelOf(w, end);
      } else if (item / runs + 1 < grouping_.count) {
        next = args_.gate_up.at(grouping_.groups[item / runs + 1].slot).data;
      }
      float* gates = buffers + 2 * thread * buffer;
      for (int64_t row = 0; row < group.rows; row += kRowsMax) {
        const int64_t rows = std::min(kRowsMax, group.rows - row);
        float* gate = up_product_.Multiply(group.x, row, rows, w, begin, end, gates,
                                           PanelOf(w, inter_ + begin));
        const float* up = up_product_.Multiply(group.x, row, rows, w, inter_ + begin, inter_ + end,
                                               gates + buffer, next);
        const int64_t stride = ProductStride(begin, end);
        for (int64_t i = 0; i < rows; ++i) {
          float* g = gate + i * stride;
          kernels_.silu_mul(g, g, up + i * ProductStride(inter_ + begin, inter_ + end),
                            end - begin);
          if (group.whole != nullptr) {
            std::copy_n(g, end - begin, group.whole + (row + i) * inter_ + begin);
          }
        }
        if (group.whole != nullptr) continue;
        StoreTiles(down_product_.kernels(), group.middle.tiles, inter_, args_.x.dtype, gate, stride,
                   row, rows, begin, end - begin);
      }
    });
  }

  void Down() {
    const int64_t panels = CeilDiv(args_.down.n, kPanelColumns);
    const int64_t run = std::clamp<int64_t>(panels / (kDownItemsPerThread * threads_), 1, 4);
    const int64_t width = run * kPanelColumns;
    float* buffers = Floats(grouping_.rows * ResultStride(width));
    ParallelFor(ctx_, CeilDiv(panels, run), [&](int64_t item, int thread) {
      const int64_t begin = item * width;
      const int64_t end = std::min(args_.down.n, begin + width);
      const int64_t stride = ProductStride(begin, end);
      float* y = buffers + thread * grouping_.rows * ResultStride(width);
      for (int64_t i = 0; i < grouping_.count; ++i) {
        const Group& group = grouping_.groups[i];
        const void* next = nullptr;
        if (i + 1 < grouping_.count) {
          next = PanelOf(args_.down.at(grouping_.groups[i + 1].slot), begin);
        } else if (end < args_.down.n) {
          next = PanelOf(args_.down.at(grouping_.groups[0].slot), end);
        }
        down_product_.Multiply(group.middle, 0, group.rows, args_.down.at(group.slot), begin, end,
                               y + group.first * stride, next);
      }
      const int64_t top_k = args_.ids.dim(1);
      for (int64_t t = 0; t < args_.x.dim(0); ++t) {
        float* out = args_.out.row<float>(t) + begin;
        for (int64_t j = 0; j < top_k; ++j) {
          const int64_t row = grouping_.place[t * top_k + j];
          if (row < 0) continue;
          kernels_.add_scaled(out, args_.weights.row<float>(t)[j], y + row * stride, end - begin);
        }
      }
    });
  }

  float* Floats(int64_t each) {
    return ctx_.scratch->AllocateArray<float>(static_cast<size_t>(threads_ * each));
  }
  int64_t LargestGroup() const {
    int64_t largest = 0;
    for (int64_t i = 0; i < grouping_.count; ++i) {
      largest = std::max(largest, grouping_.groups[i].rows);
    }
    return largest;
  }

  const OpContext& ctx_;
  const ExpertBankArgs& args_;
  const WeightProduct up_product_;
  const WeightProduct down_product_;
  const Kernels& kernels_;
  const int64_t threads_;
  const int64_t hidden_;
  const int64_t inter_;
  const Grouping grouping_;
};

}  // namespace

void ExpertBank(const OpContext& ctx, const ExpertBankArgs& args) {
  Check(args);
  if (args.x.dim(0) == 0) return;
  BT_CHECK(ctx.scratch != nullptr);
  Bank(ctx, args).Run();
}

}  // namespace baltoro::cpu
