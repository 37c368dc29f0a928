#include "bench/absent_replicas.h"

#include "ops/compose/small_ops.h"
#include "ops/group_rows.h"

namespace baltoro {

void AbsentReplicas::Gather(const OpContext& context,
                            std::span<const Gathered> tensors,
                            std::span<const int64_t> rows) {
  CheckGathered(tensors, rows, 0);
  const auto replicas = static_cast<int64_t>(rows.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto* const all = static_cast<std::byte*>(tensors[i].all.data);
    const auto* const own = static_cast<const std::byte*>(tensors[i].own.data);
    const int64_t bytes = rows[0] * RowBytes(tensors[i].own);
    if (tensors[i].own.dtype == DType::kI32) {  // experts that they chose
      CopyBytes(*ops_.small, context, all, own, replicas * bytes);
      continue;
    }
    const int64_t brought = brings_ ? replicas : 1;
    for (int64_t r = 0; r < brought; ++r) {
      CopyBytes(*ops_.small, context, all + r * bytes, own, bytes);
    }
  }
}

}  // namespace baltoro
