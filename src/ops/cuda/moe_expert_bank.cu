#include "ops/cuda/moe_expert_bank.h"

#include <algorithm>

#include "ops/cuda/moe_internal.h"

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
  cut.ordered = cut.counters + Align(2 * kMaxJoinedChunks * int64_t{4});
  cut.middle =
      cut.ordered + (s.orders ? Align(static_cast<int64_t>(s.max_tokens) * s.hidden * 2) : 0);
  cut.shares = cut.middle + Align(entries * s.intermediate * 2);
  cut.end = cut.shares + Align(entries * s.hidden * 2);
  return cut;
}

}  // namespace

Result<int32_t> MoeMultiprocessors() {
  int device = 0, count = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  }
  if (error != cudaSuccess) return Status(Code::kUnavailable, cudaGetErrorString(error));
  return count;
}

Result<int32_t> MoeBlocks(MoeForm form) {
  BT_ASSIGN_OR_RETURN(int32_t count, MoeMultiprocessors());
  count = form == MoeForm::kStreaming ? count * kStreamingBlocks : std::max(1, count / kWideTeam);
  return std::min(count, kMaxBlocks);
}

Result<MoeForm> ChooseMoeForm(const MoeShape& shape, const MoeInt4Args& args) {
  if (args.form != MoeForm::kAuto) return args.form;
  // Measured, docs/measured/cuda-moe.md: the joined form from about 7 rows an expert, the wide one
  // from about 12.
  const int64_t entries = static_cast<int64_t>(args.tokens) * shape.top_k;
  // The other forms do not add the shared experts. Few tokens have them, and many rows an expert
  // only where few experts are held.
  if (args.shared != nullptr) return MoeForm::kStreaming;
  BT_ASSIGN_OR_RETURN(const int32_t multiprocessors, MoeMultiprocessors());
  const bool joins = MoeJoinedTokens(shape, multiprocessors) > 0;
  if (entries <= (joins ? 7 : 12) * static_cast<int64_t>(shape.slots)) return MoeForm::kStreaming;
  return joins ? MoeForm::kJoined : MoeForm::kWide;
}

MoePlan CutMoeWorkspace(const MoeShape& shape, void* workspace) {
  const Cut cut = Offsets(shape);
  char* base = static_cast<char*>(workspace);
  MoePlan plan;
  plan.num_tiles = reinterpret_cast<int32_t*>(base);
  plan.starts = reinterpret_cast<MoeStart*>(base + cut.starts);
  plan.tiles = reinterpret_cast<MoeTile*>(base + cut.tiles);
  plan.order = reinterpret_cast<int32_t*>(base + cut.order);
  plan.units = reinterpret_cast<int32_t*>(base + cut.units);
  plan.row_begin = reinterpret_cast<int32_t*>(base + cut.row_begin);
  plan.block_of = reinterpret_cast<int32_t*>(base + cut.block_of);
  plan.counters = reinterpret_cast<uint32_t*>(base + cut.counters);
  plan.ordered = reinterpret_cast<__nv_bfloat16*>(base + cut.ordered);
  plan.middle = reinterpret_cast<__nv_bfloat16*>(base + cut.middle);
  plan.shares = reinterpret_cast<__nv_bfloat16*>(base + cut.shares);
  return plan;
}

namespace {

// Tokens of each part, at most, where `most` are taken at once.
int32_t JoinedPart(int32_t tokens, int32_t most) {
  const int32_t parts = (tokens + most - 1) / most;
  return (tokens + parts - 1) / parts;
}

Status LaunchJoined(const MoeShape& shape, MoeInt4Args args, cudaStream_t stream) {
  BT_ASSIGN_OR_RETURN(const int32_t multiprocessors, MoeMultiprocessors());
  const int32_t most = MoeJoinedTokens(shape, multiprocessors);
  if (most == 0) return InvalidArgument("MoE: the joined form does not take this shape");
  const MoePlan plan = CutMoeWorkspace(shape, args.workspace);
  BT_ASSIGN_OR_RETURN(const int32_t blocks, MoeBlocks(MoeForm::kJoined));
  const int32_t tokens = args.tokens, part = JoinedPart(tokens, most);
  args.form = MoeForm::kJoined;
  for (int32_t done = 0; done < tokens; done += part) {
    args.tokens = std::min(part, tokens - done);
    BT_RETURN_IF_ERROR(LaunchMoeRoute(shape, args, plan, MoeForm::kJoined, blocks, stream));
    BT_RETURN_IF_ERROR(LaunchMoeWideGateUp(shape, args, plan, stream));
    BT_RETURN_IF_ERROR(LaunchMoeDownSum(shape, args, plan, stream));
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

}  // namespace

bool MoeReadsOrdered(const MoeShape& shape, const MoeInt4Args& args) {
  if (args.tokens == 0) return false;
  const Result<MoeForm> form = ChooseMoeForm(shape, args);
  if (!form.ok() || form.value() == MoeForm::kStreaming) return false;
  if (form.value() == MoeForm::kWide) return true;
  const Result<int32_t> multiprocessors = MoeMultiprocessors();
  if (!multiprocessors.ok()) return false;
  return MoeJoinedTokens(shape, multiprocessors.value()) > 0;
}

Result<int64_t> MoeWorkspaceBytes(const MoeShape& shape) {
  BT_RETURN_IF_ERROR(Check(shape));
  return Offsets(shape).end;
}

Status LaunchMoeInt4(const MoeShape& shape, const MoeInt4Args& args, cudaStream_t stream) {
  BT_RETURN_IF_ERROR(Check(shape));
  if (args.tokens < 0 || args.tokens > shape.max_tokens) {
    return InvalidArgument("MoE: tokens outside 0..max_tokens");
  }
  if (args.tokens == 0) return Status();
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
  BT_ASSIGN_OR_RETURN(const MoeForm form, ChooseMoeForm(shape, args));
  if (form == MoeForm::kJoined) return LaunchJoined(shape, args, stream);
  if (!args.prepared && MoeSeveralTakes(shape, args)) return LaunchMoeSeveral(shape, args, stream);
  const MoePlan plan = CutMoeWorkspace(shape, args.workspace);
  BT_ASSIGN_OR_RETURN(const int32_t blocks, MoeBlocks(form));
  if (!args.prepared && (form == MoeForm::kWide || !MoeEntriesAlone(shape, args.tokens))) {
    BT_RETURN_IF_ERROR(LaunchMoeRoute(shape, args, plan, form, blocks, stream));
  }
  if (form == MoeForm::kWide) {
    BT_RETURN_IF_ERROR(LaunchMoeWideGateUp(shape, args, plan, stream));
    BT_RETURN_IF_ERROR(LaunchMoeWideDown(shape, args, plan, stream));
  } else {
    if (MoeSingleTakes(shape, args)) {
      if (MoeSingleJoins(shape, args)) return LaunchMoeSingle(shape, args, stream);
      BT_RETURN_IF_ERROR(LaunchMoeSingleGateUp(shape, args, plan, stream));
      return LaunchMoeSingleEnd(shape, args, plan, stream);
    }
    BT_RETURN_IF_ERROR(LaunchMoeStreamGateUp(shape, args, plan, stream));
    BT_RETURN_IF_ERROR(LaunchMoeStreamDown(shape, args, plan, stream));
  }
  if (args.shared != nullptr) {
    return LaunchMoeFinish(shape, args, plan, form == MoeForm::kStreaming, stream);
  }
  return LaunchMoeCombine(shape, args, plan, form == MoeForm::kStreaming, stream);
}

}  // namespace baltoro::cuda
