#pragma once

// The parts that the two forms of latent attention share. Both walk a
// sequence's blocks of 64 keys in order; a row (a query of one head) keeps a
// running maximum, a running sum and an unnormalised result, so that what it
// computes depends on its own position alone, never on where a chunk ends or on
// who is beside it.

#include <cstdint>

#include "ops/compose/small_ops.h"
#include "ops/cpu/product.h"
#include "ops/ops.h"

namespace baltoro::cpu {

constexpr int64_t kKeys = KvLayerView::kBlockTokens;
constexpr int64_t kGroupRows = kPanelColumns;  // rows that go through the products together

// One block of a sequence.
struct KeyBlock {
  const char* data = nullptr;  // [64, R + P] act; from BlockAt as the cache holds it
  int64_t position = 0;        // of its first key
  int64_t keys = 0;            // valid ones; those beyond may hold anything
};

int64_t BlockCount(const AttentionSequence& sequence);
KeyBlock BlockAt(const KvLayerView& cache, const AttentionSequence& sequence, int64_t i);

// Bytes that WideBlock needs, a multiple of 64; 0 where the cache holds the activation type.
int64_t WideBlockBytes(const KvLayerView& cache, DType act);
// The block in the activation type: as it lies in the cache, or its valid keys widened into
// `memory`, which must be aligned to the type.
KeyBlock WideBlock(const KvLayerView& cache, DType act, const KeyBlock& block, char* memory);

// Running state of one group of up to 32 rows.
struct GroupState {
  float* out = nullptr;      // [32, columns], stride ResultStride(columns)
  float* highest = nullptr;  // exponents of 2
  float* sum = nullptr;
};
constexpr int64_t GroupStateFloats(int64_t columns) {
  return kGroupRows * (ResultStride(columns) + 2);
}
GroupState GroupStateAt(float* memory, int64_t columns);
void ClearGroupState(const GroupState& state, int64_t columns);

// What a thread needs to take one block into one group.
struct GroupScratch {
  float* scores = nullptr;        // [64, 32]
  float* correction = nullptr;    // [32]
  int32_t* limits = nullptr;      // [32]
  void* probabilities = nullptr;  // tiles [32, 64]

  static constexpr int64_t kBytes = kKeys * kGroupRows * 8 + 2 * kGroupRows * 4;
  explicit GroupScratch(char* memory);
};

struct GroupProduct {
  LeftOperand keys;               // [64, k]
  int64_t key_count = 0;          // rows of it that are valid
  const void* queries = nullptr;  // one panel, k deep
  int64_t k = 0;
  const void* values = nullptr;  // panels [64, columns]
  const void* next = nullptr;    // memory to be fetched early, if any
  int64_t columns = 0;
  int64_t rows = 0;
  float scale = 0;
  DType act = DType::kBf16;
};

// Takes one block into a group; scratch.limits is set: each row sees the keys
// below its limit.
void AttendBlock(const Kernels& kernels,
                 const GroupProduct& product,
                 const GroupScratch& scratch,
                 const GroupState& state);

// Fills limits[0, 32) for rows at `positions`; returns the largest.
template <typename PositionOfRow>
int32_t SetLimits(int32_t* limits, int64_t rows, const KeyBlock& block, PositionOfRow position_of) {
  int32_t largest = 0;
  for (int64_t row = 0; row < kGroupRows; ++row) {
    int64_t limit = 0;
    if (row < rows) {
      limit = position_of(row) - block.position + 1;
      limit = limit < 0 ? 0 : limit > block.keys ? block.keys : limit;
    }
    limits[row] = static_cast<int32_t>(row < rows ? limit : kKeys);  // nobody reads absent rows
    if (row < rows && limits[row] > largest) largest = limits[row];
  }
  return largest;
}

// Natural log of the softmax sum, from a maximum that is an exponent of 2; -inf if no key was seen.
float LogSumExp(float highest, float sum);

// Query tokens [0, first) of a sequence use the expanded form, the others the
// absorbed one.
int32_t FirstAbsorbed(const AttentionSequence& sequence);

void AttendExpanded(const OpContext& ctx, const MlaAttentionArgs& args);
void AttendAbsorbed(const OpContext& ctx, const MlaAttentionArgs& args);

}  // namespace baltoro::cpu
