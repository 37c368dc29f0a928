// Plans of products as a line of text.

#include "ops/cuda/choose/inputs.h"

namespace baltoro::cuda {
namespace {

std::string Number(int64_t number) {
  return std::to_string(number);
}

std::string FormText(std::monostate) {
  return "";
}
std::string FormText(const Bf16Rows16Plan& plan) {
  return " " + Number(plan.strips) + " strips" + (plan.tall ? " tall" : "");
}
std::string FormText(const Bf16Rows128Plan& plan) {
  return " " + Number(plan.StripRows()) + "x" + Number(plan.tile) + "/" + Number(plan.split) +
         " rings " + Number(plan.stages) + "+" + Number(plan.inputs);
}
std::string FormText(const Bf16Rows1024Plan& plan) {
  return " " + Number(plan.columns) + "x" + Number(plan.tiles) + "/" + Number(plan.parts);
}
std::string FormText(const Fp8Rows16Plan& plan) {
  return " " + Number(plan.strips) + " strips" + (plan.tall ? " tall" : "") +
         (plan.coded ? " coded" : "");
}
std::string FormText(const Fp8Rows256Plan& plan) {
  return " " + Number(plan.strip_rows) + "/" + Number(plan.parts);
}
std::string FormText(const Fp8TilesPlan& plan) {
  if (plan.pairs) {
    return " pairs " + Number(plan.piece) + "/" + Number(plan.group) +
           (plan.halves ? " halves" : "") + (plan.eights ? " eights" : "");
  }
  return " " + Number(plan.tile_rows) + "/" + Number(plan.parts) + (plan.pair ? " paired" : "");
}
std::string FormText(const RouterRows16Plan&) {
  return "";
}
std::string FormText(const TilesPlan& plan) {
  if (plan.wide) return " wide";
  return " " + Number(8 * plan.eights) + "/" + Number(1 << plan.log_warps_k) +
         (plan.cluster > 1 ? "x" + Number(plan.cluster) : "");
}

}  // namespace

const char* NameOf(LinearKernel kernel) {
  switch (kernel) {
    case LinearKernel::kNone:
      return "none";
    case LinearKernel::kBf16Rows16:
      return "bf16_rows16";
    case LinearKernel::kBf16Rows128:
      return "bf16_rows128";
    case LinearKernel::kBf16Rows1024:
      return "bf16_rows1024";
    case LinearKernel::kFp8Rows16:
      return "fp8_rows16";
    case LinearKernel::kFp8Rows256:
      return "fp8_rows256";
    case LinearKernel::kFp8Tiles:
      return "fp8_tiles";
    case LinearKernel::kRouterRows16:
      return "router_rows16";
    case LinearKernel::kTiles:
      return "tiles";
    case LinearKernel::kBlas:
      return "blas";
    case LinearKernel::kPlain:
      return "plain";
  }
  return "";
}

std::string Text(const QuantisePlan& plan) {
  switch (plan.kernel) {
    case QuantiseKernel::kNone:
      return "";
    case QuantiseKernel::kKnown:
      return "codes";
    case QuantiseKernel::kFp8Units:
      return "to_fp8 " + Number(plan.units);
    case QuantiseKernel::kFp8Rows:
      return "to_fp8_rows";
    case QuantiseKernel::kInt8Rows:
      return "to_int8";
    case QuantiseKernel::kPad:
      return "pad";
  }
  return "";
}

std::string Text(const LinearPlan& plan) {
  const std::string input = Text(plan.input);
  return input + (input.empty() ? "" : ", ") + NameOf(plan.kernel) +
         std::visit([](const auto& form) { return FormText(form); }, plan.form);
}

std::string Text(const GatedLinearPlan& plan) {
  switch (plan.way) {
    case GatedWay::kInProduct:
      return "gated in " + Text(plan.product);
    case GatedWay::kAsCodes:
      return "gated to " + Text(plan.product);
    case GatedWay::kAsRows:
      return "gated; " + Text(plan.product);
  }
  return "";
}

std::string Text(const ExpertInputsPlan& plan) {
  switch (plan.order) {
    case ExpertInputsOrder::kTogether:
      return "both: " + Text(plan.shared);
    case ExpertInputsOrder::kRouterFirst:
      return "router: " + Text(plan.router) + "; then " + Text(plan.shared);
    case ExpertInputsOrder::kSharedFirst:
      return Text(plan.shared) + "; then router: " + Text(plan.router);
  }
  return "";
}

std::string Text(const AttentionInputsPlan& plan) {
  if (plan.kernel == AttentionInputsKernel::kWithQueries) return "all in " + Text(plan.query);
  std::string text = plan.kernel == AttentionInputsKernel::kRows ? "rows" : "many rows";
  if (plan.writes_codes) text += " with codes";
  if (plan.query.kernel == LinearKernel::kNone) return text;
  return text + "; " + Text(plan.query) + (plan.rotates ? " rotating" : "; rope");
}

}  // namespace baltoro::cuda
