#include "ops/cuda/choose/linear_launches.h"

#include <string>

#include "base/check.h"

namespace baltoro::cuda {
namespace {

using launch_table::Launch;
using Launches = std::vector<Launch>;

// What stands beside a product in its launch.
enum class Beside : uint8_t { kNothing, kRotation, kRouter };

unsigned Unsigned(int64_t number) {
  return static_cast<unsigned>(number);
}

// As LaunchAhead does it, which says nothing of clusters.
Launch Ahead(std::string name, int64_t blocks, int64_t threads, int64_t second = 1) {
  return {.name = std::move(name),
          .grid = {Unsigned(blocks), Unsigned(second), 1},
          .block = {Unsigned(threads), 1, 1}};
}

Launch Shaped(std::string name, const LaunchShape& shape) {
  return {.name = std::move(name),
          .grid = {Unsigned(shape.x), Unsigned(shape.y), 1},
          .block = {Unsigned(shape.threads), 1, 1},
          .shared_bytes = Unsigned(shape.shared),
          .cluster = Unsigned(shape.cluster)};
}

std::string Arguments(std::initializer_list<std::string> all) {
  std::string text = "<";
  for (const std::string& one : all) text.append(text.size() > 1 ? ", " : "").append(one);
  return text + ">";
}

std::string Bool(bool value) {
  return value ? "true" : "false";
}

void AddInput(Launches& to, const QuantisePlan& plan) {
  switch (plan.kernel) {
    case QuantiseKernel::kNone:
    case QuantiseKernel::kKnown:
      return;
    case QuantiseKernel::kFp8Units:
      to.push_back(
          Shaped("quantise:Fp8PlainKernel" + Arguments({std::to_string(plan.units)}), plan.launch));
      return;
    case QuantiseKernel::kFp8Rows:
      to.push_back(Shaped("quantise:Fp8Kernel<PlainRow>", plan.launch));
      return;
    case QuantiseKernel::kInt8Rows:
      to.push_back(Shaped("quantise:Int8Kernel<PlainRow>", plan.launch));
      return;
    case QuantiseKernel::kPad:
      to.push_back(Shaped("quantise:PadKernel<PlainRow>", plan.launch));
      return;
  }
}

const char* TilesForm(const MatrixFacts& w) {
  switch (w.form) {
    case WeightForm::kBf16:
      return "product::Bf16Form";
    case WeightForm::kFp8Block:
      return w.quantise_input ? "product::Fp8CodesForm" : "product::Fp8Form";
    case WeightForm::kInt4Group:
      return "product::Int4GroupForm";
    case WeightForm::kInt4:
      return "product::Int4Form";
    case WeightForm::kInt8:
    case WeightForm::kInt8Static:
      return "product::Int8Form";
    case WeightForm::kF32:
      break;
  }
  return "";
}

void AddTiles(Launches& to, const TilesPlan& plan, const MatrixFacts& w) {
  if (!plan.wide) {
    to.push_back(Shaped("product::Kernel" + Arguments({TilesForm(w), std::to_string(plan.eights)}),
                        plan.launch));
    return;
  }
  LaunchShape shape = plan.launch;
  shape.shared = 204368;  // a constant of tiles128.cu
  to.push_back(Shaped("tiles128:WideKernel<Int8Kind>", shape));
}

void AddFp8Tiles(Launches& to,
                 const Fp8TilesPlan& plan,
                 const MatrixFacts& w,
                 const RowsFacts& out) {
  if (!plan.pairs) {
    to.push_back(Shaped("fp8_tiles:Fp8TilesKernel<false>", plan.launch));
    if (plan.parts == 1) return;
    to.push_back(Shaped("fp8_tiles:SumPartsKernel", {.x = static_cast<int32_t>(SharesOf(w.n, 512)),
                                                     .y = static_cast<int32_t>(out.rows),
                                                     .threads = 128}));
    return;
  }
  const bool deep = plan.group >= 128 && plan.piece > 128;
  to.push_back(
      Shaped("fp8_pairs:Fp8PairsKernel<fp8_pairs::Shape" +
                 Arguments({"false", std::to_string(plan.piece), std::to_string(plan.group),
                            deep ? "1" : "2", Bool(out.type == DType::kF32), Bool(plan.halves),
                            Bool(plan.eights)}) +
                 " >",
             plan.launch));
}

// Of a product, whatever else is in its launch.
void Add(Launches& to,
         const LinearPlan& plan,
         const RowsFacts& x,
         const MatrixFacts& w,
         const RowsFacts& out,
         int64_t second_n,
         Beside beside) {
  const bool rotates = beside == Beside::kRotation;
  AddInput(to, plan.input);
  switch (plan.kernel) {
    case LinearKernel::kNone:
      return;
    case LinearKernel::kBf16Rows16: {
      const auto& form = plan.as<Bf16Rows16Plan>();
      to.push_back(
          Shaped("bf16_rows16:Bf16Rows16Kernel" +
                     Arguments({std::to_string(form.strips), Bool(rotates), Bool(form.tall)}),
                 form.launch));
      return;
    }
    case LinearKernel::kBf16Rows128: {
      const auto& form = plan.as<Bf16Rows128Plan>();
      to.push_back(Shaped(
          "bf16_rows128_kernel:Bf16Rows128Kernel" +
              Arguments({std::to_string(form.groups), std::to_string(form.tile), Bool(rotates)}),
          LaunchShapeOf(form, {.rows = x.rows, .k = w.k, .n = w.n, .second_n = second_n})));
      return;
    }
    case LinearKernel::kBf16Rows1024: {
      const auto& form = plan.as<Bf16Rows1024Plan>();
      to.push_back(
          Shaped("bf16_rows1024_kernel:Bf16Rows1024Kernel" +
                     Arguments({std::to_string(form.columns), Bool(rotates)}),
                 LaunchShapeOf(form, {.rows = x.rows, .k = w.k, .n = w.n, .second_n = second_n})));
      return;
    }
    case LinearKernel::kFp8Rows16: {
      const auto& form = plan.as<Fp8Rows16Plan>();
      const std::string name =
          rotates ? "fp8_rows16_inputs:Fp8QueryKernel"
          : beside == Beside::kRouter
              ? "fp8_rows16_inputs:Fp8RouterKernel" + Arguments({Bool(form.coded)})
              : "fp8_rows16:Fp8Rows16Kernel" +
                    Arguments({std::to_string(form.strips), Bool(form.tall), Bool(form.coded)});
      to.push_back(Shaped(name, form.launch));
      return;
    }
    case LinearKernel::kFp8Rows256: {
      const auto& form = plan.as<Fp8Rows256Plan>();
      to.push_back(
          Shaped("fp8_rows256_kernel:Fp8Rows256Kernel" +
                     Arguments({std::to_string(form.strip_rows),
                                "(Fp8Rows256Form)" + std::to_string(static_cast<int>(beside))}),
                 form.launch));
      return;
    }
    case LinearKernel::kFp8Tiles:
      return AddFp8Tiles(to, plan.as<Fp8TilesPlan>(), w, out);
    case LinearKernel::kRouterRows16: {
      const LaunchShape& shape = plan.as<RouterRows16Plan>().launch;
      to.push_back(Ahead("router_rows16:RouterProductKernel", shape.x, shape.threads));
      return;
    }
    case LinearKernel::kTiles:
      return AddTiles(to, plan.as<TilesPlan>(), w);
    case LinearKernel::kBlas:
      // Launches of the library that follow each other count as one.
      if (to.empty() || to.back().name != "cuBLASLt") to.push_back({.name = "cuBLASLt"});
      return;
    case LinearKernel::kPlain:
      to.push_back(Shaped("tiles_plain:PlainKernel", {.x = static_cast<int32_t>(SharesOf(w.n, 8)),
                                                      .y = static_cast<int32_t>(x.rows),
                                                      .threads = 256}));
      return;
  }
}

}  // namespace

Launches LaunchesOf(const LinearQuestion& q, const LinearPlan& plan) {
  Launches all;
  Add(all, plan, q.x, q.w, q.out, 0, Beside::kNothing);
  return all;
}

Launches LaunchesOf(const RouterQuestion& q, const LinearPlan& plan) {
  Launches all;
  Add(all, plan, q.x, q.w, q.logits, 0, Beside::kNothing);
  return all;
}

Launches LaunchesOf(const ExpertInputsQuestion& q, const ExpertInputsPlan& plan) {
  Launches all;
  const bool together = plan.order == ExpertInputsOrder::kTogether;
  const auto add_shared = [&] {
    Add(all, plan.shared, q.x, q.gate_up, q.shared, together ? q.router.n : 0,
        together ? Beside::kRouter : Beside::kNothing);
  };
  const auto add_router = [&] {
    Add(all, plan.router, q.x, q.router, q.logits, 0, Beside::kNothing);
  };
  if (plan.order == ExpertInputsOrder::kRouterFirst) add_router();
  add_shared();
  if (plan.order == ExpertInputsOrder::kSharedFirst) add_router();
  return all;
}

Launches LaunchesOf(const AttentionInputsQuestion& q, const AttentionInputsPlan& plan) {
  Launches all;
  if (plan.kernel != AttentionInputsKernel::kWithQueries) {
    const bool many = plan.kernel == AttentionInputsKernel::kManyRows;
    all.push_back(Ahead(many ? "attention_inputs:ManyInputsKernel" : "attention_inputs:InputKernel",
                        plan.launch.x, plan.launch.threads, plan.launch.y));
  }
  if (plan.query.kernel == LinearKernel::kNone) return all;
  RowsFacts x = q.qkv_a;
  x.width = q.q_lora;
  Add(all, plan.query, x, q.q_weight, q.q, 0, plan.rotates ? Beside::kRotation : Beside::kNothing);
  if (plan.rotates) return all;
  const int64_t eights = q.qkv_a.rows * q.heads * SharesOf(q.rope, 8);
  all.push_back(Ahead("rope:RopeKernel<__nv_bfloat16>", SharesOf(eights, 128), 128));
  return all;
}

}  // namespace baltoro::cuda
