#include "ops/compose/compose.h"
#include "ops/host_memory_ops.h"
#include "ops/reference/reference_ops.h"
#include "ops/vision.h"

namespace baltoro {

const SmallOps& ReferenceSmallOps() {
  static const SmallOps kSmall = [] {
    SmallOps small;
    SetHostMemoryOps(small);
    small.act = DType::kF32;
    small.embed = reference::Embed;
    small.rms_norm = reference::RmsNorm;
    small.add_rms_norm = reference::AddRmsNorm;
    small.linear = reference::Linear;
    small.rope = reference::Rope;
    small.kv_write = reference::KvWrite;
    small.mla_attention = reference::MlaAttention;
    small.head_attention = reference::HeadAttention;
    small.swiglu = reference::Swiglu;
    small.route = reference::Route;
    small.expert_bank = reference::ExpertBank;
    return small;
  }();
  return kSmall;
}

const OpsTable& ReferenceOps() {
  static const OpsTable kTable = [] {
    OpsTable table;
    SetHostMemoryOps(table);
    ComposeOps(table, ReferenceSmallOps());
    table.name = "reference";
    table.packed_bytes = reference::PackedBytes;
    table.plain_by_rows = true;
    table.pack_rows = reference::PackRows;
    table.sample = reference::Sample;
    table.vision = &ReferenceVisionOps();
    return table;
  }();
  return kTable;
}

}  // namespace baltoro
