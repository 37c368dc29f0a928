#pragma once

// The kernels of the expert bank one by one, for its launcher and for benchmarks.

#include "ops/cuda/moe_expert_bank.h"

namespace baltoro::cuda {

// Consecutive rows of the sorted order that one expert takes in one pass over its weights.
struct MoeTile {
  int32_t slot;
  int32_t begin;  // first row in the sorted order
  int32_t count;
  int32_t unused;
};

// Rows of a tile at most, by form.
inline constexpr int32_t kStreamingTileRows = 32;
inline constexpr int32_t kWideTileRows = 112;
inline constexpr int32_t kMiddlingTileRows = 40;
inline constexpr int32_t kDigitTileRows = 16;  // of the streaming form by digits (moe_digits.h)

// Blocks of the streaming form on one multiprocessor: while one adds up, the other multiplies.
inline constexpr int32_t kStreamingBlocks = 2;

inline constexpr int32_t kWideTeam = 2;

// The joined form (moe_down_sum.cu): what it takes, columns that are added up together and their
// buffers.
inline constexpr int32_t kJoinedIntermediate = 256;
inline constexpr int32_t kJoinedColumns = 128;
inline constexpr int32_t kMaxJoinedChunks = 128;
inline constexpr int32_t kMaxJoinedBuffers = 4;

// Where a block's share of the tiles begins: `part` 65536ths into tile `tile`.
struct MoeStart {
  int32_t tile;
  int32_t part;
};
inline constexpr int32_t kMaxBlocks = 512;

// The workspace, cut up.
struct MoePlan {
  int32_t* num_tiles = nullptr;      // [1]
  MoeTile* tiles = nullptr;          // [slots + T k / 16]; joined: those with most rows first
  MoeStart* starts = nullptr;        // [kMaxBlocks + 1]
  int32_t* order = nullptr;          // [T k] sorted row -> t * k + j
  int32_t* units = nullptr;          // joined: [slots + 1] units of 16 rows before each slot
  int32_t* row_begin = nullptr;      // joined: [slots + 1] rows before each slot
  int32_t* block_of = nullptr;       // joined: [slots + 1] block of a slot; last: whether it holds
  uint32_t* counters = nullptr;      // joined, by digits: [2 kMaxJoinedChunks], zeros after the
                                     // routing (by digits the first two)
  __nv_bfloat16* ordered = nullptr;  // [T, H] x in the wide form's column order
  __nv_bfloat16* middle = nullptr;   // [T k, I] in sorted order
  __nv_bfloat16* shares = nullptr;   // [T k, H] at t * k + j; joined: a ring of column chunks
};

// Whether the streaming form takes each entry (token and expert) by itself: a few tokens rarely
// have an expert in common, and the routing preparation is a launch less.
inline bool MoeEntriesAlone(const MoeShape& shape, int32_t tokens) {
  return tokens * shape.top_k <= 32;
}

// The form that kAuto stands for.
Result<MoeForm> ChooseMoeForm(const MoeShape& shape, const MoeInt4Args& args);

// Blocks of the products; of the wide form, teams of kWideTeam.
Result<int32_t> MoeBlocks(MoeForm form);

Result<int32_t> MoeMultiprocessors();

// Tokens that the joined form takes at once on `multiprocessors`; 0: none in this shape.
int32_t MoeJoinedTokens(const MoeShape& shape, int32_t multiprocessors);

// Units of 16 rows of one expert that a block of the joined form has room for.
int32_t MoeJoinedUnits(const MoeShape& shape, int32_t tokens, int32_t blocks);

// Rows of a tile at most where the joined form's gate/up product is that of a middling number of
// rows an expert; 0: that of many.
int32_t MoeMiddlingTileRows(const MoeShape& shape, int32_t tokens);

MoePlan CutMoeWorkspace(const MoeShape& shape, void* workspace);

// `form` is not kAuto. `starts` shares the tiles out equally among `blocks`.
Status LaunchMoeRoute(const MoeShape& shape,
                      const MoeInt4Args& args,
                      const MoePlan& plan,
                      MoeForm form,
                      int32_t blocks,
                      cudaStream_t stream);
Status LaunchMoeStreamGateUp(const MoeShape& shape,
                             const MoeInt4Args& args,
                             const MoePlan& plan,
                             cudaStream_t stream);
Status LaunchMoeStreamDown(const MoeShape& shape,
                           const MoeInt4Args& args,
                           const MoePlan& plan,
                           cudaStream_t stream);
Status LaunchMoeWideGateUp(const MoeShape& shape,
                           const MoeInt4Args& args,
                           const MoePlan& plan,
                           cudaStream_t stream);
Status LaunchMoeWideDown(const MoeShape& shape,
                         const MoeInt4Args& args,
                         const MoePlan& plan,
                         cudaStream_t stream);
// The joined form's down product and the sum; right after LaunchMoeWideGateUp, which lets it start
// behind its own wait: the routing is complete then, and read before gate/up has ended. All blocks
// run at once.
Status LaunchMoeDownSum(const MoeShape& shape,
                        const MoeInt4Args& args,
                        const MoePlan& plan,
                        cudaStream_t stream);
// old_inputs: all but the shares is older than what ran ahead of the kernel just ahead.
Status LaunchMoeCombine(const MoeShape& shape,
                        const MoeInt4Args& args,
                        const MoePlan& plan,
                        bool old_inputs,
                        cudaStream_t stream);

// Instead of the combination, with `shared`: writes out. Takes few tokens, see MoeFinishTakes.
// old_inputs: the down product ahead is one that starts only once gate/up has waited, so that what
// is older than gate/up may be read before the wait.
Status LaunchMoeFinish(const MoeShape& shape,
                       const MoeInt4Args& args,
                       const MoePlan& plan,
                       bool old_inputs,
                       cudaStream_t stream);

inline int32_t MoeFinishBlocks(const MoeShape& shape) {
  return shape.hidden / 64;
}

// The bank of one token: gate/up, then all that follows.
bool MoeSingleTakes(const MoeShape& shape, const MoeInt4Args& args);
// Whether it can then choose the experts itself.
bool MoeSingleChooses(const MoeShape& shape, const MoeChoice& choice);
// Both in one kernel (moe_single_joined.cu), where its shape is that of K2's rank of eight.
bool MoeSingleJoins(const MoeShape& shape, const MoeInt4Args& args);
Status LaunchMoeSingle(const MoeShape& shape, const MoeInt4Args& args, cudaStream_t stream);
// Of two to four tokens with the choice in it, in the same shape (moe_several.cu).
bool MoeSeveralTakes(const MoeShape& shape, const MoeInt4Args& args);
Status LaunchMoeSeveral(const MoeShape& shape, const MoeInt4Args& args, cudaStream_t stream);
Status LaunchMoeSingleGateUp(const MoeShape& shape,
                             const MoeInt4Args& args,
                             const MoePlan& plan,
                             cudaStream_t stream);
Status LaunchMoeSingleEnd(const MoeShape& shape,
                          const MoeInt4Args& args,
                          const MoePlan& plan,
                          cudaStream_t stream);

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
  // Of a joined form, where `units` is given: as MoePlan, and the blocks of its kernel and the
  // units of 16 rows that one has room for. Tiles with most rows come first then.
  int32_t* units = nullptr;
  int32_t* row_begin = nullptr;
  int32_t* block_of = nullptr;
  uint32_t* counters = nullptr;
  int32_t sum_blocks = 0, max_units = 0;
  // Where work is dealt out while it is done (moe_digits_work.cuh): sixteenths of it in the blocks'
  // own shares, behind which the last start is; the first two counters are zeros after the routing.
  int32_t own_parts = 0;
};
Status LaunchRowsByExpert(const MoeRows& rows, cudaStream_t stream);
// out[t] += sum_j shares[t, j] of the experts held here, j in order. out [T, H] f32 or bf16, rows
// are aligned to 16 bytes; H is a multiple of 8.
Status LaunchSumOverExperts(const MoeRows& rows,
                            const __nv_bfloat16* shares,
                            const TensorView& out,
                            cudaStream_t stream);

}  // namespace baltoro::cuda
