#pragma once

// What tensors, and the tables of sorted entries, are as memory that launches touch (order.h).

#include "base/check.h"
#include "ops/cuda/launch/order.h"
#include "tensor/tensor_view.h"

namespace baltoro::cuda {

// From the first row to the last, with what may lie between rows. Of rank 1 or 2.
inline Region RegionOf(const TensorView& x) {
  BT_CHECK(x.rank <= 2);
  if (x.data == nullptr || x.rank == 0) return {};
  const auto size = static_cast<int64_t>(SizeOf(x.dtype));
  if (x.rank == 1) return {x.data, x.dim(0) * size};
  return RowsRegion(x.data, x.dim(0), x.stride[0] * size, x.dim(1) * size);
}

// A launch that lets the next one start once each of its blocks has waited.
inline LaunchNote WaitsFirst(const char* kernel, const Regions& writes, const Regions& reads) {
  LaunchNote note = kernel;
  note.next = NextStarts::kAfterWait;
  note.writes = writes;
  note.reads = reads;
  return note;
}

}  // namespace baltoro::cuda
