#include "ops/host_memory_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "base/check.h"

namespace baltoro {
namespace {

const void* Upload(const OpContext&, Arena&, const void* host, size_t) {
  return host;
}

Status Wait(const OpContext&) {
  return {};
}

Status Fetch(const OpContext&, void* host, const void* from, size_t bytes) {
  std::memcpy(host, from, bytes);
  return {};
}

std::unique_ptr<OpGraph> Capture(const OpContext&, const std::function<void()>&) {
  return nullptr;
}

const void* PlanAttention(const OpContext&, Arena&, const AttentionPlanArgs&) {
  return nullptr;
}

void CheckRows(const TensorView& all, const TensorView& some, const TensorView& rows) {
  BT_CHECK(all.rank == 2 && some.rank == 2 && rows.rank == 1);
  BT_CHECK(all.dtype == DType::kF32 && rows.dtype == DType::kI32);
  BT_CHECK(all.dim(1) == some.dim(1) && some.dim(0) == rows.dim(0));
}

int64_t RowAt(const TensorView& rows, int64_t i, int64_t limit) {
  const int32_t row = rows.as<const int32_t>()[i];
  BT_CHECK(row >= 0 && row < limit);
  return row;
}

void GatherRows(const OpContext&, TensorView out, TensorView x, TensorView rows) {
  CheckRows(x, out, rows);
  BT_CHECK(out.dtype == DType::kF32 || out.dtype == DType::kBf16);
  for (int64_t i = 0; i < rows.dim(0); ++i) {
    const float* const from = x.row<const float>(RowAt(rows, i, x.dim(0)));
    if (out.dtype == DType::kBf16) {
      Bf16* const to = out.row<Bf16>(i);
      for (int64_t d = 0; d < x.dim(1); ++d) to[d] = ToBf16(from[d]);
    } else {
      std::memcpy(out.row<float>(i), from, static_cast<size_t>(x.dim(1)) * sizeof(float));
    }
  }
}

void ScatterRows(const OpContext&, TensorView out, TensorView x, TensorView rows) {
  CheckRows(out, x, rows);
  BT_CHECK(x.dtype == DType::kF32);
  for (int64_t i = 0; i < rows.dim(0); ++i) {
    std::memcpy(out.row<float>(RowAt(rows, i, out.dim(0))), x.row<const float>(i),
                static_cast<size_t>(x.dim(1)) * sizeof(float));
  }
}

void Copy(const OpContext&, TensorView out, TensorView x) {
  BT_CHECK(out.dtype == DType::kF32 && x.dtype == DType::kF32 && out.shape == x.shape);
  BT_CHECK(out.contiguous() && x.contiguous());
  std::memcpy(out.data, x.data, static_cast<size_t>(x.num_elements()) * sizeof(float));
}

void Pick(const OpContext&, TensorView tokens, TensorView logits, TensorView names) {
  BT_CHECK(logits.rank == 2 && logits.dtype == DType::kF32 && tokens.dtype == DType::kI32);
  BT_CHECK(tokens.rank == 1 && tokens.dim(0) == logits.dim(0) && logits.dim(1) > 0);
  BT_CHECK(!names || (names.dtype == DType::kI32 && names.dim(0) == logits.dim(1)));
  for (int64_t i = 0; i < logits.dim(0); ++i) {
    const std::span<const float> row(logits.row<const float>(i),
                                     static_cast<size_t>(logits.dim(1)));
    const bool finite = std::ranges::all_of(row, [](float x) { return std::isfinite(x); });
    const auto best = std::ranges::max_element(row) - row.begin();
    int32_t& token = tokens.as<int32_t>()[i];
    token = !finite ? -1 : names ? names.as<const int32_t>()[best] : static_cast<int32_t>(best);
  }
}

void ChooseCopies(const OpContext&, TensorView ids, const ExpertCopies& copies) {
  BT_CHECK(ids.rank == 2 && ids.dtype == DType::kI32);
  const auto experts = std::ssize(copies.first) - 1;
  for (int64_t t = 0; t < ids.dim(0); ++t) {
    const std::span<int32_t> row(ids.row<int32_t>(t), static_cast<size_t>(ids.dim(1)));
    uint32_t hash = kCopyHashStart;
    for (const int32_t expert : row) hash = MixChosen(hash, expert);
    for (int32_t& id : row) {
      BT_CHECK(id >= 0 && id < experts);
      if (!copies.chosen.empty()) ++copies.chosen[static_cast<size_t>(id)];
      const int32_t first = copies.first[static_cast<size_t>(id)];
      const auto count = static_cast<uint32_t>(copies.first[static_cast<size_t>(id) + 1] - first);
      id = copies.slots[static_cast<size_t>(first) + ChosenCopy(hash, id, count)];
      if (!copies.rows.empty()) ++copies.rows[static_cast<size_t>(id)];
    }
  }
}

void Clear(const OpContext&, TensorView x) {
  std::memset(x.data, 0, static_cast<size_t>(x.num_elements() * SizeOf(x.dtype)));
}

}  // namespace

void SetHostMemoryOps(OpsTable& table) {
  table.memory = &HostMemory();
  table.upload = Upload;
  table.wait = Wait;
  table.fetch = Fetch;
  table.capture = Capture;
  table.plan_attention = PlanAttention;
  table.pick = Pick;
}

void SetHostMemoryOps(SmallOps& small) {
  small.gather_rows = GatherRows;
  small.scatter_rows = ScatterRows;
  small.copy = Copy;
  small.clear = Clear;
  small.choose_copies = ChooseCopies;
}

}  // namespace baltoro
