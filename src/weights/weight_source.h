#pragma once

// Where weights come from: a checkpoint on disk, or a seed. Names are the family's canonical ones
// ("model.layers.0.self_attn.o_proj.weight"), whatever prefix the files use.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "disk/file_set.h"
#include "tensor/dtype.h"
#include "tensor/tensor_view.h"
#include "tensor/weight_form.h"

namespace baltoro {

// Progress while loading: done and total bytes.
using LoadProgress = std::function<void(int64_t done, int64_t total)>;

struct SourceTensor {
  std::string name;
  DType dtype = DType::kBf16;
  std::vector<int64_t> shape;
  uint64_t handle = 0;  // of the source
};

// How a source stores a matrix.
struct StoredMatrix {
  WeightForm form = WeightForm::kBf16;
  float input_scale = 1, input_offset = 0;  // kInt8Static: of the activations
};

// Whole rows of a matrix in a quantised form, as files hold them (model-family §3); the arrays are
// those that a backend packs from.
struct StoredBytes {
  std::vector<char> values;
  std::vector<char> scales;
  std::vector<int32_t> bias;  // kInt8Static
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // What the source holds under `name`, if anything. A source that makes weights up answers with
  // the shape `wanted`. One thread.
  virtual std::optional<SourceTensor> Find(std::string_view name,
                                           const std::vector<int64_t>& wanted) = 0;

  // Reads rows [row, row + out.dim(0)) of a found tensor into `out` [rows, width], which is
  // contiguous and has the tensor's type. A vector counts as one row; of a tensor of more than two
  // dimensions, all but the first are a row's. What is stored in a quantised form is read as the
  // numbers that it stands for. Any thread.
  virtual Status Read(const SourceTensor& tensor, int64_t row, TensorView out) const = 0;

  // How a found matrix is stored; the error says what does not fit together. One thread.
  virtual Result<StoredMatrix> StoredAs(const SourceTensor& tensor) const;

  // Rows [row, row + rows) of a found matrix in the form that StoredAs told, which is no plain one.
  // They begin at a multiple of 128, or lie inside of 128 rows that do. Any thread.
  virtual Status ReadStored(const SourceTensor& tensor,
                            int64_t row,
                            int64_t rows,
                            StoredBytes& out) const;

  // The files behind the source; null where there are none.
  virtual FileSet* files() const { return nullptr; }

  // Adds the ranges of files() that Read or ReadStored of these rows takes. Any thread.
  virtual void AddRanges(const SourceTensor& tensor,
                         int64_t row,
                         int64_t rows,
                         std::vector<FileRange>& out) const;

  // Tensors that nobody has asked for, counted by kind: numbers in the name become "*". Left out
  // are what is never used: rotary frequencies, KV scales, and layers from `layers` on.
  virtual std::map<std::string, int64_t> UnusedKinds(int64_t layers) const;

  // For messages: the folder, or "dummy weights".
  virtual std::string description() const = 0;
};

}  // namespace baltoro
