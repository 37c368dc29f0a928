// The expert bank of every weight form: INT4 groups of whole tiles by their own kernels
// (moe_expert_bank.h), everything else by grouped products (product.h): rows sorted by expert,
// gate and up in f32, SiLU * mul rounded or quantised as `down` takes it, down times the routing
// weight in bf16, sum over a token's experts in f32.
//
// Floor for few tokens: the bytes of the chosen experts over the card's read bandwidth.

#include <algorithm>
#include <list>
#include <string>
#include <vector>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/fp8_bank.h"
#include "ops/cuda/fp8_few_rows.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/moe_beside.h"
#include "ops/cuda/moe_expert_bank.h"
#include "ops/cuda/moe_int4_layout.h"
#include "ops/cuda/moe_internal.h"
#include "ops/cuda/moe_prepare.h"
#include "ops/cuda/product.h"

namespace baltoro::cuda {
namespace {

void Must(const Status& status, const char* what) {
  if (status.ok()) [[likely]]
    return;
  EndProcess(std::string("CUDA: ") + what + ": " + status.message());
}

// Tables of slots on the device, by their contents: a model has one, known from its first step on.
// Null where experts are slots. One list a thread (a rank), for as long as the process lives.
const int32_t* SlotsOnDevice(std::span<const int32_t> slot_of, cudaStream_t stream) {
  bool same = true;
  for (size_t e = 0; e < slot_of.size(); ++e) same = same && slot_of[e] == static_cast<int32_t>(e);
  if (same) return nullptr;
  struct Table {
    std::vector<int32_t> host;
    int32_t* device = nullptr;
  };
  thread_local std::list<Table>* const tables = new std::list<Table>;
  for (const Table& table : *tables) {
    if (std::equal(table.host.begin(), table.host.end(), slot_of.begin(), slot_of.end())) {
      return table.device;
    }
  }
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  CheckCuda(cudaStreamIsCapturing(stream, &capturing), "cudaStreamIsCapturing");
  BT_CHECK(capturing == cudaStreamCaptureStatusNone);  // the first step of a model is no graph
  Table table{.host = {slot_of.begin(), slot_of.end()}};
  const size_t bytes = slot_of.size() * sizeof(int32_t);
  CheckCuda(cudaMalloc(reinterpret_cast<void**>(&table.device), bytes),
            "cudaMalloc of the table of expert slots");
  CheckCuda(cudaMemcpy(table.device, table.host.data(), bytes, cudaMemcpyHostToDevice),
            "cudaMemcpy to the table of expert slots");
  tables->push_back(std::move(table));
  return tables->back().device;
}

bool Aligned(const void* data, int64_t row_bytes) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && row_bytes % 16 == 0;
}

int32_t Narrow(int64_t value) {
  BT_CHECK(value >= 0 && value <= INT32_MAX);
  return static_cast<int32_t>(value);
}

struct Bank {
  int32_t tokens, top_k, slots, hidden, intermediate, experts;
  const int32_t* slot_of;
};

bool FastBankTakes(const ExpertBankArgs& args, const Bank& bank) {
  return args.gate_up.form == WeightForm::kInt4Group && args.down.form == WeightForm::kInt4Group &&
         bank.hidden % 128 == 0 && bank.intermediate % 128 == 0 && bank.tokens <= 65535 &&
         args.gate_up.stride_bytes == Int4PackedBytes(args.gate_up.n, args.gate_up.k) &&
         args.down.stride_bytes == Int4PackedBytes(args.down.n, args.down.k) &&
         Aligned(args.x.data, args.x.stride[0] * 2);
}

MoeShape ShapeOf(const Bank& bank) {
  return {.slots = bank.slots,
          .hidden = bank.hidden,
          .intermediate = bank.intermediate,
          .top_k = bank.top_k,
          .max_tokens = bank.tokens};
}

// Whether the bank's last kernel has the shared experts in it.
bool BankEndsWithShared(const ExpertBankArgs& args, const Bank& bank) {
  return args.shared && args.out.dtype == DType::kF32 && FastBankTakes(args, bank) &&
         args.shared_down.form == WeightForm::kBf16 && args.shared.dtype == DType::kBf16 &&
         args.shared.stride[0] % 8 == 0 && Aligned(args.shared_down.data, 0) &&
         Aligned(args.shared.data, 0) &&
         MoeFinishTakes(ShapeOf(bank), Narrow(args.shared_down.k), bank.tokens);
}

// The rows of x in the order of the wide form's columns, where the norm ahead wrote them.
const __nv_bfloat16* OrderedRowsOf(const OpContext& ctx, const TensorView& x) {
  const OrderedRows* ordered = ctx.ordered;
  if (ordered == nullptr || ordered->of != x.data || ordered->rows != x.dim(0) ||
      ordered->stride != x.stride[0]) {
    return nullptr;
  }
  return static_cast<const __nv_bfloat16*>(ordered->data);
}

MoeChoice ChoiceOf(const ExpertBankArgs& args) {
  if (args.choice == nullptr) return {};
  const ExpertChoice& choice = *args.choice;
  return {.logits = choice.logits.as<float>(),
          .logits_stride = choice.logits.stride[0],
          .bias = choice.bias ? choice.bias.as<float>() : nullptr,
          .experts = choice.params.experts,
          .top_k = choice.params.top_k,
          .normalise = choice.params.normalise,
          .scaling = choice.params.scaling,
          .ids = static_cast<int32_t*>(args.ids.data),
          .weights = static_cast<float*>(args.weights.data)};
}

MoeInt4Args FastArgs(const ExpertBankArgs& args, const Bank& bank) {
  MoeInt4Args to;
  to.x = static_cast<const __nv_bfloat16*>(args.x.data);
  to.x_stride = args.x.stride[0];
  to.ids = static_cast<const int32_t*>(args.ids.data);
  to.weights = static_cast<const float*>(args.weights.data);
  to.slot_of = bank.slot_of;
  to.experts = bank.experts;
  to.tokens = bank.tokens;
  to.gate_up = args.gate_up.data;
  to.down = args.down.data;
  if (args.out.dtype == DType::kBf16) {
    to.rounded_out = static_cast<__nv_bfloat16*>(args.out.data);
  } else {
    to.out = static_cast<float*>(args.out.data);
  }
  to.out_stride = args.out.stride[0];
  if (BankEndsWithShared(args, bank)) {
    to.shared = static_cast<const __nv_bfloat16*>(args.shared.data);
    to.shared_stride = args.shared.stride[0];
    to.shared_down = static_cast<const __nv_bfloat16*>(args.shared_down.data);
    to.shared_intermediate = Narrow(args.shared_down.k);
    if (args.norm != nullptr) to.norm = NormJoinOf(*args.norm);
  }
  to.choice = ChoiceOf(args);
  return to;
}

// The shared experts' part of `out`, where it is a product of its own; `gated` has made its input
// already, where it is one that Gated takes. Returns as LinearOfCodes; false without a launch.
bool AddShared(const OpContext& ctx, const ExpertBankArgs& args, const Bank& bank, MoeGated gated) {
  if (!args.shared || BankEndsWithShared(args, bank)) return false;
  const GatedLinearPlan plan = GatedPlanOf(args.out, args.shared, args.shared_down);
  const int64_t width = args.shared_down.k;
  switch (plan.way) {
    case GatedWay::kInProduct:
      Fp8FewRowsGated(ctx, plan.product.as<Fp8Rows16Plan>(), args.out, args.shared,
                      args.shared_down);
      return true;
    case GatedWay::kAsCodes: {
      const QuantisedRows codes = gated.codes != nullptr
                                      ? QuantisedRows{gated.codes, width, gated.scales, width / 128}
                                      : SwigluQuantise(ctx, args.shared, args.shared_down);
      RunLinearOfCodes(ctx, plan.product, args.out, codes, args.shared_down);
      return plan.product.next_waits;
    }
    case GatedWay::kAsRows:
      break;
  }
  const bool made = gated.out != nullptr;
  if (!made) {
    gated.out = ctx.scratch->AllocateArray<__nv_bfloat16>(static_cast<size_t>(bank.tokens * width));
  }
  const TensorView rows(gated.out, DType::kBf16, {bank.tokens, width});
  if (!made) Swiglu(ctx, rows, args.shared);
  RunLinear(ctx, plan.product, args.out, rows, args.shared_down);
  return plan.product.next_waits;
}

MoeGated GatedRows(const ExpertBankArgs& args) {
  MoeGated to;
  to.x = static_cast<const __nv_bfloat16*>(args.shared.data);
  to.x_stride = args.shared.stride[0];
  to.width = Narrow(args.shared_down.k);
  return to;
}

// Whether a launch beside the choice of experts has the shared experts.
bool BesideTakes(const ExpertBankArgs& args, const Bank& bank) {
  return args.shared && !BankEndsWithShared(args, bank) && args.shared.dtype == DType::kBf16 &&
         Aligned(args.shared.data, args.shared.stride[0] * 2) &&
         args.shared_down.form == WeightForm::kBf16 && args.shared_down.count == 1 &&
         Aligned(args.shared_down.data, args.shared_down.k * 2) &&
         MoeBesideTakes(ShapeOf(bank), GatedRows(args), bank.tokens);
}

// What AddShared would make of `shared` first, to be made by the bank's preparation instead.
MoeGated GatedByPreparation(const OpContext& ctx, const ExpertBankArgs& args, const Bank& bank) {
  MoeGated to;
  const int64_t width = args.shared_down.k;
  if (!args.shared || BankEndsWithShared(args, bank) || args.shared.dtype != DType::kBf16 ||
      width % 8 != 0 || !Aligned(args.shared.data, args.shared.stride[0] * 2)) {
    return to;
  }
  const GatedWay way = GatedPlanOf(args.out, args.shared, args.shared_down).way;
  if (way == GatedWay::kInProduct) return to;
  const auto elements = static_cast<size_t>(bank.tokens * width);
  to = GatedRows(args);
  if (way == GatedWay::kAsCodes) {
    to.codes = ctx.scratch->AllocateArray<char>(elements);
    to.scales = ctx.scratch->AllocateArray<float>(elements / 128);
  } else {
    to.out = ctx.scratch->AllocateArray<__nv_bfloat16>(elements);
  }
  return to;
}

// Whether up to 256 tokens are prepared in one launch, with their choice in it.
bool Prepares(const ExpertBankArgs& args, const Bank& bank) {
  const RouterParams& params = args.choice->params;
  if (bank.tokens <= 1 || bank.top_k != params.top_k || params.groups != 1 ||
      params.score != RouterScore::kSigmoid ||
      !MoePrepareTakes(bank.slots, bank.tokens, ChoiceOf(args))) {
    return false;
  }
  if (FastBankTakes(args, bank)) {
    const MoeShape shape = ShapeOf(bank);
    const Result<MoeForm> form = ChooseMoeForm(shape, FastArgs(args, bank));
    return form.ok() && form.value() == MoeForm::kStreaming && !MoeEntriesAlone(shape, bank.tokens);
  }
  if (!Fp8BankTakes(args) || Fp8SingleTakes(args)) return false;
  const Fp8Form form = ChooseFp8Form(args);
  return form == Fp8Form::kStreaming || form == Fp8Form::kJoined;
}

// The bank of FP8, with the shared experts' part, and with the choice if that is asked for. Entries
// are sorted ahead of the shared experts' product, so that gate/up, which may then read the tables
// while that product ends, begins with it.
void BankOfCodes(const OpContext& ctx, const ExpertBankArgs& args, const Bank& bank) {
  const bool chooses = args.choice != nullptr;
  const MoeGated gated = chooses ? GatedByPreparation(ctx, args, bank) : MoeGated{};
  const Fp8Form form = ChooseFp8Form(args);
  const MoeRows rows = Fp8BankRows(ctx, args, bank.slot_of, form);
  const QuantisedRows x = Fp8BankInput(ctx, args);
  Must(chooses ? LaunchMoePrepare(rows, ChoiceOf(args), gated, StreamOf(ctx))
               : LaunchRowsByExpert(rows, StreamOf(ctx)),
       "preparation of an expert bank");
  const bool routed_before = AddShared(ctx, args, bank, gated);
  Fp8BankProducts(ctx, args, rows, x, form, routed_before);
}

// With the shared experts' part.
void PreparedBank(const OpContext& ctx, const ExpertBankArgs& args, const Bank& bank) {
  if (!FastBankTakes(args, bank)) return BankOfCodes(ctx, args, bank);
  const MoeShape shape = ShapeOf(bank);
  MoeInt4Args to = FastArgs(args, bank);
  to.beside = BesideTakes(args, bank);
  const MoeGated gated = to.beside ? GatedRows(args) : GatedByPreparation(ctx, args, bank);
  const Result<int64_t> bytes = MoeWorkspaceBytes(shape);
  Must(bytes.status(), "expert bank");
  to.workspace = ctx.scratch->Allocate(static_cast<size_t>(bytes.value()));
  to.workspace_bytes = bytes.value();
  to.prepared = true;
  Must(LaunchMoePrepare(shape, to, to.beside ? MoeGated{} : gated, StreamOf(ctx)),
       "preparation of an expert bank");
  if (to.beside) {
    Must(LaunchMoeBeside(shape, to, gated, args.shared_down.data, StreamOf(ctx)),
         "shared experts beside the choice");
  } else {
    AddShared(ctx, args, bank, gated);
  }
  Must(LaunchMoeInt4(shape, to, StreamOf(ctx)), "expert bank");
}

void FastBank(const OpContext& ctx, const ExpertBankArgs& args, const Bank& bank) {
  MoeShape shape = ShapeOf(bank);
  MoeInt4Args to = FastArgs(args, bank);
  to.ordered = OrderedRowsOf(ctx, args.x);
  // Other forms use that memory for what is theirs.
  shape.orders = to.ordered == nullptr || !MoeReadsOrdered(shape, to);
  const Result<int64_t> bytes = MoeWorkspaceBytes(shape);
  Must(bytes.status(), "expert bank");
  to.workspace = ctx.scratch->Allocate(static_cast<size_t>(bytes.value()));
  to.workspace_bytes = bytes.value();
  Must(LaunchMoeInt4(shape, to, StreamOf(ctx)), "expert bank");
}

// Rows of a tile: as many as most experts have, so that weights are read once.
int32_t TileRows(int64_t entries, int64_t slots) {
  if (entries <= 3 * slots) return 8;
  if (entries <= 8 * slots) return 16;
  return entries <= 16 * slots ? 32 : kProductRowsMax;
}

void GroupedBank(const OpContext& ctx, const ExpertBankArgs& args, const Bank& bank) {
  BT_CHECK(TilesCan(FactsOf(args.gate_up)) && TilesCan(FactsOf(args.down)) && bank.slots <= 1024);
  BT_CHECK(bank.hidden % 8 == 0);
  Arena& scratch = *ctx.scratch;
  const int64_t entries = static_cast<int64_t>(bank.tokens) * bank.top_k;
  MoeRows rows;
  rows.ids = static_cast<const int32_t*>(args.ids.data);
  rows.slot_of = bank.slot_of;
  rows.experts = bank.experts;
  rows.slots = bank.slots;
  rows.tokens = bank.tokens;
  rows.top_k = bank.top_k;
  rows.tile_rows = TileRows(entries, bank.slots);
  const bool wide = rows.tile_rows == kProductRowsMax && WideTilesCan(FactsOf(args.gate_up)) &&
                    WideTilesCan(FactsOf(args.down));
  if (wide) rows.tile_rows = kWideProductRows;
  const int64_t tiles = std::min<int64_t>(bank.slots, entries) + entries / rows.tile_rows;
  rows.num_tiles = scratch.AllocateArray<int32_t>(1);
  rows.tiles = scratch.AllocateArray<MoeTile>(static_cast<size_t>(tiles));
  rows.starts = scratch.AllocateArray<MoeStart>(2);
  rows.order = scratch.AllocateArray<int32_t>(static_cast<size_t>(entries));
  rows.ranks = scratch.AllocateArray<int32_t>(static_cast<size_t>(entries));

  const QuantisedRows x = QuantiseRows(
      ctx, {.x = args.x.data, .stride = args.x.stride[0], .rows = bank.tokens, .k = bank.hidden},
      args.gate_up);
  Must(LaunchRowsByExpert(rows, StreamOf(ctx)), "routing of an expert bank");

  ProductArgs product{.w = args.gate_up,
                      .x = x.x,
                      .x_stride = x.x_stride,
                      .x_scales = x.x_scales,
                      .x_scales_stride = x.x_scales_stride,
                      .out_type = DType::kF32,
                      .out_stride = args.gate_up.n,
                      .rows = Narrow(entries),
                      .wide = wide,
                      .tiles = rows.tiles,
                      .num_tiles = rows.num_tiles,
                      .tiles_max = Narrow(tiles),
                      .tile_rows = rows.tile_rows,
                      .order = rows.order,
                      .top_k = bank.top_k,
                      .gather = true};
  auto* gate_up = scratch.AllocateArray<float>(static_cast<size_t>(entries * args.gate_up.n));
  product.out = gate_up;
  LaunchProduct(product, StreamOf(ctx));

  const QuantisedRows middle = QuantiseRows(ctx,
                                            {.x = gate_up,
                                             .stride = args.gate_up.n,
                                             .gated = true,
                                             .rows = entries,
                                             .k = bank.intermediate},
                                            args.down);
  auto* shares = scratch.AllocateArray<__nv_bfloat16>(static_cast<size_t>(entries * bank.hidden));
  product.w = args.down;
  product.x = middle.x;
  product.x_stride = middle.x_stride;
  product.x_scales = middle.x_scales;
  product.x_scales_stride = middle.x_scales_stride;
  product.out = shares;
  product.out_type = DType::kBf16;
  product.out_stride = bank.hidden;
  product.gather = false;
  product.scatter = true;
  product.route_weights = static_cast<const float*>(args.weights.data);
  LaunchProduct(product, StreamOf(ctx));
  Must(LaunchSumOverExperts(rows, shares, args.out, StreamOf(ctx)), "sum of an expert bank");
}

Bank BankOf(const ExpertBankArgs& args) {
  return {.tokens = Narrow(args.x.dim(0)),
          .top_k = Narrow(args.ids.dim(1)),
          .slots = Narrow(args.gate_up.count),
          .hidden = Narrow(args.x.dim(1)),
          .intermediate = Narrow(args.down.k),
          .experts = Narrow(static_cast<int64_t>(args.slot_of.size())),
          .slot_of = nullptr};
}

// Whether one kernel has the choice of several tokens and all of their bank.
bool ChoosesInOne(const ExpertBankArgs& args, const Bank& bank) {
  const RouterParams& params = args.choice->params;
  if (params.groups != 1 || params.score != RouterScore::kSigmoid) return false;
  if (Fp8SeveralTakes(args, ChoiceOf(args))) return true;
  return BankEndsWithShared(args, bank) && MoeSeveralTakes(ShapeOf(bank), FastArgs(args, bank));
}

}  // namespace

bool BankTakesNorm(const ExpertBankArgs& args) {
  const Bank bank = BankOf(args);
  return bank.tokens > 0 && bank.top_k > 0 && BankEndsWithShared(args, bank) &&
         NormJoins(*args.norm) && MoeFinishBlocks(ShapeOf(bank)) <= NormJoin::kParts;
}

bool BankReadsOrdered(const ExpertBankArgs& args) {
  const Bank bank = BankOf(args);
  MoeInt4Args to;
  to.tokens = bank.tokens;
  return bank.top_k > 0 && FastBankTakes(args, bank) && !BankEndsWithShared(args, bank) &&
         MoeReadsOrdered(ShapeOf(bank), to);
}

bool BankChooses(const ExpertBankArgs& args) {
  const Bank bank = BankOf(args);
  if (ChoosesInOne(args, bank)) return true;
  if (Prepares(args, bank)) return true;
  const RouterParams& params = args.choice->params;
  if (bank.tokens != 1 || params.score != RouterScore::kSigmoid || params.groups != 1) return false;
  const MoeShape shape = ShapeOf(bank);
  if (Fp8SingleTakes(args)) return MoeSingleChooses(shape, ChoiceOf(args));
  if (!BankEndsWithShared(args, bank)) return false;
  const MoeInt4Args fast = FastArgs(args, bank);
  return MoeSingleTakes(shape, fast) && MoeSingleChooses(shape, fast.choice);
}

void ExpertBank(const OpContext& ctx, const ExpertBankArgs& args) {
  Bank bank = BankOf(args);
  bank.slot_of = SlotsOnDevice(args.slot_of, StreamOf(ctx));
  BT_CHECK(args.x.dtype == DType::kBf16);
  BT_CHECK(args.out.dtype == DType::kF32 || args.out.dtype == DType::kBf16);
  BT_CHECK(args.out.dim(0) == bank.tokens && args.out.dim(1) == bank.hidden);
  BT_CHECK(args.ids.dim(0) == bank.tokens && args.ids.contiguous());
  BT_CHECK(args.weights.dim(0) == bank.tokens && args.weights.dim(1) == bank.top_k);
  BT_CHECK(args.weights.contiguous() && args.down.count == bank.slots);
  BT_CHECK(args.gate_up.n == 2 * args.down.k && args.gate_up.k == bank.hidden);
  BT_CHECK(args.down.n == bank.hidden &&
           Aligned(args.out.data, args.out.stride[0] * SizeOf(args.out.dtype)));
  if (bank.tokens == 0) return;
  BT_CHECK(args.norm == nullptr || BankTakesNorm(args));
  BT_CHECK(args.choice == nullptr || BankChooses(args));
  if (args.shared) {
    BT_CHECK(args.shared.dim(0) == bank.tokens && args.shared_down.n == bank.hidden);
    BT_CHECK(args.shared.dim(1) == 2 * args.shared_down.k);
  }
  if (args.choice != nullptr && ChoosesInOne(args, bank)) {
    if (FastBankTakes(args, bank)) return FastBank(ctx, args, bank);
    return Fp8Several(ctx, args, bank.slot_of, ChoiceOf(args));
  }
  if (Fp8SingleTakes(args)) return Fp8Single(ctx, args, bank.slot_of, ChoiceOf(args));
  if (args.choice != nullptr && bank.tokens > 1) return PreparedBank(ctx, args, bank);
  const bool fast = FastBankTakes(args, bank);
  if (bank.top_k > 0 && !fast && Fp8BankTakes(args)) return BankOfCodes(ctx, args, bank);
  AddShared(ctx, args, bank, {});
  if (bank.top_k == 0) return;
  if (fast) {
    FastBank(ctx, args, bank);
  } else {
    GroupedBank(ctx, args, bank);
  }
}

}  // namespace baltoro::cuda
