#include "ops/cpu/cpu_ops.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "device/spread_memory.h"
#include "ops/compose/compose.h"
#include "ops/host_memory_ops.h"
#include "ops/vision.h"

namespace baltoro {
namespace cpu {

namespace {

// Of less, one thread is done before another has begun.
constexpr int64_t kCopiedAtOnce = int64_t{1} << 20;

void Copy(const OpContext& ctx, TensorView out, TensorView x) {
  BT_CHECK(out.dtype == DType::kF32 && x.dtype == DType::kF32 && out.shape == x.shape);
  BT_CHECK(out.contiguous() && x.contiguous());
  const int64_t bytes = x.num_elements() * int64_t{sizeof(float)};
  ParallelFor(ctx, (bytes + kCopiedAtOnce - 1) / kCopiedAtOnce, [&](int64_t piece, int) {
    const int64_t at = piece * kCopiedAtOnce;
    std::memcpy(static_cast<char*>(out.data) + at, static_cast<const char*>(x.data) + at,
                static_cast<size_t>(std::min(kCopiedAtOnce, bytes - at)));
  });
}

SmallOps MakeSmallOps(DType act) {
  SmallOps small;
  SetHostMemoryOps(small);
  small.act = act;
  small.copy = Copy;
  small.embed = Embed;
  small.rms_norm = RmsNorm;
  small.add_rms_norm = AddRmsNorm;
  small.linear = Linear;
  small.rope = Rope;
  small.kv_write = KvWrite;
  small.mla_attention = MlaAttention;
  small.head_attention = HeadAttention;
  small.swiglu = Swiglu;
  small.route = Route;
  small.expert_bank = ExpertBank;
  return small;
}

OpsTable MakeTable(const char* name, DType act) {
  OpsTable table;
  SetHostMemoryOps(table);
  table.memory = &SpreadMemory();
  ComposeOps(table, CpuSmallOps(act));
  table.name = name;
  table.packed_bytes = PackedBytes;
  table.pack_rows = PackRows;
  table.sample = Sample;
  table.vision = &CpuVisionOps(act);
  return table;
}

}  // namespace
}  // namespace cpu

const SmallOps& CpuSmallOps(DType act) {
  static const SmallOps bf16 = cpu::MakeSmallOps(DType::kBf16);
  static const SmallOps f32 = cpu::MakeSmallOps(DType::kF32);
  BT_CHECK(act == DType::kBf16 || act == DType::kF32);
  return act == DType::kBf16 ? bf16 : f32;
}

const OpsTable& CpuOps(DType act) {
  static const OpsTable bf16 = cpu::MakeTable("cpu bf16", DType::kBf16);
  static const OpsTable f32 = cpu::MakeTable("cpu f32", DType::kF32);
  BT_CHECK(act == DType::kBf16 || act == DType::kF32);
  return act == DType::kBf16 ? bf16 : f32;
}

}  // namespace baltoro
