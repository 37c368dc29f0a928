#include "ops/cuda/attention/decode/mla_decode.h"

#include <cmath>
#include <cstdint>
#include <string>

#include "ops/cuda/attention/decode/mla_decode_internal.h"

namespace baltoro::cuda {
namespace {

constexpr double kLog2OfE = 1.4426950408889634;

Status OutOfRange(const char* what, int64_t value) {
  return InvalidArgument(std::string("MLA decode: ") + what + " is " + std::to_string(value));
}

Status Check(const MlaDecodeLimits& limits) {
  if (limits.heads < 1 || limits.heads > kMlaMaxHeads) return OutOfRange("heads", limits.heads);
  if (limits.sequences < 1 || limits.sequences > kMlaMaxSequences) {
    return OutOfRange("sequences", limits.sequences);
  }
  if (limits.max_query_tokens < 1 || limits.max_query_tokens > kMlaMaxQueryTokens) {
    return OutOfRange("max_query_tokens", limits.max_query_tokens);
  }
  // Every tile of 64 rows of a sequence has a thread block of its own at least.
  constexpr int kMostTiles = kMlaMaxHeads * kMlaMaxQueryTokens / kMlaTileRows;
  if (limits.multiprocessors < kMostTiles) {
    return OutOfRange("multiprocessors", limits.multiprocessors);
  }
  if (limits.chunk_blocks < 0) return OutOfRange("chunk_blocks", limits.chunk_blocks);
  if (limits.chunk_blocks > 0 && limits.max_total_blocks < 1) {
    return OutOfRange("max_total_blocks", limits.max_total_blocks);
  }
  return Status();
}

bool Aligned(const void* pointer, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

Status Check(const MlaDecodeArgs& args, MlaCacheType cache_type) {
  const MlaDecodeSequences& s = args.sequences;
  if (args.rows < 1 || args.rows > INT32_MAX / kMlaMaxHeads) return OutOfRange("rows", args.rows);
  if (args.num_blocks < 1 || args.num_blocks > INT32_MAX / kMlaBlockTokens) {
    return OutOfRange("num_blocks", args.num_blocks);
  }
  if (s.table_stride < 1) return OutOfRange("table_stride", s.table_stride);
  if (!(args.scale > 0) || !std::isfinite(args.scale)) {
    return InvalidArgument("MLA decode: scale is not a positive number");
  }
  if (cache_type == MlaCacheType::kFp8E4m3 &&
      (!(args.cache_scale > 0) || !std::isfinite(args.cache_scale))) {
    return InvalidArgument("MLA decode: cache_scale is not a positive number");
  }
  if (args.out == nullptr || args.q == nullptr || args.cache == nullptr ||
      s.query_begin == nullptr || s.key_count == nullptr || s.first_position == nullptr ||
      s.block_table == nullptr) {
    return InvalidArgument("MLA decode: a required array is null");
  }
  if (!Aligned(args.out, 16) || !Aligned(args.q, 16) || !Aligned(args.cache, 16)) {
    return InvalidArgument("MLA decode: q, out and cache must be 16-byte aligned");
  }
  return Status();
}

}  // namespace

MlaPlan CutMlaWorkspace(const DecodePlan& chosen, void* workspace) {
  MlaPlan plan = {};
  plan.tiles = chosen.tiles;
  plan.tile_rows = chosen.tile_rows;
  plan.num_parts = chosen.parts;
  plan.slots = chosen.slots;
  plan.max_merges = chosen.merges_max;
  auto* const base = static_cast<char*>(workspace);
  size_t used = 0;
  const auto take = [&](auto*& array, int64_t count) {
    array = base == nullptr ? nullptr : reinterpret_cast<decltype(+array)>(base + used);
    used += (static_cast<size_t>(count) * sizeof(*array) + 255) / 256 * 256;
  };
  take(plan.parts, plan.num_parts + 1);
  take(plan.merges, plan.max_merges + 1);
  take(plan.chunk_slots, chosen.chunk_slots);
  plan.plan_bytes = used;
  take(plan.partial_lse, plan.slots * plan.tile_rows);
  take(plan.partial_out, plan.slots * plan.tile_rows * kMlaLatent);
  plan.bytes = used;
  return plan;
}

Result<size_t> MlaDecodeWorkspaceBytes(const MlaDecodeLimits& limits) {
  BT_RETURN_IF_ERROR(Check(limits));
  return CutMlaWorkspace(ChooseDecode(limits), nullptr).bytes;
}

Result<size_t> MlaDecodePlanBytes(const MlaDecodeLimits& limits) {
  BT_RETURN_IF_ERROR(Check(limits));
  return CutMlaWorkspace(ChooseDecode(limits), nullptr).plan_bytes;
}

Result<MlaKernelArgs> MlaDecodePieces(const DecodePlan& plan,
                                      const MlaDecodeLimits& limits,
                                      const MlaDecodeArgs& args,
                                      void* workspace,
                                      const LaunchStream& stream) {
  BT_RETURN_IF_ERROR(Check(limits));
  BT_RETURN_IF_ERROR(Check(args, limits.cache_type));
  if (workspace == nullptr || !Aligned(workspace, 256)) {
    return InvalidArgument("MLA decode: the workspace is null or not 256-byte aligned");
  }
  MlaKernelArgs kernel = {};
  kernel.plan = CutMlaWorkspace(plan, workspace);
  kernel.sequences = args.sequences;
  kernel.num_sequences = limits.sequences;
  kernel.heads = limits.heads;
  kernel.chunk_blocks = limits.chunk_blocks;
  // Keys are read before the wait where nothing that may still run writes them.
  kernel.early_keys = stream.order->IsComplete(CacheOf(args, limits.cache_type));
  kernel.cache_type = limits.cache_type;
  const float cache_scale = limits.cache_type == MlaCacheType::kFp8E4m3 ? args.cache_scale : 1.0f;
  kernel.scale_log2 = static_cast<float>(double{args.scale} * cache_scale * kLog2OfE);
  kernel.out_scale = cache_scale;
  kernel.out = args.out;
  kernel.lse = args.lse;
  kernel.cache = args.cache;
  BT_RETURN_IF_ERROR(LaunchMlaAttention(plan, kernel, args, stream));
  return kernel;
}

}  // namespace baltoro::cuda
