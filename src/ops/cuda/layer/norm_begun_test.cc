// A norm shared by the operations around it (BegunNorm) against those operations one by one: what
// is added to the residual must be the same bits, what takes the rows may round elsewhere.

#include <algorithm>
#include <numeric>

#include "device/cuda/device_info.h"
#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/experts/expert_bank.h"
#include "ops/cuda/launch/card.h"
#include "ops/cuda/linear/bf16_rows16.h"
#include "ops/cuda/linear/tiles/tiles_test_support.h"
#include "ops/cuda/norm_begun.h"

namespace baltoro::cuda {
namespace {

using namespace product_test;

constexpr FormCase kBf16{"bf16", WeightForm::kBf16};
constexpr FormCase kInt4{"int4 group", WeightForm::kInt4Group};
constexpr float kEps = 1e-5f;

std::vector<float> Floats(const std::vector<Bf16>& values) {
  std::vector<float> floats;
  for (const Bf16 value : values) floats.push_back(ToFloat(value));
  return floats;
}

std::vector<float> Draw(uint32_t seed, int64_t count, float size) {
  std::mt19937 random(seed);
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back((static_cast<float>(random() % 4096) / 2048 - 1) * size);
  }
  return values;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(a[i] == b[i]) && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  }
  return true;
}

// The norm's memory: what is to be written is NaN before.
struct Norm {
  int64_t rows, width;
  std::vector<float> before, weight;
  Buffer residual, weights, scaled, squares;

  Norm(int64_t rows_, int64_t width_, int64_t nan_row)
      : rows(rows_), width(width_), before(Draw(7, rows * width, 3)), weight(Draw(8, width, 2)) {
    if (nan_row >= 0) before[static_cast<size_t>(nan_row * width + 5)] = kNaN;
    residual = OnDevice(before);
    weights = OnDevice(weight);
    scaled = OnDevice(std::vector<Bf16>(before.size(), ToBf16(kNaN)));
    squares = OnDevice(std::vector<float>(static_cast<size_t>(rows * BegunNorm::kParts), kNaN));
  }
  BegunNorm device() const {
    return {.residual = TensorView(residual.data(), DType::kF32, {rows, width}),
            .weight = TensorView(weights.data(), DType::kF32, {width}),
            .rows = TensorView(scaled.data(), DType::kBf16, {rows, width}),
            .squares = TensorView(squares.data(), DType::kF32, {rows, BegunNorm::kParts}),
            .eps = kEps};
  }
  // What was added must be `delta`; returns the new residual.
  std::vector<float> ExpectAdded(const std::string& what, const std::vector<float>& delta) const {
    std::vector<float> want = before;
    for (size_t i = 0; i < want.size(); ++i) want[i] += delta[i];
    const auto got = FromDevice<float>(residual.data(), want.size());
    if (!SameBits(got, want)) Fail(what + ": another residual");
    const auto got_rows = Floats(FromDevice<Bf16>(scaled.data(), want.size()));
    std::vector<float> want_rows = want;
    for (size_t i = 0; i < want.size(); ++i) {
      want_rows[i] = ToFloat(ToBf16(want[i] * weight[i % static_cast<size_t>(width)]));
    }
    if (!SameBits(got_rows, want_rows)) Fail(what + ": other rows");
    const auto parts =
        FromDevice<float>(squares.data(), static_cast<size_t>(rows * BegunNorm::kParts));
    for (int64_t t = 0; t < rows; ++t) {
      double sum = 0, all = 0;
      for (int64_t i = 0; i < width; ++i) {
        const double x = want[static_cast<size_t>(t * width + i)];
        sum += x * x;
      }
      for (int64_t i = 0; i < BegunNorm::kParts; ++i) {
        all += parts[static_cast<size_t>(t * BegunNorm::kParts + i)];
      }
      if (std::isnan(sum) ? !std::isnan(all) : !(std::abs(all - sum) <= 1e-5 * sum)) {
        Fail(what + ": squares of row " + std::to_string(t) + " got " + std::to_string(all) +
             " want " + std::to_string(sum));
      }
    }
    return want;
  }
};

std::vector<Bf16> Normalised(const Norm& norm, const std::vector<float>& residual) {
  std::vector<float> normed(residual.size());
  ReferenceSmallOps().rms_norm(
      {}, TensorView(normed.data(), DType::kF32, {norm.rows, norm.width}),
      TensorView(const_cast<float*>(residual.data()), DType::kF32, {norm.rows, norm.width}),
      TensorView(const_cast<float*>(norm.weight.data()), DType::kF32, {norm.width}), kEps);
  std::vector<Bf16> rounded;
  for (const float value : normed) rounded.push_back(ToBf16(value));
  return rounded;
}

// The product of the norm's rows, divided by their roots afterwards: rounded at the same places, so
// that only the order of f32 sums is free.
void ExpectProduct(const std::string& what,
                   const std::vector<float>& got,
                   const Norm& norm,
                   const std::vector<float>& residual,
                   const Weights& w,
                   float relative) {
  std::vector<Bf16> x;
  for (size_t i = 0; i < residual.size(); ++i) {
    x.push_back(ToBf16(residual[i] * norm.weight[i % static_cast<size_t>(norm.width)]));
  }
  std::vector<float> want(got.size());
  const int64_t n = w.reference.n;
  ReferenceSmallOps().linear({}, TensorView(want.data(), DType::kF32, {norm.rows, n}),
                             TensorView(x.data(), DType::kBf16, {norm.rows, norm.width}),
                             w.reference);
  for (int64_t t = 0; t < norm.rows; ++t) {
    double squares = 0;
    for (int64_t i = 0; i < norm.width; ++i) {
      const double value = residual[static_cast<size_t>(t * norm.width + i)];
      squares += value * value;
    }
    const double scale = 1 / std::sqrt(squares / static_cast<double>(norm.width) + kEps);
    for (int64_t i = 0; i < n; ++i) {
      float& value = want[static_cast<size_t>(t * n + i)];
      value = static_cast<float>(value * scale);
    }
  }
  ExpectNear(what, got, want, n, 1e-4f, relative, 2e-5f);
}

struct Shape {
  int64_t hidden, attended, shared, experts, inputs;
};
constexpr Shape kShapes[] = {
    {7168, 1024, 256, 384, 2112}, {256, 256, 32, 16, 336}, {1024, 288, 64, 24, 520}};

GPU_TEST(BegunNormArgsTest, ProductsAroundANormShareIt) {
  Context context;
  for (const Shape& s : kShapes) {
    const Weights o(1, kBf16, 1, s.hidden, s.attended),
        gate_up(2, kBf16, 1, 2 * s.shared, s.hidden), router(3, kBf16, 1, s.experts, s.hidden),
        qkv_a(4, kBf16, 1, s.inputs, s.hidden);
    const std::vector<float> bias(static_cast<size_t>(s.experts), 0.1f);
    const Buffer bias_memory = OnDevice(bias);
    for (const int64_t rows : {1, 2, 3, 8}) {
      for (const int64_t nan_row : {-1, 1}) {
        if (nan_row >= rows) continue;
        const std::string what = "H " + std::to_string(s.hidden) + " T " + std::to_string(rows) +
                                 (nan_row >= 0 ? " NaN" : "");
        const auto area = static_cast<size_t>(rows * s.hidden);
        const Rows x(static_cast<uint32_t>(rows), rows, s.attended, 8);
        const Norm norm(rows, s.hidden, nan_row);
        const Buffer delta = OnDevice(std::vector<float>(area, kNaN));
        const TensorView product(delta.data(), DType::kF32, {rows, s.hidden});
        const auto plan =
            PlanBf16Rows16(FactsOf(x.device()), FactsOf(o.device), FactsOf(product), ThisCard());
        Bf16Rows16Product(context.get(), plan.value(), product, x.device(), o.device);
        GPU_EXPECT(PlanToNorm(norm.device(), x.device(), o.device).taken());
        LinearToNorm(context.get(), norm.device(), x.device(), o.device);

        const Buffer normed = OnDevice(std::vector<Bf16>(area, ToBf16(kNaN)));
        const auto shared_count = static_cast<size_t>(rows * 2 * s.shared);
        const Buffer shared = OnDevice(std::vector<Bf16>(shared_count, ToBf16(kNaN)));
        const auto logit_count = static_cast<size_t>(rows * s.experts);
        const Buffer logits = OnDevice(std::vector<float>(logit_count, kNaN));
        const Buffer ids = OnDevice(std::vector<int32_t>(static_cast<size_t>(rows * 4)));
        const Buffer weights = OnDevice(std::vector<float>(static_cast<size_t>(rows * 4)));
        const BegunNorm joined = norm.device();
        const MoeInputArgs args{
            .shared = TensorView(shared.data(), DType::kBf16, {rows, 2 * s.shared}),
            .ids = TensorView(ids.data(), DType::kI32, {rows, 4}),
            .weights = TensorView(weights.data(), DType::kF32, {rows, 4}),
            .logits = TensorView(logits.data(), DType::kF32, {rows, s.experts}),
            .x = TensorView(normed.data(), DType::kBf16, {rows, s.hidden}),
            .shared_gate_up = gate_up.device,
            .router = router.device,
            .bias = TensorView(bias_memory.data(), DType::kF32, {s.experts}),
            .params = {.experts = static_cast<int32_t>(s.experts), .top_k = 4},
            .norm = &joined};
        GPU_EXPECT(PlanFromNorm(args.shared, joined, gate_up.device).taken());
        GPU_EXPECT(PlanFromNorm(args.logits, joined, router.device).taken());
        MoeInputs(context.get(), args);
        const auto input_count = static_cast<size_t>(rows * s.inputs);
        const Buffer inputs = OnDevice(std::vector<Bf16>(input_count, ToBf16(kNaN)));
        const TensorView inputs_view(inputs.data(), DType::kBf16, {rows, s.inputs});
        GPU_EXPECT(PlanFromNorm(inputs_view, joined, qkv_a.device).taken());
        LinearFromNorm(context.get(), inputs_view, joined, qkv_a.device);
        context.Wait();

        const auto residual = norm.ExpectAdded(what, FromDevice<float>(delta.data(), area));
        const std::vector<Bf16> want = Normalised(norm, residual);
        ExpectNear(what + " normed", Floats(FromDevice<Bf16>(normed.data(), area)), Floats(want),
                   s.hidden, 1e-6f, 0x1p-7f, 1e-3f);
        ExpectProduct(what + " shared", Floats(FromDevice<Bf16>(shared.data(), shared_count)), norm,
                      residual, gate_up, 0x1p-8f);
        ExpectProduct(what + " logits", FromDevice<float>(logits.data(), logit_count), norm,
                      residual, router, 0);
        ExpectProduct(what + " inputs", Floats(FromDevice<Bf16>(inputs.data(), input_count)), norm,
                      residual, qkv_a, 0x1p-8f);
      }
    }
  }
}

GPU_TEST(BegunNormArgsTest, TheBankAddsToTheResidual) {
  Context context;
  struct BankShape {
    int64_t hidden, intermediate, shared, slots;
    int32_t top_k;
  };
  // racecheck stops counting at ten million hazards, one for a byte of the ring that is used again.
  const bool short_time = testing::TimeIsShort();
  const BankShape large = {7168, 256, 256, short_time ? 4 : 12, short_time ? 2 : 8};
  for (const BankShape& s : {large, BankShape{256, 128, 96, 16, 4}}) {
    const Weights gate_up(1, kInt4, s.slots, 2 * s.intermediate, s.hidden, {0, s.intermediate});
    const Weights down(2, kInt4, s.slots, s.hidden, s.intermediate);
    const Weights shared_down(3, kBf16, 1, s.hidden, s.shared);
    std::vector<int32_t> slot_of(static_cast<size_t>(s.slots));
    std::iota(slot_of.begin(), slot_of.end(), 0);
    slot_of[2] = -1;
    for (const int64_t rows : {1, 2, 4, 5, 8, 9, 16}) {
      if (short_time && s.hidden == 7168 && rows > 4) break;
      const Rows x(9, rows, s.hidden, 8), shared(4, rows, 2 * s.shared, 8);
      std::mt19937 random(static_cast<uint32_t>(rows));
      std::vector<int32_t> ids, order = slot_of;
      std::iota(order.begin(), order.end(), 0);
      for (int64_t t = 0; t < rows; ++t) {
        std::shuffle(order.begin(), order.end(), random);
        ids.insert(ids.end(), order.begin(), order.begin() + s.top_k);
      }
      const auto area = static_cast<size_t>(rows * s.hidden);
      const Buffer ids_memory = OnDevice(ids), weights = OnDevice(Draw(5, rows * s.top_k, 1));
      const Buffer out = OnDevice(std::vector<float>(area, kNaN));
      const Norm norm(rows, s.hidden, rows > 1 ? 1 : -1);
      const BegunNorm joined = norm.device();
      ExpertBankArgs args{.out = TensorView(out.data(), DType::kF32, {rows, s.hidden}),
                          .x = x.device(),
                          .ids = TensorView(ids_memory.data(), DType::kI32, {rows, s.top_k}),
                          .weights = TensorView(weights.data(), DType::kF32, {rows, s.top_k}),
                          .gate_up = gate_up.device,
                          .down = down.device,
                          .slot_of = slot_of,
                          .shared = shared.device(),
                          .shared_down = shared_down.device};
      ExpertBank(context.get(), args);
      args.norm = &joined;
      GPU_EXPECT(PlanBank(context.get(), args).norm);
      ExpertBank(context.get(), args);
      context.Wait();
      norm.ExpectAdded("bank H " + std::to_string(s.hidden) + " T " + std::to_string(rows),
                       FromDevice<float>(out.data(), area));
    }
  }
}

}  // namespace
}  // namespace baltoro::cuda

int main(int argc, char** argv) {
  return baltoro::testing::RunGpuCases(argc, argv, baltoro::UsableDeviceCount());
}
