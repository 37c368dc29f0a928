// HeadAttention against the plain loops of the reference.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "device/cuda/cuda_memory.h"
#include "device/cuda/device_info.h"
#include "device/cuda/stream.h"
#include "ops/compose/small_ops.h"
#include "ops/cuda/cuda_ops.h"
#include "support/gpu_test.h"

namespace baltoro::cuda {
namespace {

constexpr int64_t kBlock = KvLayerView::kBlockTokens;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
// Shares and results are rounded to bf16, 2^-9 each.
constexpr double kTolerance = 8e-3;

struct Dims {
  int32_t heads = 8, key_heads = 8, width = 128;
};
constexpr Dims kDims[] = {
    {8, 8, 128},  // an eighth of published drafts
    {8, 2, 64},   // four heads read the same keys
    {6, 2, 128},  // three
    {40, 1, 64},  // more than rows of a small tile
};

struct TestSequence {
  int32_t queries = 1;
  int32_t keys = 0;
  int32_t first_position = -1;  // -1: the queries are the last keys
};

struct TestStep {
  Dims dims = {};
  std::vector<TestSequence> sequences = {};
  int64_t padding = 0;  // rows that no sequence owns
  int64_t blocks_max = 0;
  int32_t part_blocks = 0;
  int32_t nan_row = -1;
  float sharp = 1;  // times the usual scale of scores
};

std::vector<Bf16> Random(uint32_t seed, int64_t count) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<Bf16> values(static_cast<size_t>(count));
  for (Bf16& value : values) value = ToBf16(normal(random));
  return values;
}

// A step's data on both sides, and its answer by the reference. Queries lie as the first product
// leaves them, with keys and values behind those of a row; cached tokens that nobody owns are NaN.
class Rig {
 public:
  explicit Rig(const TestStep& step)
      : step_(step),
        h_(step.dims.heads),
        d_(step.dims.width),
        half_(step.dims.key_heads * d_),
        rank_(RankState::Create().value()),
        scratch_(CudaMemory()),
        staging_(PinnedMemory()),
        data_(CudaMemory()),
        plan_memory_(CudaMemory()) {
    int64_t blocks = 0;
    for (const TestSequence& s : step.sequences) {
      rows_ += s.queries;
      blocks += (s.keys + kBlock - 1) / kBlock;
    }
    rows_ += step.padding;
    num_blocks_ = blocks + 3;
    q_ = Random(2, rows_ * row_width());
    if (step.nan_row >= 0) {
      std::fill_n(q_.begin() + step.nan_row * row_width(), h_ * d_, ToBf16(kNaN));
    }
    device_q_ = OnDevice(q_);
    device_out_ = OnDevice(std::vector<Bf16>(static_cast<size_t>(rows_ * h_ * d_), ToBf16(kNaN)));
    cache_.assign(static_cast<size_t>(num_blocks_ * kBlock * 2 * half_), ToBf16(kNaN));
    device_cache_ = OnDevice(cache_);
    SetSequences(step.sequences);
  }

  // Every sequence has keys of its own, in shuffled places.
  void SetSequences(const std::vector<TestSequence>& tests) {
    std::vector<int32_t> physical(static_cast<size_t>(num_blocks_));
    std::iota(physical.begin(), physical.end(), 0);
    std::shuffle(physical.begin(), physical.end(), std::mt19937(3));
    std::fill(cache_.begin(), cache_.end(), ToBf16(kNaN));
    tables_.assign(tests.size(), {});
    sequences_.clear();
    size_t taken = 0;
    int32_t row = 0;
    for (size_t i = 0; i < tests.size(); ++i) {
      const TestSequence& s = tests[i];
      for (int64_t b = 0; b * kBlock < s.keys; ++b) tables_[i].push_back(physical[taken++]);
      const std::vector<Bf16> keys = Random(100 + static_cast<uint32_t>(i), s.keys * 2 * half_);
      for (int64_t key = 0; key < s.keys; ++key) {
        const int64_t slot = tables_[i][static_cast<size_t>(key / kBlock)] * kBlock + key % kBlock;
        std::copy_n(&keys[key * 2 * half_], 2 * half_, &cache_[slot * 2 * half_]);
      }
      sequences_.push_back(
          {.query_begin = row,
           .query_count = s.queries,
           .first_position = s.first_position >= 0 ? s.first_position : s.keys - s.queries,
           .absorbed_from = 0,
           .blocks = tables_[i],
           .block_positions = {},
           .key_count = s.keys});
      row += s.queries;
    }
    CopyIn(device_cache_, cache_);
  }

  const void* Plan() {
    staging_.Reset();
    plan_memory_.Reset();
    return PlanAttention(context(), plan_memory_,
                         {.sequences = sequences_,
                          .tokens = rows_,
                          .heads = step_.dims.heads,
                          .head_width = step_.dims.width,
                          .key_heads = step_.dims.key_heads,
                          .blocks_max = step_.blocks_max,
                          .part_blocks = step_.part_blocks});
  }

  void Queue(const void* plan) {
    HeadAttentionArgs args = Args(device_q_, device_cache_);
    args.plan = plan;
    args.out = TensorView(device_out_, DType::kBf16, {rows_, h_ * d_});
    HeadAttention(context(), args);
  }

  std::vector<Bf16> Read() {
    GPU_EXPECT(Wait(context()).ok());
    ::baltoro::testing::StepDone();
    std::vector<Bf16> out(static_cast<size_t>(rows_ * h_ * d_));
    BT_CHECK(cudaMemcpy(out.data(), device_out_, out.size() * sizeof(Bf16),
                        cudaMemcpyDeviceToHost) == cudaSuccess);
    return out;
  }

  // Of the first `rows` rows.
  void Expect(const std::vector<Bf16>& got, int64_t rows) {
    std::vector<float> want(static_cast<size_t>(rows_ * h_ * d_), kNaN);
    HeadAttentionArgs args = Args(q_.data(), cache_.data());
    args.out = TensorView(want.data(), DType::kF32, {rows_, h_ * d_});
    ReferenceSmallOps().head_attention({}, args);
    int64_t bad = 0;
    double worst = 0;
    for (int64_t row = 0; row < rows * h_; ++row) {
      double norm = 0, error = 0;
      bool same = true;  // NaN where NaN is wanted, and zeros where zeros are
      for (int64_t i = row * d_; i < (row + 1) * d_; ++i) {
        const double a = ToFloat(got[i]), b = want[i];
        same = same && std::isnan(a) == std::isnan(b) && (b != 0 || a == 0);
        if (std::isnan(b)) continue;
        norm += b * b;
        error += (a - b) * (a - b);
      }
      const double relative = norm == 0 ? 0 : std::sqrt(error / norm);
      if (same && relative <= kTolerance) {
        worst = std::max(worst, relative);
      } else if (++bad <= 5) {
        std::printf("  row %lld head %lld: error %.3e; got %.4f %.4f want %.4f %.4f\n",
                    static_cast<long long>(row / h_), static_cast<long long>(row % h_), relative,
                    static_cast<double>(ToFloat(got[row * d_])),
                    static_cast<double>(ToFloat(got[row * d_ + d_ - 1])),
                    static_cast<double>(want[row * d_]),
                    static_cast<double>(want[row * d_ + d_ - 1]));
      }
    }
    std::printf("  %d heads, %d of keys, width %d: %lld rows, %lld bad, worst other error %.2e\n",
                step_.dims.heads, step_.dims.key_heads, step_.dims.width,
                static_cast<long long>(rows), static_cast<long long>(bad), worst);
    GPU_EXPECT_EQ(bad, int64_t{0});
  }

  OpContext context() { return {.scratch = &scratch_, .staging = &staging_, .rank = rank_.get()}; }
  int64_t rows() const { return rows_; }
  int64_t out_width() const { return h_ * d_; }

 private:
  int64_t row_width() const { return h_ * d_ + 2 * half_; }

  static void CopyIn(Bf16* to, const std::vector<Bf16>& from) {
    BT_CHECK(cudaMemcpy(to, from.data(), from.size() * sizeof(Bf16), cudaMemcpyHostToDevice) ==
             cudaSuccess);
    // From pageable memory the call may return before the last bytes have arrived.
    BT_CHECK(cudaDeviceSynchronize() == cudaSuccess);
  }
  Bf16* OnDevice(const std::vector<Bf16>& values) {
    auto* const to = data_.AllocateArray<Bf16>(values.size() + 8);
    CopyIn(to, values);
    return to;
  }

  HeadAttentionArgs Args(Bf16* q, Bf16* cache) const {
    HeadAttentionArgs args;
    args.q = TensorView(q, DType::kBf16, {rows_, h_, d_});
    args.q.stride = {row_width(), d_, 1};
    args.cache = {.data = cache,
                  .form = KvForm::kBf16,
                  .num_blocks = num_blocks_,
                  .latent = half_,
                  .rope = half_};
    args.sequences = sequences_;
    args.scale = step_.sharp / std::sqrt(static_cast<float>(d_));
    args.key_heads = step_.dims.key_heads;
    return args;
  }

  const TestStep step_;
  const int64_t h_, d_, half_;
  int64_t rows_ = 0, num_blocks_ = 0;
  std::vector<Bf16> q_, cache_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<AttentionSequence> sequences_;
  std::unique_ptr<RankState> rank_;
  Arena scratch_, staging_, data_, plan_memory_;
  Bf16 *device_q_, *device_out_, *device_cache_;
};

void ExpectRight(const TestStep& step) {
  Rig rig(step);
  rig.Queue(rig.Plan());
  rig.Expect(rig.Read(), rig.rows());
}

GPU_TEST(HeadAttentionTest, DecodesOneTokenOfEachSequence) {
  for (const Dims& dims : kDims) {
    ExpectRight({.dims = dims,
                 .sequences = {{1, 1}, {1, 63}, {1, 64}, {0, 0}, {1, 65}, {1, 333}, {1, 130}},
                 .padding = 2});
  }
  ExpectRight({.dims = {64, 64, 128}, .sequences = {{1, 70}, {1, 5}}, .padding = 3});
  ExpectRight({.dims = {2, 2, 128}, .sequences = {{1, 9000}, {1, 40}}});
  ExpectRight({.dims = {4, 2, 64}, .sequences = {{1, 40}, {1, 5000}, {1, 700}}});
  TestStep many{.dims = {4, 4, 64}, .sequences = {}};
  for (int32_t i = 0; i < 70; ++i) many.sequences.push_back({1, 1 + i * 7 % 190});
  ExpectRight(many);
}

GPU_TEST(HeadAttentionTest, DecodesAFewTokensOfEachSequence) {
  for (const Dims& dims : kDims) {
    ExpectRight({.dims = dims, .sequences = {{6, 100}, {2, 2}, {0, 0}, {4, 67}, {5, 700}}});
  }
  ExpectRight({.dims = {8, 8, 128}, .sequences = {{16, 300}, {1, 20}}, .padding = 1});
}

GPU_TEST(HeadAttentionTest, TakesPrompts) {
  for (const Dims& dims : kDims) {
    ExpectRight(
        {.dims = dims, .sequences = {{17, 17}, {1, 333}, {70, 200}, {4, 90}}, .padding = 2});
  }
  ExpectRight({.dims = {4, 4, 64}, .sequences = {{129, 129}, {200, 483}}});
  ExpectRight({.dims = {2, 1, 128}, .sequences = {{40, 3000}}});  // whose keys are dealt out
}

GPU_TEST(HeadAttentionTest, PositionsDecideWhatIsSeen) {
  for (const Dims& dims : kDims) {
    // Queries among the keys, behind them, and without any.
    ExpectRight(
        {.dims = dims,
         .sequences = {{4, 200, 0}, {4, 200, 130}, {1, 0, 7}, {1, 300, 5000}, {2, 64, 62}}});
    ExpectRight({.dims = dims, .sequences = {{80, 200, 20}, {70, 64, 500}, {66, 0, 10}}});
  }
}

GPU_TEST(HeadAttentionTest, KeepsUpWithScoresThatDiffer) {
  for (const float sharp : {0.01f, 20.0f}) {
    ExpectRight({.sequences = {{1, 900}, {20, 100}}, .sharp = sharp});
  }
}

GPU_TEST(HeadAttentionTest, NotANumberStaysInItsRow) {
  ExpectRight({.sequences = {{4, 100}, {3, 90}}, .nan_row = 2});
  ExpectRight({.dims = {8, 2, 64}, .sequences = {{100, 200}}, .nan_row = 77});
  ExpectRight({.dims = {2, 2, 128}, .sequences = {{1, 1000}, {1, 3000}}, .nan_row = 1});
}

// With keys cut at fixed places a sequence's rows are the same bits whatever is computed beside.
GPU_TEST(HeadAttentionTest, FixedPartsMakeRowsIndependent) {
  for (const Dims& dims : {Dims{8, 8, 128}, Dims{8, 2, 64}}) {
    for (const int32_t each : {1, 4}) {
      TestStep step{.dims = dims, .sequences = {{each, 1000}}, .part_blocks = 4};
      Rig alone(step);
      alone.Queue(alone.Plan());
      const std::vector<Bf16> want = alone.Read();
      alone.Expect(want, each);
      step.sequences.insert(step.sequences.end(), {{each, 70}, {90, 500}, {each, 2000}, {2, 65}});
      Rig among(step);
      among.Queue(among.Plan());
      const std::vector<Bf16> got = among.Read();
      among.Expect(got, among.rows());
      GPU_EXPECT(std::memcmp(got.data(), want.data(),
                             static_cast<size_t>(each * among.out_width()) * sizeof(Bf16)) == 0);
    }
  }
}

GPU_TEST(HeadAttentionTest, AGraphFollowsThePlan) {
  for (const Dims& dims : kDims) {
    for (const int32_t part_blocks : {0, 3}) {
      for (const int32_t each : {1, 4}) {
        const std::vector<TestSequence> recorded = {
            {each, 300}, {each, 64}, {each, 500}, {each, 20}};
        Rig rig(
            {.dims = dims, .sequences = recorded, .blocks_max = 16, .part_blocks = part_blocks});
        const void* const first = rig.Plan();
        GPU_ASSERT_OK(Wait(rig.context()));
        rig.Queue(first);  // scratch memory is there when it is captured
        GPU_ASSERT_OK(Wait(rig.context()));
        rig.context().scratch->Reset();
        const auto graph = Capture(rig.context(), [&] { rig.Queue(first); });
        for (const std::vector<TestSequence>& sequences :
             {recorded,
              {{each, 301}, {each, 65}, {0, 0}, {each, 21}},
              {{each, each}, {0, 0}, {each, 700}, {0, 0}},
              {{0, 0}, {0, 0}, {0, 0}, {each, 840}},
              {{0, 0}, {0, 0}, {0, 0}, {0, 0}}}) {
          rig.SetSequences(sequences);
          rig.Plan();
          graph->Launch(rig.context());
          // Rows of nobody keep what the step before left there.
          int32_t rows = 0;
          for (const TestSequence& s : sequences) rows += s.queries;
          rig.Expect(rig.Read(), rows);
        }
      }
    }
  }
}

}  // namespace
}  // namespace baltoro::cuda

int main(int argc, char** argv) {
  return baltoro::testing::RunGpuCases(argc, argv, baltoro::UsableDeviceCount());
}
