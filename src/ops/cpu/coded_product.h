#pragma once

// Products of prepared rows with panels of codes (coded_panel.h), on one thread.

#include <cstdint>

#include "ops/cpu/coded_panel.h"
#include "ops/cpu/kernels.h"

namespace baltoro::cpu {

struct CodedProduct {
  WeightForm form = WeightForm::kInt4Group;
  int64_t k = 0;
  // Tiles of the plain kind in the kernels' type, or i8 tiles, of `rows` rows.
  const char* tiles = nullptr;
  int64_t rows = 0;
  const float* row_scales = nullptr;  // [rows, groups]; null: ones
  const char* panels = nullptr;
  int64_t columns = 0;         // of the panels, from their first on; whole panels are written
  const void* next = nullptr;  // the panel that the caller will need after these, if it knows
  float* c = nullptr;
  int64_t ldc = 0;
};

// c = a * W^T. Each row's sums run in one order whatever the other rows are. The integer sums are
// exact, and so the same on every instruction set.
using MultiplyCodes = void(const CodedProduct& p);

// The one for the tiles of `kernels` and a form, on the active instruction set.
MultiplyCodes* MultiplyCodesFor(const Kernels& kernels, WeightForm form);

// Of kInt4Group and kFp8Block: by tiles of f32, in files compiled for AVX2 and for AVX-512; by
// tiles of bf16, in files compiled for AVX-512 BF16 and for AMX.
MultiplyCodes MultiplyGroupsAvx2, MultiplyGroupsAvx512, MultiplyGroupsAvx512Bf16, MultiplyGroupsAmx;
// Of the other forms, by tiles of i8.
MultiplyCodes MultiplyIntegersAvx2, MultiplyIntegersVnni, MultiplyIntegersAmx;

}  // namespace baltoro::cpu
