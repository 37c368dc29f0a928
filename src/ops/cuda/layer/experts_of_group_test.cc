// The experts of replicas that share them: what a replica sends, as rows or as the codes that its
// experts read, and that the same comes of it as of the rows of all in one bank.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "device/cuda/device_info.h"
#include "ops/cuda/experts/expert_bank_test_support.h"
#include "ops/cuda/layer/layer_state.h"
#include "ops/expert_exchange.h"
#include "ops/group_rows.h"
#include "tensor/float8.h"

namespace baltoro::cuda {
namespace {

using namespace bank_test;

constexpr int64_t kVocab = 64;
constexpr int32_t kExperts = 8, kTopK = 3;
constexpr float kEps = 1e-6f;

using Bytes = std::vector<char>;

// The others are not there: their rows are given, and what is sent and found is kept.
class Recorder final : public ExpertExchange {
 public:
  explicit Recorder(Context& context) : context_(context) {}

  std::vector<Bytes> behind;  // of each tensor; empty: zeros
  std::vector<Bytes> sent;
  std::vector<float> found;

  void Gather(const OpContext&,
              std::span<const Gathered> tensors,
              std::span<const int64_t> rows) override {
    CheckGathered(tensors, rows, 0);
    context_.Wait();
    sent.clear();
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto own = static_cast<size_t>(rows[0] * RowBytes(tensors[i].own));
      Bytes all(static_cast<size_t>(tensors[i].all.dim(0) * RowBytes(tensors[i].all)), 0);
      sent.push_back(FromDevice<char>(tensors[i].own.data, own));
      std::ranges::copy(sent.back(), all.begin());
      if (!behind.empty()) std::ranges::copy(behind[i], all.begin() + std::ssize(sent.back()));
      BT_CHECK(CudaMemory().CopyIn(tensors[i].all.data, all.data(), all.size()).ok());
    }
  }
  void AddBack(const OpContext&,
               TensorView own,
               TensorView all,
               std::span<const int64_t> rows) override {
    CheckAddedBack(own, all, rows, 0);
    context_.Wait();
    found = FromDevice<float>(all.data, static_cast<size_t>(all.num_elements()));
  }

 private:
  Context& context_;
};

// A layer's experts, all of them here, and rows for their norm.
struct Layer {
  Bank bank;
  Weights router;
  Buffer norm, table;

  Layer(const FormCase& form, int64_t hidden)
      : bank(form, {hidden, 128, kExperts, kTopK}),
        router(3, kForms[0], 1, kExperts, hidden),
        norm(OnDevice(std::vector<float>(static_cast<size_t>(hidden), 1.0f))),
        table(OnDevice(Rows(4, kVocab, hidden, 0).host)) {}

  int64_t hidden() const { return bank.shape.hidden; }
  TensorView norm_weight() const { return {norm.data(), DType::kF32, {hidden()}}; }
  TensorView embeddings() const { return {table.data(), DType::kBf16, {kVocab, hidden()}}; }
  ExpertsHalfArgs args() const {
    return {.norm = norm_weight(),
            .eps = kEps,
            .router = router.device,
            .router_bias = {},
            .params = {.experts = kExperts, .top_k = kTopK},
            .gate_up = bank.gate_up.device,
            .down = bank.down.device,
            .slot_of = bank.slot_of,
            .shared_gate_up = {},
            .shared_down = {}};
  }
};

struct Case {
  int64_t here, there;  // rows of this replica, and of the other
  bool coding_norm;     // the norm writes codes of e4m3, as it does ahead of such products
  bool fp8 = false;     // --expert-dispatch-dtype fp8
};

void Run(Context& context, const Layer& layer, const Case& c, int64_t first, Recorder& recorder) {
  const ExpertsHalfArgs args = layer.args();
  const std::vector<int64_t> group_rows = {c.here, c.there};
  const StepShape shape{.tokens = c.here,
                        .hidden = layer.hidden(),
                        .intermediate = 128,
                        .experts = &args,
                        .num_experts = kExperts,
                        .top_k = kTopK,
                        .rounds_norms = c.coding_norm,
                        .exchange = &recorder,
                        .group_rows = group_rows,
                        .fp8_dispatch = c.fp8};
  Arena step(CudaMemory());
  LayerState state(context.get(), step, shape);
  if (c.here > 0) {
    std::vector<int32_t> ids(static_cast<size_t>(c.here));
    std::iota(ids.begin(), ids.end(), static_cast<int32_t>(first));
    const Buffer on_device = OnDevice(ids);
    state.Embed(layer.embeddings(), TensorView(on_device.data(), DType::kI32, {c.here}), 0);
    context.Wait();
  }
  state.ExpertsHalf(args, {});
  context.Wait();
}

// Rows as e4m3 codes with their scales give them back (PackedMatrix, of kFp8Block).
void RoundToFp8(std::vector<Bf16>& rows) {
  for (size_t begin = 0; begin < rows.size(); begin += 128) {
    const auto group = std::span(rows).subspan(begin, 128);
    float largest = 1e-4f;
    for (const Bf16 v : group) largest = std::max(largest, std::abs(ToFloat(v)));
    const float scale = largest / 448;
    for (Bf16& v : group) v = ToBf16(FromE4M3(ToE4M3(ToFloat(v) / scale)) * scale);
  }
}

// The rows of both in one bank, by what they chose.
std::vector<float> Together(Context& context,
                            const Layer& layer,
                            int64_t rows,
                            const Bytes& chosen,
                            const Bytes& weights,
                            bool rounded) {
  const int64_t hidden = layer.hidden();
  std::vector<int32_t> tokens(static_cast<size_t>(rows));
  std::iota(tokens.begin(), tokens.end(), 0);
  const Buffer ids = OnDevice(tokens), there = OnDevice(chosen), factors = OnDevice(weights);
  const auto count = static_cast<size_t>(rows * hidden);
  const Buffer residual = OnDevice(std::vector<float>(count)),
               normed = OnDevice(std::vector<Bf16>(count)),
               out = OnDevice(std::vector<float>(count));
  const TensorView stream(residual.data(), DType::kF32, {rows, hidden}),
      x(normed.data(), DType::kBf16, {rows, hidden});
  const SmallOps& ops = CudaSmallOps();
  ops.embed(context.get(), stream, layer.embeddings(), TensorView(ids.data(), DType::kI32, {rows}),
            0);
  context.Wait();
  ops.rms_norm(context.get(), x, stream, layer.norm_weight(), kEps);
  context.Wait();
  if (rounded) {
    std::vector<Bf16> host = FromDevice<Bf16>(x.data, count);
    RoundToFp8(host);
    BT_CHECK(CudaMemory().CopyIn(x.data, host.data(), host.size() * sizeof(Bf16)).ok());
  }
  ops.expert_bank(context.get(), {.out = TensorView(out.data(), DType::kF32, {rows, hidden}),
                                  .x = x,
                                  .ids = TensorView(there.data(), DType::kI32, {rows, kTopK}),
                                  .weights = TensorView(factors.data(), DType::kF32, {rows, kTopK}),
                                  .gate_up = layer.bank.gate_up.device,
                                  .down = layer.bank.down.device,
                                  .slot_of = layer.bank.slot_of});
  context.Wait();
  return FromDevice<float>(out.data(), count);
}

void Check(Context& context, const FormCase& form, const Layer& layer, const Case& c) {
  const std::string name = std::string(form.name) + ", hidden " + std::to_string(layer.hidden()) +
                           ", rows " + std::to_string(c.here) + " and " + std::to_string(c.there) +
                           (c.coding_norm ? ", norm with codes" : "") +
                           (c.fp8 ? ", fp8 on the way" : "");
  const bool read =
      form.quantise_input || form.form == WeightForm::kInt8 || form.form == WeightForm::kInt4;
  Recorder here(context), there(context);
  Run(context, layer, {c.there, c.here, c.coding_norm, c.fp8}, c.here, there);
  here.behind = there.sent;
  Run(context, layer, c, 0, here);
  const bool coded = read || c.fp8;
  const int64_t row = coded ? layer.hidden() : 2 * layer.hidden();
  if (here.sent.size() != (coded ? 4U : 3U) || std::ssize(here.sent[0]) != c.here * row) {
    return Fail(name + ": rows were sent as " + std::to_string(here.sent.size()) +
                " tensors, the first of " + std::to_string(here.sent[0].size()) + " bytes");
  }
  const auto both = [&](size_t from_last) {
    Bytes all = here.sent[here.sent.size() - from_last];
    const Bytes& more = there.sent[there.sent.size() - from_last];
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const std::vector<float> want =
      Together(context, layer, c.here + c.there, both(2), both(1), !read && c.fp8);
  // The kernel of up to four rows takes codes of rows of whole 512 alone: another one adds up.
  if (c.here + c.there > 4 || layer.hidden() % 512 == 0) {
    if (here.found != want) Fail(name + ": other bits than of rows in one bank");
    return;
  }
  ExpectNear(name, here.found, want, layer.hidden(), 3e-2f, 0, 6e-3f);
}

GPU_TEST(ExpertsOfGroupTest, RowsTravelAsExpertsReadThem) {
  Context context;
  for (const FormCase& form : kForms) {
    if (form.form == WeightForm::kF32) continue;  // no bank is kept so
    for (const int64_t hidden : {256, 512}) {
      const Layer layer(form, hidden);
      for (const Case& c : {Case{1, 2, false}, Case{3, 5, true}, Case{7, 0, true}, Case{0, 6, true},
                            Case{20, 30, false}, Case{20, 30, true}, Case{2, 9, false, true},
                            Case{0, 30, false, true}, Case{30, 20, false, true}}) {
        if (c.coding_norm && !form.quantise_input) continue;
        Check(context, form, layer, c);
      }
    }
  }
}

}  // namespace
}  // namespace baltoro::cuda

int main(int argc, char** argv) {
  return baltoro::testing::RunGpuCases(argc, argv, baltoro::UsableDeviceCount());
}
