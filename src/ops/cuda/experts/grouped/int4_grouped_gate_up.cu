// The gate/up product of many rows, with SiLU * mul: bound by arithmetic.
//
// A block takes 256 rows of weights (16 strips) by up to 112 tokens of one expert at a time, a
// persistent share of all such pieces; two blocks take neighbouring pieces of the same tokens at
// the same time, so that the second finds the activations in the L2. Two warpgroups each widen
// twice 64 rows of 4-bit values into registers, the first operand of wgmma; tokens are the second
// operand, in shared memory. While the products of 64 rows and columns run, the next are widened,
// those of the next stage included. Of a middling number of rows tiles are smaller and a
// multiprocessor has two blocks, which do not wait for the same stages. Four warps fill a ring:
// weights by bulk copies, the expert's rows of activations 16 bytes a thread.
//
// Activations are read in "matrix order": within each 32 columns, column 8 t + 2 q + e lies at
// 8 q + 2 t + e, which is how the packed weights number them (int4_layout.h). The norm ahead
// writes x in that order too (Beside::ordered), or a kernel before brings it into it; the middle
// activations are written in it.

#include <algorithm>

#include "ops/cuda/experts/bank_device.cuh"
#include "ops/cuda/experts/bank_internal.h"
#include "ops/cuda/experts/grouped/int4_group_multiply.cuh"
#include "ops/cuda/experts/one_launch/ask.cuh"
#include "ops/cuda/layout/int4_layout.h"
#include "ops/cuda/layout/matrix_order.cuh"
#include "ops/cuda/ptx/hopper.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kTileBytes = static_cast<int>(kInt4TileBytes);
constexpr int kConsumerWarps = 8;
constexpr int kProducers = 128;
constexpr int kThreads = 32 * kConsumerWarps + kProducers;
constexpr int kStrips = 2 * kConsumerWarps;  // of a piece
constexpr int kWeightBytes = kStrips * kTileBytes;
static_assert(kStrips == kBoxStrips && kWeightBytes == kBoxBytes);

// Rows of a tile and of the second operand's steps, stages, blocks of a multiprocessor, registers
// of the threads that copy and of those that multiply.
struct Many {
  static constexpr int kTileRows = kWideTileRows, kStep = 16, kStages = 4, kBlocks = 1;
  static constexpr int kCopying = 72, kMultiplying = 216;
};
struct Middling {
  static constexpr int kTileRows = kMiddlingTileRows, kStep = 8, kStages = 3, kBlocks = 2;
  static constexpr int kCopying = 32, kMultiplying = 104;
};
template <typename Form>
inline constexpr int kInputBytes = Form::kTileRows * 256;  // 128 columns of every row, two halves
template <typename Form>
inline constexpr int kSharedBytes = Form::kStages*(kInputBytes<Form> + kWeightBytes + 16) + 1024;

struct GateUpParams {
  CUtensorMap map;  // of the weights
  int32_t strips;
  int32_t column_tiles;
  const MoeStart* starts;  // null: tiles are dealt out, back and forth
  const int32_t* num_tiles;
  const MoeTile* tiles;
  const int32_t* order;
  const __nv_bfloat16* in;
  int64_t in_stride;
  __nv_bfloat16* out;
  int32_t out_stride;
  int32_t top_k;
};

template <typename Form>
struct Ring {
  uint32_t input, weights, full, empty;
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Next() {
    if (++stage == Form::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ uint32_t Full() const { return full + 8 * stage; }
  __device__ __forceinline__ uint32_t Empty() const { return empty + 8 * stage; }
};

// Rows of the matrix instruction's second operand for a tile of `count` rows.
template <typename Form>
__device__ __forceinline__ int Columns(int count) {
  return (count + Form::kStep - 1) / Form::kStep * Form::kStep;
}

// The tiles of a team's block, and its piece of each: a contiguous share, or every so many-th.
struct Share {
  int first, last, units_per_tile, tiles;
  __device__ explicit Share(const GateUpParams& p) {
    const int teams = static_cast<int>(gridDim.x) / kWideTeam,
              pieces = (p.strips + kStrips - 1) / kStrips;
    tiles = __ldcg(p.num_tiles);
    units_per_tile = (pieces + kWideTeam - 1) / kWideTeam;  // a unit is a piece for each block
    if (p.starts == nullptr) {
      first = 0;
      last = (tiles + teams - 1) / teams * units_per_tile;
      return;
    }
    const auto unit = [&](int team) {
      const int2 start = __ldcg(reinterpret_cast<const int2*>(p.starts) + team);
      return start.x * units_per_tile +
             static_cast<int>(static_cast<int64_t>(start.y) * units_per_tile >> 16);
    };
    first = unit(static_cast<int>(blockIdx.x) / kWideTeam);
    last = unit(static_cast<int>(blockIdx.x) / kWideTeam + 1);
  }
  // False where this block has no piece.
  __device__ __forceinline__ bool Get(const GateUpParams& p,
                                      int unit,
                                      MoeTile* tile,
                                      int* strip) const {
    const int team = static_cast<int>(blockIdx.x) / kWideTeam,
              teams = static_cast<int>(gridDim.x) / kWideTeam;
    int at = unit / units_per_tile;
    if (p.starts == nullptr) {
      at = at * teams + (at % 2 == 0 ? team : teams - 1 - team);
      if (at >= tiles) return false;
    }
    *strip =
        (unit % units_per_tile * kWideTeam + static_cast<int>(blockIdx.x) % kWideTeam) * kStrips;
    if (*strip >= p.strips) return false;
    const int4 raw = __ldcg(reinterpret_cast<const int4*>(p.tiles) + at);
    *tile = {raw.x, raw.y, raw.z, 0};
    return true;
  }
};

// The four producer warps: eight threads a row, rows thread / 8 and every 16th from there.
template <typename Form>
__device__ void Produce(const GateUpParams& p, const Share& share, Ring<Form> ring) {
  constexpr int kStep = kProducers / 8, kRows = (Form::kTileRows + kStep - 1) / kStep;
  const int thread = threadIdx.x - 32 * kConsumerWarps;
  const int row = thread / 8, chunk = thread % 8;
  const uint64_t policy = ReadOncePolicy();
  const uint32_t to_row = ring.input + row * 128 + ((chunk ^ (row & 7)) << 4);
  for (int unit = share.first; unit < share.last; ++unit) {
    MoeTile tile;
    int strip;
    if (!share.Get(p, unit, &tile, &strip)) continue;
    const int half_bytes = Columns<Form>(tile.count) * 128;
    const int first_row = tile.slot * p.strips + strip;  // of the map
    uint32_t source[kRows];                              // in 16 bytes
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int at = tile.begin + min(row + kStep * i, tile.count - 1);
      const int64_t from = __ldcg(p.order + at) / p.top_k;
      source[i] = static_cast<uint32_t>(from * p.in_stride / 8);
    }
    const char* columns = reinterpret_cast<const char*>(p.in) + chunk * 16;
    for (int c = 0; c < p.column_tiles; ++c, columns += 256) {
      BarrierWait(ring.Empty(), ring.parity ^ 1);
      if (thread == 0) {
        AskForBox(&p.map, ring.weights + ring.stage * kWeightBytes, ring.Full(), c, first_row,
                  policy);
      }
      const uint32_t to = to_row + ring.stage * kInputBytes<Form>;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (row + kStep * i >= tile.count) break;
        const char* from = columns + static_cast<uint64_t>(source[i]) * 16;
        Copy16(to + i * kStep * 128, from);
        Copy16(to + i * kStep * 128 + half_bytes, from + 128);
      }
      // The copies tell of themselves: nobody here waits for them.
      asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(ring.Full())
                   : "memory");
      ring.Next();
    }
  }
}

// 16 rows by 128 columns of packed weights, as a lane has them.
struct Packed {
  uint4 words[2];
  uint2 scales[2];
};

__device__ __forceinline__ Packed LoadPacked(uint32_t tile) {
  const int lane = threadIdx.x % 32;
  Packed packed;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    packed.words[half] = LoadShared4(tile + half * 512 + lane * 16);
    packed.scales[half] = LoadShared2(tile + 1024 + lane / 4 * 16 + half * 8);
  }
  return packed;
}

// 16 rows by 64 columns of it.
struct HalfPacked {
  uint4 words;
  uint2 scales;
};

__device__ __forceinline__ HalfPacked LoadHalf(uint32_t tile, int half) {
  const int lane = threadIdx.x % 32;
  return {LoadShared4(tile + half * 512 + lane * 16),
          LoadShared2(tile + 1024 + lane / 4 * 16 + half * 8)};
}

// As the first operand of four products.
__device__ __forceinline__ void Widen(uint32_t (&a)[4][4], const HalfPacked& packed) {
  const uint32_t low[2] = {packed.words.x, packed.words.z};
  const uint32_t high[2] = {packed.words.y, packed.words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int jj = i / 2, step = i % 2;
    const uint32_t scale = jj == 0 ? packed.scales.x : packed.scales.y;
    const WidenScale scale_low = LoadScale(scale, false), scale_high = LoadScale(scale, true);
    a[i][0] = WidenPair(low[jj], 2 * step, scale_low);
    a[i][1] = WidenPair(high[jj], 2 * step, scale_high);
    a[i][2] = WidenPair(low[jj], 2 * step + 1, scale_low);
    a[i][3] = WidenPair(high[jj], 2 * step + 1, scale_high);
  }
}

__device__ __forceinline__ void Widen(uint32_t (&a)[4][4], const Packed& packed, int half) {
  Widen(a, {packed.words[half], packed.scales[half]});
}

template <int kN>
__device__ __forceinline__ void Multiply(float (&acc)[kN / 2],
                                         const uint32_t (&a)[4][4],
                                         uint32_t input) {
  const uint32_t at = OperandAddress(input);
  GroupFence();
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) GroupMultiply<kN>::Add(acc, a[i], OperandAt(at + 2 * i));
  GroupCommit();
}

// The results of a piece by a warp, whose two strips are neighbours. A lane has columns 8 strip + g
// of two tokens; with those of g ^ 1 and both strips it stores four neighbours, in matrix order, of
// one token.
template <int kN>
__device__ __forceinline__ void StorePiece(const GateUpParams& p,
                                           const MoeTile& tile,
                                           int first_strip,
                                           const float (&acc)[2][kN / 2]) {
  const int lane = threadIdx.x % 32, g = lane / 4;
  const int strip = first_strip + static_cast<int>(threadIdx.x) / 32 * 2;
  const bool odd = g % 2 != 0;
  const int first = lane % 4 * 2 + odd;
  // Strips come in pairs. A branch here would have the compiler take what the warp's lanes have in
  // common from ordinary registers, in the loops of all products.
  const int rows = strip < p.strips ? tile.count : 0;
  __nv_bfloat16* out = p.out + static_cast<int64_t>(tile.begin + first) * p.out_stride +
                       strip / 4 * 32 + g / 2 * 8 + strip % 4 * 2;
#pragma unroll
  for (int n = 0; n < kN / 8; ++n, out += 8 * p.out_stride) {
    uint32_t pairs[2];
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const float* v = acc[s] + n * 4;
      const float one = FastSiluTimes(v[0] * kWidenUndo, v[2] * kWidenUndo);
      const float two = FastSiluTimes(v[1] * kWidenUndo, v[3] * kWidenUndo);
      const float other = __shfl_xor_sync(~0u, odd ? one : two, 4);
      pairs[s] = odd ? hopper::PackBf16(other, two) : hopper::PackBf16(one, other);
    }
    if (n * 8 + first < rows) *reinterpret_cast<uint2*>(out) = make_uint2(pairs[0], pairs[1]);
  }
}

// One piece: kN columns. A warp waits for the next stage and reads its weights while two groups of
// products are under way, a half as soon as what was there has been widened. No product runs on
// from turn to turn of the loop, as the compiler would put each behind the one before.
template <int kN, typename Form>
__device__ __forceinline__ void MultiplyPiece(const GateUpParams& p,
                                              const MoeTile& tile,
                                              int first_strip,
                                              Ring<Form>& ring) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float acc[2][kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) acc[0][i] = acc[1][i] = 0;
  uint32_t a[2][4][4];
  Packed packed[2];
  const uint32_t own = ring.weights + 2 * warp * kTileBytes;
  const auto wait = [&] {
    BarrierWait(ring.Full(), ring.parity);
    // The matrix units read what ordinary copies have written.
    hopper::FenceAsyncProxy();
  };
  const auto read = [&](int block) {
    packed[block] = LoadPacked(own + ring.stage * kWeightBytes + block * kTileBytes);
  };
  wait();
  read(0);
  read(1);
  Widen(a[0], packed[0], 0);
  for (int c = 0; c < p.column_tiles; ++c) {
    const uint32_t input = ring.input + ring.stage * kInputBytes<Form>, empty = ring.Empty();
    const bool more = c + 1 < p.column_tiles;
    Multiply<kN>(acc[0], a[0], input);
    Widen(a[1], packed[1], 0);
    Multiply<kN>(acc[1], a[1], input);
    ring.Next();
    if (more) wait();
    GroupWait<1>();
    Widen(a[0], packed[0], 1);
    Multiply<kN>(acc[0], a[0], input + kN * 128);
    if (more) read(0);
    GroupWait<1>();
    Widen(a[1], packed[1], 1);
    Multiply<kN>(acc[1], a[1], input + kN * 128);
    if (more) read(1);
    GroupWait<1>();
    Widen(a[0], packed[0], 0);
    GroupWait<0>();
    __syncwarp();
    if (lane == 0) BarrierArrive(empty);
  }
  StorePiece<kN>(p, tile, first_strip, acc);
}

// The same with few registers, for two blocks of a multiprocessor: packed weights of 64 rows and
// columns are read when those before them have been widened.
template <int kN, typename Form>
__device__ __forceinline__ void MultiplySmall(const GateUpParams& p,
                                              const MoeTile& tile,
                                              int first_strip,
                                              Ring<Form>& ring) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float acc[2][kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) acc[0][i] = acc[1][i] = 0;
  uint32_t a[2][4][4];
  HalfPacked packed;
  const uint32_t own = ring.weights + 2 * warp * kTileBytes;
  const auto wait = [&] {
    BarrierWait(ring.Full(), ring.parity);
    // The matrix units read what ordinary copies have written.
    hopper::FenceAsyncProxy();
  };
  const auto read = [&](int block, int half) {
    packed = LoadHalf(own + ring.stage * kWeightBytes + block * kTileBytes, half);
  };
  wait();
  read(0, 0);
  Widen(a[0], packed);
  read(1, 0);
  for (int c = 0; c < p.column_tiles; ++c) {
    const uint32_t input = ring.input + ring.stage * kInputBytes<Form>, empty = ring.Empty();
    const bool more = c + 1 < p.column_tiles;
    Multiply<kN>(acc[0], a[0], input);
    Widen(a[1], packed);
    read(0, 1);
    Multiply<kN>(acc[1], a[1], input);
    GroupWait<1>();
    Widen(a[0], packed);
    read(1, 1);
    Multiply<kN>(acc[0], a[0], input + kN * 128);
    ring.Next();
    GroupWait<1>();
    Widen(a[1], packed);
    if (more) {
      wait();
      read(0, 0);
    }
    Multiply<kN>(acc[1], a[1], input + kN * 128);
    GroupWait<1>();
    Widen(a[0], packed);
    if (more) read(1, 0);
    GroupWait<0>();
    __syncwarp();
    if (lane == 0) BarrierArrive(empty);
  }
  StorePiece<kN>(p, tile, first_strip, acc);
}

// By the first size that has room.
template <typename Form, int kN>
__device__ __forceinline__ void MultiplyTile(const GateUpParams& p,
                                             const MoeTile& tile,
                                             int first_strip,
                                             Ring<Form>& ring) {
  if constexpr (kN < Form::kTileRows) {
    if (tile.count > kN) {
      MultiplyTile<Form, kN + Form::kStep>(p, tile, first_strip, ring);
      return;
    }
  }
  if constexpr (Form::kBlocks > 1) {
    MultiplySmall<kN>(p, tile, first_strip, ring);
  } else {
    MultiplyPiece<kN>(p, tile, first_strip, ring);
  }
}

template <typename Form>
__global__ void __launch_bounds__(kThreads, Form::kBlocks)
    GateUpKernel(const __grid_constant__ GateUpParams p) {
  extern __shared__ char memory[];
  constexpr int kStages = Form::kStages;
  Ring<Form> ring;
  ring.input = (SharedAddress(memory) + 1023) / 1024 * 1024;
  ring.weights = ring.input + kStages * kInputBytes<Form>;
  ring.full = ring.weights + kStages * kWeightBytes;
  ring.empty = ring.full + 8 * kStages;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      BarrierInit(ring.full + 8 * s, 1 + kProducers);
      BarrierInit(ring.empty + 8 * s, kConsumerWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  WaitForEarlierKernels();
  AllowNextKernel();
  const Share share(p);
  if (threadIdx.x >= 32 * kConsumerWarps) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Form::kCopying));
    Produce(p, share, ring);
    return;
  }
  // Registers move from the producers to the others; together they stay at 168 or 80 a thread.
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Form::kMultiplying));
  // The next piece is looked up before this one is multiplied.
  MoeTile next = {};
  int next_strip = 0;
  bool any = share.first < share.last && share.Get(p, share.first, &next, &next_strip);
  for (int unit = share.first; unit < share.last; ++unit) {
    const MoeTile tile = next;
    const int strip = next_strip;
    const bool has = any;
    any = unit + 1 < share.last && share.Get(p, unit + 1, &next, &next_strip);
    if (has) MultiplyTile<Form, Form::kStep>(p, tile, strip, ring);
  }
}

constexpr int kOrderThreads = 128;

// x in matrix order; a thread takes kOrderEights eights of columns.
constexpr int kOrderEights = 4;
__global__ void __launch_bounds__(kOrderThreads) MatrixOrderKernel(const __nv_bfloat16* x,
                                                                   int64_t x_stride,
                                                                   __nv_bfloat16* out,
                                                                   int32_t hidden) {
  const int first = (blockIdx.x * kOrderEights * kOrderThreads + threadIdx.x) * 8;
  const __nv_bfloat16* from = x + blockIdx.y * x_stride + first;
  __nv_bfloat16* to = out + static_cast<int64_t>(blockIdx.y) * hidden + first;
  AllowNextKernel();
  // The routing let this kernel start only when all before it had ended, and does not touch x.
  uint4 eights[kOrderEights];
#pragma unroll
  for (int i = 0; i < kOrderEights; ++i) {
    const int at = i * kOrderThreads * 8;
    eights[i] = first + at < hidden ? *reinterpret_cast<const uint4*>(from + at) : uint4{};
  }
#pragma unroll
  for (int i = 0; i < kOrderEights; ++i) {
    const int at = i * kOrderThreads * 8;
    const uint4 ordered = InMatrixOrder(eights[i]);
    if (first + at < hidden) *reinterpret_cast<uint4*>(to + at) = ordered;
  }
  WaitForEarlierKernels();  // so that whoever waits for this kernel has waited for the routing
}

template <typename Form>
Status Launch(const GateUpParams& p, int32_t teams, cudaStream_t stream) {
  const cudaError_t error = cudaFuncSetAttribute(
      GateUpKernel<Form>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<Form>);
  if (error != cudaSuccess) {
    return Status(Code::kInternal, std::string("MoE gate/up: ") + cudaGetErrorString(error));
  }
  return LaunchOverlapped("MoE gate/up, wide", GateUpKernel<Form>,
                          dim3(teams * kWideTeam * Form::kBlocks), dim3(kThreads),
                          kSharedBytes<Form>, stream, 1, p);
}

}  // namespace

Status LaunchMoeGroupedGateUp(const MoeShape& shape,
                              const MoeInt4Args& args,
                              const MoeWorkspace& space,
                              const ExpertsPlan& plan,
                              int32_t tile_rows,
                              cudaStream_t stream) {
  if (plan.makes_ordered != (args.ordered == nullptr)) {
    return InvalidArgument("MoE: x in matrix order is not given as planned");
  }
  if (plan.makes_ordered) {
    const int columns = kOrderThreads * kOrderEights * 8;
    BT_RETURN_IF_ERROR(LaunchOverlapped("MoE activations in matrix order", MatrixOrderKernel,
                                        dim3((shape.hidden + columns - 1) / columns, args.tokens),
                                        dim3(kOrderThreads), 0, stream, 1, args.x, args.x_stride,
                                        space.ordered, shape.hidden));
  }
  GateUpParams p = {};
  BT_RETURN_IF_ERROR(MakeWeightMap(shape, args.gate_up, p.map));
  p.strips = 2 * shape.intermediate / 16;
  p.column_tiles = shape.hidden / 128;
  // With the sum tiles with most rows come first.
  p.starts = plan.kernel == ExpertsKernel::kInt4GroupedSum ? nullptr : space.starts;
  p.num_tiles = space.num_tiles;
  p.tiles = space.tiles;
  p.order = space.order;
  p.in = args.ordered != nullptr ? args.ordered : space.ordered;
  p.in_stride = shape.hidden;
  p.out = space.middle;
  p.out_stride = shape.intermediate;
  p.top_k = shape.top_k;
  return tile_rows == kMiddlingTileRows ? Launch<Middling>(p, plan.blocks, stream)
                                        : Launch<Many>(p, plan.blocks, stream);
}

}  // namespace baltoro::cuda
