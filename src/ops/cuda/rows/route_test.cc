// The choice of experts, held to the reference: ids exactly, weights to a rounding.

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include "device/cuda/device_info.h"
#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/rows/rows_test_support.h"

namespace baltoro::cuda {
namespace {

using namespace rows_test;  // NOLINT

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct RouteCase {
  const char* name;
  RouterParams params;
  bool bias = true;
};

// Logits rounded to eighths, so that ties are many, in every other case; row `spoiled` holds NaN.
// `close`: so many experts are best, and as good to a few roundings of f32.
void Compare(Device& device,
             std::mt19937_64& random,
             const RouteCase& one,
             int64_t rows,
             float spread,
             bool ties,
             int64_t spoiled = -1,
             int64_t close = 0) {
  const RouterParams& params = one.params;
  Tensor logits(DType::kF32, rows, params.experts, params.experts + 3);
  Tensor bias = Tensor::Vector(DType::kF32, params.experts);
  Tensor ids(DType::kI32, rows, params.top_k), weights(DType::kF32, rows, params.top_k);
  std::normal_distribution<float> normal(0, spread);
  const auto draw = [&] {
    const float x = normal(random);
    return ties ? std::round(x * 8) / 8 : x;
  };
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t e = 0; e < params.experts; ++e) logits.Set(t, e, draw());
  }
  for (int64_t e = 0; e < params.experts; ++e) bias.Set(0, e, draw() * 0.125f);
  for (int64_t i = 0; i < close; ++i) {
    const int64_t e = 3 * i;  // of lanes of their own, up to 32
    bias.Set(0, e, 0.25f);
    for (int64_t t = 0; t < rows; ++t) {
      logits.Set(t, e, 3 + static_cast<float>(random() % 64) * 0x1p-20f);
    }
  }
  if (spoiled >= 0) {
    for (int64_t e = 0; e < params.experts; e += 3) logits.Set(spoiled, e, kNaN);
  }
  logits.ToDevice();
  bias.ToDevice();
  ids.ToDevice();
  weights.ToDevice();
  const TensorView none;
  Route(device.ctx(), ids.device(), weights.device(), logits.device(),
        one.bias ? bias.device() : none, params);
  device.Wait();
  ReferenceSmallOps().route({}, ids.host(), weights.host(), logits.host(),
                            one.bias ? bias.host() : none, params);
  const std::string name = std::string("route ") + one.name + " rows " + std::to_string(rows) +
                           " spread " + std::to_string(spread) + (ties ? " ties" : "");
  ExpectSameBytes(name + " ids", ids.FromDevice(), ids.bytes());
  ExpectNear(name + " weights", weights.FromDevice(), weights.bytes(), DType::kF32,
             {.relative = 2e-7});
}

const RouteCase kCases[] = {
    {"384 of K2", {.experts = 384, .top_k = 8, .scaling = 2.827f}},
    {"16 of a tiny model", {.experts = 16, .top_k = 4, .scaling = 2.827f}},
    {"groups by two", {.experts = 256, .top_k = 8, .groups = 8, .groups_used = 4, .scaling = 2.5f}},
    {"groups by the best",
     {.score = RouterScore::kSoftmax,
      .experts = 160,
      .top_k = 6,
      .groups = 8,
      .groups_used = 3,
      .group_by_top2 = false,
      .normalise = false,
      .scaling = 16},
     false},
    {"softmax", {.score = RouterScore::kSoftmax, .experts = 64, .top_k = 6}, false},
    {"softmax with a bias", {.score = RouterScore::kSoftmax, .experts = 72, .top_k = 6}},
    {"odd", {.experts = 37, .top_k = 5, .normalise = false}},
    {"many", {.experts = 1000, .top_k = 32}},
    {"small groups", {.experts = 12, .top_k = 3, .groups = 12, .groups_used = 5}},
    {"all", {.experts = 8, .top_k = 8}},
};

GPU_TEST(RouteTest, IsThatOfTheReference) {
  Device device;
  std::mt19937_64 random(1);
  for (const RouteCase& one : kCases) {
    for (const int64_t rows : kRowCounts) {
      if (rows == 1000 && one.params.experts != 384) continue;
      for (const float spread : {0.01f, 1.0f, 30.0f}) {
        Compare(device, random, one, rows, spread, false);
        Compare(device, random, one, rows, spread, true);
      }
    }
  }
}

// What f32 does not tell apart, or tells apart wrongly.
GPU_TEST(RouteTest, CloseScores) {
  Device device;
  std::mt19937_64 random(3);
  for (const int64_t close : {9, 20, 32, 33, 64}) {
    Compare(device, random, kCases[0], 400, 0.2f, false, -1, close);
  }
}

// In the row itself an expert with NaN comes after all others.
GPU_TEST(RouteTest, NaNStaysInItsRow) {
  Device device;
  std::mt19937_64 random(2);
  for (const RouteCase& one : kCases) {
    if (one.params.groups > 1) continue;  // the reference sorts groups, where NaN has no place
    Compare(device, random, one, 5, 1, false, 2);
  }
}

// A row that nobody reads has no experts, and the others keep theirs.
GPU_TEST(ChooseNoneTest, RowsWithoutASlotHaveNoExperts) {
  Device device;
  for (const int64_t rows : kRowCounts) {
    constexpr int64_t kTop = 8;
    Tensor ids(DType::kI32, rows, kTop), slots = Tensor::Vector(DType::kI64, rows);
    std::vector<int32_t> want;
    for (int64_t t = 0; t < rows; ++t) {
      const int64_t slot = t % 3 == 1 ? -1 : t % 5 == 4 ? int64_t{1} << 40 : 0;
      slots.host().as<int64_t>()[t] = slot;
      for (int64_t j = 0; j < kTop; ++j) {
        const auto id = static_cast<int32_t>((t * 7 + j) % 384);
        ids.host().as<int32_t>()[t * kTop + j] = id;
        want.push_back(slot < 0 ? -1 : id);
      }
    }
    ids.ToDevice();
    slots.ToDevice();
    ChooseNone(device.ctx(), ids.device(), slots.device());
    device.Wait();
    std::vector<char> bytes(want.size() * sizeof(int32_t));
    std::memcpy(bytes.data(), want.data(), bytes.size());
    GPU_EXPECT(ids.FromDevice() == bytes);
  }
}

// Slots of all ranks, where every third expert lies twice and some lie more often.
struct Copies {
  explicit Copies(int32_t experts) {
    for (int32_t e = 0; e < experts; ++e) {
      first.push_back(static_cast<int32_t>(slots.size()));
      const int32_t count = e % 7 == 0 ? 5 : e % 3 == 0 ? 2 : 1;
      for (int32_t i = 0; i < count; ++i) slots.push_back(static_cast<int32_t>(slots.size()));
    }
    first.push_back(static_cast<int32_t>(slots.size()));
    // As they come to lie: in no order.
    std::mt19937_64 random(3);
    std::ranges::shuffle(slots, random);
    rows.assign(slots.size(), 0);
    chosen.assign(static_cast<size_t>(experts), 0);
  }
  ExpertCopies view() { return {.first = first, .slots = slots, .rows = rows, .chosen = chosen}; }

  std::vector<int32_t> first, slots;
  std::vector<int64_t> rows, chosen;
};

template <typename T>
Tensor OnBoth(DType type, const std::vector<T>& values) {
  Tensor tensor = Tensor::Vector(type, static_cast<int64_t>(values.size()));
  std::memcpy(tensor.bytes().data(), values.data(), tensor.bytes().size());
  tensor.ToDevice();
  return tensor;
}
template <typename T>
std::span<T> Elements(const TensorView& x) {
  return {static_cast<T*>(x.data), static_cast<size_t>(x.num_elements())};
}

// Slots and counts are those of the CPU; counts are added to what was there.
GPU_TEST(ChooseCopiesTest, AsOnCpus) {
  Device device;
  std::mt19937_64 random(4);
  for (const auto& [experts, top_k] : {std::pair(384, 8), std::pair(8, 8), std::pair(1000, 32)}) {
    Copies copies(experts);
    const Tensor first = OnBoth(DType::kI32, copies.first),
                 slots = OnBoth(DType::kI32, copies.slots);
    Tensor counts = OnBoth(DType::kI64, copies.rows);
    Tensor chosen = OnBoth(DType::kI64, copies.chosen);
    for (const int64_t rows : kRowCounts) {
      Tensor ids(DType::kI32, rows, top_k);
      std::vector<int32_t> all(static_cast<size_t>(experts));
      std::iota(all.begin(), all.end(), 0);
      for (int64_t t = 0; t < rows; ++t) {
        std::ranges::shuffle(all, random);
        std::copy_n(all.begin(), top_k, ids.host().row<int32_t>(t));
      }
      ids.ToDevice();
      const bool counted = rows != kRowCounts[1];
      const ExpertCopies there{
          .first = Elements<const int32_t>(first.device()),
          .slots = Elements<const int32_t>(slots.device()),
          .rows = counted ? Elements<int64_t>(counts.device()) : std::span<int64_t>(),
          .chosen = counted ? Elements<int64_t>(chosen.device()) : std::span<int64_t>()};
      ChooseCopies(device.ctx(), ids.device(), there);
      device.Wait();
      ExpertCopies here = copies.view();
      if (!counted) here.rows = here.chosen = {};
      ReferenceSmallOps().choose_copies({}, ids.host(), here);
      const std::string name = std::to_string(experts) + " experts, rows " + std::to_string(rows);
      ExpectSameBytes("copies of " + name, ids.FromDevice(), ids.bytes());
      std::memcpy(counts.bytes().data(), copies.rows.data(), counts.bytes().size());
      ExpectSameBytes("counts of " + name, counts.FromDevice(), counts.bytes());
      std::memcpy(chosen.bytes().data(), copies.chosen.data(), chosen.bytes().size());
      ExpectSameBytes("experts of " + name, chosen.FromDevice(), chosen.bytes());
    }
  }
}

GPU_TEST(ChooseCopiesTest, RowsOfNoExpertsKeepNoneAndAreNotCounted) {
  Device device;
  Copies copies(16);
  const Tensor first = OnBoth(DType::kI32, copies.first), slots = OnBoth(DType::kI32, copies.slots);
  const Tensor counts = OnBoth(DType::kI64, copies.rows);
  const Tensor chosen = OnBoth(DType::kI64, copies.chosen);
  Tensor ids = OnBoth(DType::kI32, std::vector<int32_t>(12, -1));
  const TensorView rows(ids.device().data, DType::kI32, {3, 4});
  ChooseCopies(device.ctx(), rows,
               {.first = Elements<const int32_t>(first.device()),
                .slots = Elements<const int32_t>(slots.device()),
                .rows = Elements<int64_t>(counts.device()),
                .chosen = Elements<int64_t>(chosen.device())});
  device.Wait();
  GPU_EXPECT(ids.FromDevice() == std::vector<char>(12 * sizeof(int32_t), char(-1)));
  GPU_EXPECT(counts.FromDevice() == std::vector<char>(copies.rows.size() * 8, char{0}));
  GPU_EXPECT(chosen.FromDevice() == std::vector<char>(copies.chosen.size() * 8, char{0}));
}

}  // namespace
}  // namespace baltoro::cuda

int main(int argc, char** argv) {
  return baltoro::testing::RunGpuCases(argc, argv, baltoro::UsableDeviceCount());
}
