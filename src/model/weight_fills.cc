#include "model/weight_fills.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>

#include "base/check.h"
#include "base/log.h"
#include "disk/read_ahead.h"
#include "disk/read_batches.h"
#include "model/fill_staging.h"
#include "weights/stored_columns.h"

namespace baltoro {
namespace {

// Large enough for full disk speed, small enough to stay in a core's cache while it is packed.
constexpr int64_t kPieceBytes = int64_t{2} << 20;
// Stored rows are read from multiples of this: blocks of scales begin there.
constexpr int64_t kStoredRows = 128;
// What one thread takes at a time.
constexpr BatchRules kBatchRules{.bytes_max = uint64_t{16} << 20, .files_at_once = 4};
constexpr std::chrono::milliseconds kReport(200);  // between two reports of progress

// Rows [begin, end) of what a fill makes.
struct Piece {
  const WeightFill* fill;
  int64_t begin, end;
};

int64_t RowsOf(const WeightFill& fill) {
  int64_t rows = 0;
  for (const MatrixPart& part : fill.parts) rows += part.rows;
  return rows;
}

// Whether rows are packed as they are stored.
bool KeepsForm(const WeightFill& fill) {
  return fill.kind == WeightFill::Kind::kPack && !IsPlain(fill.matrix.form);
}

int64_t BytesOf(const WeightFill& fill, int64_t rows) {
  if (KeepsForm(fill)) return MatrixBytes(fill.matrix.form, rows, fill.matrix.k);
  const MatrixPart& part = fill.parts[0];
  return rows * part.width() * SizeOf(part.tensor.dtype);
}

int64_t BytesOf(const Piece& piece) {
  return BytesOf(*piece.fill, piece.end - piece.begin);
}

std::vector<Piece> CutIntoPieces(const std::vector<WeightFill>& fills) {
  std::vector<Piece> pieces;
  const auto cut = [&](const WeightFill& fill, int64_t from, int64_t to) {
    const int64_t unit = KeepsForm(fill) ? kStoredRows : kPackRows;
    const int64_t unit_bytes = std::max<int64_t>(1, BytesOf(fill, unit));
    int64_t step = std::max<int64_t>(1, kPieceBytes / unit_bytes) * unit;
    if (fill.kind == WeightFill::Kind::kPackTransposed) step = std::max<int64_t>(to - from, 1);
    for (int64_t begin = from; begin < to; begin += step) {
      pieces.push_back({&fill, begin, std::min(to, begin + step)});
    }
  };
  for (const WeightFill& fill : fills) {
    if (!KeepsForm(fill)) {
      cut(fill, 0, RowsOf(fill));
      continue;
    }
    int64_t begin = 0;  // no piece holds rows of two parts
    for (const MatrixPart& part : fill.parts) {
      cut(fill, begin, begin + part.rows);
      begin += part.rows;
    }
  }
  return pieces;
}

// Of what the fills with a target need.
std::vector<FillStaging::Place> PlacesOf(const std::vector<WeightFill>& fills,
                                         const std::vector<Piece>& pieces,
                                         const OpsTable& ops) {
  std::vector<FillStaging::Place> places(fills.size());
  for (size_t i = 0; i < fills.size(); ++i) {
    const PackedMatrix& m = fills[i].matrix;
    const TensorView& rows = fills[i].rows;
    const int64_t bytes = fills[i].kind == WeightFill::Kind::kRows
                              ? rows.num_elements() * SizeOf(rows.dtype)
                              : ops.packed_bytes(m.form, m.n, m.k);
    places[i] = {.target = fills[i].target, .bytes = static_cast<size_t>(bytes)};
  }
  for (const Piece& piece : pieces) ++places[static_cast<size_t>(piece.fill - fills.data())].pieces;
  return places;
}

// One thread's memory and the work it does in it.
class Packer {
 public:
  Packer(const WeightSource& source,
         const OpsTable& ops,
         const WeightFill* fills,
         FillStaging& staging)
      : source_(source), ops_(ops), fills_(fills), staging_(staging) {}

  Status Run(const Piece& piece) {
    if (piece.fill->target == nullptr) return Fill(piece);
    const auto place = static_cast<size_t>(piece.fill - fills_);
    WeightFill staged = *piece.fill;
    BT_ASSIGN_OR_RETURN(staged.rows.data, staging_.Host(place));
    staged.matrix.data = staged.rows.data;
    BT_RETURN_IF_ERROR(Fill({&staged, piece.begin, piece.end}));
    return staging_.Done(place);
  }

 private:
  Status Fill(const Piece& piece) {
    const WeightFill& fill = *piece.fill;
    int64_t part_begin = 0;  // of the part, in rows of the whole
    for (const MatrixPart& part : fill.parts) {
      const int64_t begin = std::max(piece.begin, part_begin);
      const int64_t end = std::min(piece.end, part_begin + part.rows);
      if (begin < end) BT_RETURN_IF_ERROR(Place(fill, part, begin - part_begin, begin, end));
      part_begin += part.rows;
    }
    return {};
  }

  // Fills rows [begin, end) from the part's rows starting at its row `at`.
  Status Place(
      const WeightFill& fill, const MatrixPart& part, int64_t at, int64_t begin, int64_t end) {
    const int64_t rows = end - begin;
    if (fill.kind == WeightFill::Kind::kRows && fill.rows.dtype == part.tensor.dtype) {
      return source_.Read(part.tensor, part.row + at, fill.rows.rows(begin, rows));
    }
    const PackedMatrix& to = fill.matrix;
    void* data = const_cast<void*>(to.data);
    if (KeepsForm(fill)) {
      BT_RETURN_IF_ERROR(source_.ReadStored(part.tensor, part.row + at, rows, stored_));
      if (part.columns > 0) {
        KeepColumns(to.form, rows, part.tensor.shape.back(), part.column, part.columns, stored_);
      }
      ops_.pack_rows(to.form, data, to.n, to.k, begin,
                     {.form = to.form,
                      .rows = rows,
                      .k = to.k,
                      .values = stored_.values.data(),
                      .scales = stored_.scales.data(),
                      .bias = stored_.bias.empty() ? nullptr : stored_.bias.data()});
      return {};
    }
    TensorView read = Staging(read_, part.tensor.dtype, rows, part.tensor.shape.back());
    BT_RETURN_IF_ERROR(source_.Read(part.tensor, part.row + at, read));
    if (part.columns > 0) read = Columns(read, part.column, part.columns);
    switch (fill.kind) {
      case WeightFill::Kind::kPack:
        ops_.pack_rows(to.form, data, to.n, to.k, begin, RowsOf(read));
        break;
      case WeightFill::Kind::kPackTransposed:
        ops_.pack_rows(to.form, data, to.n, to.k, 0, RowsOf(Transposed(read)));
        break;
      case WeightFill::Kind::kRows:
        Convert(fill.rows.rows(begin, rows), read);
        break;
    }
    return {};
  }

  static TensorView Staging(std::vector<char>& memory, DType type, int64_t rows, int64_t width) {
    const auto bytes = static_cast<size_t>(rows * width * SizeOf(type));
    if (memory.size() < bytes) memory.resize(bytes);
    return TensorView(memory.data(), type, {rows, width});
  }

  // Some columns, moved together in place.
  static TensorView Columns(const TensorView& from, int64_t column, int64_t columns) {
    const int64_t size = SizeOf(from.dtype);
    auto* to = static_cast<char*>(from.data);
    for (int64_t r = 0; r < from.dim(0); ++r) {
      const char* row = static_cast<const char*>(from.data) + (r * from.dim(1) + column) * size;
      std::memmove(to + r * columns * size, row, static_cast<size_t>(columns * size));
    }
    return TensorView(from.data, from.dtype, {from.dim(0), columns});
  }

  TensorView Transposed(const TensorView& from) {
    const TensorView to = Staging(transposed_, from.dtype, from.dim(1), from.dim(0));
    const auto transpose = [&]<typename Element>(Element) {
      for (int64_t i = 0; i < from.dim(0); ++i) {
        for (int64_t j = 0; j < from.dim(1); ++j) {
          to.row<Element>(j)[i] = from.row<const Element>(i)[j];
        }
      }
    };
    if (from.dtype == DType::kF32) {
      transpose(float{});
    } else {
      transpose(Bf16{});
    }
    return to;
  }

  static void Convert(const TensorView& to, const TensorView& from) {
    const int64_t count = from.num_elements();
    if (to.dtype == DType::kF32) {
      for (int64_t i = 0; i < count; ++i) to.as<float>()[i] = ToFloat(from.as<const Bf16>()[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) to.as<Bf16>()[i] = ToBf16(from.as<const float>()[i]);
    }
  }

  const WeightSource& source_;
  const OpsTable& ops_;
  const WeightFill* const fills_;
  FillStaging& staging_;
  std::vector<char> read_, transposed_;
  StoredBytes stored_;
};

// What the pieces read, each, in the files of a source.
std::vector<PieceRanges> RangesOf(const std::vector<Piece>& pieces, const WeightSource& source) {
  std::vector<PieceRanges> out(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    int64_t part_begin = 0;
    for (const MatrixPart& part : pieces[i].fill->parts) {
      const int64_t begin = std::max(pieces[i].begin, part_begin);
      const int64_t end = std::min(pieces[i].end, part_begin + part.rows);
      if (begin < end) {
        const size_t before = out[i].size();
        source.AddRanges(part.tensor, part.row + begin - part_begin, end - begin, out[i]);
        // Some columns here, the others on other ranks.
        for (size_t r = before; r < out[i].size(); ++r) out[i][r].shared = part.columns > 0;
      }
      part_begin += part.rows;
    }
  }
  return out;
}

// Deals out batches of pieces: as they come from the disk, or one piece after the other.
class Dealer {
 public:
  Dealer(const std::vector<Piece>& pieces, const WeightSource& source, int64_t bytes) {
    if (source.files() == nullptr) {
      for (size_t i = 0; i < pieces.size(); ++i) batches_.push_back({i});
      return;
    }
    std::vector<std::vector<FileRange>> ranges;
    for (ReadBatch& batch : GroupByPlace(RangesOf(pieces, source), kBatchRules)) {
      batches_.push_back(std::move(batch.pieces));
      ranges.push_back(std::move(batch.ranges));
    }
    ahead_.emplace(*source.files(), std::move(ranges), ReadOptions{});
    BT_LOG(Info, "Reading {:.2f} GB of weights: {}", static_cast<double>(bytes) / 1e9,
           ahead_->Way());
  }

  std::optional<size_t> Next() {
    if (ahead_) return ahead_->Next();
    const size_t next = next_.fetch_add(1);
    return next < batches_.size() ? std::optional<size_t>(next) : std::nullopt;
  }
  void Done(size_t batch) {
    if (ahead_) ahead_->Done(batch);
  }
  const std::vector<size_t>& pieces(size_t batch) const { return batches_[batch]; }

 private:
  std::vector<std::vector<size_t>> batches_;  // numbers of pieces
  std::atomic<size_t> next_{0};
  std::optional<ReadAhead> ahead_;  // empty: there are no files
};

// What the threads share.
struct Progress {
  std::atomic<int64_t> bytes{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::condition_variable changed;
  size_t running = 0;  // threads; under the mutex, as is the error
  Status error;
};

void RunPieces(const std::vector<Piece>& pieces, Dealer& dealer, Packer packer, Progress& shared) {
  while (!shared.stop) {
    const std::optional<size_t> batch = dealer.Next();
    if (!batch) break;
    for (const size_t i : dealer.pieces(*batch)) {
      if (shared.stop) break;
      const Status done = packer.Run(pieces[i]);
      shared.bytes += BytesOf(pieces[i]);
      if (!done.ok()) {
        const std::lock_guard lock(shared.mutex);
        if (shared.error.ok()) shared.error = done;
        shared.stop = true;
      }
    }
    dealer.Done(*batch);
  }
  const std::lock_guard lock(shared.mutex);
  --shared.running;
  shared.changed.notify_all();
}

}  // namespace

Status RunFills(const std::vector<WeightFill>& fills,
                const WeightSource& source,
                const OpsTable& ops,
                int threads,
                const LoadProgress& progress) {
  BT_CHECK(threads >= 1);
  const std::vector<Piece> pieces = CutIntoPieces(fills);
  int64_t total = 0;
  for (const Piece& piece : pieces) total += BytesOf(piece);

  if (progress) progress(0, total);
  Dealer dealer(pieces, source, total);
  FillStaging staging(ops, PlacesOf(fills, pieces, ops));
  Progress shared;
  shared.running = static_cast<size_t>(threads);
  std::vector<std::jthread> workers;
  for (int i = 0; i < threads; ++i) {
    workers.emplace_back(
        [&] { RunPieces(pieces, dealer, Packer(source, ops, fills.data(), staging), shared); });
  }
  std::unique_lock lock(shared.mutex);
  while (shared.running > 0) {
    if (shared.changed.wait_for(lock, kReport) != std::cv_status::timeout || !progress) continue;
    lock.unlock();
    progress(shared.bytes, total);
    lock.lock();
  }
  if (progress && shared.error.ok()) progress(total, total);
  return shared.error;
}

}  // namespace baltoro
