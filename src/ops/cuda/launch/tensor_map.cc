#include "ops/cuda/launch/tensor_map.h"

#include <cudaTypedefs.h>

#include <string>

#include "device/cuda/cuda_status.h"

namespace baltoro::cuda {
namespace {

using EncodeTiled = PFN_cuTensorMapEncodeTiled_v12000;

Status FindEncodeTiled(EncodeTiled& encode) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found;
  BT_CUDA_RETURN_IF_ERROR(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                           cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || entry == nullptr) {
    return Status(Code::kUnavailable, "the driver has no cuTensorMapEncodeTiled");
  }
  encode = reinterpret_cast<EncodeTiled>(entry);
  return Status();
}

template <int kDimensions>
Status Make(const TensorMapOf<kDimensions>& shape, const void* data, CUtensorMap& map) {
  EncodeTiled encode = nullptr;
  BT_RETURN_IF_ERROR(FindEncodeTiled(encode));
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUresult result =
      encode(&map, shape.type, kDimensions, const_cast<void*>(data), shape.sizes, shape.strides,
             shape.box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, shape.swizzle,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return Status();
  return Status(Code::kInternal,
                "cuTensorMapEncodeTiled: error " + std::to_string(static_cast<int>(result)));
}

}  // namespace

Status MakeTensorMap(const TensorMapOf<3>& shape, const void* data, CUtensorMap& map) {
  return Make(shape, data, map);
}
Status MakeTensorMap(const TensorMapOf<4>& shape, const void* data, CUtensorMap& map) {
  return Make(shape, data, map);
}

Status MakeRowsMap(const void* data,
                   int64_t rows,
                   int64_t k,
                   int64_t row_bytes,
                   int64_t box_rows,
                   CUtensorMap& map) {
  const auto bytes = static_cast<cuuint64_t>(row_bytes);
  return MakeTensorMap(
      TensorMapShape{.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                     .swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
                     .sizes = {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(rows), 1},
                     .strides = {bytes, bytes * static_cast<cuuint64_t>(rows)},
                     .box = {64, static_cast<cuuint32_t>(box_rows), 1}},
      data, map);
}

}  // namespace baltoro::cuda
