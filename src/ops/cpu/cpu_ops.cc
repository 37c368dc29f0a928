#include "ops/cpu/cpu_ops.h"

#include "base/check.h"
#include "ops/host_memory_ops.h"

namespace baltoro {
namespace cpu {

namespace {

OpsTable MakeTable(const char* name, DType act) {
  OpsTable table;
  SetHostMemoryOps(table);
  table.name = name;
  table.act = act;
  table.packed_bytes = PackedBytes;
  table.pack_rows = PackRows;
  table.embed = Embed;
  table.rms_norm = RmsNorm;
  table.add_rms_norm = AddRmsNorm;
  table.linear = Linear;
  table.rope = Rope;
  table.kv_write = KvWrite;
  table.mla_attention = MlaAttention;
  table.swiglu = Swiglu;
  table.route = Route;
  table.expert_bank = ExpertBank;
  table.sample = Sample;
  return table;
}

}  // namespace
}  // namespace cpu

const OpsTable& CpuOps(DType act) {
  static const OpsTable bf16 = cpu::MakeTable("cpu bf16", DType::kBf16);
  static const OpsTable f32 = cpu::MakeTable("cpu f32", DType::kF32);
  BT_CHECK(act == DType::kBf16 || act == DType::kF32);
  return act == DType::kBf16 ? bf16 : f32;
}

}  // namespace baltoro
