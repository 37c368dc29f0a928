// The wide form of the FP8 products (fp8_bank.h): tens of rows a matrix and more.
//
// A block takes 256 rows of weights by up to 128 rows of x at a time, a share of all such pieces.
// Two warpgroups take twice 64 rows of weights each, the first operand of wgmma; the rows of x are
// its columns, so that a tile of 85 rows costs 96. One thread asks the copy engine for the weights,
// four warps copy rows of x wherever they lie, 16 bytes at a time. The sum of a stage, 128 columns,
// is scaled and added up in f32 (the instruction itself adds with fewer bits).
//
// Of gate and up a block takes 128 rows each: it has a whole group of the middle, and rounds it to
// e4m3 where it is.
//
// Floor: 2 n k T operations over the card's FP8 rate, or the bytes of the chosen matrices over the
// read bandwidth.

#include <cuda_fp8.h>

#include <algorithm>
#include <cstdlib>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/fp8_bank.h"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/moe_device.cuh"
#include "ops/cuda/moe_group_multiply.cuh"
#include "ops/cuda/product_layout.h"
#include "ops/cuda/product_wide_multiply.cuh"
#include "ops/cuda/tensor_map.h"

namespace baltoro::cuda {
namespace {

constexpr int kStages = 4;
constexpr int kConsumerWarps = 8;
constexpr int kConsumers = 32 * kConsumerWarps;
constexpr int kProducers = 128;
constexpr int kThreads = kConsumers + kProducers;
constexpr int kTileRows = kFp8WideRows;
constexpr int kWeightRows = 256;
constexpr int kBoxBytes = 128 * 128;  // 128 rows, 128 columns
constexpr int kWeightBytes = 2 * kBoxBytes;
constexpr int kStageBytes = kWeightBytes + kBoxBytes;
// Scales of a stage: of the rows of x, those that a lane takes together (rows 2 t and 2 t + 1 of
// every 8 for t = lane % 4), then of bands of 8 rows of weights. They are read while the stage may
// be filled again, hence twice as many of them.
constexpr int kScaleStages = 2 * kStages;
constexpr int kScalePitch = (kTileRows / 4 + 4) * 4;
constexpr int kScaleBytes = 4 * kScalePitch + kWeightRows / 8 * 4;
constexpr int kCodePitch = 128 + 16;   // results on their way out: rows of codes,
constexpr int kSharePitch = 256 + 16;  // or 16 rows of bf16, two buffers a warpgroup
constexpr int kShareBytes = 16 * kSharePitch;
constexpr int kStagingBytes = std::max(kTileRows * kCodePitch, 4 * kShareBytes);
constexpr int kSharedBytes =
    1024 + kStages * (kStageBytes + 16) + kScaleStages * kScaleBytes + kStagingBytes;

struct WideParams {
  const char* scales;  // of the first matrix
  int64_t slot_bytes;
  int32_t n, half, steps, strips;
  const char* x;
  int64_t x_row_bytes;
  const float* x_scales;
  void* out;
  float* out_scales;
  int64_t out_stride;
  const MoeTile* tiles;
  const int32_t* num_tiles;
  const int32_t* order;
  int32_t top_k;
  bool gather, scatter, pair, ordered, out_f32;
  int32_t rows, tile_rows;  // of a product without tiles
  int32_t parts;            // that share the columns; 1, or `out` holds as many results
  const float* route_weights;
};

struct Ring {
  uint32_t operands, scales, full, empty;
  int stage = 0, scale_stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
    if (++scale_stage == kScaleStages) scale_stage = 0;
  }
  __device__ __forceinline__ uint32_t Weights() const { return operands + stage * kStageBytes; }
  __device__ __forceinline__ uint32_t Input() const { return Weights() + kWeightBytes; }
  __device__ __forceinline__ uint32_t Scales() const { return scales + scale_stage * kScaleBytes; }
  __device__ __forceinline__ uint32_t Full() const { return full + 8 * stage; }
  __device__ __forceinline__ uint32_t Empty() const { return empty + 8 * stage; }
};

__device__ __forceinline__ MoeTile LoadTile(const WideParams& p, int at) {
  if (p.tiles == nullptr) {
    return {0, at * p.tile_rows, min(p.tile_rows, p.rows - at * p.tile_rows), 0};
  }
  const int4 raw = __ldcg(reinterpret_cast<const int4*>(p.tiles) + at);
  return {raw.x, raw.y, raw.z, 0};
}

// The pieces of a block: of all tiles and strips a share. The two blocks of a pair take
// neighbouring tiles and the same strip; where both are of one matrix, each fetches half of its
// rows for both.
struct Pieces {
  int unit, units, step, rank, tiles, strips, part_units;
  __device__ __forceinline__ Pieces(const WideParams& p) {
    tiles = p.tiles == nullptr ? (p.rows + p.tile_rows - 1) / p.tile_rows : __ldcg(p.num_tiles);
    strips = p.strips;
    const int blocks = p.pair ? 2 : 1;
    rank = static_cast<int>(blockIdx.x) % blocks;
    unit = static_cast<int>(blockIdx.x) / blocks;
    step = static_cast<int>(gridDim.x) / blocks;
    part_units = (tiles + blocks - 1) / blocks * strips;
    units = part_units * p.parts;
  }
  __device__ __forceinline__ bool Done() const { return unit >= units; }
  __device__ __forceinline__ void Next() { unit += step; }
  __device__ __forceinline__ int Strip() const { return unit % part_units % strips; }
  __device__ __forceinline__ int First(const WideParams& p) const {
    return unit % part_units / strips * (p.pair ? 2 : 1);
  }
  __device__ __forceinline__ int Part() const { return unit / part_units; }
  // Of this part: its first step, or that after its last.
  __device__ __forceinline__ int Step(const WideParams& p, int further) const {
    return p.steps * (Part() + further) / p.parts;
  }
};

struct PairedTile {
  MoeTile tile;
  bool shared;  // with the other block
  bool again;   // the other block's: there is none for this one
};

__device__ __forceinline__ PairedTile TileOf(const WideParams& p, const Pieces& pieces) {
  const int first = pieces.First(p);
  const MoeTile one = LoadTile(p, first);
  if (!p.pair) return {one, false, false};
  if (first + 1 >= pieces.tiles) return {one, true, pieces.rank == 1};
  const MoeTile two = LoadTile(p, first + 1);
  return {pieces.rank == 0 ? one : two, one.slot == two.slot, false};
}

__device__ __forceinline__ void CopyBoxToBoth(
    uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(static_cast<uint16_t>(3))
      : "memory");
}

// Only reads of shared memory go before: no fence, which would wait for the whole card.
__device__ __forceinline__ void ArriveAtOther(uint32_t barrier, int other) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}\n" ::"r"(barrier),
      "r"(other)
      : "memory");
}

__device__ __forceinline__ void ClusterBarrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

__device__ __forceinline__ void Copy16(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to_shared), "l"(from)
               : "memory");
}
__device__ __forceinline__ void Copy4(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to_shared), "l"(from) : "memory");
}

// The four producer warps: eight threads a row of x, rows thread / 8 and every 16th from there.
template <bool kGated>
__device__ void Produce(const WideParams& p, const CUtensorMap* map, Pieces pieces, Ring ring) {
  constexpr int kStep = kProducers / 8, kRows = kTileRows / kStep;
  const int thread = threadIdx.x - kConsumers;
  const int row = thread / 8, chunk = thread % 8;
  const uint32_t to_row = row * 128 + ((chunk ^ (row & 7)) << 4);
  const uint32_t to_scale = (thread % 8 / 2 * (kScalePitch / 4) + thread / 8 * 2 + thread % 2) * 4;
  for (; !pieces.Done(); pieces.Next()) {
    const PairedTile paired = TileOf(p, pieces);
    const MoeTile tile = paired.tile;
    const int strip = pieces.Strip();
    const int low = strip * (kGated ? 128 : kWeightRows);  // first rows of the two boxes
    const int high = low + (kGated ? p.half : 128);
    const auto source = [&](int i) {
      const int at = tile.begin + min(i, tile.count - 1);
      return p.gather ? __ldcg(p.order + at) / p.top_k : at;
    };
    uint32_t from[kRows];  // in 16 bytes
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      from[i] = static_cast<uint32_t>(source(row + kStep * i) * (p.x_row_bytes / 16));
    }
    const float* row_scales = p.x_scales + static_cast<int64_t>(source(thread)) * p.steps;
    const int band_row = thread < 16 ? low + thread * 8 : high + (thread - 16) * 8;
    const float* band_scales = reinterpret_cast<const float*>(p.scales + tile.slot * p.slot_bytes) +
                               static_cast<int64_t>(min(band_row / 8, (p.n - 1) / 8)) * p.steps;
    const int last = pieces.Step(p, 1);
    int step = pieces.Step(p, 0);
    const char* columns = p.x + step * 128 + chunk * 16;
    for (; step < last; ++step, columns += 128) {
      BarrierWait(ring.Empty(), ring.parity ^ 1);
      if (thread == 0) {
        BarrierExpectBytes(ring.Full(), kWeightBytes);
        if (paired.shared) {
          CopyBoxToBoth(ring.Weights() + pieces.rank * kBoxBytes, map, ring.Full(), step * 128,
                        pieces.rank == 0 ? low : high, tile.slot);
        } else {
          hopper::CopyBox(ring.Weights(), map, ring.Full(), step * 128, low, tile.slot);
          hopper::CopyBox(ring.Weights() + kBoxBytes, map, ring.Full(), step * 128, high,
                          tile.slot);
        }
      }
      const uint32_t to = ring.Input() + to_row;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (row + kStep * i >= tile.count) break;
        Copy16(to + i * kStep * 128, columns + static_cast<uint64_t>(from[i]) * 16);
      }
      Copy4(ring.Scales() + to_scale, row_scales + step);
      if (thread < kWeightRows / 8) {
        Copy4(ring.Scales() + 4 * kScalePitch + thread * 4, band_scales + step);
      }
      asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(ring.Full())
                   : "memory");
      ring.Next();
    }
  }
}

__device__ __forceinline__ float2 LoadShared2f(uint32_t address) {
  const uint2 v = LoadShared2(address);
  return make_float2(__uint_as_float(v.x), __uint_as_float(v.y));
}

template <int kN>
__device__ __forceinline__ void Multiply(float (&sums)[kN / 2], uint64_t a, uint64_t b) {
  hopper::Pin(sums);
  GroupFence();
#pragma unroll
  for (int i = 0; i < 4; ++i) GroupMultiplyShared<kN>::E4m3(sums, a + 2 * i, b + 2 * i, i);
  GroupCommit();
}

// The warpgroups take turns: one scales its sums while the other's are made.
__device__ __forceinline__ void WaitForTurn(const WideParams& p, int group) {
  if (p.ordered) hopper::NamedSync(4 + group, kConsumers);
}
__device__ __forceinline__ void PassTurn(const WideParams& p, int group) {
  if (p.ordered) asm volatile("bar.arrive %0, %1;" ::"r"(5 - group), "n"(kConsumers) : "memory");
}

// scaled += sums * the scales of the rows of x * those of the lane's two rows of weights.
template <int kN>
__device__ __forceinline__ void AddScaled(float (&scaled)[kN / 2],
                                          float (&sums)[kN / 2],
                                          uint32_t scales,
                                          float2 weights) {
  const uint32_t at = scales + threadIdx.x % 4 * kScalePitch;
  if (weights.x != weights.y) {  // hardly ever; by whole warps
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) sums[i] *= i % 4 < 2 ? weights.x : weights.y;
    weights.x = 1;
  }
#pragma unroll
  for (int j = 0; j < kN / 16; ++j) {
    const uint4 x = LoadShared4(at + j * 16);
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float scale = __uint_as_float(words[i]) * weights.x;
      const int to = 8 * j + i / 2 * 4 + i % 2;
      scaled[to] += sums[to] * scale;
      scaled[to + 2] += sums[to + 2] * scale;
    }
  }
}

// What the warpgroups share beside the ring.
struct Shared {
  float largest[kConsumerWarps][kTileRows];
  float undo[kTileRows];  // one over the scale of a row of results
  int32_t row[2][kTileRows];
  float factor[2][kTileRows];
};

// silu(gate) * up of 128 columns and kN rows, rounded to e4m3.
template <int kN>
__device__ __forceinline__ void StoreMiddle(const WideParams& p,
                                            const MoeTile& tile,
                                            int strip,
                                            Shared& shared,
                                            uint32_t staging,
                                            float (&gate)[kN / 2],
                                            const float (&up)[kN / 2]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) {
    gate[i] = __fdividef(gate[i], 1.0f + __expf(-gate[i])) * up[i];
  }
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float largest = fmaxf(fabsf(gate[4 * j + e]), fabsf(gate[4 * j + 2 + e]));
      for (int d = 4; d < 32; d *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, d));
      }
      if (lane < 4) shared.largest[warp][j * 8 + lane * 2 + e] = largest;
    }
  }
  hopper::NamedSync(1, kConsumers);
  const int groups = p.half / 128;
  if (threadIdx.x < kN) {
    float largest = 1e-4f;
#pragma unroll
    for (int w = 0; w < kConsumerWarps; ++w) {
      largest = fmaxf(largest, shared.largest[w][threadIdx.x]);
    }
    const float scale = __fdiv_rn(largest, 448.0f);
    shared.undo[threadIdx.x] = __fdiv_rn(1.0f, scale);
    if (threadIdx.x < tile.count) {
      p.out_scales[static_cast<int64_t>(tile.begin + threadIdx.x) * groups + strip] = scale;
    }
  }
  hopper::NamedSync(1, kConsumers);
  // Of four columns c the bytes are c, c+2, c+1, c+3 (product_layout.h).
  const int column = warp * 16 + lane / 4, in_word = column % 4;
  const int place = column - in_word + (in_word == 1 || in_word == 2 ? 3 - in_word : in_word);
  const uint32_t to = staging + lane % 4 * 2 * kCodePitch + place;
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
    const float2 undo = *reinterpret_cast<const float2*>(&shared.undo[j * 8 + lane % 4 * 2]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = 4 * j + 2 * half;
      const uint32_t codes = __nv_cvt_float2_to_fp8x2(
          make_float2(gate[i] * undo.x, gate[i + 1] * undo.y), __NV_SATFINITE, __NV_E4M3);
      const uint32_t at = to + j * 8 * kCodePitch + half * 8;
      asm volatile("st.shared.u8 [%0], %1;" ::"r"(at), "r"(codes) : "memory");
      asm volatile("st.shared.u8 [%0], %1;" ::"r"(at + kCodePitch), "r"(codes >> 8) : "memory");
    }
  }
  hopper::NamedSync(1, kConsumers);
  for (int i = threadIdx.x; i < tile.count * 8; i += kConsumers) {
    const uint4 v = LoadShared4(staging + i / 8 * kCodePitch + i % 8 * 16);
    *reinterpret_cast<uint4*>(static_cast<char*>(p.out) + (tile.begin + i / 8) * p.out_stride +
                              strip * 128 + i % 8 * 16) = v;
  }
}

// Four 8x8 matrices of bf16, each transposed; lane l gives the address of row l % 8 of matrix l
// / 8.
__device__ __forceinline__ void StoreTransposed(uint32_t address, const uint32_t (&m)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3])
      : "memory");
}

// A warpgroup's 128 columns of results and kN rows, in bf16, 16 rows at a time through shared
// memory, so that lines are written whole.
template <int kN>
__device__ __forceinline__ void StoreShares(const WideParams& p,
                                            int count,
                                            int first,
                                            const int32_t* rows,
                                            const float* factors,
                                            uint32_t staging,
                                            const float (&acc)[2][kN / 2]) {
  const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
  const int warp = thread / 32, lane = threadIdx.x % 32;
  const uint32_t own = staging + group * 2 * kShareBytes;
  const uint32_t to =
      own + (lane / 16 * 8 + lane % 8) * kSharePitch + lane / 8 % 2 * 16 + warp * 32;
  const int column = first + thread % 16 * 8;
#pragma unroll
  for (int j = 0; j < kN / 8; j += 2) {
    const uint32_t buffer = j / 2 % 2 * kShareBytes;
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      uint32_t pairs[4];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const int row = (j + m / 2) * 8 + lane % 4 * 2, at = (j + m / 2) * 4 + m % 2 * 2;
        pairs[m] =
            hopper::PackBf16(acc[block][at] * factors[row], acc[block][at + 1] * factors[row + 1]);
      }
      StoreTransposed(to + buffer + block * 128, pairs);
    }
    hopper::NamedSync(2 + group, 128);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int in_chunk = half * 8 + thread / 16, row = j * 8 + in_chunk;
      const uint4 v = LoadShared4(own + buffer + in_chunk * kSharePitch + thread % 16 * 16);
      if (row >= count || column >= p.n) continue;
      *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(p.out) +
                                static_cast<int64_t>(rows[row]) * p.out_stride + column) = v;
    }
  }
  // The next piece's first rows go into the first buffer, last read two rounds ago or, where there
  // is only one, just now.
  hopper::NamedSync(2 + group, 128);
}

// The stage may be filled again; in a pair, by both blocks.
__device__ __forceinline__ void Release(const WideParams& p, const Ring& ring, int lane) {
  if (lane != 0) return;
  BarrierArrive(ring.Empty());
  if (p.pair) ArriveAtOther(ring.Empty(), 1 - static_cast<int>(blockIdx.x) % 2);
}

// The same in f32, from the registers: eight neighbouring columns of a row at a time.
template <int kN>
__device__ __forceinline__ void StoreFloats(const WideParams& p,
                                            int part,
                                            int count,
                                            int first,
                                            const int32_t* rows,
                                            const float* factors,
                                            const float (&acc)[2][kN / 2]) {
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  const int low = first + warp * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) {
    const int row = i / 4 * 8 + lane % 4 * 2 + i % 2;
    if (row >= count) continue;
    float* out = static_cast<float*>(p.out) +
                 (static_cast<int64_t>(part) * p.rows + rows[row]) * p.out_stride;
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      const int column = low + block * 64 + (i % 4 < 2 ? 0 : 8);
      if (column < p.n) out[column] = acc[block][i] * factors[row];
    }
  }
}

template <bool kGated, int kN>
__device__ __forceinline__ void MultiplyPiece(const WideParams& p,
                                              const MoeTile& tile,
                                              const Pieces& pieces,
                                              int buffer,
                                              Shared& shared,
                                              uint32_t staging,
                                              Ring& ring) {
  const int group = threadIdx.x / 128, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  // The two blocks of 64 rows, in bytes of the stage's weights.
  const uint32_t first_block = group * (kGated ? kBoxBytes / 2 : kBoxBytes);
  constexpr uint32_t kNextBlock = kGated ? kBoxBytes : kBoxBytes / 2;
  const uint32_t bands = 4 * kScalePitch + (first_block / 1024 + warp * 2) * 4;
  float scaled[2][kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) scaled[0][i] = scaled[1][i] = 0;
  const int steps = pieces.Step(p, 1) - pieces.Step(p, 0);
  for (int step = 0; step < steps; ++step) {
    BarrierWait(ring.Full(), ring.parity);
    hopper::FenceAsyncProxy();
    const uint64_t a = SwizzledOperand(ring.Weights() + first_block);
    const uint64_t b = SwizzledOperand(ring.Input());
    const uint32_t scales = ring.Scales();
    const float2 low = LoadShared2f(scales + bands);
    const float2 high = LoadShared2f(scales + bands + kNextBlock / 1024 * 4);
    if constexpr (kN <= 96) {
      float sums[2][kN / 2];
      WaitForTurn(p, group);
      Multiply<kN>(sums[0], a, b);
      Multiply<kN>(sums[1], a + kNextBlock / 16, b);
      PassTurn(p, group);
      GroupWait<1>();
      hopper::Pin(sums[0]);
      AddScaled<kN>(scaled[0], sums[0], scales, low);
      GroupWait<0>();
      hopper::Pin(sums[1]);
      Release(p, ring, lane);
      AddScaled<kN>(scaled[1], sums[1], scales, high);
    } else {
      float sums[kN / 2];
      WaitForTurn(p, group);
      Multiply<kN>(sums, a, b);
      PassTurn(p, group);
      GroupWait<0>();
      hopper::Pin(sums);
      AddScaled<kN>(scaled[0], sums, scales, low);
      WaitForTurn(p, group);
      Multiply<kN>(sums, a + kNextBlock / 16, b);
      PassTurn(p, group);
      GroupWait<0>();
      hopper::Pin(sums);
      Release(p, ring, lane);
      AddScaled<kN>(scaled[1], sums, scales, high);
    }
    ring.Next();
  }
  const int strip = pieces.Strip();
  if constexpr (kGated) {
    StoreMiddle<kN>(p, tile, strip, shared, staging, scaled[0], scaled[1]);
  } else if (p.out_f32) {
    StoreFloats<kN>(p, pieces.Part(), tile.count, strip * kWeightRows + group * 128,
                    shared.row[buffer], shared.factor[buffer], scaled);
  } else {
    StoreShares<kN>(p, tile.count, strip * kWeightRows + group * 128, shared.row[buffer],
                    shared.factor[buffer], staging, scaled);
  }
}

template <bool kGated>
__global__ void __launch_bounds__(kThreads, 1)
    Fp8WideKernel(const __grid_constant__ WideParams p, const __grid_constant__ CUtensorMap map) {
  extern __shared__ char memory[];
  __shared__ Shared shared;
  Ring ring;
  ring.operands = (SharedAddress(memory) + 1023) / 1024 * 1024;
  const uint32_t staging = ring.operands + kStages * kStageBytes;
  ring.scales = staging + kStagingBytes;
  ring.full = ring.scales + kScaleStages * kScaleBytes;
  ring.empty = ring.full + 8 * kStages;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      BarrierInit(ring.full + 8 * s, 1 + kProducers);
      BarrierInit(ring.empty + 8 * s, p.pair ? 2 * kConsumerWarps : kConsumerWarps);
    }
    hopper::FenceBarrierInit();
    hopper::PrefetchMap(&map);
  }
  __syncthreads();
  if (p.pair) ClusterBarrier();
  WaitForEarlierKernels();
  AllowNextKernel();
  Pieces pieces(p);
  // Registers move from the producers to the others; together they stay at 168 a thread.
  if (threadIdx.x >= kConsumers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    Produce<kGated>(p, &map, pieces, ring);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    if (threadIdx.x >= kConsumers / 2) PassTurn(p, 1);  // the first is the other's
    MoeTile tile = {};
    int index = -1, buffer = 0;
    for (; !pieces.Done(); pieces.Next()) {
      if (pieces.First(p) != index) {
        index = pieces.First(p);
        const PairedTile paired = TileOf(p, pieces);
        tile = paired.tile;
        if (!kGated) {
          // Two buffers: nobody is more than one tile ahead of another.
          buffer ^= 1;
          if (threadIdx.x < kTileRows) {
            const int at = tile.begin + min(static_cast<int>(threadIdx.x), tile.count - 1);
            const int entry = p.order == nullptr ? at : __ldcg(p.order + at);
            shared.row[buffer][threadIdx.x] = p.scatter ? entry : at;
            shared.factor[buffer][threadIdx.x] =
                p.route_weights == nullptr ? 1.0f : __ldg(p.route_weights + entry);
          }
          hopper::NamedSync(1, kConsumers);
        }
        if (paired.again) tile.count = 0;  // nothing is stored
      }
      if (tile.count <= 32) {
        MultiplyPiece<kGated, 32>(p, tile, pieces, buffer, shared, staging, ring);
      } else if (tile.count <= 64) {
        MultiplyPiece<kGated, 64>(p, tile, pieces, buffer, shared, staging, ring);
      } else if (tile.count <= 96) {
        MultiplyPiece<kGated, 96>(p, tile, pieces, buffer, shared, staging, ring);
      } else {
        MultiplyPiece<kGated, 128>(p, tile, pieces, buffer, shared, staging, ring);
      }
    }
  }
  if (p.pair) ClusterBarrier();  // until the other block sends no more
}

constexpr int64_t kMultiprocessors = 132;  // of the cards this is tuned for

template <bool kGated>
void Launch(const WideParams& p, const CUtensorMap& map, int64_t units, cudaStream_t stream) {
  const auto kernel = Fp8WideKernel<kGated>;
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
            "shared memory of the wide FP8 product");
  const dim3 grid(static_cast<unsigned>(std::min((units + 1) / 2 * 2, kMultiprocessors)));
  const Status launched = LaunchOverlapped("wide FP8 product", kernel, grid, dim3(kThreads),
                                           kSharedBytes, stream, p.pair ? 2 : 1, p, map);
  CheckLaunch("wide FP8 product");
  BT_CHECK(launched.ok());
}

}  // namespace

namespace {

constexpr int kSumThreads = 128;

// The sum of the parts' results, four columns a thread. Grid: columns, rows.
__global__ void __launch_bounds__(kSumThreads) SumPartsKernel(const float* parts,
                                                              int count,
                                                              int64_t part_stride,
                                                              int n,
                                                              void* out,
                                                              int64_t stride,
                                                              bool f32) {
  AllowNextKernel();
  WaitForEarlierKernels();
  const int column = (blockIdx.x * kSumThreads + threadIdx.x) * 4;
  if (column >= n) return;
  const float* from = parts + static_cast<int64_t>(blockIdx.y) * n + column;
  float4 sum = {};
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    const float4 v = __ldcs(reinterpret_cast<const float4*>(from + i * part_stride));
    sum.x += v.x;
    sum.y += v.y;
    sum.z += v.z;
    sum.w += v.w;
  }
  const int64_t to = blockIdx.y * stride + column;
  if (f32) {
    *reinterpret_cast<float4*>(static_cast<float*>(out) + to) = sum;
  } else {
    *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(out) + to) =
        make_uint2(hopper::PackBf16(sum.x, sum.y), hopper::PackBf16(sum.z, sum.w));
  }
}

// How a product without tiles is cut: rows of a tile, parts of the columns.
struct Cut {
  int32_t tile_rows = kTileRows, parts = 1;
};

// The cut that should keep the multiprocessors busy for the shortest time; in what a step of one
// row takes (about 7 ns).
Cut ChooseCut(int64_t rows, int64_t n, int64_t strips, int64_t steps, bool may_share) {
  constexpr int64_t kStepCost = 24;    // of a step beside its rows
  constexpr int64_t kPieceCost = 400;  // of a piece beside its steps
  constexpr int64_t kSumCost = 350;    // of adding parts up, beside their bytes
  constexpr int64_t kSumBytes = 15000;
  Cut best;
  int64_t least = INT64_MAX;
  for (const int32_t parts : {1, 2, 3, 4, 6, 8, 14}) {
    if (parts > 1 && (!may_share || steps < 2 * parts)) continue;
    for (const int32_t tile_rows : {128, 96, 64, 32}) {
      const int64_t units = (rows + tile_rows - 1) / tile_rows * strips * parts;
      const int64_t waves = (units + kMultiprocessors - 1) / kMultiprocessors;
      int64_t cost = waves * ((steps + parts - 1) / parts * (tile_rows + kStepCost) + kPieceCost);
      if (parts > 1) cost += kSumCost + 2 * parts * rows * n * 4 / kSumBytes;
      if (cost >= least) continue;
      least = cost;
      best = {tile_rows, parts};
    }
  }
  return best;
}

}  // namespace

bool Fp8WideSuits(int64_t rows, int64_t n) {
  const int64_t strips = (n + kWeightRows - 1) / kWeightRows;
  return rows > 64 || (rows > 32 && strips * 4 >= kMultiprocessors * 3 / 4);
}

void LaunchFp8Wide(const Fp8Product& product, cudaStream_t stream, Arena* scratch) {
  const PackedMatrix& w = product.w;
  BT_CHECK(w.form == WeightForm::kFp8Block && w.n % (product.gated ? 256 : 8) == 0);
  const ProductLayout layout = LayoutOf(w.form, w.n, w.k);
  BT_CHECK(product.x_row_bytes >= layout.row_bytes && product.x_row_bytes % 16 == 0);
  WideParams p = {};
  p.scales = static_cast<const char*>(w.data) + layout.scales;
  p.slot_bytes = w.stride_bytes;
  p.n = static_cast<int32_t>(w.n);
  p.half = p.n / 2;
  p.steps = static_cast<int32_t>(layout.steps);
  p.strips = (p.n + kWeightRows - 1) / kWeightRows;
  p.x = static_cast<const char*>(product.x);
  p.x_row_bytes = product.x_row_bytes;
  p.x_scales = product.x_scales;
  p.out = product.out;
  p.out_scales = product.out_scales;
  p.out_stride = product.out_stride;
  p.tiles = product.tiles;
  p.num_tiles = product.num_tiles;
  p.order = product.order;
  p.top_k = product.top_k;
  p.gather = product.gather;
  p.scatter = product.scatter;
  p.route_weights = product.route_weights;
  const char* const pair = std::getenv("BALTORO_FP8_PAIR");
  const char* const ordered = std::getenv("BALTORO_FP8_ORDERED");
  // Where most tiles have another of their matrix beside them.
  p.pair = pair != nullptr ? pair[0] == '1' : product.rows >= 192 * w.count;
  p.out_f32 = product.out_f32;
  p.rows = static_cast<int32_t>(product.rows);
  p.tile_rows = kTileRows;
  p.parts = 1;
  if (product.tiles == nullptr) {
    const bool aligned = reinterpret_cast<uintptr_t>(product.out) % 16 == 0 &&
                         product.out_stride % 8 == 0 && product.rows <= 65535;
    const Cut cut = ChooseCut(product.rows, w.n, p.strips, p.steps, scratch != nullptr && aligned);
    p.tile_rows = cut.tile_rows;
    p.parts = cut.parts;
    p.pair = p.pair && product.rows > cut.tile_rows;
    if (cut.parts > 1) {
      p.out = scratch->AllocateArray<float>(static_cast<size_t>(cut.parts * product.rows * w.n));
      p.out_stride = w.n;
      p.out_f32 = true;
    }
  }
  p.ordered = ordered == nullptr || ordered[0] == '1';
  CUtensorMap map;
  const Status mapped = MakeTensorMap(
      TensorMapShape{.type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
                     .swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
                     .sizes = {static_cast<cuuint64_t>(layout.row_bytes),
                               static_cast<cuuint64_t>(w.n), static_cast<cuuint64_t>(w.count)},
                     .strides = {static_cast<cuuint64_t>(layout.row_bytes),
                                 static_cast<cuuint64_t>(w.stride_bytes)},
                     .box = {128, 128, 1}},
      w.data, map);
  BT_CHECK(mapped.ok());
  const int64_t tiles =
      product.tiles == nullptr ? (product.rows + p.tile_rows - 1) / p.tile_rows : product.tiles_max;
  const int64_t units = tiles * p.strips * p.parts;
  if (units == 0) return;
  if (product.gated) {
    Launch<true>(p, map, units, stream);
  } else {
    Launch<false>(p, map, units, stream);
  }
  if (p.parts == 1) return;
  const int columns = 4 * kSumThreads;
  const dim3 grid(static_cast<unsigned>((p.n + columns - 1) / columns),
                  static_cast<unsigned>(p.rows));
  const Status launched =
      LaunchOverlapped("sum of parts", SumPartsKernel, grid, dim3(kSumThreads), 0, stream, 1,
                       static_cast<const float*>(p.out), p.parts, product.rows * w.n, p.n,
                       product.out, product.out_stride, product.out_f32);
  CheckLaunch("sum of parts");
  BT_CHECK(launched.ok());
}

}  // namespace baltoro::cuda
