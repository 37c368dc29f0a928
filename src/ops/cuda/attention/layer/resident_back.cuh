#pragma once

// The phases of the resident attention half behind attention: the sum of its pieces, value heads,
// the product with the sum with the residual.

#include "ops/cuda/attention/layer/resident_parts.cuh"
#include "ops/cuda/rows/norm_begun_device.cuh"

namespace baltoro::cuda::resident {

// What does not depend on the form of the weights.
class BackParts : public BlockParts {
 protected:
  // Reads what is older than the kernels ahead.
  __device__ BackParts(const Params& p, Board& of_launch, char* raw)
      : BlockParts(p, of_launch, raw) {
    if (block_ < kOwners) PrepareMerge();
  }

  static constexpr int kLanePieces = (kBlocks + 31) / 32;  // a lane's share of all parts

  // Which pieces this warp adds up: every `merge_step_`-th of row `merge_row_`. By whole warps.
  __device__ __forceinline__ void PrepareMerge() {
    merge_step_ = kWarps / p_.rows;
    merge_row_ = warp_ / merge_step_;
    merge_compact_ = -1;
    pieces_ = 0;
    if (merge_row_ >= p_.rows) return;
    for (int i = 0; i < p_.rows; ++i) {
      if (__ldg(p_.row_of + i) == merge_row_) merge_compact_ = i;
    }
    if (merge_compact_ < 0) return;
    pieces_ = 1;
    first_slot_ = kWholeSlot + merge_compact_;
    FindMerge(p_.mla.plan, merge_compact_ * kHeads, [&](const MlaMerge& merge) {
      pieces_ = merge.count;
      first_slot_ = merge.first_slot;
      second_slot_ = merge.second_slot;
      slot_stride_ = merge.stride;
      cut_ = true;
    });
  }
  __device__ __forceinline__ int SlotOf(int piece) const {
    return piece == 0 ? first_slot_ : second_slot_ + (piece - 1) * slot_stride_;
  }

  // Of this warp's pieces the weighted sum of this lane's column; kBatch asked for at a time, and a
  // lane has kLanes shares of all of them.
  template <class Place, int kBatch, int kLanes>
  __device__ __forceinline__ float AddPieces(int group, int column) {
    float sum = 0;
    // Of each piece, for all lanes.
    auto* const weights = reinterpret_cast<float*>(raw_ + Place::kWeights) + warp_ * kBlocks;
    float share = 0;
    for (int first = group; first < pieces_; first += kBatch * merge_step_) {
      Letters<kBatch> outs;
      Letters<kLanes> sums;
      const bool at_first = first == group;
      // The first piece lies elsewhere than the others, which are as far from each other.
      const int left = pieces_ - first, step = merge_step_ * slot_stride_ * kHeads * kLatent;
      const uint64_t* const out = board_.part_out[SlotOf(first)][head_] + column;
      const uint64_t* const next =
          board_.part_out[0][head_] + column +
          int64_t{second_slot_ + (first - 1) * slot_stride_} * (kHeads * kLatent);
      const auto wanted = [&](int i) { return i * merge_step_ < left; };
      const auto at = [&](int i) { return i == 0 ? out : next + i * step; };
      const uint64_t* const sum_out = board_.part_lse[block_] + SlotOf(lane_);
      const uint64_t* const sum_next =
          board_.part_lse[block_] + second_slot_ + (lane_ - 1) * slot_stride_;
      const auto has_sum = [&](int i) { return at_first && cut_ && i * 32 + lane_ < pieces_; };
      const auto sum_at = [&](int i) {
        return i == 0 ? sum_out : sum_next + i * 32 * slot_stride_;
      };
      Patience patience(p_.conduct);
      do {
        sums.Ask(has_sum, sum_at);
        outs.Ask(wanted, at);
      } while (patience.Again(sums.Missing(has_sum, tag_) || outs.Missing(wanted, tag_)));
      if (at_first) share = Weigh(weights, sums);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (wanted(i)) sum = fmaf(weights[first + i * merge_step_], outs.number(i), sum);
      }
    }
    return sum * share;
  }

  // The sum of the pieces of 32 latent columns of a head, for all tokens.
  template <class Place>
  __device__ __forceinline__ void Merge() {
    const int column = block_ % kHeadBlocks * kMergeColumns + lane_;
    const int group = warp_ - merge_row_ * merge_step_;
    // Few pieces by shorter code, as it is run once.
    constexpr int kFew = 4;
    const bool few = pieces_ <= min(kFew * merge_step_, 32);
    float sum = few ? AddPieces<Place, kFew, 1>(group, column)
                    : AddPieces<Place, 16, kLanePieces>(group, column);
    auto* const merged = reinterpret_cast<float*>(raw_ + Place::kMerged);
    merged[warp_ * 32 + lane_] = sum;
    SyncComputers();
    if (merge_row_ >= p_.rows || group != 0) return;
    for (int other = 1; other < merge_step_; ++other) sum += merged[(warp_ + other) * 32 + lane_];
    const float next = __shfl_down_sync(~0u, sum, 1);
    if (lane_ % 2 != 0) return;
    Post(&board_.latent[merge_row_][head_][column / 2], hopper::PackBf16(sum, next), tag_);
  }
  // `weights` of the pieces, by which they are multiplied, and by what their sum is then.
  template <int kLanes>
  __device__ __forceinline__ float Weigh(float* weights, const Letters<kLanes>& sums) const {
    float lse[kLanes];
    float highest = -CUDART_INF_F;
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      lse[i] = cut_ && i * 32 + lane_ < pieces_ ? sums.number(i) : -CUDART_INF_F;
      highest = fmaxf(highest, lse[i]);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, step));
    }
    const float base = highest == -CUDART_INF_F ? 0 : highest;
    float all = 0;
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      const float weight = hopper::Exp2(lse[i] - base);
      all += weight;
      if (i * 32 + lane_ < pieces_) weights[i * 32 + lane_] = cut_ ? weight : 1;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) all += __shfl_xor_sync(~0u, all, step);
    __syncwarp();
    return !cut_ ? 1.0f : all == 0 ? 0 : 1 / all;
  }

  template <class Place>
  __device__ __forceinline__ void Values() {
    constexpr int kEach = kLatent / kGroup / kWarps;
    hopper::Wait(memory_ + Place::kValueFull, 0);
    uint4 w[kEach];
    LoadStrip(w, RowOf(Place::kValueAt, 2 * kLatent, warp_ * kEach, Place::kValueShift));
    const auto at = [&](int i) {
      return &board_.latent[token_][head_]
                           [(warp_ * kEach + i / 2) * (kGroup / 2) + lane_ % 4 * 4 + i % 2 * 2];
    };
    Mail<2 * kEach> x;
    x.Await(Patience(p_.conduct), tag_, token_ < p_.rows, at);
    float sum[4] = {};
#pragma unroll
    for (int g = 0; g < kEach; ++g) MultiplyGroup(sum, x.eight(g), w[g]);
    PutSums(Place::kValueSums, 1, 0, sum);
    SyncComputers();
    if (warp_ != 0 || token_ >= p_.rows) return;
    const float2 total = GetSums(Place::kValueSums, 1, 0);
    const int pair = (head_ * kValue + block_ % kHeadBlocks * kStrip) / 2 + lane_ % 4;
    Post(&board_.value[token_][pair], hopper::PackBf16(total.x, total.y), tag_);
  }

  int merge_row_ = 0, merge_step_ = 1, merge_compact_ = -1;
  int pieces_ = 0, first_slot_ = 0, second_slot_ = 0, slot_stride_ = 0;
  bool cut_ = false;
};

template <int kChunk>
class BackHalf : public BackParts {
  using Place = Layout<kChunk>;

 public:
  __device__ BackHalf(const Params& p, Board& of_launch, char* raw)
      : BackParts(p, of_launch, raw) {}

  __device__ __forceinline__ void Run(uint32_t tag) {
    if (block_ >= kOwners) return;
    tag_ = tag;
    LoadOut();
    Merge<Place>();
    Values<Place>();
    Out();
  }

 private:
  static constexpr int kOutGroups = kHeads * kValue / kGroup / kWarps;

  // The last weights into registers, while pieces are waited for: later it would be waited for.
  __device__ __forceinline__ void LoadOut() {
    constexpr int kRowBytes = kHeads * kValue * 2;
    hopper::Wait(memory_ + Place::kOutFull, 0);
#pragma unroll
    for (int s = 0; s < kOutStrips; ++s) {
      LoadStrip(out_[s],
                RowOf(Place::kOut + s * StripBytes(kRowBytes), kRowBytes, warp_ * kOutGroups));
    }
  }

  __device__ __forceinline__ void Out() {
    constexpr int kEach = kOutGroups;
    const int column = (block_ * kOutStrips + warp_) * kStrip + lane_ % 4 * 2;
    float2 held = make_float2(0, 0), weight = make_float2(0, 0);
    if (p_.to.residual != nullptr && warp_ < kOutStrips) {
      weight = __ldg(reinterpret_cast<const float2*>(p_.to.weight + column));
      if (token_ < p_.rows) {
        held = __ldcg(reinterpret_cast<const float2*>(p_.to.residual +
                                                      token_ * p_.to.residual_stride + column));
      }
    }
    const auto at = [&](int i) {
      return &board_.value[token_]
                          [(warp_ * kEach + i / 2) * (kGroup / 2) + lane_ % 4 * 4 + i % 2 * 2];
    };
    Mail<2 * kEach> x;
    x.Await(Patience(p_.conduct), tag_, token_ < p_.rows, at);
    float sums[kOutStrips][4] = {};
#pragma unroll
    for (int g = 0; g < kEach; ++g) {
#pragma unroll
      for (int s = 0; s < kOutStrips; ++s) MultiplyGroup(sums[s], x.eight(g), out_[s][g]);
    }
#pragma unroll
    for (int s = 0; s < kOutStrips; ++s) PutSums(Place::kOutSums, kOutStrips, s, sums[s]);
    SyncComputers();
    auto* const squares_of = reinterpret_cast<float*>(raw_ + Place::kSquares);  // [strip][token]
    if (warp_ < kOutStrips) {
      const float2 sum = GetSums(Place::kOutSums, kOutStrips, warp_);
      if (p_.to.residual != nullptr) {
        float own = 0;
        if (token_ < p_.rows) own = AddToNorm(p_.to, token_, column, held, sum, weight);
        own = SumOfFour(own);
        if (lane_ % 4 == 0) squares_of[warp_ * kRows + token_] = own;
      } else if (token_ < p_.rows) {
        *reinterpret_cast<float2*>(p_.out + token_ * p_.out_stride + column) = sum;
      }
    }
    if (p_.to.residual == nullptr) return;
    SyncComputers();
    if (threadIdx.x >= static_cast<unsigned>(p_.rows)) return;
    float sum = 0;
#pragma unroll
    for (int s = 0; s < kOutStrips; ++s) sum += squares_of[s * kRows + threadIdx.x];
    WriteSquares(p_.to, static_cast<int>(threadIdx.x), block_, kOwners, sum);
  }

  uint4 out_[kOutStrips][kOutGroups];  // this warp's columns of the last weights
};

}  // namespace baltoro::cuda::resident
