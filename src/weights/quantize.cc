#include "weights/quantize.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <thread>

#include "weights/quant/matrix_codec.h"
#include "weights/quant_description.h"

namespace baltoro {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kCopyBytes = int64_t{4} << 20;
constexpr std::chrono::milliseconds kReport(200);  // between two reports of progress

int64_t BytesOf(const SourceTensor& tensor) {
  int64_t bytes = SizeOf(tensor.dtype);
  for (const int64_t dim : tensor.shape) bytes *= dim;
  return bytes;
}

Status SystemError(const std::string& path) {
  return Status(Code::kUnavailable, path + ": " + std::strerror(errno));
}

// One thread's share of the work: which piece, its memory and its sums.
class PieceWorker {
 public:
  PieceWorker(const Checkpoint& source, const QuantizePlan& plan, const CheckpointWriter& writer)
      : source_(source), plan_(plan), writer_(writer) {}

  // Bytes [begin, end) of a copied tensor, or matrix rows [begin, end).
  Status Run(const QuantizeStep& step, int64_t begin, int64_t end) {
    const bool copied = step.form == WeightForm::kBf16;
    const int64_t unit = copied ? 1 : step.shape.inputs * SizeOf(DType::kBf16);
    input_.resize(static_cast<size_t>((end - begin) * unit));
    BT_RETURN_IF_ERROR(source_.ReadBytes(step.source.tensor, static_cast<uint64_t>(begin * unit),
                                         input_.data(), input_.size()));
    if (copied) return writer_.Write(step.outputs[0], begin, input_.data(), input_.size());

    const auto* rows_in = reinterpret_cast<const Bf16*>(input_.data());
    const int64_t rows = end - begin, count = rows * step.shape.inputs;
    if (!AllFinite(rows_in, count)) {
      return InvalidArgument(
          fmt::format("tensor {}: holds a value that is not finite", step.source.stored_name));
    }
    EncodeRows(step.form, step.shape, rows_in, rows, parts_);
    const std::vector<FormTensor> tensors = TensorsOfForm(step.form, step.shape);
    for (size_t i = 0; i < tensors.size(); ++i) {
      BT_RETURN_IF_ERROR(writer_.Write(step.outputs[i], tensors[i].BytesBefore(begin),
                                       parts_[i].data(), parts_[i].size()));
    }
    decoded_.resize(static_cast<size_t>(count));
    DecodeRows(step.form, step.shape, parts_, begin, rows, decoded_.data());
    AddError(rows_in, errors_[RoleOf(step.source.tensor.name)]);
    return {};
  }

  const std::map<TensorRole, QuantizeError>& errors() const { return errors_; }

 private:
  void AddError(const Bf16* want, QuantizeError& sums) {
    double error = 0, weights = 0;
    for (size_t i = 0; i < decoded_.size(); ++i) {
      const double w = ToFloat(want[i]);
      error += (decoded_[i] - w) * (decoded_[i] - w);
      weights += w * w;
    }
    sums.squared_error += error;
    sums.squared_weights += weights;
  }

  const Checkpoint& source_;
  const QuantizePlan& plan_;
  const CheckpointWriter& writer_;
  std::vector<char> input_;
  std::vector<std::vector<char>> parts_;
  std::vector<float> decoded_;
  std::map<TensorRole, QuantizeError> errors_;
};

struct Piece {
  size_t step = 0;
  int64_t begin = 0, end = 0;
};

std::vector<Piece> CutIntoPieces(const QuantizePlan& plan) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const QuantizeStep& step = plan.steps[i];
    const bool copied = step.form == WeightForm::kBf16;
    const int64_t total = copied ? BytesOf(step.source.tensor) : step.shape.outputs;
    const int64_t each = copied ? kCopyBytes : kEncodeRows;
    for (int64_t begin = 0; begin < total; begin += each) {
      pieces.push_back({i, begin, std::min(total, begin + each)});
    }
  }
  return pieces;
}

// Runs all pieces on threads of its own; reports progress on this one. The first error stops all.
Status RunPieces(const Checkpoint& source,
                 const QuantizePlan& plan,
                 const CheckpointWriter& writer,
                 const QuantizeOptions& options,
                 std::map<TensorRole, QuantizeError>& errors) {
  const std::vector<Piece> pieces = CutIntoPieces(plan);
  int64_t total = 0;
  for (const QuantizeStep& step : plan.steps) total += BytesOf(step.source.tensor);
  std::atomic<size_t> next = 0;
  std::atomic<int64_t> done = 0;
  std::atomic<bool> stop = false;
  std::mutex mutex;  // over what follows
  std::condition_variable ended;
  Status first_error;
  int running = std::max(1, options.threads);

  const auto work = [&] {
    PieceWorker worker(source, plan, writer);
    Status status;
    while (status.ok() && !stop) {
      const size_t i = next.fetch_add(1);
      if (i >= pieces.size()) break;
      const Piece& piece = pieces[i];
      const QuantizeStep& step = plan.steps[piece.step];
      status = worker.Run(step, piece.begin, piece.end);
      const int64_t unit =
          step.form == WeightForm::kBf16 ? 1 : step.shape.inputs * SizeOf(DType::kBf16);
      done += (piece.end - piece.begin) * unit;
    }
    const std::lock_guard lock(mutex);
    if (!status.ok() && first_error.ok()) first_error = status;
    if (!status.ok()) stop = true;
    for (const auto& [role, sums] : worker.errors()) {
      errors[role].squared_error += sums.squared_error;
      errors[role].squared_weights += sums.squared_weights;
    }
    --running;
    ended.notify_all();
  };
  std::vector<std::thread> threads;
  for (int i = running; i > 0; --i) threads.emplace_back(work);
  {
    std::unique_lock lock(mutex);
    while (!ended.wait_for(lock, kReport, [&] { return running == 0; })) {
      if (options.progress) options.progress(done, total);
    }
  }
  for (std::thread& thread : threads) thread.join();
  if (first_error.ok() && options.progress) options.progress(total, total);
  return first_error;
}

// Files beside the weights, as they are. Weight files and indexes are left out: they would tell of
// the old weights.
Status CopyOthers(const std::string& from, const std::string& to) {
  std::error_code error;
  for (fs::directory_iterator it(from, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name == "config.json" || name == kQuantDescriptionFile || name.ends_with(".safetensors") ||
        name.ends_with(".safetensors.index.json")) {
      continue;
    }
    fs::copy(it->path(), fs::path(to) / name, fs::copy_options::recursive, error);
    if (error) {
      return Status(Code::kUnavailable,
                    it->path().string() + ": cannot be copied: " + error.message());
    }
  }
  if (error) return Status(Code::kUnavailable, from + ": " + error.message());
  return {};
}

Status CheckSpace(const std::string& dir, const QuantizePlan& plan) {
  int64_t needed = 0;
  for (const OutputTensor& tensor : plan.tensors) {
    needed += BytesOf({.name = {}, .dtype = tensor.dtype, .shape = tensor.shape, .handle = 0});
  }
  struct statvfs info {};
  if (statvfs(dir.c_str(), &info) != 0) return SystemError(dir);
  const uint64_t free = uint64_t{info.f_bavail} * info.f_frsize;
  if (free > static_cast<uint64_t>(needed)) return {};
  return Status(Code::kResourceExhausted,
                fmt::format("{}: {:.1f} GB are needed, {:.1f} GB are free", dir,
                            static_cast<double>(needed) / 1e9, static_cast<double>(free) / 1e9));
}

Result<QuantizeSummary> WriteInto(const std::string& from,
                                  const std::string& dir,
                                  const Json& config,
                                  const Checkpoint& source,
                                  const QuantizePlan& plan,
                                  const QuantizeOptions& options) {
  const bool ascend = options.format == QuantFormat::kW4A8;
  BT_RETURN_IF_ERROR(CheckSpace(dir, plan));
  BT_RETURN_IF_ERROR(CopyOthers(from, dir));
  BT_RETURN_IF_ERROR(WriteWholeFile(dir + "/config.json", config.dump(2) + "\n"));
  if (ascend) {
    BT_RETURN_IF_ERROR(
        WriteWholeFile(fmt::format("{}/{}", dir, kQuantDescriptionFile), QuantDescriptionOf(plan)));
  }
  BT_ASSIGN_OR_RETURN(CheckpointWriter writer,
                      CheckpointWriter::Create(dir, ascend ? "quant_model_weights" : "model",
                                               plan.tensors, options.shard_bytes));
  QuantizeSummary summary;
  BT_RETURN_IF_ERROR(RunPieces(source, plan, writer, options, summary.parts));
  BT_RETURN_IF_ERROR(writer.Finish());

  for (const QuantizeStep& step : plan.steps) {
    const int64_t before = BytesOf(step.source.tensor);
    summary.bytes_before += before;
    if (step.form == WeightForm::kBf16) continue;
    QuantizeError& part = summary.parts[RoleOf(step.source.tensor.name)];
    part.form = step.form;
    ++part.matrices;
    part.bytes_before += before;
    for (const FormTensor& tensor : TensorsOfForm(step.form, step.shape)) {
      part.bytes_after += tensor.bytes();
    }
  }
  summary.bytes_after = writer.total_bytes();
  summary.files = writer.num_files();
  return summary;
}

}  // namespace

double QuantizeError::relative() const {
  return squared_weights > 0 ? std::sqrt(squared_error / squared_weights) : 0;
}

Result<QuantizeSummary> QuantizeCheckpoint(const std::string& from,
                                           const std::string& to,
                                           const QuantizeOptions& options) {
  std::string target = to;
  while (target.size() > 1 && target.back() == '/') target.pop_back();
  const std::string partial = target + ".partial";
  std::error_code ignored;
  for (const std::string& path : {target, partial}) {
    if (fs::exists(fs::symlink_status(path, ignored))) {
      return InvalidArgument(path + ": is there already; nothing is overwritten");
    }
  }
  BT_ASSIGN_OR_RETURN(const Checkpoint source, Checkpoint::Open(from));
  const std::set<TensorRole> parts =
      options.parts.empty() ? UsualParts(options.format) : options.parts;
  BT_ASSIGN_OR_RETURN(const QuantizePlan plan,
                      PlanQuantize(source.tensors(), options.format, parts));
  BT_ASSIGN_OR_RETURN(Json original, ReadJsonFile(from + "/config.json"));
  BT_ASSIGN_OR_RETURN(const Json config,
                      QuantizedConfig(std::move(original), options.format, plan));

  if (mkdir(partial.c_str(), 0777) != 0) return SystemError(partial);
  auto summary = WriteInto(from, partial, config, source, plan, options);
  if (summary.ok() &&
      renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, target.c_str(), RENAME_NOREPLACE) != 0) {
    summary = SystemError(target);
  }
  if (!summary.ok()) fs::remove_all(partial, ignored);
  return summary;
}

}  // namespace baltoro
