#pragma once

// Asks operations what they launch. Tensors and matrices have places and no contents: nothing runs.

#include <functional>
#include <set>
#include <string>

#include "device/buffer.h"
#include "ops/cuda/launch_table/table.h"
#include "ops/cuda/linear/tiles/tiles_test_support.h"

namespace baltoro::cuda::launch_table {

using product_test::FormCase;
using product_test::kForms;

// What an operation of so many rows is given. Places follow each other in the order in which they
// are asked for, the same for any number of rows.
class Step {
 public:
  Step(int64_t rows_, const OpContext& context, char* memory)
      : rows(rows_), ctx(context), memory_(memory) {}
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  const int64_t rows;
  OpContext ctx;

  void* Place() { return memory_ + (next_++ % kPlaces) * kPlaceBytes; }
  TensorView Rows(DType type, int64_t width) { return {Place(), type, {rows, width}}; }
  TensorView Vector(DType type, int64_t width) { return {Place(), type, {width}}; }
  PackedMatrix Matrix(const FormCase& form, int64_t n, int64_t k, int64_t count = 1);
  // Whose rows are `of`.
  BegunNorm Norm(TensorView of);
  // The context has the codes of these rows, as a norm wrote them.
  void KnowCodes(TensorView of);
  // Likewise their copy in matrix order.
  void KnowOrder(TensorView of);

  static constexpr int64_t kPlaces = 512, kPlaceBytes = int64_t{1} << 20;

 private:
  char* memory_;
  int64_t next_ = 0;
  RoundedRows rounded_;
  OrderedRows ordered_;
  Beside beside_;
};

class Asker {
 public:
  // Questions that do not contain `only` are left out.
  explicit Asker(std::string only);

  // `operation` queues launches and returns true, or false, where it is not taken so. `before`
  // comes ahead of the capture: what cannot be captured.
  using Operation = std::function<bool(Step&)>;
  void Ask(const std::string& question,
           const RowRange& range,
           const Operation& operation,
           const std::function<void(Step&)>& before = nullptr);

  // What is known without a capture.
  void Tell(const std::string& question, std::vector<std::string> answer);

  const Table& table() const { return table_; }

 private:
  std::string only_;
  std::set<std::string> asked_;  // shapes of several models are the same
  std::unique_ptr<RankState> rank_ = std::move(RankState::Create()).value();
  Buffer memory_;
  Arena scratch_{CudaMemory()}, staging_{PinnedMemory()};
  Table table_;
};

// The questions.
void TellCard(Asker& asker);
void AskLinear(Asker& asker);
void AskExperts(Asker& asker);
void AskExpertInputs(Asker& asker);
void AskAttention(Asker& asker);
void AskAttentionInputs(Asker& asker);
void AskAttentionLayer(Asker& asker);
void AskRows(Asker& asker);
void AskSampling(Asker& asker);

}  // namespace baltoro::cuda::launch_table
