#pragma once

// What the phases of a resident block share (resident_attention.cu): who a thread is, products of
// strips and sums over the warps. The columns of a strip are shared by eight warps; weights are the
// 8 columns of the matrix instruction, tokens its rows (bf16_rows16.cu).

#include "ops/cuda/attention/layer/resident_layout.cuh"

namespace baltoro::cuda::resident {

inline constexpr int kGroup = 32;  // columns: 16 bytes a lane

__device__ __forceinline__ float Rounded(float x) {
  return __bfloat162float(__float2bfloat16_rn(x));
}

// This lane's part of `count` groups of a strip's row.
template <int kCount>
__device__ __forceinline__ void LoadStrip(uint4 (&w)[kCount], uint32_t at) {
#pragma unroll
  for (int g = 0; g < kCount; ++g) w[g] = LoadShared4(at + g * kGroup * 2);
}
__device__ __forceinline__ void MultiplyGroup(float (&sum)[4], const uint4& x, const uint4& w) {
  cuda::MultiplyAdd(sum, x.x, 0, x.y, 0, w.x, w.y);
  cuda::MultiplyAdd(sum, x.z, 0, x.w, 0, w.z, w.w);
}

class BlockParts {
 protected:
  __device__ BlockParts(const Params& p, Board& of_launch, char* raw)
      : p_(p),
        board_(of_launch),
        raw_(raw),
        memory_(SharedAddress(raw)),
        block_(static_cast<int>(blockIdx.x)),
        warp_(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0)),
        lane_(static_cast<int>(threadIdx.x) % 32),
        token_(lane_ / 4),
        head_(block_ / kHeadBlocks) {}

  // This lane's loads from places that `barrier` gives back are done; by whole warps.
  __device__ __forceinline__ void GiveBack(int barrier) {
    hopper::FinishLoads();
    __syncwarp();
    if (lane_ < p_.conduct.givers) hopper::Arrive(memory_ + barrier);
  }

  // Sums over the warps lie at a place of their own for each product.
  __device__ __forceinline__ void PutSums(int at, int strips, int s, const float (&sum)[4]) {
    reinterpret_cast<float2*>(raw_ + at)[(warp_ * strips + s) * 32 + lane_] =
        make_float2(sum[0], sum[1]);
  }
  template <int kOf = kWarps>
  __device__ __forceinline__ float2 GetSums(int at, int strips, int s) const {
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int w = 0; w < kOf; ++w) {
      const float2 one = reinterpret_cast<const float2*>(raw_ + at)[(w * strips + s) * 32 + lane_];
      sum.x += one.x;
      sum.y += one.y;
    }
    return sum;
  }
  // Where this lane's part of a row begins, at group `group`.
  __device__ __forceinline__ uint32_t RowOf(int strip_at,
                                            int row_bytes,
                                            int group,
                                            int shift = kShift) const {
    return memory_ + strip_at + RowAt(token_, row_bytes, shift) + lane_ % 4 * 16 +
           group * kGroup * 2;
  }

  const Params& p_;
  Board& board_;
  char* const raw_;
  const uint32_t memory_;
  const int block_, warp_, lane_, token_, head_;
  uint32_t tag_ = 0;
};

}  // namespace baltoro::cuda::resident
