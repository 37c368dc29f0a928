#include "ops/cuda/launch_table/ask.h"

#include <csignal>
#include <cstdio>
#include <utility>

#include "ops/cuda/launch_table/launches.h"

namespace baltoro::cuda::launch_table {
namespace {

// What is asked now, said by the handler of a failed check: an operation that refuses ends the
// process.
char asked_now[512];

void SayWhat(int) {
  WriteLastLine(asked_now);
  std::signal(SIGABRT, SIG_DFL);
}

void Note(const std::string& question, int64_t rows) {
  std::snprintf(asked_now, sizeof(asked_now), "asked: %s, %d rows\n", question.c_str(),
                static_cast<int>(rows));
}

// Of the largest expert bank, so that nothing is allocated in a capture.
constexpr size_t kScratchBytes = size_t{8} << 30;

}  // namespace

PackedMatrix Step::Matrix(const FormCase& form, int64_t n, int64_t k, int64_t count) {
  PackedMatrix matrix{.data = Place(),
                      .form = form.form,
                      .n = n,
                      .k = k,
                      .count = count,
                      .stride_bytes = PackedBytes(form.form, n, k),
                      .quantise_input = form.quantise_input};
  if (form.form == WeightForm::kInt8Static) {
    matrix.input_scale = 0.031f;
    matrix.input_offset = -7;
  }
  return matrix;
}

BegunNorm Step::Norm(TensorView of) {
  return {.residual = Rows(DType::kF32, of.dim(1)),
          .weight = Vector(DType::kF32, of.dim(1)),
          .rows = of,
          .squares = Rows(DType::kF32, BegunNorm::kParts),
          .eps = 1e-5f};
}

void Step::KnowCodes(TensorView of) {
  rounded_ = {.codes = Place(),
              .scales = static_cast<float*>(Place()),
              .width = of.dim(1),
              .of = of.data,
              .rows = of.dim(0),
              .stride = of.stride[0]};
  beside_.rounded = &rounded_;
  ctx.beside = &beside_;
}

void Step::KnowOrder(TensorView of) {
  ordered_ = {.data = Place(), .of = of.data, .rows = of.dim(0), .stride = of.stride[0]};
  beside_.ordered = &ordered_;
  ctx.beside = &beside_;
}

Asker::Asker(std::string only) : only_(std::move(only)) {
  std::signal(SIGABRT, SayWhat);
  // Tensors of a question lie over each other: none of what is recorded runs.
  rank_->order().too_early = [](const std::string&) {};
  Result<Buffer> memory = Buffer::Create(static_cast<size_t>(2 * Step::kPlaces * Step::kPlaceBytes),
                                         "places of tensors", CudaMemory());
  CheckOk(memory.status());
  memory_ = std::move(memory).value();
  CheckOk(scratch_.Reserve(kScratchBytes));
}

void Asker::Ask(const std::string& question,
                const RowRange& range,
                const Operation& operation,
                const std::function<void(Step&)>& before) {
  if (question.find(only_) == std::string::npos || !asked_.insert(question).second) return;
  const auto ask = [&](int64_t rows, std::vector<Launch>& launches) {
    Note(question, rows);
    scratch_.Reset();
    staging_.Reset();
    Step step(rows, {.scratch = &scratch_, .staging = &staging_, .rank = rank_.get()},
              static_cast<char*>(memory_.data()));
    if (before) {
      before(step);
      CheckOk(rank_->stream().Synchronize());
    }
    bool taken = false;
    rank_->order().Forget();
    launches = LaunchesOf(rank_->stream().get(), [&] { taken = operation(step); });
    return taken;
  };
  table_.Add(question, Intervals(range, ask));
}

void Asker::Tell(const std::string& question, std::vector<std::string> answer) {
  if (question.find(only_) == std::string::npos) return;
  table_.Add(question, std::move(answer));
}

}  // namespace baltoro::cuda::launch_table
