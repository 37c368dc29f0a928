#pragma once

// For the tests of this folder: owned tensors of random numbers, and weights packed both ways, for
// the operation under test and for the reference.

#include <cstdint>
#include <initializer_list>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "device/buffer.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/isa.h"
#include "ops/reference/reference_ops.h"
#include "ops/thread_pool.h"
#include "support/isas.h"
#include "tensor/tensor_view.h"

namespace baltoro::cpu::test {

using baltoro::test::ForcedIsa;
using baltoro::test::SupportedIsas;

// Activations, and plain weights: every pair that a product can be asked for.
inline constexpr std::pair<DType, DType> kTypes[] = {{DType::kBf16, DType::kBf16},
                                                     {DType::kBf16, DType::kF32},
                                                     {DType::kF32, DType::kBf16},
                                                     {DType::kF32, DType::kF32}};

// A contiguous tensor that owns its elements.
struct Tensor {
  Buffer memory;
  TensorView view;

  Tensor(DType type, std::initializer_list<int64_t> dims) {
    int64_t count = 1;
    for (const int64_t dim : dims) count *= dim;
    memory = Buffer::Create(static_cast<size_t>(count * SizeOf(type)) + 64, "test").value();
    view = TensorView(memory.data(), type, dims);
  }
  float at(int64_t i) const {
    return view.dtype == DType::kF32 ? static_cast<const float*>(view.data)[i]
                                     : ToFloat(static_cast<const Bf16*>(view.data)[i]);
  }
  void set(int64_t i, float value) {
    if (view.dtype == DType::kF32) {
      static_cast<float*>(view.data)[i] = value;
    } else {
      static_cast<Bf16*>(view.data)[i] = ToBf16(value);
    }
  }
  std::vector<float> values() const {
    std::vector<float> all(static_cast<size_t>(view.num_elements()));
    for (size_t i = 0; i < all.size(); ++i) all[i] = at(static_cast<int64_t>(i));
    return all;
  }
};

// Even numbers of this standard deviation, rounded to bf16 whatever the type, so that both types
// see the same values.
inline Tensor Random(uint32_t seed, DType type, std::initializer_list<int64_t> dims, float scale) {
  uint64_t state = seed;
  Tensor tensor(type, dims);
  for (int64_t i = 0; i < tensor.view.num_elements(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const float even = static_cast<float>(state >> 40) * 0x1p-23f - 1;  // [-1, 1)
    tensor.set(i, ToFloat(ToBf16(even * scale * 1.7320508f)));
  }
  return tensor;
}

// `count` matrices [n, k] from a tensor [count * n, k].
struct Weights {
  Buffer packed_memory;
  Tensor rows;
  PackedMatrix packed;
  PackedMatrix reference;

  Weights(uint32_t seed, DType type, int64_t count, int64_t n, int64_t k, float scale)
      : rows(Random(seed, type, {count * n, k}, scale)) {
    const int64_t bytes = PackedBytes(PlainForm(type), n, k);
    packed_memory = Buffer::Create(static_cast<size_t>(count * bytes), "test").value();
    packed = {.data = packed_memory.data(),
              .form = PlainForm(type),
              .n = n,
              .k = k,
              .count = count,
              .stride_bytes = bytes};
    for (int64_t i = 0; i < count; ++i) {
      PackRows(PlainForm(type), const_cast<void*>(packed.at(i).data), n, k, 0,
               RowsOf(rows.view.rows(i * n, n)));
    }
    reference = packed;
    reference.data = rows.view.data;
    reference.stride_bytes = n * k * SizeOf(type);
  }
};

// A context of its own: pool and scratch.
struct Context {
  explicit Context(int threads) : pool(threads) {}
  OpContext get() { return {.pool = &pool, .scratch = &scratch}; }
  ThreadPool pool;
  Arena scratch;
};

}  // namespace baltoro::cpu::test
