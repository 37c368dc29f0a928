#pragma once

// Where weights come from: a checkpoint on disk, or a seed. Names are the family's canonical ones
// ("model.layers.0.self_attn.o_proj.weight"), whatever prefix the files use.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/dtype.h"
#include "tensor/tensor_view.h"

namespace baltoro {

// Progress while loading: done and total bytes.
using LoadProgress = std::function<void(int64_t done, int64_t total)>;

struct SourceTensor {
  std::string name;
  DType dtype = DType::kBf16;
  std::vector<int64_t> shape;
  uint64_t handle = 0;  // of the source
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // What the source holds under `name`, if anything. A source that makes weights up answers with
  // the shape `wanted`. One thread.
  virtual std::optional<SourceTensor> Find(std::string_view name,
                                           const std::vector<int64_t>& wanted) = 0;

  // Reads rows [row, row + out.dim(0)) of a found tensor, as stored, into `out` [rows, width],
  // which is contiguous and has the tensor's type; a vector counts as one row. Any thread.
  virtual Status Read(const SourceTensor& tensor, int64_t row, TensorView out) const = 0;

  // For messages: the folder, or "dummy weights".
  virtual std::string description() const = 0;
};

}  // namespace baltoro
