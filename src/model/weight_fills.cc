#include "model/weight_fills.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/check.h"
#include "base/log.h"
#include "disk/read_ahead.h"
#include "disk/read_batches.h"
#include "model/fill_packer.h"
#include "model/fill_staging.h"

namespace baltoro {
namespace {

// Large enough for full disk speed, small enough to stay in a core's cache while it is packed.
constexpr int64_t kPieceBytes = int64_t{2} << 20;
// Stored rows are read from multiples of this: blocks of scales begin there.
constexpr int64_t kStoredRows = 128;
// What one thread takes at a time.
constexpr BatchRules kBatchRules{.bytes_max = uint64_t{16} << 20, .files_at_once = 4};
constexpr int kBatchesToCome = 4, kBatchesMax = 40;
constexpr std::chrono::milliseconds kReport(200);  // between two reports of progress

using Piece = FillPiece;

int64_t RowsOf(const WeightFill& fill) {
  int64_t rows = 0;
  for (const MatrixPart& part : fill.parts) rows += part.rows;
  return rows;
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

// Before the first byte is read: what a download for another node left out.
Status CheckFilesAreHere(const std::vector<Piece>& pieces, const WeightSource& source) {
  const FileSet* files = source.files();
  if (files == nullptr || files->all_whole()) return {};
  for (const PieceRanges& ranges : RangesOf(pieces, source)) {
    for (const FileRange& range : ranges) BT_RETURN_IF_ERROR(files->CheckWhole(range.file));
  }
  return {};
}

// Deals out batches of pieces: as they come from the disk, or one piece after the other.
class Dealer {
 public:
  Dealer(const std::vector<Piece>& pieces,
         const WeightSource& source,
         int64_t bytes,
         int threads,
         bool quiet) {
    if (source.files() == nullptr) {
      for (size_t i = 0; i < pieces.size(); ++i) batches_.push_back({i});
      return;
    }
    std::vector<std::vector<FileRange>> ranges;
    for (ReadBatch& batch : GroupByPlace(RangesOf(pieces, source), kBatchRules)) {
      batches_.push_back(std::move(batch.pieces));
      ranges.push_back(std::move(batch.ranges));
    }
    ReadOptions options;
    // One for each thread to work on, and some to come.
    options.batches_ahead =
        std::clamp(threads + kBatchesToCome, options.batches_ahead, kBatchesMax);
    ahead_.emplace(*source.files(), std::move(ranges), options);
    if (quiet) return;
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
  size_t running = 0;  // threads; under the mutex, as are the error and the time
  Status error;
  FillSeconds seconds;
};

void RunPieces(const std::vector<Piece>& pieces,
               Dealer& dealer,
               FillPacker packer,
               Progress& shared) {
  while (!shared.stop) {
    std::optional<size_t> batch;
    {
      const FillTimer timer(packer.seconds().waiting);
      batch = dealer.Next();
    }
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
  shared.seconds += packer.seconds();
  --shared.running;
  shared.changed.notify_all();
}

}  // namespace

Status RunFills(const std::vector<WeightFill>& fills,
                const WeightSource& source,
                const OpsTable& ops,
                int threads,
                const LoadProgress& progress,
                bool quiet) {
  BT_CHECK(threads >= 1);
  const auto start = std::chrono::steady_clock::now();
  const std::vector<Piece> pieces = CutIntoPieces(fills);
  int64_t total = 0;
  for (const Piece& piece : pieces) total += BytesOf(piece);

  if (progress) progress(0, total);
  BT_RETURN_IF_ERROR(CheckFilesAreHere(pieces, source));
  Dealer dealer(pieces, source, total, threads, quiet);
  FillStaging staging(ops, PlacesOf(fills, pieces, ops));
  Progress shared;
  shared.running = static_cast<size_t>(threads);
  std::vector<std::jthread> workers;
  for (int i = 0; i < threads; ++i) {
    workers.emplace_back(
        [&] { RunPieces(pieces, dealer, FillPacker(source, ops, fills.data(), staging), shared); });
  }
  std::unique_lock lock(shared.mutex);
  while (shared.running > 0) {
    if (shared.changed.wait_for(lock, kReport) != std::cv_status::timeout || !progress) continue;
    lock.unlock();
    progress(shared.bytes, total);
    lock.lock();
  }
  if (!shared.error.ok()) return shared.error;
  if (progress) progress(total, total);
  if (source.files() == nullptr || quiet) return {};
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  const auto share = [&](double seconds) { return seconds / threads; };
  const std::string copying =
      ops.memory->kind() == DeviceKind::kCpu
          ? ""
          : fmt::format(", {:.2f} s copying to the GPU", share(shared.seconds.copying));
  BT_LOG(Info,
         "Weights: {:.2f} GB in {:.2f} s, {:.1f} GB/s; of each of {} threads, on average, {:.2f} s "
         "waiting for the disk, {:.2f} s reading, {:.2f} s packing{}",
         static_cast<double>(total) / 1e9, took.count(),
         static_cast<double>(total) / 1e9 / took.count(), threads, share(shared.seconds.waiting),
         share(shared.seconds.reading), share(shared.seconds.packing), copying);
  return {};
}

}  // namespace baltoro
