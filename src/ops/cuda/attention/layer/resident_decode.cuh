#pragma once

// The middle of the resident attention half: attention of 8 heads of a token to pieces of its keys,
// as mla_decode_heads8_bf16.cu, which says how warps share the work. Queries come from other blocks
// of the launch and results go to others (ptx/mail.cuh). Keys of this step's tokens come from
// the board too, over those that the copy engine brought: the cache is being written meanwhile.

#include <math_constants.h>

#include "ops/cuda/attention/decode/mla_decode_heads8_device.cuh"
#include "ops/cuda/attention/decode/mla_decode_producer.cuh"
#include "ops/cuda/attention/layer/resident_board.cuh"
#include "ops/cuda/attention/prefill/attention_mma.cuh"

namespace baltoro::cuda::resident {

using mla::kComputers;
using mla::SyncComputers;

inline constexpr int kWarps = kComputers / 32;

// Where keys pass, blocks of 64, in stages one after the other, each with two barriers. `empty`
// completes a phase before each use of its stage.
struct KeyStage {
  uint32_t at, full, empty;
};

// Keys of a cache of bf16: how they come to shared memory.
struct PlainKeys {
  using Maps = CUtensorMap;
  static constexpr bool kFp8 = false;
  static constexpr int kStages = 1, kStageBytes = mla::kStageBytes, kTokenBytes = kMlaWidth * 2;

  static __device__ __forceinline__ void Prefetch(const Maps& map) { hopper::PrefetchMap(&map); }
  // The block that begins at row `row` of the cache.
  static __device__ __forceinline__ void Copy(const Maps& map,
                                              uint32_t to,
                                              uint32_t full,
                                              int row) {
    hopper::CopyBox(to, &map, full, 0, row, 0);
  }
};

// The copies of a part's blocks of keys, one after the other, by the whole warp that copies.
template <class Keys>
class KeyCopies {
 public:
  __device__ KeyCopies(const MlaKernelArgs& args,
                       const typename Keys::Maps& maps,
                       const KeyStage& stage,
                       int part)
      : args_(args), maps_(maps), stage_(stage), walker_(args, part) {
    Next();
  }
  __device__ __forceinline__ bool any() const { return any_; }
  // The next block into the L2, where no later write makes it wrong.
  __device__ __forceinline__ void Fetch() const {
    if (!any_ || threadIdx.x % 32 != 0) return;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(
                     static_cast<const char*>(args_.cache) + int64_t{row_} * Keys::kTokenBytes),
                 "n"(kMlaBlockTokens * Keys::kTokenBytes)
                 : "memory");
  }
  // Asks for the next block once there is room for it.
  __device__ __forceinline__ void Bring() {
    const uint32_t stage = count_ % Keys::kStages;
    hopper::Wait(stage_.empty + 8 * stage, count_ / Keys::kStages & 1);
    if (threadIdx.x % 32 == 0) {
      const uint32_t full = stage_.full + 8 * stage;
      hopper::ArriveExpecting(full, Keys::kStageBytes);
      Keys::Copy(maps_, stage_.at + stage * Keys::kStageBytes, full, row_);
    }
    ++count_;
    if (++at_ == piece_.end_block) {
      Next();
    } else {
      Look();
    }
  }

 private:
  // The next piece that has keys.
  __device__ __forceinline__ void Next() {
    do {
      any_ = walker_.Next(piece_);
    } while (any_ && piece_.begin_block == piece_.end_block);
    at_ = piece_.begin_block;
    if (any_) Look();
  }
  __device__ __forceinline__ void Look() {
    row_ =
        __ldg(args_.sequences.block_table + piece_.sequence * args_.sequences.table_stride + at_) *
        kMlaBlockTokens;
  }

  const MlaKernelArgs& args_;
  const typename Keys::Maps& maps_;
  const KeyStage stage_;
  MlaWalker walker_;
  MlaPiece piece_;
  bool any_ = false;
  int at_ = 0;          // in the block table
  int row_ = 0;         // of the cache
  uint32_t count_ = 0;  // so far
};

// The pieces of a part, whose queries come from other blocks of the launch and whose results go to
// others.
class PieceWalk {
 protected:
  // Reads what is older than the kernels ahead.
  __device__ PieceWalk(const MlaKernelArgs& args,
                       const int32_t* row_of,
                       const int64_t* slots,
                       int tokens,
                       const Conduct& conduct,
                       Board& board,
                       const KeyStage& stage,
                       int part)
      : args_(args),
        row_of_(row_of),
        conduct_(conduct),
        board_(board),
        stage_(stage),
        token_slot_(static_cast<int>(threadIdx.x % 32) < tokens ? slots[threadIdx.x % 32] : -1),
        walker_(args, part) {
    Next();
  }

  // The next piece, and what is asked about it.
  __device__ __forceinline__ void Next() {
    has_piece_ = walker_.Next(piece_);
    if (!has_piece_) return;
    token_ = __ldg(row_of_ + static_cast<int>(piece_.first_row) / kHeads);
    query_position_ = __ldg(args_.sequences.first_position + piece_.sequence);
    const int64_t entry = piece_.sequence * args_.sequences.table_stride + piece_.begin_block;
    const bool any = piece_.begin_block < piece_.end_block;
    physical_ = any ? __ldg(args_.sequences.block_table + entry) : -1;
    const int32_t* const positions = args_.sequences.block_positions;
    first_ = any && positions != nullptr ? __ldg(positions + entry)
                                         : piece_.begin_block * kMlaBlockTokens;
  }

  // Block i of the piece, of the blocks in turn.
  struct KeyBlock {
    int in_block;    // keys that exist
    int seen;        // of them, by the query
    uint32_t fresh;  // a bit for each of this step's tokens whose key is in it
  };
  __device__ __forceinline__ KeyBlock Look(int i) {
    const int in_table = piece_.begin_block + i;
    const int physical = physical_, first = first_;
    if (in_table + 1 < piece_.end_block) {
      const int64_t entry = piece_.sequence * args_.sequences.table_stride + in_table + 1;
      const int32_t* const positions = args_.sequences.block_positions;
      physical_ = __ldg(args_.sequences.block_table + entry);
      first_ = positions == nullptr ? (in_table + 1) * kMlaBlockTokens : __ldg(positions + entry);
    }
    KeyBlock block;
    block.in_block = piece_.key_count - in_table * kMlaBlockTokens;
    block.seen = min(block.in_block, query_position_ - first + 1);
    block.fresh =
        __ballot_sync(~0u, token_slot_ >= 0 && token_slot_ / kMlaBlockTokens == int64_t{physical});
    return block;
  }
  // write(token, key): the keys of this step's tokens in a block, over what was in the cache
  // before.
  template <typename Write>
  __device__ __forceinline__ void WriteFresh(uint32_t tokens, const Write& write) {
    for (; tokens != 0; tokens &= tokens - 1) {
      const int token = __ffs(static_cast<int>(tokens)) - 1;
      write(token, static_cast<int>(__shfl_sync(~0u, token_slot_, token) % kMlaBlockTokens));
    }
    SyncComputers();
  }

  // Where the piece's result goes.
  __device__ __forceinline__ int Slot() const {
    return piece_.slot >= 0 ? piece_.slot
                            : kWholeSlot + static_cast<int>(piece_.first_row) / kHeads;
  }
  // Of a head, in log2; by all computing threads.
  template <typename Lse>
  __device__ __forceinline__ void PostSums(int slot, const Lse& lse) {
    static_assert(kOwners <= kComputers);
    if (threadIdx.x >= kOwners) return;
    const int head = static_cast<int>(threadIdx.x) / kHeadBlocks;
    Post(&board_.part_lse[threadIdx.x][slot], __float_as_uint(lse(head)), tag_);
  }

  const MlaKernelArgs& args_;
  const int32_t* const row_of_;
  const Conduct& conduct_;
  Board& board_;
  const KeyStage stage_;
  const int64_t token_slot_;  // of token `lane`
  uint32_t tag_ = 0;

  MlaWalker walker_;
  MlaPiece piece_;
  bool has_piece_ = false;
  int token_ = 0;
  int query_position_;
  int physical_ = 0, first_ = 0;  // of the next block of keys: where it lies, its first position
};

class Decoder : PieceWalk {
 public:
  using Keys = PlainKeys;
  using Shared = mla::Heads8Rows;
  // Of shared memory, for the queries of a piece.
  static constexpr int kQueryBytes = kHeads * (2 * kMlaWidth + 32);

  // Reads what is older than the kernels ahead.
  __device__ Decoder(const MlaKernelArgs& args,
                     const int32_t* row_of,
                     const int64_t* slots,
                     int tokens,
                     const Conduct& conduct,
                     Board& board,
                     const KeyStage& stage,
                     Shared& shared,
                     uint32_t queries_at,
                     int part)
      : PieceWalk(args, row_of, slots, tokens, conduct, board, stage, part),
        shared_(shared),
        queries_at_(queries_at),
        warp_(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0)),
        lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void Run(uint32_t tag) {
    tag_ = tag;
    if (!has_piece_) return;
    SyncComputers();  // what is shared lies where sums were
    for (uint32_t block = 0; has_piece_; Next()) {
      Begin();
      const int count = piece_.end_block - piece_.begin_block;
      for (int i = 0; i < count; ++i) Compute(i, block + i);
      block += count;
      End();
    }
  }

 private:
  static constexpr int kSteps = kMlaWidth / 16 / 2;  // of 16 columns, of one half
  static constexpr int kSlack = 24;

  // Each warp brings the queries of a head to shared memory: words of other blocks are read once.
  __device__ __forceinline__ void Begin() {
    constexpr int kPitch = kQueryBytes / kHeads;  // a quarter of the warp reads all banks once
    constexpr int kMails = kLatent / 2 / 64;      // of 64 words, then one of half as many
    static_assert(kRope / 2 == 32);
    const uint64_t* const folded = board_.folded[token_][warp_] + 2 * lane_;
    const uint64_t* const rotated = board_.q[token_][warp_] + kNope / 2 + lane_ % 16 * 2;
    const auto at = [&](int i) { return i < kMails ? folded + i * 64 : rotated; };
    Mail<kMails + 1> mail;
    mail.Await(Patience(conduct_), tag_, true, at);
#pragma unroll
    for (int i = 0; i <= kMails; ++i) {
      if (i == kMails && lane_ >= 16) continue;
      asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(queries_at_ + warp_ * kPitch + i * 256 +
                                                            lane_ * 8),
                   "r"(mail.word(i, 0)), "r"(mail.word(i, 1))
                   : "memory");
    }
    SyncComputers();
    const uint32_t from =
        queries_at_ + lane_ / 4 * kPitch + warp_ / 4 * kSteps * 32 + lane_ % 4 * 8;
#pragma unroll
    for (int n = 0; n < kSteps; ++n) {
      asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                   : "=r"(queries_[n][0]), "=r"(queries_[n][1])
                   : "r"(from + n * 32)
                   : "memory");
    }
    reference_ = -CUDART_INF_F;
    sum_ = 0;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) out_[t][e] = 0;
    }
  }

  __device__ __forceinline__ void Compute(int i, uint32_t block) {
    const KeyBlock keys = Look(i);
    hopper::Wait(stage_.full, block & 1);
    if (keys.fresh != 0) {
      WriteFresh(keys.fresh, [&](int token, int key) { WriteToken(token, key); });
    }
    float sums[2][4] = {};
    const int first_step = warp_ / 4 * kSteps;
    const int key = warp_ % 4 * 16;
#pragma unroll
    for (int n = 0; n < kSteps; ++n) {
      const int step = first_step + n;
      uint32_t a[4];
      LoadMatrices4(a, stage_.at + step / 4 * mla::kTileBytes +
                           mla::InTile(key + lane_ % 16, step % 4 * 2 + lane_ / 16));
      MultiplyAdd(sums[n % 2], a, queries_[n]);
    }
    float(&to)[kHeads][mla::kScorePitch] = shared_.scores[warp_ / 4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      to[lane_ % 4 * 2 + e % 2][key + lane_ / 4 + 8 * (e / 2)] = sums[0][e] + sums[1][e];
    }
    SyncComputers();
    if (keys.in_block < kMlaBlockTokens) ClearTail(keys.in_block);
    Softmax(keys.seen);
    SyncComputers();
    Values();
    hopper::FinishLoads();
    __syncwarp();
    if (lane_ < conduct_.givers) hopper::Arrive(stage_.empty);
  }

  // A token as it is cached to key `key` of the block.
  __device__ __forceinline__ void WriteToken(int token, int key) {
    constexpr int kQuads = kMlaWidth / 4;
    if (warp_ > kQuads / 32) return;
    const int quad = static_cast<int>(threadIdx.x);
    const auto at = [&](int) { return &board_.token[token][2 * quad]; };
    Mail<1> mail;
    mail.Await(Patience(conduct_), tag_, quad < kQuads, at);
    if (quad >= kQuads) return;
    const uint32_t to =
        stage_.at + quad / 16 * mla::kTileBytes + mla::InTile(key, quad % 16 / 2) + quad % 2 * 8;
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(mail.word(0, 0)),
                 "r"(mail.word(0, 1))
                 : "memory");
  }

  // Zeroes the latents of keys that do not exist, since 0 times whatever is there could be NaN.
  __device__ __forceinline__ void ClearTail(int valid) {
    static_assert(kMlaLatent / 64 == kWarps);
    const uint32_t tile = stage_.at + warp_ * mla::kTileBytes;
#pragma unroll 1
    for (uint32_t to = tile + valid * 128 + lane_ * 16; to < tile + kMlaBlockTokens * 128;
         to += 32 * 16) {
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
    }
  }

  // Of this warp's head: the exponentials, its reference and sums.
  __device__ __forceinline__ void Softmax(int seen) {
    mla::FewSoftmax<kSlack>(shared_, warp_, seen, args_.scale_log2, reference_, sum_);
  }

  // out_[t]: columns 64 warp + 16 t + lane / 4 + {0, 8} of the latent, heads 2 (lane % 4) + {0, 1}.
  __device__ __forceinline__ void Values() {
    const int head = lane_ % 4 * 2;
    const float2 ratio = *reinterpret_cast<const float2*>(&shared_.ratio[head]);
    if (__any_sync(~0u, ratio.x != 1.0f || ratio.y != 1.0f)) {
#pragma unroll
      for (int t = 0; t < 4; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) out_[t][e] *= e % 2 == 0 ? ratio.x : ratio.y;
      }
    }
    const __nv_bfloat16* const shares = &shared_.shares[lane_ / 4][head];
    const uint32_t tile = stage_.at + warp_ * mla::kTileBytes;
    const int key = lane_ % 8 + lane_ / 16 * 8, chunk = lane_ / 8 % 2;
#pragma unroll
    for (int step = 0; step < kMlaBlockTokens / 16; ++step) {
      const uint32_t b[2] = {*reinterpret_cast<const uint32_t*>(shares + step * 16),
                             *reinterpret_cast<const uint32_t*>(shares + step * 16 + 8)};
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        uint32_t a[4];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                     : "r"(tile + mla::InTile(step * 16 + key, 2 * t + chunk))
                     : "memory");
        MultiplyAdd(out_[t], a, b);
      }
    }
  }

  // Divides by the softmax sum and hands it to those who add up pieces.
  __device__ __forceinline__ void End() {
    float sum = sum_;
#pragma unroll
    for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);
    if (lane_ == 0) {
      shared_.sum[warp_] = sum;
      shared_.reference[warp_] = reference_;
    }
    SyncComputers();
    const int slot = Slot();
    const int column = warp_ * 64 + lane_ / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = lane_ % 4 * 2 + r;
      const float all = shared_.sum[head];
      const float share = all == 0 ? 0 : 1 / all;
      uint64_t* const to = board_.part_out[slot][head] + column;
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        Post(to + 16 * t, __float_as_uint(all == 0 ? 0 : out_[t][r] * share), tag_);
        Post(to + 16 * t + 8, __float_as_uint(all == 0 ? 0 : out_[t][2 + r] * share), tag_);
      }
    }
    PostSums(slot, [&](int head) {
      const float all = shared_.sum[head];
      return all == 0 ? -CUDART_INF_F : shared_.reference[head] + log2f(all);
    });
    SyncComputers();  // what is shared may be overwritten
  }

  Shared& shared_;
  const uint32_t queries_at_;
  const int warp_, lane_;

  uint32_t queries_[kSteps][2];
  float out_[4][4];
  float reference_;  // of head `warp_`
  float sum_;        // of this lane's keys of head `warp_`
};

}  // namespace baltoro::cuda::resident
