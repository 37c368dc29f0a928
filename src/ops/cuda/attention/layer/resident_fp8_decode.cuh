#pragma once

// The middle of the resident attention half over a cache of fp8, with the products of
// mla_decode_heads8_fp8_device.cuh; otherwise as resident_decode.cuh.

#include "ops/cuda/attention/decode/mla_decode_heads8_fp8_device.cuh"
#include "ops/cuda/attention/layer/resident_decode.cuh"

namespace baltoro::cuda::resident {

struct Fp8Keys {
  struct Maps {
    CUtensorMap latent, rope;
  };
  static constexpr bool kFp8 = true;
  static constexpr int kStages = 3, kStageBytes = mla::few_fp8::kRawBytes, kTokenBytes = kMlaWidth;

  static __device__ __forceinline__ void Prefetch(const Maps& maps) {
    hopper::PrefetchMap(&maps.latent);
    hopper::PrefetchMap(&maps.rope);
  }
  static __device__ __forceinline__ void Copy(const Maps& maps,
                                              uint32_t to,
                                              uint32_t full,
                                              int row) {
    hopper::CopyBox(to, &maps.latent, full, 0, row, 0);
    hopper::CopyBox(to + mla::few_fp8::kRawRopeAt, &maps.rope, full, 0, row, 0);
  }
};

class Fp8Decoder : PieceWalk, mla::few_fp8::Piece<1> {
 public:
  using Keys = Fp8Keys;
  using Shared = mla::few_fp8::Rows<1>;
  // Of shared memory, for the queries of a piece.
  static constexpr int kQueryBytes = kHeads * mla::few_fp8::kQueryPitch;

  // Reads what is older than the kernels ahead.
  __device__ Fp8Decoder(const MlaKernelArgs& args,
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
        Piece<1>(shared, args.scale_log2),
        queries_at_(queries_at) {}

  __device__ __forceinline__ void Run(uint32_t tag) {
    tag_ = tag;
    if (!has_piece_) return;
    SyncComputers();  // what is shared lies where other phases' things were
    for (uint32_t block = 0; has_piece_; Next()) {
      Begin();
      const int count = piece_.end_block - piece_.begin_block;
      for (int i = 0; i < count; ++i) Compute(i, block + i);
      block += count;
      End();
    }
  }

 private:
  // Each warp brings the queries of a head to shared memory, as halves in the order in which four
  // lanes have 16 columns of keys (mla_decode_heads8_fp8.cu): pair p of eight is word p % 2 * 4 + p
  // /
  // 2. On the board words 2 k and 2 k + 1 are pairs k and 4 + k.
  __device__ __forceinline__ void Begin() {
    constexpr int kMails = kLatent / 2 / 64;  // of 64 words, then one of half as many
    static_assert(kRope / 2 == 32);
    const uint64_t* const folded = board_.folded[token_][warp_] + 2 * lane_;
    const uint64_t* const rotated = board_.q[token_][warp_] + kNope / 2 + lane_ % 16 * 2;
    const auto at = [&](int i) { return i < kMails ? folded + i * 64 : rotated; };
    Mail<kMails + 1> mail;
    mail.Await(Patience(conduct_), tag_, true, at);
    const int pair = lane_ % 4;
    const uint32_t to = queries_at_ + warp_ * mla::few_fp8::kQueryPitch +
                        (lane_ / 4 * 8 + pair % 2 * 4 + pair / 2) * 4;
#pragma unroll
    for (int i = 0; i <= kMails; ++i) {
      if (i == kMails && lane_ >= 16) continue;
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + i * 256), "r"(Halves(mail.word(i, 0)))
                   : "memory");
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + i * 256 + 8), "r"(Halves(mail.word(i, 1)))
                   : "memory");
    }
    SyncComputers();
    BeginPiece(queries_at_, query_position_);
  }

  __device__ __forceinline__ void Compute(int i, uint32_t block) {
    const KeyBlock keys = Look(i);
    const uint32_t at = block % Keys::kStages, stage = stage_.at + at * Keys::kStageBytes;
    hopper::Wait(stage_.full + 8 * at, block / Keys::kStages & 1);
    if (keys.fresh != 0) {
      WriteFresh(keys.fresh, [&](int token, int key) { WriteToken(stage, token, key); });
    }
    Scores(stage, 0);
    SyncComputers();
    if (keys.in_block < kMlaBlockTokens) ClearTail(stage, keys.in_block);
    const int seen[1] = {min(keys.seen, kMlaBlockTokens)};
    Softmax(seen, 1);
    SyncComputers();
    Rescale();
    Values(stage, 0);
    hopper::FinishLoads();
    __syncwarp();
    if (lane_ < conduct_.givers) hopper::Arrive(stage_.empty + 8 * at);
  }

  // A token as it is cached to key `key` of the block.
  __device__ __forceinline__ void WriteToken(uint32_t stage, int token, int key) {
    using namespace mla::few_fp8;          // NOLINT: where a block lies
    constexpr int kPairs = kMlaWidth / 8;  // of words of four codes
    const int pair = static_cast<int>(threadIdx.x);
    if (warp_ > kPairs / 32) return;
    const auto from = [&](int) { return &board_.token[token][2 * pair]; };
    Mail<1> mail;
    mail.Await(Patience(conduct_), tag_, pair < kPairs, from);
    if (pair >= kPairs) return;
    constexpr int kLatentPairs = kMlaLatent / 8;
    const int chunk = pair / 2;  // of 16 columns
    const uint32_t to = pair < kLatentPairs
                            ? stage + chunk / 8 * kPairBytes + mla::InTile(key, chunk % 8)
                            : stage + kRawRopeAt + key * 64 + ((chunk % 4 ^ key / 2 % 4) << 4);
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to + pair % 2 * 8), "r"(mail.word(0, 0)),
                 "r"(mail.word(0, 1))
                 : "memory");
  }

  // Divides by the softmax sum and hands it to those who add up pieces.
  __device__ __forceinline__ void End() {
    PutSums();
    const int slot = Slot(), column = warp_ * 64 + lane_ / 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = lane_ % 4 * 2 + r;
      const float all = rows_.sum[head];
      const float share = all == 0 ? 0 : args_.out_scale / all;
      uint64_t* const to = board_.part_out[slot][head] + column;
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        Post(to + 16 * t, __float_as_uint(all == 0 ? 0 : out_[t][r] * share), tag_);
        Post(to + 16 * t + 1, __float_as_uint(all == 0 ? 0 : out_[t][2 + r] * share), tag_);
      }
    }
    PostSums(slot, [&](int head) {
      const float all = rows_.sum[head];
      return all == 0 ? -CUDART_INF_F : rows_.reference[head] + log2f(all);
    });
    SyncComputers();  // what is shared may be overwritten
  }

  const uint32_t queries_at_;
};

}  // namespace baltoro::cuda::resident
