// The FP8 bank of a few tokens (fp8_bank.h), each entry (token and expert) by itself: no routing
// kernel, no pass over the inputs. Of shapes, cards and steps that one kernel does not take
// (fp8_one_launch1.cu, fp8_one_launch8.cu).
//
// Gate/up: a block has four rows of gate and of up of one expert, in four parts of the columns,
// three of which are under way at a time, so that 512 blocks stand on the multiprocessors at once:
// all are asked for when the routing is done, and none waits for another block's end. The codes of
// its token come from the norm, or it rounds it while the weights come. The end: a block has some
// columns of the result for one token, an expert a warp, the shared experts the last one. All
// weights are asked for before the wait for gate/up, which has started only once the routing was
// done.
//
// Floor: the bytes of the matrices over the card's read bandwidth.

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/experts/fp8_bank.h"
#include "ops/cuda/experts/one_launch/fp8_entries4_device.cuh"
#include "ops/cuda/layout/product_layout.h"
#include "ops/cuda/linear/tiles/tiles.h"
#include "ops/cuda/ptx/hopper.cuh"

namespace baltoro::cuda {
namespace {

using namespace fp8_one_launch;  // NOLINT: this kernel's parts

constexpr int kPad = 64;  // bytes between rows in shared memory: they use all banks
constexpr int kStepsMax = kFp8EntriesSteps;

// ---- gate and up

constexpr int kGateWarps = 8;
constexpr int kGateThreads = 32 * kGateWarps;
constexpr int kGateRows = 4;  // of each of the two
constexpr int kUnitsMax = kStepsMax / 2 / kGateWarps;

struct GateUpParams {
  Experts experts;
  const char* w;
  int64_t slot_bytes, scales;
  int32_t steps, half;
  const char* x;
  int64_t x_row_bytes;
  const char* codes;      // [T, steps * 128] of x, where they are known
  const float* x_scales;  // [T, steps]
  float* middle;          // [T k, half]
  MoeChoice choice;       // of one token
};

// Of the columns, and how many of them there is room for.
constexpr int kParts = 4, kRing = 3;
static_assert(kGateWarps == 2 * kGateRows && kParts == kRing + 1);

struct GateUpShared {
  float weights[2][kStepsMax];
  alignas(16) float x[kStepsMax];
  float parts[kGateWarps][2 * kGateRows];
  uint64_t full[kParts + 1];  // the last one: the token's codes
};

__host__ __device__ constexpr int StepsOfPart(int steps) {
  return (steps + kParts - 1) / kParts;
}

constexpr int GateUpBytes(int steps) {
  return kRing * 2 * kGateRows * (StepsOfPart(steps) * 128 + kPad) + steps * 128;
}

// Grid: rows of gate by kGateRows, entries. kChooses: the experts are not chosen yet.
template <bool kChooses>
__global__ void __launch_bounds__(kGateThreads, 4)
    GateUpKernel(const __grid_constant__ GateUpParams p) {
  extern __shared__ __align__(128) char memory[];
  __shared__ GateUpShared shared;
  __shared__ ChoiceShared choice;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first = static_cast<int>(blockIdx.x) * kGateRows, entry = blockIdx.y;
  const int row_bytes = p.steps * 128, each = StepsOfPart(p.steps), pitch = each * 128 + kPad;
  const uint32_t ring = SharedAddress(memory), codes = ring + kRing * 2 * kGateRows * pitch;
  const uint32_t full = SharedAddress(shared.full);
  const bool known = p.codes != nullptr;
  const auto steps_of = [&](int part) { return min(each, p.steps - part * each); };
  if (threadIdx.x <= kParts) {
    BarrierInit(full + 8 * threadIdx.x, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    const int part = threadIdx.x, of_token = known ? row_bytes + p.steps * 4 : 0;
    BarrierExpectBytes(full + 8 * part,
                       part == kParts ? of_token : 2 * kGateRows * 128 * max(0, steps_of(part)));
  }
  float4 bias[3];
  if (kChooses && warp == 0) LoadChoiceBias(p.choice, bias);
  __syncthreads();
  WaitForEarlierKernels();
  AllowNextKernel();  // which reads the routing, or what it is made of, before its wait
  const int token = entry / p.experts.top_k;
  const uint32_t codes_full = full + 8 * kParts;
  if (known && threadIdx.x == 32) {
    CopyPlain(codes, p.codes + static_cast<int64_t>(token) * row_bytes, row_bytes, codes_full);
    CopyPlain(SharedAddress(shared.x), p.x_scales + static_cast<int64_t>(token) * p.steps,
              p.steps * 4, codes_full);
  }
  int slot = -1;
  if constexpr (kChooses) {
    if (warp == 0) Choose(p.choice, bias, choice);
    __syncthreads();
    slot = p.experts.SlotOf(choice.ids[entry]);
  } else {
    slot = p.experts.Slot(entry);
  }
  if (slot < 0) return BarrierWait(codes_full, 0);  // the block does not end before its copies
  const char* const w = p.w + slot * p.slot_bytes;
  // Each warp a row.
  const auto ask = [&](int part) {
    const int64_t row = first + warp % kGateRows + (warp < kGateRows ? 0 : p.half);
    CopyBulk(ring + (part % kRing * 2 * kGateRows + warp) * pitch,
             w + row * row_bytes + part * each * 128, steps_of(part) * 128, full + 8 * part,
             ReadOncePolicy());
  };
  if (lane == 0) {
#pragma unroll
    for (int part = 0; part < kRing; ++part) {
      if (steps_of(part) > 0) ask(part);
    }
  }
  __syncwarp();
  const char* const x = p.x + token * p.x_row_bytes;
  uint4 raw[kUnitsMax];
  if (!known) {
#pragma unroll
    for (int i = 0; i < kUnitsMax; ++i) {
      const int column = (warp + i * kGateWarps) * 256 + lane * 8;
      raw[i] = make_uint4(0, 0, 0, 0);
      if (column < row_bytes) raw[i] = __ldcg(reinterpret_cast<const uint4*>(x + column * 2));
    }
  }
  const float* const scales = reinterpret_cast<const float*>(w + p.scales);
  for (int i = threadIdx.x; i < 2 * p.steps; i += kGateThreads) {
    const int of_up = i >= p.steps, step = i - of_up * p.steps;
    shared.weights[of_up][step] = __ldg(scales + (first + of_up * p.half) / 8 * p.steps + step);
  }
#pragma unroll
  for (int i = 0; i < kUnitsMax; ++i) {
    const int column = (warp + i * kGateWarps) * 256 + lane * 8;
    if (known || (warp + i * kGateWarps) * 256 >= row_bytes) break;
    float v[8], scale;
    WidenEight(raw[i], v);
    const uint2 rounded = RoundEight(v, scale);
    if (column >= row_bytes) continue;
    StoreShared2(codes + column, rounded);
    if (lane % 16 == 0) shared.x[column / 128] = scale;
  }
  __syncthreads();
  // The token is the first row of the matrix instruction; weights are its columns.
  const uint32_t own = ring + lane / 4 * pitch + lane % 4 * 16;
  const int of_up = lane % 4 / 2;
  float sums[2] = {};
  BarrierWait(codes_full, 0);
  for (int part = 0; part < kParts; ++part) {
    const int count = steps_of(part);
    if (count <= 0) break;
    BarrierWait(full + 8 * part, 0);
    const uint32_t from = own + part % kRing * 2 * kGateRows * pitch;
    const int end = count * (warp + 1) / kGateWarps;
#pragma unroll 2
    for (int i = count * warp / kGateWarps; i < end; ++i) {
      const int step = part * each + i;
      float products[2][4] = {};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        uint4 a = make_uint4(0, 0, 0, 0);
        if (lane < 4) a = LoadShared4(codes + step * 128 + j * 64 + lane * 16);
        MultiplyWords(products[j], a, LoadShared4(from + i * 128 + j * 64));
      }
      const float scale = shared.weights[of_up][step] * shared.x[step];
      sums[0] += (products[0][0] + products[1][0]) * scale;
      sums[1] += (products[0][1] + products[1][1]) * scale;
    }
    if (part > 0 || steps_of(kRing) <= 0) continue;
    // The last part where the first one was.
    hopper::FinishLoads();
    __syncthreads();
    if (lane == 0) ask(kRing);
    __syncwarp();
  }
  if (lane < 4) {
    shared.parts[warp][2 * lane] = sums[0];
    shared.parts[warp][2 * lane + 1] = sums[1];
  }
  __syncthreads();
  if (threadIdx.x >= kGateRows) return;
  float gate = 0, up = 0;
#pragma unroll
  for (int i = 0; i < kGateWarps; ++i) {
    gate += shared.parts[i][threadIdx.x];
    up += shared.parts[i][kGateRows + threadIdx.x];
  }
  p.middle[static_cast<int64_t>(entry) * p.half + first + threadIdx.x] = SiluTimes(gate, up);
}

// ---- down, and the sum

constexpr int kEndWarps = kExpertsMax + 1;
constexpr int kEndThreads = 32 * kEndWarps;
constexpr int kStripsMax = 8;  // of 8 rows of weights, of a block
constexpr int kEndSteps = kFp8EndSteps;
static_assert(kEndWarps == kFp8EndWarps);

struct EndParams {
  Experts experts;
  DownMatrix down, shared_down;
  const float* middle;          // [T k, I]
  const __nv_bfloat16* shared;  // [T, 2 I'], or null: then the sum is added to `out`
  int64_t shared_stride;
  const float* route_weights;
  float* out;
  int64_t out_stride;
  int32_t strips;    // of a block
  MoeChoice choice;  // of one token
};

struct EndShared {
  alignas(16) char codes[kEndWarps][kEndSteps * 128];
  float x[kEndWarps][kEndSteps];
  float sums[kEndWarps][kStripsMax * 8];
  float route_weights[kExpertsMax];
  uint64_t barriers[kEndWarps];
};

// Grid: columns of the result, tokens.
template <bool kChooses>
__global__ void __launch_bounds__(kEndThreads, 1) EndKernel(const __grid_constant__ EndParams p) {
  extern __shared__ __align__(128) char memory[];
  __shared__ EndShared shared;
  __shared__ ChoiceShared choice;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, token = blockIdx.y;
  const bool of_shared = warp == kExpertsMax;
  const DownMatrix& m = of_shared ? p.shared_down : p.down;
  const int first = static_cast<int>(blockIdx.x) * p.strips * 8, rows = p.strips * 8;
  const int entry = token * p.experts.top_k + warp;
  if constexpr (kChooses) {
    if (warp == 0) {
      float4 bias[3];
      LoadChoiceBias(p.choice, bias);
      Choose(p.choice, bias, choice);
    }
    __syncthreads();
  }
  int slot = -1;
  if (of_shared) {
    slot = p.shared != nullptr ? 0 : -1;
  } else if (warp < p.experts.top_k) {
    slot = kChooses ? p.experts.SlotOf(choice.ids[warp]) : p.experts.Slot(entry);
  }
  const char* const w = m.w + slot * m.slot_bytes;
  const uint32_t weights = SharedAddress(memory) + warp * rows * p.down.steps * 128;
  const uint32_t barrier = SharedAddress(&shared.barriers[warp]);
  const int bytes = rows * m.steps * 128;
  if (slot >= 0 && lane == 0) {
    BarrierInit(barrier, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    BarrierExpectBytes(barrier, bytes);
    CopyBulk(weights, w + static_cast<int64_t>(first) * m.steps * 128, bytes, barrier,
             ReadOncePolicy());
  }
  // Lane s has the scales of strip s.
  float scales[kEndSteps] = {};
  float factor = 1;
  if (slot >= 0) {
    if (lane < p.strips) {
      const float* const from =
          reinterpret_cast<const float*>(w + m.scales) + (first / 8 + lane) * m.steps;
#pragma unroll
      for (int i = 0; i < kEndSteps; ++i) {
        if (i < m.steps) scales[i] = __ldg(from + i);
      }
    }
    if (!kChooses && !of_shared) factor = __ldcg(p.route_weights + entry);
  }
  if constexpr (kChooses) {
    if (warp == 0) {
      const float weight = ChoiceWeight(p.choice, choice);
      if (lane < p.choice.top_k) shared.route_weights[lane] = weight;
    }
    __syncthreads();
    if (warp < p.choice.top_k) factor = shared.route_weights[warp];
  }
  __syncwarp();
  WaitForEarlierKernels();
  AllowNextKernel();
  if (kChooses && blockIdx.x == 0 && warp == 0 && lane < p.choice.top_k) {
    p.choice.ids[lane] = choice.ids[lane];
    p.choice.weights[lane] = shared.route_weights[lane];
  }

  if (slot >= 0) {
    const int columns = m.steps * 128;
    for (int column = lane * 8; column - lane * 8 < columns; column += 256) {
      float v[8] = {};
      if (column >= columns) {
      } else if (of_shared) {
        const __nv_bfloat16* const from = p.shared + token * p.shared_stride + column;
        float up[8];
        WidenEight(__ldcg(reinterpret_cast<const uint4*>(from)), v);
        WidenEight(__ldcg(reinterpret_cast<const uint4*>(from + columns)), up);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          v[i] = __bfloat162float(__float2bfloat16_rn(v[i] / (1.0f + expf(-v[i])) * up[i]));
        }
      } else {
        const auto* const from = reinterpret_cast<const float4*>(
            p.middle + static_cast<int64_t>(entry) * columns + column);
        const float4 a = __ldcg(from), b = __ldcg(from + 1);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
        v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
      }
      float scale;
      const uint2 rounded = RoundEight(v, scale);
      if (column >= columns) continue;
      StoreShared2(SharedAddress(&shared.codes[warp][column]), rounded);
      if (lane % 16 == 0) shared.x[warp][column / 128] = scale;
    }
    __syncwarp();
    BarrierWait(barrier, 0);
    // Rows of weights lie without gaps, so that two neighbouring ones would meet in the same banks:
    // the odd ones are read with their halves of 64 columns swapped, and the second row of the
    // instruction is the token swapped alike.
    float acc[kStripsMax][2] = {};
    const int swap = lane / 4 % 2;
#pragma unroll
    for (int step = 0; step < kEndSteps; ++step) {
      if (step >= m.steps) break;
      const float x_scale = shared.x[warp][step];
      uint4 a[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        a[j] = make_uint4(0, 0, 0, 0);
        if (lane < 8) {
          a[j] = LoadShared4(SharedAddress(shared.codes[warp]) + step * 128 + (j ^ swap) * 64 +
                             lane % 4 * 16);
        }
      }
#pragma unroll
      for (int s = 0; s < kStripsMax; ++s) {
        if (s >= p.strips) break;
        float parts[2][4] = {};
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          MultiplyWords(parts[j], a[j],
                        LoadShared4(weights + (s * 8 + lane / 4) * columns + step * 128 +
                                    (j ^ swap) * 64 + lane % 4 * 16));
        }
        const float scale = __shfl_sync(~0u, scales[step], s) * x_scale;
        acc[s][0] += (parts[0][0] + parts[1][0]) * scale;
        acc[s][1] += (parts[0][1] + parts[1][1]) * scale;
      }
    }
    if (lane < 8) {
#pragma unroll
      for (int s = 0; s < kStripsMax; ++s) {
        if (s >= p.strips) break;
        // Row 0 has the even columns, row 1 the odd ones.
        float sum = (swap ? acc[s][1] : acc[s][0]) * factor;
        // Rounded as shares are that go through memory.
        if (!of_shared) sum = __bfloat162float(__float2bfloat16_rn(sum));
        shared.sums[warp][s * 8 + lane % 4 * 2 + swap] = sum;
      }
    }
  } else {
    for (int i = lane; i < rows; i += 32) shared.sums[warp][i] = 0;
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) >= rows) return;
  float* const out = p.out + token * p.out_stride + first + threadIdx.x;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kExpertsMax; ++i) sum += shared.sums[i][threadIdx.x];
  *out = sum + (p.shared != nullptr ? shared.sums[kExpertsMax][threadIdx.x] : __ldcg(out));
}

}  // namespace

void Fp8FewEntries(const OpContext& ctx,
                   const ExpertBankArgs& args,
                   const ExpertsPlan& plan,
                   const int32_t* slot_of,
                   const MoeChoice& choice) {
  const auto tokens = static_cast<unsigned>(args.x.dim(0));
  const auto top_k = static_cast<unsigned>(args.ids.dim(1));
  const int64_t middle = args.down.k, hidden = args.down.n;
  const Experts experts = {.ids = static_cast<const int32_t*>(args.ids.data),
                           .slot_of = slot_of,
                           .experts = static_cast<int32_t>(args.slot_of.size()),
                           .slots = static_cast<int32_t>(args.gate_up.count),
                           .top_k = static_cast<int32_t>(top_k)};
  const ProductLayout layout = LayoutOf(args.gate_up.form, args.gate_up.n, args.gate_up.k);
  const QuantisedRows known = Fp8WholeCodes(ctx, args);
  const GateUpParams gate_up = {
      .experts = experts,
      .w = static_cast<const char*>(args.gate_up.data),
      .slot_bytes = args.gate_up.stride_bytes,
      .scales = layout.scales,
      .steps = static_cast<int32_t>(layout.steps),
      .half = static_cast<int32_t>(middle),
      .x = static_cast<const char*>(args.x.data),
      .x_row_bytes = args.x.stride[0] * 2,
      .codes = static_cast<const char*>(known.x),
      .x_scales = known.x_scales,
      .middle = ctx.scratch->AllocateArray<float>(tokens * top_k * static_cast<size_t>(middle)),
      .choice = choice};
  const bool chooses = choice.logits != nullptr;
  const SingleParams one_token = {
      .experts = experts,
      .w = gate_up.w,
      .slot_bytes = gate_up.slot_bytes,
      .scales = gate_up.scales,
      .codes = gate_up.codes,
      .x_scales = gate_up.x_scales,
      .down = Down(args.down),
      .shared_down = args.shared ? Down(args.shared_down) : DownMatrix{},
      .shared = static_cast<const __nv_bfloat16*>(args.shared.data),
      .out = static_cast<float*>(args.out.data),
      .choice = choice,
      .board = RankOf(ctx).board<void>(BoardOf::kFp8OneLaunch1)};
  if (plan.kernel == ExpertsKernel::kFp8OneLaunch1) return LaunchOneToken(one_token, StreamOf(ctx));
  BT_CHECK(plan.kernel == ExpertsKernel::kFp8Entries4 && plan.end_strips > 0);
  const int gate_up_bytes = GateUpBytes(gate_up.steps);
  const auto first = chooses ? GateUpKernel<true> : GateUpKernel<false>;
  CheckCuda(AllowShared(first, gate_up_bytes), "FP8 gate/up of few entries");
  const LaunchNote gate_up_note =
      WaitsFirst("FP8 gate/up of few entries",
                 RegionOf(gate_up.middle, int64_t{tokens} * top_k * middle), Regions::Anything());
  const Status first_launched = LaunchOverlapped(
      gate_up_note, first, dim3(static_cast<unsigned>(middle / kGateRows), tokens * top_k),
      dim3(kGateThreads), static_cast<size_t>(gate_up_bytes), StreamOf(ctx), 1, gate_up);
  CheckLaunch("FP8 gate/up of few entries");
  BT_CHECK(first_launched.ok());

  EndParams end = {.experts = experts,
                   .down = Down(args.down),
                   .shared_down = {},
                   .middle = gate_up.middle,
                   .shared = nullptr,
                   .shared_stride = 0,
                   .route_weights = static_cast<const float*>(args.weights.data),
                   .out = static_cast<float*>(args.out.data),
                   .out_stride = args.out.stride[0],
                   .strips = plan.end_strips,
                   .choice = choice};
  if (args.shared) {
    end.shared = static_cast<const __nv_bfloat16*>(args.shared.data);
    end.shared_stride = args.shared.stride[0];
    end.shared_down = Down(args.shared_down);
  }
  const int end_bytes = kEndWarps * end.strips * 8 * end.down.steps * 128;
  const auto last = chooses ? EndKernel<true> : EndKernel<false>;
  CheckCuda(AllowShared(last, end_bytes), "FP8 end of few entries");
  // Gate/up has waited: what says which experts a token has is complete.
  LaunchNote end_note = "FP8 end of few entries";
  const int64_t entries = int64_t{tokens} * top_k;
  if (chooses) {
    end_note.early_reads =
        RowsRegion(choice.logits, tokens, choice.logits_stride * 4, int64_t{choice.experts} * 4);
  } else {
    end_note.early_reads = {RegionOf(experts.ids, entries), RegionOf(end.route_weights, entries)};
  }
  const Status launched = LaunchOverlapped(
      end_note, last, dim3(static_cast<unsigned>(hidden / (end.strips * 8)), tokens),
      dim3(kEndThreads), static_cast<size_t>(end_bytes), StreamOf(ctx), 1, end);
  CheckLaunch("FP8 end of few entries");
  BT_CHECK(launched.ok());
}

}  // namespace baltoro::cuda
