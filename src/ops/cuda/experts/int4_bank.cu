#include "ops/cuda/experts/int4_bank.h"

#include <algorithm>
#include <string>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/experts/streaming/int4_digits.h"

namespace baltoro::cuda {
namespace {

int64_t Align(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

Status Check(const MoeShape& s) {
  if (s.slots < 1 || s.slots > 1024) return InvalidArgument("MoE: slots outside 1..1024");
  if (s.hidden < 128 || s.hidden % 128 != 0) {
    return InvalidArgument("MoE: hidden is not a multiple of 128");
  }
  if (s.intermediate < 128 || s.intermediate % 128 != 0) {
    return InvalidArgument("MoE: intermediate is not a multiple of 128");
  }
  if (s.top_k < 1 || s.top_k > 32) return InvalidArgument("MoE: top_k outside 1..32");
  if (s.max_tokens < 0 || s.max_tokens > 65535) {
    return InvalidArgument("MoE: max_tokens outside 0..65535");
  }
  return Status();
}

bool Aligned(const void* p, uintptr_t to) {
  return reinterpret_cast<uintptr_t>(p) % to == 0;
}

// Offsets of the workspace's parts; the last is its size.
struct Cut {
  int64_t starts, tiles, order, units, row_begin, block_of, counters, ordered, middle, shares, end;
};

Cut Offsets(const MoeShape& s) {
  const int64_t entries = static_cast<int64_t>(s.max_tokens) * s.top_k;
  const int64_t tiles = s.slots + entries / kDigitTileRows;
  Cut cut = {};
  cut.starts = 256;
  cut.tiles = cut.starts + Align((kMaxBlocks + 1) * static_cast<int64_t>(sizeof(MoeStart)));
  cut.order = cut.tiles + Align(tiles * static_cast<int64_t>(sizeof(MoeTile)));
  cut.units = cut.order + Align(entries * 4);
  cut.row_begin = cut.units + Align((s.slots + 1) * int64_t{4});
  cut.block_of = cut.row_begin + Align((s.slots + 1) * int64_t{4});
  cut.counters = cut.block_of + Align((s.slots + 1) * int64_t{4});
  cut.ordered = cut.counters + Align(2 * kMaxSumChunks * int64_t{4});
  cut.middle =
      cut.ordered + (s.orders ? Align(static_cast<int64_t>(s.max_tokens) * s.hidden * 2) : 0);
  cut.shares = cut.middle + Align(entries * s.intermediate * 2);
  cut.end = cut.shares + Align(entries * s.hidden * 2);
  return cut;
}

}  // namespace

MoeWorkspace CutMoeWorkspace(const MoeShape& shape, void* workspace) {
  const Cut cut = Offsets(shape);
  char* base = static_cast<char*>(workspace);
  MoeWorkspace space;
  space.num_tiles = reinterpret_cast<int32_t*>(base);
  space.starts = reinterpret_cast<MoeStart*>(base + cut.starts);
  space.tiles = reinterpret_cast<MoeTile*>(base + cut.tiles);
  space.order = reinterpret_cast<int32_t*>(base + cut.order);
  space.units = reinterpret_cast<int32_t*>(base + cut.units);
  space.row_begin = reinterpret_cast<int32_t*>(base + cut.row_begin);
  space.block_of = reinterpret_cast<int32_t*>(base + cut.block_of);
  space.counters = reinterpret_cast<uint32_t*>(base + cut.counters);
  space.ordered = reinterpret_cast<__nv_bfloat16*>(base + cut.ordered);
  space.middle = reinterpret_cast<__nv_bfloat16*>(base + cut.middle);
  space.shares = reinterpret_cast<__nv_bfloat16*>(base + cut.shares);
  return space;
}

namespace {

Status LaunchWithSum(const MoeShape& shape,
                     MoeInt4Args args,
                     const ExpertsPlan& plan,
                     const LaunchStream& stream) {
  if (plan.parts == 0) return InvalidArgument("MoE: this shape has no down product with the sum");
  const MoeWorkspace space = CutMoeWorkspace(shape, args.workspace);
  for (int32_t i = 0; i < plan.parts; ++i) {
    const ExpertsSum& part = i + 1 < plan.parts ? plan.part : plan.last_part;
    args.tokens = part.tokens;
    BT_RETURN_IF_ERROR(LaunchMoeSort(shape, args, space, plan, part, stream));
    BT_RETURN_IF_ERROR(LaunchMoeGroupedGateUp(shape, args, space, plan, part.tile_rows, stream));
    BT_RETURN_IF_ERROR(LaunchMoeDownSum(shape, args, space, part, stream));
    args.x += args.tokens * args.x_stride;
    if (args.ordered != nullptr) args.ordered += static_cast<int64_t>(args.tokens) * shape.hidden;
    if (args.rounded_out != nullptr) {
      args.rounded_out += args.tokens * args.out_stride;
    } else {
      args.out += args.tokens * args.out_stride;
    }
    args.ids += static_cast<int64_t>(args.tokens) * shape.top_k;
    args.weights += static_cast<int64_t>(args.tokens) * shape.top_k;
  }
  return Status();
}

// Products whose shares lie in memory, and the sum over them.
Status LaunchProducts(const MoeShape& shape,
                      const MoeInt4Args& args,
                      const ExpertsPlan& plan,
                      const LaunchStream& stream) {
  const MoeWorkspace space = CutMoeWorkspace(shape, args.workspace);
  if (plan.sort.blocks > 0) {
    BT_RETURN_IF_ERROR(LaunchMoeSort(shape, args, space, plan, stream));
  }
  const bool grouped = plan.kernel == ExpertsKernel::kInt4Grouped;
  if (grouped) {
    BT_RETURN_IF_ERROR(LaunchMoeGroupedGateUp(shape, args, space, plan, plan.tile_rows, stream));
    BT_RETURN_IF_ERROR(LaunchMoeGroupedDown(shape, args, space, plan, stream));
  } else if (plan.kernel == ExpertsKernel::kInt4Digits) {
    BT_RETURN_IF_ERROR(LaunchMoeDigitsGateUp(shape, args, space, plan, stream));
    BT_RETURN_IF_ERROR(LaunchMoeDigitsDown(shape, args, space, plan, stream));
  } else {
    BT_RETURN_IF_ERROR(LaunchMoeStreamGateUp(shape, args, space, plan, stream));
    BT_RETURN_IF_ERROR(LaunchMoeStreamDown(shape, args, space, plan, stream));
  }
  if (plan.shared == SharedExperts::kInBank) {
    return LaunchMoeFinish(shape, args, space, stream);
  }
  return LaunchMoeCombine(shape, args, space, stream);
}

Status CheckArgs(const MoeShape& shape, const MoeInt4Args& args, const ExpertsPlan& plan) {
  if (args.tokens < 0 || args.tokens > shape.max_tokens) {
    return InvalidArgument("MoE: tokens outside 0..max_tokens");
  }
  if (args.slot_of == nullptr && args.experts > shape.slots) {
    return InvalidArgument("MoE: more experts than slots, and no slot_of");
  }
  if (args.x_stride < shape.hidden || args.x_stride % 8 != 0 || !Aligned(args.x, 16)) {
    return InvalidArgument("MoE: rows of x are not 16-byte aligned");
  }
  const bool rounded = args.rounded_out != nullptr;
  if (args.out_stride < shape.hidden || args.out_stride % (rounded ? 8 : 4) != 0 ||
      !Aligned(args.out, 16) || !Aligned(args.rounded_out, 16)) {
    return InvalidArgument("MoE: rows of out are not 16-byte aligned");
  }
  if (!Aligned(args.gate_up, 128) || !Aligned(args.down, 128) || !Aligned(args.workspace, 256)) {
    return InvalidArgument("MoE: weights or workspace are not aligned");
  }
  if (args.workspace_bytes < Offsets(shape).end) {
    return InvalidArgument("MoE: the workspace is too small");
  }
  if (!Aligned(args.ordered, 16) || (!shape.orders && args.ordered == nullptr)) {
    return InvalidArgument("MoE: x in matrix order is not given or not aligned");
  }
  if (rounded && args.shared != nullptr) {
    return InvalidArgument("MoE: few tokens with shared experts have results in f32");
  }
  if (plan.shared == SharedExperts::kInBank && args.shared == nullptr) {
    return InvalidArgument("MoE: the plan has shared experts");
  }
  return Status();
}

}  // namespace

Result<int64_t> MoeWorkspaceBytes(const MoeShape& shape) {
  BT_RETURN_IF_ERROR(Check(shape));
  return Offsets(shape).end;
}

Status LaunchMoeInt4(const MoeShape& shape,
                     const MoeInt4Args& args,
                     const ExpertsPlan& plan,
                     const LaunchStream& stream) {
  BT_RETURN_IF_ERROR(Check(shape));
  if (args.tokens == 0) return Status();
  BT_RETURN_IF_ERROR(CheckArgs(shape, args, plan));
  const MoeWorkspace space = CutMoeWorkspace(shape, args.workspace);
  switch (plan.kernel) {
    case ExpertsKernel::kInt4OneLaunch1:
      return LaunchMoeOneLaunch1(shape, args, stream);
    case ExpertsKernel::kInt4OneLaunch4:
      return LaunchMoeOneLaunch4(shape, args, stream);
    case ExpertsKernel::kInt4OneToken:
      BT_RETURN_IF_ERROR(LaunchMoeOneTokenGateUp(shape, args, space, stream));
      return LaunchMoeOneTokenEnd(shape, args, space, stream);
    case ExpertsKernel::kInt4Entries:
    case ExpertsKernel::kInt4Digits:
    case ExpertsKernel::kInt4Streaming:
    case ExpertsKernel::kInt4Grouped:
      return LaunchProducts(shape, args, plan, stream);
    case ExpertsKernel::kInt4GroupedSum:
      return LaunchWithSum(shape, args, plan, stream);
    default:
      return InvalidArgument(std::string("MoE: not a bank of INT4: ") + NameOf(plan.kernel));
  }
}

}  // namespace baltoro::cuda
