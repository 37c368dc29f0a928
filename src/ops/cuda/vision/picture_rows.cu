// A warp a row, which it keeps in registers.

#include <algorithm>

#include "base/check.h"
#include "ops/cuda/launch/regions.h"
#include "ops/cuda/rows/rows_device.cuh"
#include "ops/cuda/vision/picture_rows.h"

namespace baltoro::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = kThreads / 32;  // of a block

struct Norm {
  const float *weight, *bias;
  float eps;

  explicit Norm(const LayerNormWeights& norm)
      : weight(norm.weight.as<const float>()), bias(norm.bias.as<const float>()), eps(norm.eps) {}
};

// Fours lane, lane + 32 ... of a row; those beyond its width are 0.
template <int kFours>
struct Row {
  float4 v[kFours];

  static __device__ __forceinline__ int Column(int i) {
    return (i * 32 + static_cast<int>(threadIdx.x) % 32) * 4;
  }
  __device__ __forceinline__ void Load(const float* from, int width) {
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      v[i] = make_float4(0, 0, 0, 0);
      if (Column(i) < width) v[i] = *reinterpret_cast<const float4*>(from + Column(i));
    }
  }
  __device__ __forceinline__ void Normalise(const Norm& norm, int width) {
    float sum = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < kFours; ++i) sum += (v[i].x + v[i].y) + (v[i].z + v[i].w);
    const float mean = WarpSum(sum) / static_cast<float>(width);
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      if (Column(i) >= width) continue;
      v[i] = make_float4(v[i].x - mean, v[i].y - mean, v[i].z - mean, v[i].w - mean);
      squares += (v[i].x * v[i].x + v[i].y * v[i].y) + (v[i].z * v[i].z + v[i].w * v[i].w);
    }
    const float scale = 1 / sqrtf(WarpSum(squares) / static_cast<float>(width) + norm.eps);
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      if (Column(i) >= width) continue;
      const float4 weight = __ldg(reinterpret_cast<const float4*>(norm.weight + Column(i)));
      const float4 bias = __ldg(reinterpret_cast<const float4*>(norm.bias + Column(i)));
      v[i] = make_float4(v[i].x * scale * weight.x + bias.x, v[i].y * scale * weight.y + bias.y,
                         v[i].z * scale * weight.z + bias.z, v[i].w * scale * weight.w + bias.w);
    }
  }
  __device__ __forceinline__ void Store(__nv_bfloat16* to, int width) const {
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      if (Column(i) >= width) continue;
      *reinterpret_cast<uint2*>(to + Column(i)) =
          make_uint2(hopper::PackBf16(v[i].x, v[i].y), hopper::PackBf16(v[i].z, v[i].w));
    }
  }
};

// The row of this warp.
__device__ __forceinline__ int64_t WarpRow() {
  return int64_t{blockIdx.x} * kRows + threadIdx.x / 32;
}

// The picture that patch or token `at` is of, by the first one that each has.
__device__ __forceinline__ const PicturePlace& Find(const PlacesOnDevice& pictures,
                                                    int32_t PicturePlace::*first,
                                                    int32_t at) {
  int low = 0, high = pictures.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (pictures.places[middle].*first <= at ? low : high) = middle;
  }
  return pictures.places[low];
}

template <int kFours>
__global__ void __launch_bounds__(kThreads) NormKernel(
    __nv_bfloat16* out, int64_t out_stride, const float* x, int64_t rows, int width, Norm norm) {
  hopper::WaitForPredecessors();
  hopper::LetDependentsLaunch();
  const int64_t at = WarpRow();
  if (at >= rows) return;
  Row<kFours> row;
  row.Load(x + at * width, width);
  row.Normalise(norm, width);
  row.Store(out + at * out_stride, width);
}

__global__ void __launch_bounds__(kThreads)
    PlacesKernel(uint32_t* place, int patches, PlacesOnDevice pictures) {
  hopper::WaitForPredecessors();
  hopper::LetDependentsLaunch();
  const int at = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (at >= patches) return;
  const PicturePlace& picture = Find(pictures, &PicturePlace::first_patch, at);
  const int in_frame = (at - picture.first_patch) % (picture.rows * picture.columns);
  place[at] = static_cast<uint32_t>(in_frame / picture.columns) << 16 |
              static_cast<uint32_t>(in_frame % picture.columns);
}

struct PositionParams {
  float* x;
  const float *table, *times;
  int table_rows, table_columns, hidden;
  int64_t patches;
  PlacesOnDevice pictures;
};

// The weight of tap `tap` of four around the place that entry `i` of `of` has in a side, and the
// entry that it is for.
__device__ __forceinline__ float TapWeight(int i, int of, int side, int tap, int& entry) {
  const double a = -0.75;
  const double place = (i + 0.5) * side / of - 0.5;
  const double floor_of = floor(place);
  const double d = fabs(place - floor_of + 1 - tap);
  entry = min(max(static_cast<int>(floor_of) - 1 + tap, 0), side - 1);
  return static_cast<float>(d <= 1 ? ((a + 2) * d - (a + 3)) * d * d + 1
                                   : ((a * d - 5 * a) * d + 8 * a) * d - 4 * a);
}

__global__ void __launch_bounds__(kThreads) PositionsKernel(PositionParams p) {
  hopper::WaitForPredecessors();
  hopper::LetDependentsLaunch();
  const int64_t at = WarpRow();
  if (at >= p.patches) return;
  const PicturePlace& picture =
      Find(p.pictures, &PicturePlace::first_patch, static_cast<int32_t>(at));
  const int in_picture = static_cast<int>(at) - picture.first_patch;
  const int frame = in_picture / (picture.rows * picture.columns);
  const int in_frame = in_picture % (picture.rows * picture.columns);
  // Lanes 0 to 3 have the taps of rows, 4 to 7 those of columns.
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int entry;
  const float weight = lane / 4 == 0 ? TapWeight(in_frame / picture.columns, picture.rows,
                                                 p.table_rows, lane % 4, entry)
                                     : TapWeight(in_frame % picture.columns, picture.columns,
                                                 p.table_columns, lane % 4, entry);
  float weights[16];
  const float* entries[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    weights[i] = __shfl_sync(~0u, weight, i / 4) * __shfl_sync(~0u, weight, 4 + i % 4);
    const int row = __shfl_sync(~0u, entry, i / 4), column = __shfl_sync(~0u, entry, 4 + i % 4);
    entries[i] = p.table + (int64_t{row} * p.table_columns + column) * p.hidden;
  }
  const float* const time = picture.frames > 1 ? p.times + int64_t{frame} * p.hidden : nullptr;
  for (int d = lane; d < p.hidden; d += 32) {
    float sum = time == nullptr ? 0 : time[d];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if (weights[i] != 0) sum += weights[i] * __ldg(entries[i] + d);
    }
    p.x[at * p.hidden + d] = sum;
  }
}

struct ValueParams {
  __nv_bfloat16* out;
  int64_t out_stride, patches;
  const uint8_t* pixels;
  int width;
  float scale[3], shift[3];
};

__global__ void __launch_bounds__(kThreads) ValuesKernel(ValueParams p) {
  hopper::WaitForPredecessors();
  hopper::LetDependentsLaunch();
  const int64_t at = WarpRow();
  if (at >= p.patches) return;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < p.width; i += 32) {
    const int channel = i / (p.width / 3);
    const float scale = channel == 0 ? p.scale[0] : channel == 1 ? p.scale[1] : p.scale[2];
    const float shift = channel == 0 ? p.shift[0] : channel == 1 ? p.shift[1] : p.shift[2];
    const auto value = static_cast<float>(p.pixels[at * p.width + i]);
    p.out[at * p.out_stride + i] = __float2bfloat16_rn(value * scale + shift);
  }
}

__global__ void __launch_bounds__(kThreads) CopyKernel(
    __nv_bfloat16* out, int64_t out_stride, const __nv_bfloat16* from, int64_t rows, int width) {
  hopper::WaitForPredecessors();
  hopper::LetDependentsLaunch();
  const int64_t at = WarpRow();
  if (at >= rows) return;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < width; i += 32) {
    out[at * out_stride + i] = from[at * width + i];
  }
}

struct MergeParams {
  __nv_bfloat16* out;
  int64_t out_stride;
  const float* x;
  int64_t tokens;
  int width, merge_rows, merge_columns;
  Norm norm, merge_norm;
  PlacesOnDevice pictures;
};

template <int kFours>
__global__ void __launch_bounds__(kThreads) MergeKernel(MergeParams p) {
  hopper::WaitForPredecessors();
  hopper::LetDependentsLaunch();
  const int merged = p.merge_rows * p.merge_columns;
  const int64_t at = WarpRow();
  if (at >= p.tokens * merged) return;
  const auto token = static_cast<int32_t>(at / merged);
  const int part = static_cast<int>(at % merged);
  const PicturePlace& picture = Find(p.pictures, &PicturePlace::first_token, token);
  const int across = picture.columns / p.merge_columns;
  const int in_picture = token - picture.first_token;
  const int row = in_picture / across * p.merge_rows + part / p.merge_columns;
  const int column = in_picture % across * p.merge_columns + part % p.merge_columns;
  Row<kFours> mean;
#pragma unroll
  for (int i = 0; i < kFours; ++i) mean.v[i] = make_float4(0, 0, 0, 0);
  for (int frame = 0; frame < picture.frames; ++frame) {
    const int64_t patch =
        picture.first_patch + (int64_t{frame} * picture.rows + row) * picture.columns + column;
    Row<kFours> normed;
    normed.Load(p.x + patch * p.width, p.width);
    normed.Normalise(p.norm, p.width);
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      mean.v[i].x += normed.v[i].x, mean.v[i].y += normed.v[i].y;
      mean.v[i].z += normed.v[i].z, mean.v[i].w += normed.v[i].w;
    }
  }
  const auto frames = static_cast<float>(picture.frames);
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    mean.v[i].x /= frames, mean.v[i].y /= frames, mean.v[i].z /= frames, mean.v[i].w /= frames;
  }
  mean.Normalise(p.merge_norm, p.width);
  mean.Store(p.out + token * p.out_stride + part * p.width, p.width);
}

// Calls launch(a kernel for rows of this width).
template <typename Launch>
void WithFours(int64_t width, const Launch& launch) {
  BT_CHECK(width % 4 == 0 && width <= kPictureWidthMax);
  if (width <= 4 * 128) return launch(std::integral_constant<int, 4>());
  if (width <= 9 * 128) return launch(std::integral_constant<int, 9>());
  launch(std::integral_constant<int, kPictureWidthMax / 128>());
}

dim3 BlocksOf(int64_t rows) {
  return dim3(static_cast<unsigned>((rows + kRows - 1) / kRows));
}

__nv_bfloat16* Bfloats(const TensorView& out) {
  BT_CHECK(out.dtype == DType::kBf16);
  return static_cast<__nv_bfloat16*>(out.data);
}

}  // namespace

void PictureNorm(const OpContext& ctx, TensorView out, TensorView x, const LayerNormWeights& norm) {
  const int64_t rows = x.dim(0), width = x.dim(1);
  WithFours(width, [&](auto fours) {
    LaunchAhead(WaitsFirst("picture norm", RegionOf(out), RegionOf(x)), StreamOf(ctx),
                NormKernel<decltype(fours)::value>, BlocksOf(rows), kThreads, Bfloats(out),
                out.stride[0], x.as<const float>(), rows, static_cast<int>(width), Norm(norm));
  });
}

void PatchPlaces(const OpContext& ctx, uint32_t* place, int64_t patches, PlacesOnDevice pictures) {
  LaunchAhead(WaitsFirst("patch places", RegionOf(place, patches), {}), StreamOf(ctx), PlacesKernel,
              dim3(static_cast<unsigned>((patches + kThreads - 1) / kThreads)), kThreads, place,
              static_cast<int>(patches), pictures);
}

void PatchPositions(const OpContext& ctx, const EmbedPatchesArgs& args, PlacesOnDevice pictures) {
  const PositionParams p = {.x = args.x.as<float>(),
                            .table = args.positions.as<const float>(),
                            .times = args.times.as<const float>(),
                            .table_rows = static_cast<int>(args.positions.dim(0)),
                            .table_columns = static_cast<int>(args.positions.dim(1)),
                            .hidden = static_cast<int>(args.x.dim(1)),
                            .patches = args.x.dim(0),
                            .pictures = pictures};
  LaunchAhead(WaitsFirst("patch positions", RegionOf(args.x), {}), StreamOf(ctx), PositionsKernel,
              BlocksOf(p.patches), kThreads, p);
}

void PatchValues(const OpContext& ctx, TensorView out, const EmbedPatchesArgs& args) {
  ValueParams p = {.out = Bfloats(out),
                   .out_stride = out.stride[0],
                   .patches = out.dim(0),
                   .pixels = static_cast<const uint8_t*>(args.pixels.data),
                   .width = static_cast<int>(out.dim(1)),
                   .scale = {},
                   .shift = {}};
  std::copy_n(args.scale, 3, p.scale);
  std::copy_n(args.shift, 3, p.shift);
  LaunchAhead(WaitsFirst("patch values", RegionOf(out), RegionOf(args.pixels)), StreamOf(ctx),
              ValuesKernel, BlocksOf(p.patches), kThreads, p);
}

void CopyMatrix(const OpContext& ctx, TensorView out, const PackedMatrix& w) {
  LaunchAhead(WaitsFirst("aligned matrix", RegionOf(out), {}), StreamOf(ctx), CopyKernel,
              BlocksOf(w.n), kThreads, Bfloats(out), out.stride[0],
              static_cast<const __nv_bfloat16*>(w.data), w.n, static_cast<int>(w.k));
}

void MergePatches(const OpContext& ctx,
                  TensorView out,
                  const ProjectPicturesArgs& args,
                  PlacesOnDevice pictures) {
  const MergeParams p = {.out = Bfloats(out),
                         .out_stride = out.stride[0],
                         .x = args.x.as<const float>(),
                         .tokens = out.dim(0),
                         .width = static_cast<int>(args.x.dim(1)),
                         .merge_rows = args.merge_rows,
                         .merge_columns = args.merge_columns,
                         .norm = Norm(args.norm),
                         .merge_norm = Norm(args.merge_norm),
                         .pictures = pictures};
  WithFours(args.x.dim(1), [&](auto fours) {
    LaunchAhead(WaitsFirst("merged patches", RegionOf(out), RegionOf(args.x)), StreamOf(ctx),
                MergeKernel<decltype(fours)::value>,
                BlocksOf(p.tokens * args.merge_rows * args.merge_columns), kThreads, p);
  });
}

}  // namespace baltoro::cuda
