#include "ops/host_memory_ops.h"
#include "ops/reference/reference_ops.h"

namespace baltoro {

const OpsTable& ReferenceOps() {
  static const OpsTable kTable = [] {
    OpsTable table;
    SetHostMemoryOps(table);
    table.name = "reference";
    table.act = DType::kF32;
    table.packed_bytes = reference::PackedBytes;
    table.plain_by_rows = true;
    table.pack_rows = reference::PackRows;
    table.embed = reference::Embed;
    table.rms_norm = reference::RmsNorm;
    table.add_rms_norm = reference::AddRmsNorm;
    table.linear = reference::Linear;
    table.rope = reference::Rope;
    table.kv_write = reference::KvWrite;
    table.mla_attention = reference::MlaAttention;
    table.swiglu = reference::Swiglu;
    table.route = reference::Route;
    table.expert_bank = reference::ExpertBank;
    table.sample = reference::Sample;
    return table;
  }();
  return kTable;
}

}  // namespace baltoro
