// Ways of an expert bank by name, plans as text.

#include "ops/cuda/choose/experts.h"

namespace baltoro::cuda {

bool IsSorted(ExpertsKernel kernel) {
  switch (kernel) {
    case ExpertsKernel::kInt4Digits:
    case ExpertsKernel::kInt4Streaming:
    case ExpertsKernel::kInt4GroupedSum:
    case ExpertsKernel::kInt4Grouped:
    case ExpertsKernel::kFp8Streaming:
    case ExpertsKernel::kFp8GroupedSum:
    case ExpertsKernel::kFp8Grouped128:
    case ExpertsKernel::kGroupedProducts:
      return true;
    default:
      return false;
  }
}

const char* NameOf(ExpertsKernel kernel) {
  switch (kernel) {
    case ExpertsKernel::kNone:
      return "none";
    case ExpertsKernel::kInt4OneLaunch1:
      return "int4_one_launch1";
    case ExpertsKernel::kInt4OneLaunch4:
      return "int4_one_launch4";
    case ExpertsKernel::kInt4OneToken:
      return "int4_one_token";
    case ExpertsKernel::kInt4Entries:
      return "int4_entries";
    case ExpertsKernel::kInt4Digits:
      return "int4_digits";
    case ExpertsKernel::kInt4Streaming:
      return "int4_streaming";
    case ExpertsKernel::kInt4GroupedSum:
      return "int4_grouped_sum";
    case ExpertsKernel::kInt4Grouped:
      return "int4_grouped";
    case ExpertsKernel::kFp8OneLaunch1:
      return "fp8_one_launch1";
    case ExpertsKernel::kFp8OneLaunch4:
      return "fp8_one_launch4";
    case ExpertsKernel::kFp8OneLaunch8:
      return "fp8_one_launch8";
    case ExpertsKernel::kFp8Entries4:
      return "fp8_entries4";
    case ExpertsKernel::kFp8Streaming:
      return "fp8_streaming";
    case ExpertsKernel::kFp8GroupedSum:
      return "fp8_grouped_sum";
    case ExpertsKernel::kFp8Grouped128:
      return "fp8_grouped128";
    case ExpertsKernel::kGroupedProducts:
      return "grouped_products";
  }
  return "?";
}

// What grows with the rows of a way is left out: a text is the same for a whole interval of them.
std::string Text(const ExpertsPlan& plan) {
  std::string text = NameOf(plan.kernel);
  const auto number = [&](const char* what, int32_t value) {
    if (value > 0) text.append(" ").append(what).append(std::to_string(value));
  };
  number("tiles", plan.tile_rows);
  number("blocks", plan.blocks);
  number("sum_blocks", plan.part.blocks);
  if (plan.parts > 1) number("parts", plan.parts);
  number("together", plan.together);
  number("end_strips", plan.end_strips);
  if (plan.rounded_by_down) text += " rounded_by_down";
  if (plan.wide) text += " wide";
  if (plan.makes_ordered) text += " orders_x";
  if (plan.reads_ordered && !plan.makes_ordered) text += " x_ordered";
  number("sort", plan.sort.blocks);
  number("x", plan.sort.threads);
  if (plan.chooser == ExpertsChooser::kKernel) text += ", chooses";
  if (plan.chooser == ExpertsChooser::kPreparation) text += ", prepared";
  number("warps", plan.prepare_warps);
  if (plan.shared == SharedExperts::kInBank) text += ", shared in bank";
  if (plan.shared == SharedExperts::kOwnProduct) text += ", shared apart";
  if (plan.shared == SharedExperts::kBeside) text += ", shared beside";
  number("rows", plan.beside_rows);
  if (plan.norm) text += ", norm";
  return text;
}

std::string Text(const ExpertsQuestion& q) {
  std::string text;
  const auto add = [&](const std::string& what) { text.append(text.empty() ? "" : ", ") += what; };
  const auto matrix = [](const MatrixFacts& w) {
    return std::string(WeightFormName(w.form)) + (w.quantise_input ? " coded" : "") + " [" +
           std::to_string(w.n) + ", " + std::to_string(w.k) + "]" +
           (w.aligned(128) ? "" : " aligned to " + std::to_string(w.alignment));
  };
  const auto rows = [](const RowsFacts& x) {
    return std::string(x.type == DType::kF32 ? "f32" : "bf16") +
           (x.aligned(16) ? "" : " aligned to " + std::to_string(x.alignment));
  };
  add("experts of " + std::to_string(q.tokens()) + " tokens top " + std::to_string(q.top_k));
  add(std::to_string(q.slots()) + " " + matrix(q.gate_up) + (q.gapless ? "" : " with gaps"));
  add(matrix(q.down));
  add("x " + rows(q.x) + (q.x_coded ? " coded" : "") + (q.codes_alone ? " codes alone" : "") +
      (q.x_ordered ? " ordered" : ""));
  add("out " + rows(q.out));
  if (q.shared) add("shared " + rows(*q.shared) + " by " + matrix(q.shared_down));
  if (q.choice) {
    const RouterParams& params = q.choice->params;
    add("chooses of " + std::to_string(params.experts) + " top " + std::to_string(params.top_k) +
        (params.score == RouterScore::kSigmoid ? "" : " by softmax") +
        (params.groups > 1 ? " in " + std::to_string(params.groups) : "") + " " +
        rows(q.choice->logits) + (q.choice->bias_alignment % 16 == 0 ? "" : " bias not aligned"));
  }
  if (q.norm) add("norm behind");
  add(std::to_string(q.card.multiprocessors) + " multiprocessors" +
      (q.card.owned ? "" : " with others"));
  return text;
}

}  // namespace baltoro::cuda
