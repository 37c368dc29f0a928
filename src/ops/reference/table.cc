#include "ops/reference/reference_ops.h"

namespace baltoro {

const OpsTable& ReferenceOps() {
  static constexpr OpsTable kTable = {
      .name = "reference",
      .act = DType::kF32,
      .packed_bytes = reference::PackedBytes,
      .pack_rows = reference::PackRows,
      .embed = reference::Embed,
      .rms_norm = reference::RmsNorm,
      .add_rms_norm = reference::AddRmsNorm,
      .linear = reference::Linear,
      .rope = reference::Rope,
      .kv_write = reference::KvWrite,
      .mla_attention = reference::MlaAttention,
      .swiglu = reference::Swiglu,
      .route = reference::Route,
      .expert_bank = reference::ExpertBank,
      .sample = reference::Sample,
  };
  return kTable;
}

}  // namespace baltoro
