#include "bench/absent_replicas.h"

#include <cstring>

#include "base/check.h"
#include "ops/compose/small_ops.h"
#include "ops/group_rows.h"

namespace baltoro {

void AbsentReplicas::Gather(const OpContext& context,
                            std::span<const Gathered> tensors,
                            std::span<const int64_t> rows) {
  constexpr size_t kChosen = 1;
  CheckGathered(tensors, rows, 0);
  const auto replicas = static_cast<int64_t>(rows.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto* const all = static_cast<std::byte*>(tensors[i].all.data);
    const auto* const own = static_cast<const std::byte*>(tensors[i].own.data);
    const int64_t bytes = rows[0] * RowBytes(tensors[i].own);
    if (i == kChosen) {
      Copy(context, all, own, replicas * bytes);
      continue;
    }
    const int64_t brought = brings_ ? replicas : 1;
    for (int64_t r = 0; r < brought; ++r) Copy(context, all + r * bytes, own, bytes);
  }
}

void AbsentReplicas::Copy(const OpContext& context,
                          void* to,
                          const void* from,
                          int64_t bytes) const {
  if (ops_.memory->kind() == DeviceKind::kCpu) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  constexpr int64_t kWord = sizeof(float);  // a copy moves words
  BT_CHECK(bytes % kWord == 0);
  ops_.small->copy(context, TensorView(to, DType::kF32, {1, bytes / kWord}),
                   TensorView(const_cast<void*>(from), DType::kF32, {1, bytes / kWord}));
}

}  // namespace baltoro
