#pragma once

// Loading as data: a list of places to fill, each with the checkpoint rows it is made of, cut into
// pieces of a few megabytes that any thread can take.

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "ops/ops.h"
#include "weights/weight_source.h"

namespace baltoro {

// Rows of a packed matrix are filled from multiples of this (OpsTable::pack_rows): by different
// threads, and where one quantised part follows another.
inline constexpr int64_t kPackRows = 32;

// Rows of a source tensor, or some columns of them. They follow the rows of the part before.
//
// Of a quantised form, rows and columns begin where a block, group or pair begins, or lie inside of
// one. Whole rows are read and then cut: what a rank needs of a row is less than a page of a disk
// in the shapes of the family, so that leaving out the rest would save nothing. They are read
// through the page cache: of the ranks of a machine, all of which want them, one asks the disk.
struct MatrixPart {
  SourceTensor tensor;
  int64_t row = 0;
  int64_t rows = 0;
  int64_t column = 0;
  int64_t columns = 0;  // 0: all

  int64_t width() const { return columns > 0 ? columns : tensor.shape.back(); }
};

// What a place is filled with.
struct WeightFill {
  enum class Kind : uint8_t {
    kPack,            // `parts`, packed into `matrix`; a form that is not plain is theirs as well
    kPackTransposed,  // the transpose of the only part, packed into `matrix`
    kRows,            // the only part, converted to `rows`, row-major
  };
  Kind kind = Kind::kPack;
  PackedMatrix matrix;
  TensorView rows;
  std::vector<MatrixPart> parts;
  // Where the bytes of `matrix` or `rows` go in the end, in the memory of the operations; their
  // data is null then, and what is packed is kept in host memory for as long as it takes. Null:
  // they lie where they shall.
  void* target = nullptr;
};

// Runs the fills on `threads` threads of its own. The first error stops all. With targets the host
// holds the matrices that are being filled, and no more.
Status RunFills(const std::vector<WeightFill>& fills,
                const WeightSource& source,
                const OpsTable& ops,
                int threads,
                const LoadProgress& progress,
                bool quiet = false);

}  // namespace baltoro
