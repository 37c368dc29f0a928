#pragma once

// The kernels of the expert bank one by one, for its launcher and for benchmarks.

#include "ops/cuda/choose/experts_down_sum.h"
#include "ops/cuda/choose/experts_limits.h"
#include "ops/cuda/experts/int4_bank.h"
#include "ops/cuda/launch/launch_stream.h"
#include "ops/cuda/linear/sorted_rows.h"

namespace baltoro::cuda {

// The workspace, cut up.
struct MoeWorkspace {
  int32_t* num_tiles = nullptr;  // [1]
  MoeTile* tiles = nullptr;      // [slots + T k / 16]; with the sum: those with most rows first
  MoeStart* starts = nullptr;    // [kMaxBlocks + 1]
  int32_t* order = nullptr;      // [T k] sorted row -> t * k + j
  int32_t* units = nullptr;      // of the sum: [slots + 1] units of 16 rows before each slot
  int32_t* row_begin = nullptr;  // of the sum: [slots + 1] rows before each slot
  int32_t* block_of = nullptr;   // of the sum: [slots + 1] block of a slot; last: whether it holds
  uint32_t* counters = nullptr;  // of the sum, by digits: [2 kMaxSumChunks], zeros after the
                                 // routing (by digits the first two)
  __nv_bfloat16* ordered = nullptr;  // [T, H] x in matrix order
  __nv_bfloat16* middle = nullptr;   // [T k, I] in sorted order
  __nv_bfloat16* shares = nullptr;   // [T k, H] at t * k + j; with the sum: a ring of column chunks
};

MoeWorkspace CutMoeWorkspace(const MoeShape& shape, void* workspace);

// Entries sorted as the plan has it; `starts` shares the tiles out equally among its blocks.
Status LaunchMoeSort(const MoeShape& shape,
                     const MoeInt4Args& args,
                     const MoeWorkspace& space,
                     const ExpertsPlan& plan,
                     const LaunchStream& stream);
// Likewise of one part with the sum: `args` are its tokens.
Status LaunchMoeSort(const MoeShape& shape,
                     const MoeInt4Args& args,
                     const MoeWorkspace& space,
                     const ExpertsPlan& plan,
                     const ExpertsSum& part,
                     const LaunchStream& stream);
// In bf16, of sorted entries or of each by itself (int4_streaming.cu).
Status LaunchMoeStreamGateUp(const MoeShape& shape,
                             const MoeInt4Args& args,
                             const MoeWorkspace& space,
                             const ExpertsPlan& plan,
                             const LaunchStream& stream);
Status LaunchMoeStreamDown(const MoeShape& shape,
                           const MoeInt4Args& args,
                           const MoeWorkspace& space,
                           const ExpertsPlan& plan,
                           const LaunchStream& stream);
// `tile_rows`: of the sorted tiles at most, kMiddlingTileRows or kGroupedTileRows.
Status LaunchMoeGroupedGateUp(const MoeShape& shape,
                              const MoeInt4Args& args,
                              const MoeWorkspace& space,
                              const ExpertsPlan& plan,
                              int32_t tile_rows,
                              const LaunchStream& stream);
Status LaunchMoeGroupedDown(const MoeShape& shape,
                            const MoeInt4Args& args,
                            const MoeWorkspace& space,
                            const ExpertsPlan& plan,
                            const LaunchStream& stream);
// The down product of one part and the sum; right after LaunchMoeGroupedGateUp, which lets it start
// behind its own wait: the routing is complete then, and read before gate/up has ended. All blocks
// run at once.
Status LaunchMoeDownSum(const MoeShape& shape,
                        const MoeInt4Args& args,
                        const MoeWorkspace& space,
                        const ExpertsSum& part,
                        const LaunchStream& stream);
// Reads all but the shares before its wait where that is complete.
Status LaunchMoeCombine(const MoeShape& shape,
                        const MoeInt4Args& args,
                        const MoeWorkspace& space,
                        const LaunchStream& stream);

// Instead of the combination, with `shared`: writes out. Up to kFinishTokens. It too
// reads all but the shares before its wait where that is complete.
Status LaunchMoeFinish(const MoeShape& shape,
                       const MoeInt4Args& args,
                       const MoeWorkspace& space,
                       const LaunchStream& stream);

// The bank of one token in one kernel (int4_one_launch1.cu), with the choice in it.
Status LaunchMoeOneLaunch1(const MoeShape& shape,
                           const MoeInt4Args& args,
                           const LaunchStream& stream);
// Of two to four tokens likewise (int4_one_launch4.cu).
Status LaunchMoeOneLaunch4(const MoeShape& shape,
                           const MoeInt4Args& args,
                           const LaunchStream& stream);
// The bank of one token in two (int4_one_token.cu): gate/up, then all that follows; with the choice
// in both where it is asked of the bank.
Status LaunchMoeOneTokenGateUp(const MoeShape& shape,
                               const MoeInt4Args& args,
                               const MoeWorkspace& space,
                               const LaunchStream& stream);
Status LaunchMoeOneTokenEnd(const MoeShape& shape,
                            const MoeInt4Args& args,
                            const MoeWorkspace& space,
                            const LaunchStream& stream);

// The routing of a bank of other forms: rows sorted by expert and cut into tiles of `tile_rows`.
struct MoeRows {
  const int32_t* ids = nullptr;  // as MoeInt4Args
  const int32_t* slot_of = nullptr;
  int32_t experts = 0, slots = 0, tokens = 0, top_k = 0;
  int32_t tile_rows = 0;
  int32_t blocks = 1;            // that `starts` shares the tiles out among, kMaxBlocks at most
  int32_t* num_tiles = nullptr;  // [1]
  MoeTile* tiles = nullptr;      // [slots + T k / tile_rows]
  MoeStart* starts = nullptr;    // [blocks + 1]
  int32_t* order = nullptr;      // [T k]
  int32_t* ranks = nullptr;      // [T k] scratch
  // Of a form with the sum, where `units` is given: as MoeWorkspace, and the blocks of its kernel
  // and the units of 16 rows that one has room for. Tiles with most rows come first then.
  int32_t* units = nullptr;
  int32_t* row_begin = nullptr;
  int32_t* block_of = nullptr;
  uint32_t* counters = nullptr;
  int32_t sum_blocks = 0, max_units = 0;
  ExpertsSort sort;  // not where a preparation sorts
  // Where work is dealt out while it is done (int4_digits_work.cuh): sixteenths of it in the
  // blocks' own shares, behind which the last start is; the first two counters are zeros after the
  // routing.
  int32_t own_parts = 0;
};
Status LaunchRowsByExpert(const MoeRows& rows, const LaunchStream& stream);
// out[t] += sum_j shares[t, j] of the experts held here, j in order. out [T, H] f32 or bf16, rows
// are aligned to 16 bytes; H is a multiple of 8.
Status LaunchSumOverExperts(const MoeRows& rows,
                            const __nv_bfloat16* shares,
                            const TensorView& out,
                            const LaunchStream& stream);

}  // namespace baltoro::cuda
