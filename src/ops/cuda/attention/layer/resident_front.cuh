#pragma once

// The phases of the resident attention half up to the queries of attention, and the cached tokens.

#include "ops/cuda/attention/layer/resident_parts.cuh"
#include "ops/cuda/rows/fp8_round_device.cuh"
#include "ops/cuda/rows/norm_begun_device.cuh"

namespace baltoro::cuda::resident {

// What does not depend on the form of the weights.
class FrontParts : public BlockParts {
 protected:
  __device__ FrontParts(const Params& p, Board& of_launch, char* raw)
      : BlockParts(p, of_launch, raw), queries_(block_) {
    const int in_head = InHead();
    if (warp_ >= queries_.count || in_head < 0 || token_ >= p_.rows) return;
    const int64_t position = p_.input.positions[token_];
    angle_ = make_float2(__int_as_float(0x7FC00000), __int_as_float(0x7FC00000));
    if (position < 0 || position >= p_.input.table_positions) return;  // spoils it
    const int64_t at = position * (kRope / 2) + in_head * (kStrip / 2) + lane_ % 4;
    angle_ = make_float2(p_.input.cos[at], p_.input.sin[at]);
  }
  __device__ __forceinline__ int InputColumn() const {
    return (block_ * kInputStrips + warp_) * kStrip + lane_ % 4 * 2;
  }
  // Strip of the rotated part of a head; negative: of the other part. Of warps below
  // queries_.count.
  __device__ __forceinline__ int InHead() const {
    return (queries_.first + warp_) % (kHead / kStrip) - kNope / kStrip;
  }

  // Two columns of strip `warp_` of the queries.
  __device__ __forceinline__ void PostQuery(const float2& sum) {
    const int strip = queries_.first + warp_, head = strip / (kHead / kStrip);
    const int in_head = InHead(), pair = lane_ % 4;
    if (in_head < 0) {
      const int at_pair = strip % (kHead / kStrip) * (kStrip / 2) + pair;
      Post(&board_.q[token_][head][at_pair], hopper::PackBf16(sum.x, sum.y), tag_);
      return;
    }
    const float a = Rounded(sum.x), b = Rounded(sum.y);
    const uint32_t rotated =
        hopper::PackBf16(fmaf(a, angle_.x, -b * angle_.y), fmaf(b, angle_.x, a * angle_.y));
    Post(&board_.q[token_][head][kNope / 2 + ForProducts(in_head, pair)], rotated, tag_);
  }

  // A warp makes a strip alone.
  __device__ __forceinline__ void Folded() {
    constexpr int kEach = kNope / kGroup;
    const auto at = [&](int i) {
      return &board_.q[token_][head_][i / 2 * (kGroup / 2) + lane_ % 4 * 4 + i % 2 * 2];
    };
    Mail<2 * kEach> x;
    x.Await(Patience(p_.conduct), tag_, token_ < p_.rows, at);
    float sums[2][4] = {};
#pragma unroll
    for (int g = 0; g < kEach; ++g) MultiplyGroup(sums[g % 2], x.eight(g), key_[g]);
    if (token_ >= p_.rows) return;
    const uint32_t pair = hopper::PackBf16(sums[0][0] + sums[1][0], sums[0][1] + sums[1][1]);
    const int strip = block_ % kHeadBlocks * kFoldedStrips + warp_;
    Post(&board_.folded[token_][head_][ForProducts(strip, lane_ % 4)], pair, tag_);
  }

  // The cached token of a row by one warp: norm of the latent, rope of the key.
  template <bool kFp8Cache>
  __device__ __forceinline__ void CachedToken(int token) {
    if (token >= p_.rows) return;
    const InputParams& in = p_.input;
    const int64_t position = in.positions[token];
    const bool known = position >= 0 && position < in.table_positions;
    const bool of_key = lane_ < kRope / kEight;
    PairAngles angles;
    if (known && of_key) {
      const int64_t at = position * (kRope / 2) + lane_ * (kEight / 2);
      LoadAngles(angles, kEight, in.cos + at, in.sin + at, true);
    }
    // Mail 0 to 3: latents 8 lane and 256 + 8 lane; 4 and 5: the key's 8 lane.
    const auto at = [&](int i) {
      const int eight = i < 4 ? i / 2 * 32 + lane_ : kLatent / kEight + (of_key ? lane_ : 0);
      return &board_.inputs[token][kQLora / 2 + eight * 4 + i % 2 * 2];
    };
    Mail<6> mail;
    mail.Await(Patience(p_.conduct), tag_, true, at);
    float x[2][kEight], key[kEight];
    float squares = 0;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      WidenEight(mail.eight(e), x[e]);
      squares = AddSquares(x[e], squares);
    }
    WidenEight(mail.eight(2), key);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(~0u, squares, step);
    const float scale = 1.0f / sqrtf(squares / static_cast<float>(kLatent) + in.eps);
    uint8_t* const to = TokenAt(in.cache, in.slots[token]);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float weight[kEight];
      const int column = e * 256 + lane_ * kEight;
      LoadWhole(in.kv_norm + column, weight);
      Normalise(x[e], scale, weight);
      RoundToBf16(x[e]);
      WriteEight<kFp8Cache>(token, to, column, x[e]);
    }
    if (!of_key) return;
    if (known) {
      RotateEight(key, angles);
    } else {
      Spoil(key);
    }
    RoundToBf16(key);
    const int column = kLatent + lane_ * kEight;
    WriteEight<kFp8Cache>(token, to, column, key);
  }
  // Eight columns to the cache (`to` may be null) and to the board, as they are cached.
  template <bool kFp8Cache>
  __device__ __forceinline__ void WriteEight(int token,
                                             uint8_t* to,
                                             int column,
                                             const float (&x)[kEight]) {
    if constexpr (kFp8Cache) {
      const uint2 codes = PackEightE4m3(x, p_.input.cache.scale);
      if (to != nullptr) *reinterpret_cast<uint2*>(to + column) = codes;
      Post(&board_.token[token][column / 4], codes.x, tag_);
      Post(&board_.token[token][column / 4 + 1], codes.y, tag_);
    } else {
      if (to != nullptr) StoreWhole(reinterpret_cast<__nv_bfloat16*>(to) + column, x);
#pragma unroll
      for (int i = 0; i < kEight / 2; ++i) {
        Post(&board_.token[token][column / 2 + i], hopper::PackBf16(x[2 * i], x[2 * i + 1]), tag_);
      }
    }
  }

  const QueryStrips queries_;
  float2 angle_;
  uint4 key_[kNope / kGroup];  // of this warp's strip of the head's key matrix
};

template <int kChunk>
class FrontHalf : public FrontParts {
  using Place = Layout<kChunk>;

 public:
  // Reads what is older than the kernels ahead.
  __device__ FrontHalf(const Params& p, Board& of_launch, char* raw)
      : FrontParts(p, of_launch, raw), q_norm_(make_float2(0, 0)) {
    const int column = InputColumn();
    if (warp_ < kInputStrips && column < kQLora) {
      q_norm_ = __ldg(reinterpret_cast<const float2*>(p_.input.q_norm + column));
    }
  }

  __device__ __forceinline__ void Run(uint32_t tag) {
    tag_ = tag;
    Inputs();
    if (block_ < kOwners) {
      Queries();
      if (warp_ < kFoldedStrips) Folded();
      return;
    }
    LeaveToKeys();
    if (warp_ * kTokenBlocks < kRows) CachedToken<false>(block_ - kOwners + warp_ * kTokenBlocks);
  }

 private:
  // This warp has in registers what keys of attention may come to lie over.
  __device__ __forceinline__ void LeaveToKeys() { GiveBack(Place::kKeysEmpty); }

  __device__ __forceinline__ void Inputs() {
    constexpr int kEach = kChunk / kGroup, kHalves = Place::kChunks / kWarps;
    uint4 x[kHalves][kEach];
    const char* const row = p_.x + token_ * p_.x_row_bytes + lane_ % 4 * 16;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int g = 0; g < kEach; ++g) {
        x[h][g] = make_uint4(0, 0, 0, 0);
        if (token_ >= p_.rows) continue;
        const int64_t at = (h * kWarps + warp_) * Place::kChunkBytes + g * kGroup * 2;
        x[h][g] = __ldcg(reinterpret_cast<const uint4*>(row + at));
      }
    }
    const bool scales = p_.from.squares != nullptr && warp_ < p_.rows;
    float4 parts = make_float4(0, 0, 0, 0);
    if (scales) parts = LoadSquares(p_.from, warp_, lane_);
#pragma unroll
    for (int s = 0; s < kInputStrips; ++s) {
      float sums[2][4] = {};
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const int stage = s * Place::kChunks + h * kWarps + warp_, slot = stage % Place::kSlots;
        hopper::Wait(memory_ + Place::kFull + 8 * stage, 0);
        const uint32_t at = RowOf(slot * Place::kSlot, Place::kChunkBytes, 0);
#pragma unroll
        for (int g = 0; g < kEach; ++g) {
          MultiplyGroup(sums[g % 2], x[h][g], LoadShared4(at + g * kGroup * 2));
        }
        GiveBack(Place::kEmpty + 8 * slot);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[0][e] += sums[1][e];
      PutSums(Place::kInputSums, kInputStrips, s, sums[0]);
    }
    auto* const scale_of = reinterpret_cast<float*>(raw_ + Place::kInputScales);
    if (scales) {
      const float scale = RowScale(p_.from, parts);
      if (lane_ == 0) scale_of[warp_] = scale;
    }
    SyncComputers();
    if (warp_ >= kInputStrips) return;
    const float2 sum = GetSums(Place::kInputSums, kInputStrips, warp_);
    const float scale = p_.from.squares != nullptr && token_ < p_.rows ? scale_of[token_] : 1;
    const float a = Rounded(sum.x * scale), b = Rounded(sum.y * scale);
    const int column = InputColumn();
    uint32_t pair = hopper::PackBf16(a, b);
    float squares = 0;
    if (column < kQLora) {
      pair = hopper::PackBf16(a * q_norm_.x, b * q_norm_.y);
      squares = SumOfFour(fmaf(a, a, b * b));
    }
    if (token_ >= p_.rows) return;
    Post(&board_.inputs[token_][column / 2], pair, tag_);
    if (column < kQLora && lane_ % 4 == 0) {
      Post(&board_.squares[token_][column / kStrip], __float_as_uint(squares), tag_);
    }
  }

  __device__ __forceinline__ void Queries() {
    constexpr int kEach = kQLora / kGroup / kWarps, kParts = kQLora / kStrip / 64;
    hopper::Wait(memory_ + Place::kQueryFull, 0);
    uint4 w[2][kEach];
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      if (s < queries_.count) {
        LoadStrip(w[s],
                  RowOf(Place::kQuery + s * StripBytes(2 * kQLora), 2 * kQLora, warp_ * kEach));
      }
    }
    if (warp_ < kFoldedStrips) {
      hopper::Wait(memory_ + Place::kKeyFull, 0);
      LoadStrip(key_, RowOf(Place::kKey + warp_ * StripBytes(2 * kNope), 2 * kNope, 0));
    }
    LeaveToKeys();
    const auto at = [&](int i) {
      return &board_.inputs[token_]
                           [(warp_ * kEach + i / 2) * (kGroup / 2) + lane_ % 4 * 4 + i % 2 * 2];
    };
    const auto squares_at = [&](int i) { return &board_.squares[warp_][i * 64 + lane_ * 2]; };
    Mail<2 * kEach> x;
    Mail<kParts> squares;
    const bool has_token = token_ < p_.rows, has_squares = warp_ < p_.rows;
    Patience patience(p_.conduct);
    do {
      x.Ask(has_token, at);
      squares.Ask(has_squares, squares_at);
    } while (patience.Again(x.Missing(has_token, tag_) || squares.Missing(has_squares, tag_)));
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      if (s >= queries_.count) break;
      float sums[2][4] = {};
#pragma unroll
      for (int g = 0; g < kEach; ++g) MultiplyGroup(sums[g % 2], x.eight(g), w[s][g]);
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[0][e] += sums[1][e];
      PutSums(Place::kQuerySums, 2, s, sums[0]);
    }
    auto* const scale_of = reinterpret_cast<float*>(raw_ + Place::kQueryScales);
    if (has_squares) {
      float all = 0;
#pragma unroll
      for (int i = 0; i < kParts; ++i) all += squares.number(i, 0) + squares.number(i, 1);
#pragma unroll
      for (int step = 16; step > 0; step /= 2) all += __shfl_xor_sync(~0u, all, step);
      if (lane_ == 0) {
        scale_of[warp_] = 1.0f / sqrtf(all / static_cast<float>(kQLora) + p_.input.eps);
      }
    }
    SyncComputers();
    if (warp_ >= queries_.count || token_ >= p_.rows) return;
    float2 sum = GetSums(Place::kQuerySums, 2, warp_);
    const float scale = scale_of[token_];
    sum.x *= scale;
    sum.y *= scale;
    PostQuery(sum);
  }

  float2 q_norm_;
};

}  // namespace baltoro::cuda::resident
