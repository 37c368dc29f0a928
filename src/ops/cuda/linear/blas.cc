// Products with bf16 matrices through cuBLASLt: many rows, where it is at the machine's rate.

#include <cublasLt.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "base/check.h"
#include "ops/cuda/choose/facts.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/linear/tiles/tiles.h"
#include "ops/row_class.h"

namespace baltoro::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;

void Check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  EndProcess(std::string("cuBLASLt: ") + what + ": " + cublasLtGetStatusString(status));
}

// All that the choice of an algorithm depends on; `rows` are a class of rows (row_class.h), as the
// library loads what it uses for the first time, when another GPU may wait for this one.
struct Key {
  int64_t rows, n, k, x_stride, out_stride;
  DType out_type;
  uint32_t x_align, w_align, out_align;
  auto operator<=>(const Key&) const = default;
};

// One product as cuBLASLt describes it: column-major, so out^T [n, rows] = w [n, k] x^T [k, rows].
class Product {
 public:
  Product(cublasLtHandle_t handle, const Key& key) {
    const cudaDataType out_type = key.out_type == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF;
    Check(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "operation");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    Check(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                         sizeof(transposed)),
          "transposition");
    const auto layout = [](cublasLtMatrixLayout_t* to, cudaDataType type, int64_t rows,
                           int64_t columns, int64_t stride) {
      Check(cublasLtMatrixLayoutCreate(to, type, static_cast<uint64_t>(rows),
                                       static_cast<uint64_t>(columns), stride),
            "layout");
    };
    layout(&w_, CUDA_R_16BF, key.k, key.n, key.k);
    layout(&x_, CUDA_R_16BF, key.k, key.rows, key.x_stride);
    layout(&out_, out_type, key.n, key.rows, key.out_stride);

    cublasLtMatmulPreference_t preference = nullptr;
    Check(cublasLtMatmulPreferenceCreate(&preference), "preference");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, const auto& value) {
      Check(cublasLtMatmulPreferenceSetAttribute(preference, name, &value, sizeof(value)),
            "preference");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.w_align);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.x_align);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.out_align);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.out_align);
    // Parts of a sum are added in f32, in a fixed order.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    cublasLtMatmulHeuristicResult_t result = {};
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle, operation_, w_, x_, out_, out_, preference, 1, &result, &found);
    if (status == CUBLAS_STATUS_SUCCESS && found == 1) algorithm_ = result.algo;
    Check(cublasLtMatmulPreferenceDestroy(preference), "preference");
  }
  ~Product() {
    static_cast<void>(cublasLtMatrixLayoutDestroy(out_));
    static_cast<void>(cublasLtMatrixLayoutDestroy(x_));
    static_cast<void>(cublasLtMatrixLayoutDestroy(w_));
    static_cast<void>(cublasLtMatmulDescDestroy(operation_));
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  bool possible() const { return algorithm_.has_value(); }

  // Of any number of rows of the class. False, and nothing done, if the algorithm takes the class
  // and not these.
  bool Run(cublasLtHandle_t handle,
           const OpContext& ctx,
           TensorView out,
           TensorView x,
           const PackedMatrix& w,
           bool must) const {
    const float one = 1, zero = 0;
    const auto rows = static_cast<uint64_t>(x.dim(0));
    for (const cublasLtMatrixLayout_t layout : {x_, out_}) {
      Check(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &rows,
                                             sizeof(rows)),
            "rows");
    }
    void* workspace = ctx.scratch->Allocate(kWorkspaceBytes);
    const cublasStatus_t status =
        cublasLtMatmul(handle, operation_, &one, w.data, w_, x.data, x_, &zero, out.data, out_,
                       out.data, out_, &*algorithm_, workspace, kWorkspaceBytes, StreamOf(ctx));
    StreamOf(ctx).order->AddPlain("cuBLASLt");
    const bool refused =
        status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
    if (must || !refused) Check(status, "product");
    return !refused;
  }

 private:
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t w_ = nullptr, x_ = nullptr, out_ = nullptr;
  std::optional<cublasLtMatmulAlgo_t> algorithm_;
};

}  // namespace

struct BlasLibrary {
  BlasLibrary() { Check(cublasLtCreate(&handle), "cublasLtCreate"); }
  ~BlasLibrary() {
    products.clear();
    static_cast<void>(cublasLtDestroy(handle));
  }
  BlasLibrary(const BlasLibrary&) = delete;
  BlasLibrary& operator=(const BlasLibrary&) = delete;

  cublasLtHandle_t handle = nullptr;
  std::map<Key, std::unique_ptr<Product>> products;
};

bool BlasLinear(const OpContext& ctx, TensorView out, TensorView x, const PackedMatrix& w) {
  const int64_t rows = x.dim(0);
  const auto key_of = [&](int64_t key_rows) {
    return Key{.rows = key_rows,
               .n = w.n,
               .k = w.k,
               .x_stride = rows == 1 ? w.k : x.stride[0],
               .out_stride = rows == 1 ? w.n : out.stride[0],
               .out_type = out.dtype,
               .x_align = static_cast<uint32_t>(AlignmentOf(x.data)),
               .w_align = static_cast<uint32_t>(AlignmentOf(w.data)),
               .out_align = static_cast<uint32_t>(AlignmentOf(out.data))};
  };
  std::shared_ptr<BlasLibrary>& kept = RankOf(ctx).blas;
  if (kept == nullptr) kept = std::make_shared<BlasLibrary>();
  BlasLibrary& library = *kept;
  const auto run = [&](const Key& key, bool must) {
    std::unique_ptr<Product>& product = library.products[key];
    if (product == nullptr) product = std::make_unique<Product>(library.handle, key);
    return product->possible() && product->Run(library.handle, ctx, out, x, w, must);
  };
  const int64_t most = RowClass(rows);
  return run(key_of(most), most == rows) || (most != rows && run(key_of(rows), true));
}

}  // namespace baltoro::cuda
