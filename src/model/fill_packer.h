#pragma once

// One thread's part of loading: takes pieces of fills, reads their rows, packs them, and brings
// them to where they belong.

#include <chrono>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "device/buffer.h"
#include "model/fill_staging.h"
#include "model/weight_fills.h"

namespace baltoro {

// Rows [begin, end) of what a fill makes.
struct FillPiece {
  const WeightFill* fill = nullptr;
  int64_t begin = 0, end = 0;
};

// Whether rows are packed as they are stored.
inline bool KeepsForm(const WeightFill& fill) {
  return fill.kind == WeightFill::Kind::kPack && !IsPlain(fill.matrix.form);
}

// Whether each row lies by itself in the target, so that pieces can be brought one by one.
inline bool LiesByRows(const WeightFill& fill, const OpsTable& ops) {
  return fill.kind == WeightFill::Kind::kRows || (ops.plain_by_rows && IsPlain(fill.matrix.form));
}

// Where the time of loading threads goes.
struct FillSeconds {
  double waiting = 0;  // for a batch to come from the disk
  double reading = 0;  // from the page cache, or what was read ahead
  double packing = 0;  // zeroing included
  double copying = 0;  // to the GPU

  FillSeconds& operator+=(const FillSeconds& other) {
    waiting += other.waiting;
    reading += other.reading;
    packing += other.packing;
    copying += other.copying;
    return *this;
  }
};

// Adds the time of its scope to `seconds`.
class FillTimer {
 public:
  explicit FillTimer(double& seconds) : seconds_(seconds) {}
  ~FillTimer() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  FillTimer(const FillTimer&) = delete;
  FillTimer& operator=(const FillTimer&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  const Clock::time_point start_ = Clock::now();
};

class FillPacker {
 public:
  // What is borrowed must outlive this. `fills` is the first of the list that `staging` is of.
  FillPacker(const WeightSource& source,
             const OpsTable& ops,
             const WeightFill* fills,
             FillStaging& staging)
      : source_(source), ops_(ops), fills_(fills), staging_(staging) {}

  Status Run(const FillPiece& piece);
  FillSeconds& seconds() { return seconds_; }

 private:
  // Into memory of this thread, and from there to the target.
  Status RunByRows(const FillPiece& piece);
  // `origin`: the row that the fill's own memory begins with.
  Status Fill(const FillPiece& piece, int64_t origin);
  // Fills rows [begin, end) from the part's rows starting at its row `at`.
  Status Place(const WeightFill& fill,
               const MatrixPart& part,
               int64_t at,
               int64_t begin,
               int64_t end,
               bool by_rows);
  Status Read(const MatrixPart& part, int64_t row, const TensorView& out);
  void Pack(const PackedMatrix& to, int64_t row, const StoredRows& rows);

  const WeightSource& source_;
  const OpsTable& ops_;
  const WeightFill* const fills_;
  FillStaging& staging_;
  Buffer own_;  // of the operations' staging memory
  std::vector<char> read_, transposed_;
  StoredBytes stored_;
  FillSeconds seconds_;
};

}  // namespace baltoro
