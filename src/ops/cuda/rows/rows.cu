// Whole rows copied by index: the embedding, gathering and scattering. Bytes of the rows are the
// floor.

#include "ops/cuda/rows/rows_device.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kThreads = 256;

struct CopyParams {
  const void* from;
  void* to;
  const int32_t* ids;
  int64_t from_stride, to_stride;
  int64_t first;  // what `ids` call row 0 of the side that they count
  int64_t limit;  // rows of that side
  int width;
  bool scatter;
  bool zeros;  // where an id is no row
  bool vectors;
};

// Block (x, y): eights y of row x. An id that is no row leaves zeros or NaN where it was to be
// read, and nothing where it was to be written: the host cannot check it here.
template <typename From, typename To>
__device__ __forceinline__ void CopyRow(const CopyParams& p) {
  hopper::LetDependentsLaunch();
  hopper::WaitForPredecessors();
  const int at = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * kEight;
  if (at >= p.width) return;
  const int64_t id = p.ids[blockIdx.x] - p.first;
  const bool known = id >= 0 && id < p.limit;
  const int64_t from = p.scatter ? blockIdx.x : id;
  const int64_t to = p.scatter ? id : blockIdx.x;
  if (p.scatter && !known) return;
  float x[kEight];
  if (known) {
    const From* row = static_cast<const From*>(p.from) + from * p.from_stride;
    LoadEight(row + at, p.width - at, p.vectors, x);
  } else {
#pragma unroll
    for (float& value : x) value = p.zeros ? 0 : __int_as_float(0x7FC00000);
  }
  StoreEight(static_cast<To*>(p.to) + to * p.to_stride + at, p.width - at, p.vectors, x);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) CopyRows(CopyParams p) {
  CopyRow<T, float>(p);
}

__global__ void __launch_bounds__(kThreads) CopyRowsRounded(CopyParams p) {
  CopyRow<float, __nv_bfloat16>(p);
}

enum class Way { kGather, kGatherOrZeros, kScatter };

void Copy(const OpContext& ctx,
          TensorView to,
          TensorView from,
          TensorView ids,
          Way way,
          int64_t first = 0) {
  const bool scatter = way == Way::kScatter;
  BT_CHECK(to.rank == 2 && from.rank == 2 && ids.rank == 1 && to.dim(1) == from.dim(1));
  BT_CHECK((scatter ? from : to).dim(0) == ids.dim(0));
  BT_CHECK(ids.dtype == DType::kI32);
  if (ids.dim(0) == 0 || to.dim(1) == 0) return;
  const CopyParams p = {.from = from.data,
                        .to = to.data,
                        .ids = ids.as<int32_t>(),
                        .from_stride = from.stride[0],
                        .to_stride = to.stride[0],
                        .first = first,
                        .limit = (scatter ? to : from).dim(0),
                        .width = static_cast<int>(to.dim(1)),
                        .scatter = scatter,
                        .zeros = way == Way::kGatherOrZeros,
                        .vectors = InVectors(to) && InVectors(from)};
  const dim3 grid(static_cast<unsigned>(ids.dim(0)),
                  static_cast<unsigned>((Eights(p.width) + kThreads - 1) / kThreads));
  auto* kernel = CopyRows<float>;
  if (to.dtype == DType::kBf16) {
    BT_CHECK(from.dtype == DType::kF32);
    kernel = CopyRowsRounded;
  } else {
    BT_CHECK(to.dtype == DType::kF32);
    BT_CHECK(from.dtype == DType::kF32 || from.dtype == DType::kBf16);
    if (from.dtype == DType::kBf16) kernel = CopyRows<__nv_bfloat16>;
  }
  LaunchAhead("copy of rows", StreamOf(ctx), kernel, grid, kThreads, p);
}

}  // namespace

void Embed(const OpContext& ctx, TensorView out, TensorView table, TensorView ids, int64_t first) {
  BT_CHECK(out.dtype == DType::kF32);
  Copy(ctx, out, table, ids, Way::kGatherOrZeros, first);
}

void GatherRows(const OpContext& ctx, TensorView out, TensorView x, TensorView rows) {
  Copy(ctx, out, x, rows, Way::kGather);
}

void ScatterRows(const OpContext& ctx, TensorView out, TensorView x, TensorView rows) {
  BT_CHECK(out.dtype == DType::kF32 && x.dtype == DType::kF32);
  Copy(ctx, out, x, rows, Way::kScatter);
}

void Copy(const OpContext& ctx, TensorView out, TensorView x) {
  BT_CHECK(out.dtype == DType::kF32 && x.dtype == DType::kF32 && out.shape == x.shape);
  BT_CHECK(out.contiguous() && x.contiguous());
  const auto bytes = static_cast<size_t>(x.num_elements()) * sizeof(float);
  if (bytes == 0) return;
  CheckCuda(cudaMemcpyAsync(out.data, x.data, bytes, cudaMemcpyDeviceToDevice, StreamOf(ctx)),
            "copy");
}

void Clear(const OpContext& ctx, TensorView x) {
  BT_CHECK(x.contiguous());
  const auto bytes = static_cast<size_t>(x.num_elements() * SizeOf(x.dtype));
  if (bytes == 0) return;
  CheckCuda(cudaMemsetAsync(x.data, 0, bytes, StreamOf(ctx)), "clear");
}

}  // namespace baltoro::cuda
