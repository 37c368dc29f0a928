// cuBLASLt's products as plain loops: bf16, f16 and f32 matrices, column-major, sums in f32.

#include <cublasLt.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cudart.h"
#include "numbers.h"

namespace {

struct Operation {
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
};
struct Layout {
  cudaDataType type;
  uint64_t rows, columns;
  int64_t stride;
};

float Read(const void* data, cudaDataType type, int64_t at) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[at];
  const uint16_t bits = static_cast<const uint16_t*>(data)[at];
  return type == CUDA_R_16BF ? emu::Bf16ToFloat(bits) : emu::HalfToFloat(bits);
}
void Write(void* data, cudaDataType type, int64_t at, float value) {
  if (type == CUDA_R_32F)
    static_cast<float*>(data)[at] = value;
  else
    static_cast<uint16_t*>(data)[at] =
        type == CUDA_R_16BF ? emu::FloatToBf16(value) : emu::FloatToHalf(value);
}
bool Known(cudaDataType type) {
  return type == CUDA_R_32F || type == CUDA_R_16BF || type == CUDA_R_16F;
}

// d = scale * a b + keep * c.
struct Product {
  Operation o;
  Layout A, B, C, D;
  const void *a, *b, *c;
  void* d;
  float scale, keep;

  void Run() const;
};

void Product::Run() const {
  const auto m = static_cast<int64_t>(D.rows), n = static_cast<int64_t>(D.columns),
             k = static_cast<int64_t>(o.a == CUBLAS_OP_N ? A.columns : A.rows);
  std::vector<float> rows(static_cast<size_t>(m * k)), column(static_cast<size_t>(k));
  for (int64_t i = 0; i < m; ++i)
    for (int64_t x = 0; x < k; ++x)
      rows[i * k + x] = Read(a, A.type, o.a == CUBLAS_OP_N ? x * A.stride + i : i * A.stride + x);
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t x = 0; x < k; ++x)
      column[x] = Read(b, B.type, o.b == CUBLAS_OP_N ? j * B.stride + x : x * B.stride + j);
    for (int64_t i = 0; i < m; ++i) {
      float lanes[16] = {};
      const float* row = &rows[i * k];
      int64_t x = 0;
      for (; x + 16 <= k; x += 16)
        for (int l = 0; l < 16; ++l) lanes[l] += row[x + l] * column[x + l];
      float sum = 0;
      for (; x < k; ++x) sum += row[x] * column[x];
      for (const float lane : lanes) sum += lane;
      Write(d, D.type, j * D.stride + i,
            scale * sum + (keep != 0 ? keep * Read(c, C.type, j * C.stride + i) : 0));
    }
  }
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(8);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) {
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusString(cublasStatus_t) {
  return "a status of the emulated cuBLASLt";
}
size_t cublasLtGetVersion(void) {
  return 130000;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* to,
                                        cublasComputeType_t,
                                        cudaDataType_t) {
  *to = reinterpret_cast<cublasLtMatmulDesc_t>(new Operation);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete reinterpret_cast<Operation*>(operation);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t name,
                                              const void* value,
                                              size_t) {
  auto* o = reinterpret_cast<Operation*>(operation);
  if (name == CUBLASLT_MATMUL_DESC_TRANSA) std::memcpy(&o->a, value, sizeof o->a);
  if (name == CUBLASLT_MATMUL_DESC_TRANSB) std::memcpy(&o->b, value, sizeof o->b);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* to,
                                          cudaDataType type,
                                          uint64_t rows,
                                          uint64_t columns,
                                          int64_t stride) {
  *to = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, stride});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t name,
                                                const void* value,
                                                size_t) {
  auto* l = reinterpret_cast<Layout*>(layout);
  if (name == CUBLASLT_MATRIX_LAYOUT_COLS) std::memcpy(&l->columns, value, 8);
  if (name == CUBLASLT_MATRIX_LAYOUT_ROWS) std::memcpy(&l->rows, value, 8);
  if (name == CUBLASLT_MATRIX_LAYOUT_LD) std::memcpy(&l->stride, value, 8);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* to) {
  *to = reinterpret_cast<cublasLtMatmulPreference_t>(8);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void*,
                                                    size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t,
                                              cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t,
                                              int,
                                              cublasLtMatmulHeuristicResult_t* result,
                                              int* found) {
  *found = Known(reinterpret_cast<Layout*>(a)->type) && Known(reinterpret_cast<Layout*>(b)->type) &&
           Known(reinterpret_cast<Layout*>(d)->type);
  if (*found) std::memset(result, 0, sizeof *result);
  return *found ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

// A kernel that is not of this module.
cublasStatus_t cublasLtMatmul(cublasLtHandle_t,
                              cublasLtMatmulDesc_t operation,
                              const void* alpha,
                              const void* a,
                              cublasLtMatrixLayout_t la,
                              const void* b,
                              cublasLtMatrixLayout_t lb,
                              const void* beta,
                              const void* c,
                              cublasLtMatrixLayout_t lc,
                              void* d,
                              cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t*,
                              void*,
                              size_t,
                              cudaStream_t stream) {
  const Product product{.o = *reinterpret_cast<Operation*>(operation),
                        .A = *reinterpret_cast<Layout*>(la),
                        .B = *reinterpret_cast<Layout*>(lb),
                        .C = *reinterpret_cast<Layout*>(lc),
                        .D = *reinterpret_cast<Layout*>(ld),
                        .a = a,
                        .b = b,
                        .c = c,
                        .d = d,
                        .scale = *static_cast<const float*>(alpha),
                        .keep = *static_cast<const float*>(beta)};
  const cudaError_t error = emu::Do(stream, {.run = [product] {
                                      product.Run();
                                      emu::HostWaits();  // it does not overlap
                                      return cudaSuccess;
                                    }});
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
