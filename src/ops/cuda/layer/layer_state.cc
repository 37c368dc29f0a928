#include "ops/cuda/layer/layer_state.h"
#include "ops/cuda/experts/expert_bank.h"

#include <utility>

#include "base/check.h"
#include "ops/cuda/attention/layer/resident_attention.h"
#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/norm_begun.h"
#include "ops/cuda/rows/decode_rows.h"
#include "ops/cuda/rows/quantise.h"
#include "ops/expert_exchange.h"

namespace baltoro::cuda {
namespace {

DType PartOf(const StepShape& shape) {
  return shape.rounds_parts && shape.tokens >= kRoundedPartRowsMin ? DType::kBf16 : DType::kF32;
}

void PlainBank(const OpContext& ctx, const baltoro::ExpertBankArgs& args) {
  ExpertBank(ctx, {.out = args.out,
                   .x = args.x,
                   .ids = args.ids,
                   .weights = args.weights,
                   .gate_up = args.gate_up,
                   .down = args.down,
                   .slot_of = args.slot_of});
}

}  // namespace

const SmallOps& CudaSmallOps() {
  static const SmallOps kSmall{.act = DType::kBf16,
                               .embed = Embed,
                               .gather_rows = GatherRows,
                               .scatter_rows = ScatterRows,
                               .copy = Copy,
                               .clear = Clear,
                               .rms_norm = RmsNorm,
                               .add_rms_norm = AddRmsNorm,
                               .linear = Linear,
                               .rope = Rope,
                               .kv_write = KvWrite,
                               .mla_attention = MlaAttention,
                               .head_attention = HeadAttention,
                               .swiglu = Swiglu,
                               .route = Route,
                               .choose_copies = ChooseCopies,
                               .expert_bank = PlainBank};
  return kSmall;
}

LayerState::LayerState(const OpContext& context, Arena& arena, const StepShape& shape)
    : ComposedState(CudaSmallOps(), context, arena, shape, PartOf(shape)) {
  const auto take = [&](DType type, int64_t width) {
    void* data = arena.Allocate(static_cast<size_t>(shape.tokens * width * SizeOf(type)));
    return TensorView(data, type, {shape.tokens, width});
  };
  // Ranks sum what a half adds before it is added.
  const bool joins = shape.tensor_ranks == 1 && !shape.rounds_parts && shape.experts != nullptr &&
                     shape.experts->shared_gate_up.n > 0;
  if (joins && shape.tokens <= BegunNorm::kRowsMax) {
    unscaled_ = take(DType::kBf16, shape.hidden);
    squares_ = take(DType::kF32, BegunNorm::kParts);
  }
  if (shape.exchange != nullptr) {
    beside_.gathered = &gathered_;
    if (shape.fp8_dispatch && shape.hidden % 128 == 0) {
      codes_ = arena.Allocate(
          static_cast<size_t>(group_rows_.dim(0) * (shape.hidden + shape.hidden / 128 * 4)));
    }
  }
  if (shape.rounds_norms && shape.hidden % 128 == 0) {
    rounded_ = {.codes = take(DType::kU8, shape.hidden).data,
                .scales = take(DType::kF32, shape.hidden / 128).as<float>(),
                .width = shape.hidden};
    beside_.rounded = &rounded_;
  } else if (shape.experts != nullptr && shape.exchange == nullptr &&
             PlanBank(context_, BankOf(*shape.experts)).reads_ordered) {
    // Where the norm writes codes it writes no second copy.
    in_order_ = take(DType::kBf16, shape.hidden);
  }
}

OpContext LayerState::Fresh() {
  OpContext context = ComposedState::Fresh();
  beside_.ordered = orders_ ? &ordered_ : nullptr;
  beside_.tell = &tell_;
  context.beside = &beside_;
  return context;
}

BegunNorm LayerState::NormOf(TensorView weight, float eps) const {
  return {
      .residual = residual_, .weight = weight, .rows = unscaled_, .squares = squares_, .eps = eps};
}

void LayerState::End(const std::optional<BegunNorm>& behind, const NextHalf& next) {
  if (!behind) return Leave(next);
  ahead_ = behind;
  added_ = true;
}

// ---- attention

AttentionInputArgs LayerState::InputsOf(const AttentionHalfArgs& args) const {
  const bool low_rank = shape_.q_lora > 0;
  return {.qkv_a = qkv_a_,
          .q_norm = args.q_norm,
          .kv_norm = args.kv_norm,
          .positions = args.positions,
          .slots = args.slots,
          .rope = args.rope,
          .cache = args.cache,
          .eps = args.latent_eps,
          .q = low_rank ? Heads(q_, shape_.heads) : TensorView(),
          .q_weight = args.q};
}

std::optional<BegunNorm> LayerState::NormBehind(const AttentionHalfArgs& args,
                                                const NextHalf& next) const {
  if (!unscaled_ || next.experts == nullptr) return std::nullopt;
  const ExpertsHalfArgs& experts = *next.experts;
  const BegunNorm norm = NormOf(experts.norm, experts.eps);
  const bool joins =
      PlanToNorm(norm, attention_, args.o).taken() &&
      PlanFromNorm(gate_up(experts.shared_gate_up.n), norm, experts.shared_gate_up).taken() &&
      PlanFromNorm(router_, norm, experts.router).taken();
  return joins ? std::optional(norm) : std::nullopt;
}

void LayerState::AttentionHalf(const AttentionHalfArgs& args, const NextHalf& next) {
  const std::optional<BegunNorm> before = std::exchange(ahead_, std::nullopt);
  TensorView input = normed_;
  const bool drafts = static_cast<bool>(args.beside_norm);
  if (drafts) {
    input = DraftInput(args.beside_norm, args.norm, args.eps);
  } else if (!before) {
    Normalise(args.norm, args.eps);
  }
  const std::optional<BegunNorm> behind = NormBehind(args, next);
  const AttentionInputArgs inputs = InputsOf(args);
  const bool low_rank = shape_.q_lora > 0;
  const bool whole = low_rank && !drafts && args.kv_a.n == 0 && shape_.context_ranks == 1;
  if (whole && AttentionLayer(Fresh(), {.x = normed_,
                                        .before = before ? &*before : nullptr,
                                        .qkv_a = args.qkv_a,
                                        .inputs = inputs,
                                        .attention = AttentionArgs(args),
                                        .o = args.o,
                                        .out = delta_,
                                        .behind = behind ? &*behind : nullptr})) {
    return End(behind, next);
  }
  const TensorView first = qkv_a_.columns(0, args.qkv_a.n);
  if (before) {
    LinearFromNorm(Fresh(), first, *before, args.qkv_a);
  } else {
    Linear(Fresh(), first, input, args.qkv_a);
  }
  if (args.kv_a.n > 0) {
    Linear(Fresh(), qkv_a_.columns(shape_.q_lora, args.kv_a.n), input, args.kv_a);
  }
  AttentionInputs(Fresh(), inputs);
  if (!low_rank) {
    Linear(Fresh(), q_, input, args.q);
    const TensorView rotated = Heads(q_, shape_.heads).columns(shape_.nope, shape_.rope);
    Rope(Fresh(), rotated, args.positions, args.rope);
  }
  Attend(args);
  if (behind) {
    LinearToNorm(Fresh(), *behind, attention_, args.o);
  } else {
    Linear(Fresh(), delta_, attention_, args.o);
  }
  End(behind, next);
}

// ---- MLPs

void LayerState::DenseHalf(const DenseHalfArgs& args, const NextHalf& next) {
  BT_CHECK(!ahead_);  // no half begins the norm of this one
  ComposedState::DenseHalf(args, next);
}

ExpertBankArgs LayerState::BankOf(const ExpertsHalfArgs& args) const {
  ExpertBankArgs bank{.out = delta_,
                      .x = normed_,
                      .ids = ids_,
                      .weights = weights_,
                      .gate_up = args.gate_up,
                      .down = args.down,
                      .slot_of = args.slot_of};
  if (args.shared_gate_up.n > 0) {
    bank.shared = gate_up(args.shared_gate_up.n);
    bank.shared_down = args.shared_down;
  }
  return bank;
}

std::optional<BegunNorm> LayerState::NormBehind(const ExpertsHalfArgs& args,
                                                const NextHalf& next) const {
  // More than one product would take what lies behind.
  const bool one = next.attention != nullptr && next.attention->kv_a.n == 0 && shape_.q_lora > 0;
  // What replicas find is added behind the bank.
  if (!unscaled_ || !one || shape_.exchange != nullptr) return std::nullopt;
  const PackedMatrix& qkv_a = next.attention->qkv_a;
  const BegunNorm norm = NormOf(next.attention->norm, next.attention->eps);
  ExpertBankArgs bank = BankOf(args);
  bank.norm = &norm;
  const bool joins = PlanBank(context_, bank).norm &&
                     PlanFromNorm(qkv_a_.columns(0, qkv_a.n), norm, qkv_a).taken();
  return joins ? std::optional(norm) : std::nullopt;
}

void LayerState::ChooseExperts(const ExpertsHalfArgs& args, const BegunNorm* before, bool chooses) {
  if (args.shared_gate_up.n > 0) {
    return MoeInputs(Fresh(), {.shared = gate_up(args.shared_gate_up.n),
                               .ids = ids_,
                               .weights = weights_,
                               .logits = router_,
                               .x = normed_,
                               .shared_gate_up = args.shared_gate_up,
                               .router = args.router,
                               .bias = args.router_bias,
                               .params = args.params,
                               .norm = before,
                               .chooses = chooses});
  }
  Clear(Fresh(), delta_);
  Router(Fresh(), ids_, weights_, router_, normed_, args.router, args.router_bias, args.params);
}

void LayerState::ExpertsOfGroup(const ExpertsHalfArgs& args, const NextHalf& next) {
  if (shape_.tokens == 0) return ComposedState::ExpertsHalf(args, next);
  const std::optional<BegunNorm> before = std::exchange(ahead_, std::nullopt);
  if (!before) Normalise(args.norm, args.eps);
  ChooseExperts(args, before ? &*before : nullptr, /*chooses=*/true);
  ChosenExperts chosen{.ids = ids_,
                       .weights = weights_,
                       .logits = router_,
                       .bias = args.router_bias,
                       .params = args.params};
  Look(args.tap, chosen);
  if (shape_.slots) ChooseNone(Fresh(), chosen.ids, shape_.slots);
  if (!args.copies.empty()) ChooseCopies(Fresh(), chosen.ids, args.copies);
  if (args.shared_gate_up.n > 0) AddShared(Fresh(), BankOf(args), {});
  Experts(args, chosen);
  Leave(next);
}

// Experts that read codes are sent codes, as their rank would make them of the rows: about half the
// bytes. They lie where the rows would, in the first part of it codes, behind them scales. With
// --expert-dispatch-dtype fp8 rows for experts that read no codes travel as e4m3 too, and are
// decoded where they arrive.
void LayerState::GatherRows(const baltoro::ExpertBankArgs& own) {
  gathered_.of = nullptr;
  const int64_t width = shape_.hidden, rows = group_rows_.dim(0), own_rows = own.x.dim(0);
  const bool read = ReadsCodes(own.gate_up.form, own.gate_up.quantise_input) && width % 128 == 0;
  if (!read && codes_ == nullptr) return ComposedState::GatherRows(own);
  const PackedMatrix reader =
      read ? own.gate_up : PackedMatrix{.form = WeightForm::kFp8Block, .quantise_input = true};
  const int64_t scales = ScalesOfCodes(reader.form, width);
  const OpContext context = Fresh();
  QuantisedRows mine;
  if (own_rows > 0) {
    mine = QuantiseRows(context,
                        {.x = own.x.data, .stride = own.x.stride[0], .rows = own_rows, .k = width},
                        reader);
    BT_CHECK(mine.x_stride == width && mine.x_scales_stride == scales);
  }
  auto* const codes = static_cast<char*>(read ? group_rows_.data : codes_);
  auto* const scales_behind = reinterpret_cast<float*>(codes + rows * width);
  const auto both = [&](void* all, const void* own_data, DType type, int64_t columns) {
    return ExpertExchange::Gathered{
        .all = TensorView(all, type, {rows, columns}),
        .own = TensorView(const_cast<void*>(own_data), type, {own_rows, columns})};
  };
  const ExpertExchange::Gathered gathered[] = {
      both(codes, mine.x, DType::kU8, width),
      both(scales_behind, mine.x_scales, DType::kF32, scales),
      {.all = group_ids_, .own = own.ids},
      {.all = group_weights_, .own = own.weights}};
  shape_.exchange->Gather(context, gathered, shape_.group_rows);
  if (!read) {
    return LaunchDecodeRows(StreamOf(context), group_rows_.data, codes, scales_behind, rows, width);
  }
  gathered_ = {.codes = codes,
               .scales = scales_behind,
               .width = width,
               .of = group_rows_.data,
               .rows = rows,
               .stride = width,
               .form = reader.form};
}

void LayerState::ExpertsHalf(const ExpertsHalfArgs& args, const NextHalf& next) {
  if (shape_.exchange != nullptr) return ExpertsOfGroup(args, next);
  const std::optional<BegunNorm> before = std::exchange(ahead_, std::nullopt);
  ordered_ = {.data = in_order_.data};
  orders_ = in_order_.data != nullptr;
  if (!before) Normalise(args.norm, args.eps);
  orders_ = false;

  const std::optional<BegunNorm> behind = NormBehind(args, next);
  ExpertBankArgs bank = BankOf(args);
  if (behind) bank.norm = &*behind;
  ExpertChoice choice{.logits = router_, .bias = args.router_bias, .params = args.params};
  bank.choice = &choice;
  const bool shared = args.shared_gate_up.n > 0;
  // What a bank chooses for itself are experts, not copies of them.
  const bool needs_ids = !args.copies.empty() || (args.tap != nullptr && args.tap->needs_ids());
  const bool chooses = shared && !needs_ids && PlanBank(context_, bank).chooses();
  if (!chooses) bank.choice = nullptr;
  ChooseExperts(args, before ? &*before : nullptr, !chooses);
  ChosenExperts chosen{.ids = ids_,
                       .weights = weights_,
                       .logits = router_,
                       .bias = args.router_bias,
                       .params = args.params,
                       .made = !chooses};
  Look(args.tap, chosen);
  if (!args.copies.empty()) ChooseCopies(Fresh(), chosen.ids, args.copies);
  bank.ids = chosen.ids;
  bank.weights = chosen.weights;
  choice.logits = chosen.logits;
  choice.bias = chosen.bias;
  choice.params = chosen.params;
  orders_ = in_order_.data != nullptr;
  ExpertBank(Fresh(), bank);
  orders_ = false;
  End(behind, next);
}

}  // namespace baltoro::cuda
