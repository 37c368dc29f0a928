// The rotary embedding in place, eight elements a thread.

#include "ops/cuda/rows/rope_device.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kThreads = 128;

struct RopeParams {
  void* x;
  int64_t row_stride, head_stride;
  const int32_t* positions;
  const float *cos, *sin;
  int64_t table_positions;
  int dim, heads, items;  // items: eights of all rows and heads
  bool vectors;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) RopeKernel(RopeParams p) {
  hopper::LetDependentsLaunch();
  hopper::WaitForPredecessors();
  const int item = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (item >= p.items) return;
  const int eights = Eights(p.dim);
  const int at = item % eights * kEight, head = item / eights % p.heads;
  const int row = item / eights / p.heads;
  T* const to = static_cast<T*>(p.x) + row * p.row_stride + head * p.head_stride + at;
  float x[kEight];
  LoadEight(to, p.dim - at, p.vectors, x);
  const int64_t position = p.positions[row];
  if (position >= 0 && position < p.table_positions) {
    const int64_t pair = position * (p.dim / 2) + at / 2;
    RotateEight(x, p.dim - at, p.cos + pair, p.sin + pair, p.vectors);
  } else {
    Spoil(x);
  }
  StoreEight(to, p.dim - at, p.vectors, x);
}

bool Aligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

}  // namespace

void Rope(const OpContext& ctx, TensorView x, TensorView positions, const RopeTable& table) {
  BT_CHECK(x.rank == 3 && positions.rank == 1 && positions.dtype == DType::kI32);
  BT_CHECK(positions.dim(0) == x.dim(0) && x.dim(2) == table.dim && table.dim % 2 == 0);
  const int64_t items = x.dim(0) * x.dim(1) * Eights(x.dim(2));
  if (items == 0) return;
  BT_CHECK(items < int64_t{1} << 31);
  const int64_t size = SizeOf(x.dtype);
  const RopeParams p = {.x = x.data,
                        .row_stride = x.stride[0],
                        .head_stride = x.stride[1],
                        .positions = positions.as<int32_t>(),
                        .cos = table.cos,
                        .sin = table.sin,
                        .table_positions = table.positions,
                        .dim = static_cast<int>(table.dim),
                        .heads = static_cast<int>(x.dim(1)),
                        .items = static_cast<int>(items),
                        .vectors = InVectors(x) && x.stride[1] * size % 16 == 0 &&
                                   table.dim % kEight == 0 && Aligned(table.cos) &&
                                   Aligned(table.sin)};
  const dim3 grid(static_cast<unsigned>((items + kThreads - 1) / kThreads));
  if (x.dtype == DType::kF32) {
    return LaunchAhead("rope", StreamOf(ctx), RopeKernel<float>, grid, kThreads, p);
  }
  BT_CHECK(x.dtype == DType::kBf16);
  LaunchAhead("rope", StreamOf(ctx), RopeKernel<__nv_bfloat16>, grid, kThreads, p);
}

}  // namespace baltoro::cuda
