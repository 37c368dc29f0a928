#pragma once

// The expert bank's preparation of up to 256 tokens in one launch (bank_prepare.cu): the choice of
// experts, the entries sorted by expert, and, where no launch beside it makes them
// (shared_at_choice.h), rows as digits and the input of the shared experts' second product. In
// place of LaunchMoeSort or LaunchRowsByExpert.

#include "ops/cuda/experts/bank_internal.h"
#include "ops/cuda/launch/launch_stream.h"

namespace baltoro::cuda {

// Rows of x as digits (int4_digits.cuh).
struct DigitRows {
  const __nv_bfloat16* x = nullptr;
  int64_t x_stride = 0;
  int32_t hidden = 0;
  char* digits = nullptr;       // [T][2][H]
  float* row_scales = nullptr;  // [T]
};
DigitRows MoeDigitRows(const MoeShape& shape, const MoeInt4Args& args, const MoeWorkspace& space);

// silu(gate) * up of rows [T, 2 width], gate then up, as swiglu.cu makes it: in bf16, or as e4m3
// codes. Rows of x are aligned to 16 bytes, those of the results have no gaps; width is a multiple
// of 8, for codes of 128.
struct MoeGated {
  const __nv_bfloat16* x = nullptr;  // null: none
  int64_t x_stride = 0;
  int32_t width = 0;
  __nv_bfloat16* out = nullptr;
  char* codes = nullptr;    // instead of `out`, [T, width]
  float* scales = nullptr;  // [T, width / 128]
};

// Of a streaming INT4 form: LaunchMoeInt4 goes on, by the same plan. Digits are made where no
// launch beside this one does.
Status LaunchMoePrepare(const MoeShape& shape,
                        const MoeInt4Args& args,
                        const ExpertsPlan& plan,
                        const MoeGated& gated,
                        const LaunchStream& stream);
// Of a bank of other forms.
Status LaunchMoePrepare(const MoeRows& rows,
                        const ExpertsPlan& plan,
                        const MoeChoice& choice,
                        const MoeGated& gated,
                        const LaunchStream& stream);

}  // namespace baltoro::cuda
