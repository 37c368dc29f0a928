// Launches of the expert bank that would touch memory too early: each is planted while a step is
// recorded, and the order of launches must name it. Nothing of what is recorded runs.

#include <string>
#include <vector>

#include "device/cuda/device_info.h"
#include "ops/cuda/experts/bank_internal.h"
#include "ops/cuda/experts/fp8_bank.h"
#include "ops/cuda/experts/route/shared_at_choice.h"
#include "ops/cuda/experts/streaming/int4_digits.h"
#include "ops/cuda/linear/tiles/tiles_test_support.h"

namespace baltoro::cuda {
namespace {

using namespace product_test;

std::vector<std::string> reports;

// A bank of INT4 whose memory is one buffer, cut up.
class Bank {
 public:
  explicit Bank(ExpertsKernel kernel) {
    ExpertsQuestion q;
    q.card = context_.rank->card;
    q.x = FactsOf(TensorView(nullptr, DType::kBf16, {kTokens, kHidden}));
    q.out = FactsOf(TensorView(nullptr, DType::kF32, {kTokens, kHidden}));
    q.top_k = kTopK;
    q.gate_up = {.form = WeightForm::kInt4Group, .n = 2 * kMiddle, .k = kHidden, .count = kSlots};
    q.down = {.form = WeightForm::kInt4Group, .n = kHidden, .k = kMiddle, .count = kSlots};
    plan = ExpertsBy(q, kernel);
    shape = {kSlots, kHidden, kMiddle, kTopK, kTokens};
    args.x = Take<__nv_bfloat16>(kTokens * kHidden);
    args.x_stride = args.out_stride = kHidden;
    args.ids = Take<int32_t>(kTokens * kTopK);
    args.weights = Take<float>(kTokens * kTopK);
    args.experts = kSlots;
    args.tokens = kTokens;
    args.gate_up = Take<char>(1 << 20);
    args.down = Take<char>(1 << 20);
    args.out = Take<float>(kTokens * kHidden);
    args.workspace_bytes = MoeWorkspaceBytes(shape).value();
    args.workspace = Take<char>(args.workspace_bytes);
    space = CutMoeWorkspace(shape, args.workspace);
  }

  // What `launch` queues, recorded and dropped; the reports of it.
  template <typename Launch>
  std::vector<std::string> Record(const Launch& launch) {
    context_.rank->order().too_early = [](const std::string& what) { reports.push_back(what); };
    reports.clear();
    const OpContext ctx = context_.get();
    const std::unique_ptr<OpGraph> graph = Capture(ctx, [&] { launch(ctx, StreamOf(ctx)); });
    context_.Wait();
    return reports;
  }

  template <typename T>
  T* Take(int64_t count) {
    T* const at = reinterpret_cast<T*>(static_cast<char*>(memory_.data()) + used_);
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    BT_CHECK(used_ <= kBytes);
    return at;
  }

  static constexpr int32_t kTokens = 12, kHidden = 512, kMiddle = 256, kTopK = 4, kSlots = 16;
  MoeShape shape;
  MoeInt4Args args;
  MoeWorkspace space;
  ExpertsPlan plan;

 private:
  static constexpr int64_t kBytes = int64_t{16} << 20;
  Context context_;
  Buffer memory_ = OnDevice(std::vector<char>(kBytes));
  int64_t used_ = 0;
};

// Whether one of them begins so: a launch may come too early for several reasons.
void ExpectSaid(const std::vector<std::string>& said, const std::string& what) {
  std::string all;
  for (const std::string& one : said) {
    if (one.starts_with(what)) return;
    all += "\n  " + one;
  }
  Fail("nobody said \"" + what + "\":" + all);
}

void Must(const Status& status) {
  BT_CHECK(status.ok());
}

GPU_TEST(EarlyLaunchTest, TheChainsAsTheyAre) {
  for (const ExpertsKernel kernel :
       {ExpertsKernel::kInt4Streaming, ExpertsKernel::kInt4Digits, ExpertsKernel::kInt4Grouped}) {
    Bank bank(kernel);
    const auto said = bank.Record([&](const OpContext&, const LaunchStream& stream) {
      Must(LaunchMoeInt4(bank.shape, bank.args, bank.plan, stream));
    });
    GPU_EXPECT_EQ(said.size(), size_t{0});
    if (!said.empty()) Fail(said[0]);
  }
}

GPU_TEST(EarlyLaunchTest, DownWithoutGateUpAheadOfIt) {
  Bank bank(ExpertsKernel::kInt4Streaming);
  ExpectSaid(bank.Record([&](const OpContext&, const LaunchStream& stream) {
    Must(LaunchMoeSort(bank.shape, bank.args, bank.space, bank.plan, stream));
    Must(LaunchMoeStreamDown(bank.shape, bank.args, bank.space, bank.plan, stream));
  }),
             "MoE down reads before its wait what MoE sort");
}

GPU_TEST(EarlyLaunchTest, DownByDigitsWithoutGateUpAheadOfIt) {
  Bank bank(ExpertsKernel::kInt4Digits);
  const auto said = bank.Record([&](const OpContext&, const LaunchStream& stream) {
    Must(LaunchMoeSort(bank.shape, bank.args, bank.space, bank.plan, stream));
    Must(LaunchMoeDigitsDown(bank.shape, bank.args, bank.space, bank.plan, stream));
  });
  ExpectSaid(said, "MoE down by digits reads before its wait what MoE sort");
}

GPU_TEST(EarlyLaunchTest, DigitsOfRowsThatTheKernelAheadWrites) {
  Bank bank(ExpertsKernel::kInt4Digits);
  const TensorView x(const_cast<__nv_bfloat16*>(bank.args.x), DType::kBf16,
                     {Bank::kTokens, Bank::kHidden});
  const TensorView weight(bank.Take<float>(Bank::kHidden), DType::kF32, {Bank::kHidden});
  ExpectSaid(bank.Record([&](const OpContext& ctx, const LaunchStream& stream) {
    RmsNorm(ctx, x, x, weight, 1e-5f);
    Must(LaunchMoeDigitsGateUp(bank.shape, bank.args, bank.space, bank.plan, stream));
  }),
             "MoE activations as digits reads before its wait what");
}

GPU_TEST(EarlyLaunchTest, RowsInMatrixOrderThatTheKernelAheadWrites) {
  Bank bank(ExpertsKernel::kInt4Grouped);
  const TensorView x(const_cast<__nv_bfloat16*>(bank.args.x), DType::kBf16,
                     {Bank::kTokens, Bank::kHidden});
  const TensorView weight(bank.Take<float>(Bank::kHidden), DType::kF32, {Bank::kHidden});
  ExpectSaid(bank.Record([&](const OpContext& ctx, const LaunchStream& stream) {
    RmsNorm(ctx, x, x, weight, 1e-5f);
    Must(LaunchMoeGroupedGateUp(bank.shape, bank.args, bank.space, bank.plan, bank.plan.tile_rows,
                                stream));
  }),
             "MoE activations in matrix order reads before its wait what");
}

GPU_TEST(EarlyLaunchTest, SharedExpertsBesideNoPreparation) {
  Bank bank(ExpertsKernel::kInt4Digits);
  bank.plan.beside_rows = 16;
  const MoeGated gated = {
      .x = bank.Take<__nv_bfloat16>(Bank::kTokens * 512), .x_stride = 512, .width = 256};
  const TensorView shared(const_cast<__nv_bfloat16*>(gated.x), DType::kBf16, {Bank::kTokens, 512});
  const TensorView x(const_cast<__nv_bfloat16*>(bank.args.x), DType::kBf16,
                     {Bank::kTokens, Bank::kHidden});
  const PackedMatrix w = {.data = bank.Take<char>(512 * Bank::kHidden * 2),
                          .form = WeightForm::kBf16,
                          .n = 512,
                          .k = Bank::kHidden,
                          .count = 1,
                          .stride_bytes = 512 * Bank::kHidden * 2};
  const void* const down = bank.Take<__nv_bfloat16>(Bank::kHidden * 256);
  ExpectSaid(bank.Record([&](const OpContext& ctx, const LaunchStream& stream) {
    Linear(ctx, shared, x, w);
    Must(LaunchMoeSharedAtChoice(bank.shape, bank.args, bank.plan, gated, down, stream));
  }),
             "MoE beside the choice reads before its wait what bf16_rows16");
}

GPU_TEST(EarlyLaunchTest, Fp8DownWithoutGateUpAheadOfIt) {
  Bank bank(ExpertsKernel::kInt4Streaming);
  constexpr int32_t kEntries = Bank::kTokens * Bank::kTopK, kBlocks = 8;
  const MoeRows rows = {.ids = bank.args.ids,
                        .experts = Bank::kSlots,
                        .slots = Bank::kSlots,
                        .tokens = Bank::kTokens,
                        .top_k = Bank::kTopK,
                        .tile_rows = kFp8StreamRows,
                        .blocks = kBlocks,
                        .num_tiles = bank.Take<int32_t>(1),
                        .tiles = bank.Take<MoeTile>(kEntries + Bank::kSlots),
                        .starts = bank.Take<MoeStart>(kBlocks + 1),
                        .order = bank.Take<int32_t>(kEntries),
                        .ranks = bank.Take<int32_t>(kEntries),
                        .counters = bank.Take<uint32_t>(2),
                        .sort = ChooseExpertsSort(kEntries, Bank::kSlots),
                        .own_parts = kFp8StreamDeal.own_parts};
  const int64_t slot_bytes = PackedBytes(WeightForm::kFp8Block, Bank::kHidden, Bank::kMiddle);
  const Fp8Product product = {.w = {.data = bank.Take<char>(Bank::kSlots * slot_bytes),
                                    .form = WeightForm::kFp8Block,
                                    .n = Bank::kHidden,
                                    .k = Bank::kMiddle,
                                    .count = Bank::kSlots,
                                    .stride_bytes = slot_bytes,
                                    .quantise_input = true},
                              .x = bank.Take<char>(kEntries * Bank::kMiddle),
                              .x_row_bytes = Bank::kMiddle,
                              .x_scales = bank.Take<float>(kEntries * Bank::kMiddle / 128),
                              .out = bank.Take<__nv_bfloat16>(kEntries * Bank::kHidden),
                              .out_stride = Bank::kHidden,
                              .rows = kEntries,
                              .tiles = rows.tiles,
                              .num_tiles = rows.num_tiles,
                              .starts = rows.starts,
                              .taken = rows.counters + 1,
                              .tiles_max = kEntries + Bank::kSlots,
                              .order = rows.order,
                              .top_k = Bank::kTopK,
                              .scatter = true,
                              .route_weights = bank.args.weights};
  const auto said = bank.Record([&](const OpContext&, const LaunchStream& stream) {
    Must(LaunchRowsByExpert(rows, stream));
    LaunchFp8Stream(product, kBlocks, stream);
  });
  ExpectSaid(said, "FP8 down, streaming reads before its wait what MoE sort");
}

}  // namespace
}  // namespace baltoro::cuda

int main(int argc, char** argv) {
  return baltoro::testing::RunGpuCases(argc, argv, baltoro::UsableDeviceCount());
}
