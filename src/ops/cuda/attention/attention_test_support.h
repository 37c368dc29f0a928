#pragma once

// For the test of MlaAttention: a step's data on both sides, and its answer by the reference.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "device/cuda/cuda_memory.h"
#include "device/cuda/stream.h"
#include "ops/cuda/attention/attention_plan.h"
#include "ops/cuda/cuda_ops.h"
#include "support/gpu_test.h"

namespace baltoro::cuda::attention_test {

inline constexpr int64_t kBlock = KvLayerView::kBlockTokens;
inline constexpr int64_t kQueryWidth = kAttentionNope + kAttentionRope;
inline constexpr int64_t kExpandedWidth = kAttentionNope + kAttentionValue;
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline const float kScale = 1 / std::sqrt(static_cast<float>(kQueryWidth));

struct TestSequence {
  int32_t queries = 1;
  int32_t keys = 0;
  int32_t first_position = -1;  // -1: the queries are the last keys
  int32_t every = 1;            // above 1: every so many blocks, positions given
};

struct TestStep {
  int32_t heads = 8;
  KvForm form = KvForm::kBf16;
  std::vector<TestSequence> sequences;
  int64_t padding = 0;  // rows that no sequence owns
  int64_t q_gap = 0;    // elements between heads
  int64_t blocks_max = 0;
  int64_t pass_bytes = kAttentionPassBytes;
  int32_t nan_row = -1;
  bool lse = true;  // is asked for
  float slope = 0;  // added to the score of position p for every query: slope * p
};

inline std::vector<Bf16> Random(uint32_t seed, int64_t count, float deviation) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<Bf16> values(static_cast<size_t>(count));
  for (Bf16& value : values) value = ToBf16(normal(random));
  return values;
}

class Device {
 public:
  Device() : rank_(RankState::Create().value()), scratch_(CudaMemory()), staging_(PinnedMemory()) {}
  OpContext context() { return {.scratch = &scratch_, .staging = &staging_, .rank = rank_.get()}; }
  template <typename T>
  T* Copy(Arena& arena, const std::vector<T>& values) {
    T* const to = arena.AllocateArray<T>(values.size() + 8);
    BT_CHECK(cudaMemcpy(to, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice) ==
             cudaSuccess);
    // From pageable memory the call may return before the last bytes have arrived.
    BT_CHECK(cudaDeviceSynchronize() == cudaSuccess);
    return to;
  }

 private:
  std::unique_ptr<RankState> rank_;
  Arena scratch_, staging_;
};

class Rig {
 public:
  explicit Rig(const TestStep& step)
      : step_(step), h_(step.heads), data_(CudaMemory()), plan_memory_(CudaMemory()) {
    kv_b_ = Random(1, h_ * kExpandedWidth * kMlaLatent, 1 / std::sqrt(512.0f));
    uk_t_.resize(static_cast<size_t>(h_ * kMlaLatent * kAttentionNope));
    for (int64_t h = 0; h < h_; ++h) {
      for (int64_t r = 0; r < kMlaLatent; ++r) {
        for (int64_t n = 0; n < kAttentionNope; ++n) {
          uk_t_[(h * kMlaLatent + r) * kAttentionNope + n] =
              kv_b_[(h * kExpandedWidth + n) * kMlaLatent + r];
        }
      }
    }
    SetSequences(step.sequences);
    q_head_ = kQueryWidth + step.q_gap;
    q_ = Random(2, rows_ * h_ * q_head_, 1);
    for (int64_t i = 0; step.slope != 0 && i < rows_ * h_; ++i) {
      q_[i * q_head_ + kQueryWidth - 1] = ToBf16(1 / kScale);
    }
    if (step.nan_row >= 0) {
      std::fill_n(q_.begin() + step.nan_row * h_ * q_head_, h_ * q_head_, ToBf16(kNaN));
    }
    device_kv_b_ = device_.Copy(data_, kv_b_);
    device_uk_t_ = device_.Copy(data_, uk_t_);
    device_q_ = device_.Copy(data_, q_);
    device_cache_ = device_.Copy(data_, cache_memory_);
    const std::vector<Bf16> unwritten(static_cast<size_t>(rows_ * h_ * kAttentionValue),
                                      ToBf16(kNaN));
    device_out_ = device_.Copy(data_, unwritten);
    device_lse_ = device_.Copy(data_, std::vector<float>(static_cast<size_t>(rows_ * h_), kNaN));
  }

  // The cache, and what of it each sequence owns. Every sequence has keys of its own, in shuffled
  // places; what nobody owns is NaN in bf16 and in scales.
  void SetSequences(const std::vector<TestSequence>& tests) {
    int64_t blocks = 0, rows = 0;
    for (const TestSequence& s : tests) {
      blocks += (s.keys + kBlock - 1) / kBlock;
      rows += s.queries;
    }
    if (cache_memory_.empty()) {
      rows_ = rows + step_.padding;
      num_blocks_ = blocks + 3;
      cache_memory_.assign(static_cast<size_t>(num_blocks_ * kBlock * token_bytes()), 0xFF);
    }
    std::vector<int32_t> physical(static_cast<size_t>(num_blocks_));
    std::iota(physical.begin(), physical.end(), 0);
    std::shuffle(physical.begin(), physical.end(), std::mt19937(3));
    tables_.assign(tests.size(), {});
    positions_.assign(tests.size(), {});
    sequences_.clear();
    size_t taken = 0;
    int32_t row = 0;
    for (size_t i = 0; i < tests.size(); ++i) {
      const TestSequence& s = tests[i];
      for (int64_t b = 0; b * kBlock < s.keys; ++b) {
        tables_[i].push_back(physical[taken++]);
        if (s.every > 1) positions_[i].push_back(static_cast<int32_t>(b * s.every * kBlock));
      }
      WriteKeys(i, s);
      sequences_.push_back(
          {.query_begin = row,
           .query_count = s.queries,
           .first_position = s.first_position >= 0 ? s.first_position : s.keys - s.queries,
           .absorbed_from = 0,
           .blocks = tables_[i],
           .block_positions = positions_[i],
           .key_count = s.keys});
      row += s.queries;
    }
  }

  void CopyCache() {
    BT_CHECK(cudaMemcpy(device_cache_, cache_memory_.data(), cache_memory_.size(),
                        cudaMemcpyHostToDevice) == cudaSuccess);
    BT_CHECK(cudaDeviceSynchronize() == cudaSuccess);
  }

  const void* Plan() {
    device_.context().staging->Reset();
    plan_memory_.Reset();
    return PlanAttentionInPasses(device_.context(), plan_memory_,
                                 {.sequences = sequences_,
                                  .tokens = rows_,
                                  .form = step_.form,
                                  .heads = step_.heads,
                                  .nope = kAttentionNope,
                                  .rope = kAttentionRope,
                                  .value = kAttentionValue,
                                  .latent = kMlaLatent,
                                  .blocks_max = step_.blocks_max},
                                 step_.pass_bytes);
  }

  void Queue(const void* plan) {
    MlaAttentionArgs args = Args(device_q_, device_kv_b_, device_uk_t_, device_cache_);
    args.plan = plan;
    args.out = TensorView(device_out_, DType::kBf16, {rows_, h_ * kAttentionValue});
    if (step_.lse) args.lse = TensorView(device_lse_, DType::kF32, {rows_, h_});
    MlaAttention(device_.context(), args);
  }

  Status Read() {
    const Status status = Wait(device_.context());
    ::baltoro::testing::StepDone();
    BT_RETURN_IF_ERROR(status);
    std::vector<Bf16> bits(static_cast<size_t>(rows_ * h_ * kAttentionValue));
    out_.clear();
    lse_.resize(static_cast<size_t>(rows_ * h_));
    BT_CHECK(cudaMemcpy(bits.data(), device_out_, bits.size() * 2, cudaMemcpyDeviceToHost) ==
             cudaSuccess);
    BT_CHECK(cudaMemcpy(lse_.data(), device_lse_, lse_.size() * 4, cudaMemcpyDeviceToHost) ==
             cudaSuccess);
    for (const Bf16 value : bits) out_.push_back(ToFloat(value));
    return status;
  }

  // The first `rows` rows by the reference, a head a call, on all cores.
  void Expect(int64_t rows, double tolerance) {
    std::vector<float> out(static_cast<size_t>(rows_ * h_ * kAttentionValue), kNaN);
    std::vector<float> lse(static_cast<size_t>(rows_ * h_), kNaN);
    std::atomic<int64_t> next = 0;
    const auto work = [&] {
      for (int64_t h; (h = next++) < h_;) {
        MlaAttentionArgs args = Args(q_.data(), kv_b_.data(), uk_t_.data(), cache_memory_.data());
        args.heads = 1;
        args.q.data = q_.data() + h * q_head_;
        args.q.shape[1] = 1;
        args.kv_b.data = kv_b_.data() + h * kExpandedWidth * kMlaLatent;
        args.kv_b.n = kExpandedWidth;
        args.uk_t = args.uk_t.at(h);
        std::vector<float> one(static_cast<size_t>(rows_ * kAttentionValue), kNaN);
        std::vector<float> one_lse(static_cast<size_t>(rows_), kNaN);
        args.out = TensorView(one.data(), DType::kF32, {rows_, kAttentionValue});
        args.lse = TensorView(one_lse.data(), DType::kF32, {rows_, 1});
        ReferenceSmallOps().mla_attention({}, args);
        for (int64_t t = 0; t < rows_; ++t) {
          std::copy_n(&one[t * kAttentionValue], kAttentionValue,
                      &out[(t * h_ + h) * kAttentionValue]);
          lse[t * h_ + h] = one_lse[t];
        }
      }
    };
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
      threads.emplace_back(work);
    }
    for (std::thread& thread : threads) thread.join();
    Compare(rows, out, lse, tolerance);
  }

  OpContext context() { return device_.context(); }
  int64_t rows() const { return rows_; }

 private:
  int64_t token_bytes() const { return KvTokenBytes(step_.form, kMlaLatent, kAttentionRope); }

  KvLayerView View(void* cache) const {
    return {.data = cache,
            .form = step_.form,
            .num_blocks = num_blocks_,
            .latent = kMlaLatent,
            .rope = kAttentionRope,
            .scale = step_.form == KvForm::kFp8 ? 0.0123f : 1.0f};
  }

  void WriteKeys(size_t i, const TestSequence& s) {
    if (s.keys == 0) return;
    std::vector<Bf16> values = Random(100 + static_cast<uint32_t>(i), s.keys * kMlaWidth, 1);
    std::vector<int64_t> slots;
    for (int64_t key = 0; key < s.keys; ++key) {
      slots.push_back(tables_[i][static_cast<size_t>(key / kBlock)] * kBlock + key % kBlock);
      if (step_.slope != 0) {
        values[(key + 1) * kMlaWidth - 1] = ToBf16(step_.slope * static_cast<float>(key));
      }
    }
    TensorView all(values.data(), DType::kBf16, {s.keys, kMlaWidth});
    ReferenceSmallOps().kv_write({}, View(cache_memory_.data()), all.columns(0, kMlaLatent),
                                 all.columns(kMlaLatent, kAttentionRope),
                                 TensorView(slots.data(), DType::kI64, {s.keys}));
  }

  MlaAttentionArgs Args(Bf16* q, Bf16* kv_b, Bf16* uk_t, uint8_t* cache) {
    MlaAttentionArgs args;
    args.q = TensorView(q, DType::kBf16, {rows_, h_, q_head_}).columns(0, kQueryWidth);
    args.cache = View(cache);
    args.sequences = sequences_;
    args.kv_b = {.data = kv_b, .n = h_ * kExpandedWidth, .k = kMlaLatent};
    args.uk_t = {.data = uk_t,
                 .n = kMlaLatent,
                 .k = kAttentionNope,
                 .count = h_,
                 .stride_bytes = kMlaLatent * kAttentionNope * 2};
    args.scale = kScale;
    args.heads = step_.heads;
    args.nope = kAttentionNope;
    args.rope = kAttentionRope;
    args.value = kAttentionValue;
    args.latent = kMlaLatent;
    return args;
  }

  // Each row's error over its norm.
  void Compare(int64_t rows,
               const std::vector<float>& out,
               const std::vector<float>& lse,
               double tolerance) {
    double worst = 0, worst_lse = 0;
    int64_t bad = 0, compared = 0;
    for (int64_t row = 0; row < rows * h_; ++row) {
      if (row / h_ == step_.nan_row) continue;
      double error = 0, norm = 0;
      for (int64_t i = row * kAttentionValue; i < (row + 1) * kAttentionValue; ++i) {
        if (std::isnan(out[i])) {  // a row of nobody stays as it was
          error += std::isnan(out_[i]) ? 0 : kNaN;
          continue;
        }
        error += std::pow(double{out_[i]} - out[i], 2);
        norm += std::pow(double{out[i]}, 2);
      }
      const double relative = norm == 0 ? std::sqrt(error) : std::sqrt(error / norm);
      double lse_error = 0;
      if (!step_.lse) {
        // none was asked for
      } else if (std::isnan(lse[row])) {
        lse_error = std::isnan(lse_[row]) ? 0 : kNaN;
      } else if (std::isinf(lse[row])) {
        lse_error = lse_[row] == lse[row] ? 0 : kNaN;
      } else {
        lse_error = std::abs(double{lse_[row]} - lse[row]) / (1 + 0.1 * std::abs(lse[row]));
      }
      ++compared;
      if (!(relative <= tolerance) || !(lse_error <= 0.02)) {
        if (++bad <= 5) {
          const int64_t first = row * kAttentionValue;
          std::printf(
              "  row %lld head %lld: error %.3e of norm %.3e, lse %.5f want %.5f; got %.4f %.4f "
              "%.4f "
              "%.4f want %.4f %.4f %.4f %.4f\n",
              static_cast<long long>(row / h_), static_cast<long long>(row % h_), relative,
              std::sqrt(norm), static_cast<double>(lse_[row]), static_cast<double>(lse[row]),
              static_cast<double>(out_[first]), static_cast<double>(out_[first + 1]),
              static_cast<double>(out_[first + 64]), static_cast<double>(out_[first + 127]),
              static_cast<double>(out[first]), static_cast<double>(out[first + 1]),
              static_cast<double>(out[first + 64]), static_cast<double>(out[first + 127]));
        }
        continue;
      }
      worst = std::max(worst, relative);
      worst_lse = std::max(worst_lse, lse_error);
    }
    std::printf("  %d heads, %s: %lld rows, %lld bad, worst other error %.2e, lse %.2e\n",
                step_.heads, KvFormName(step_.form), static_cast<long long>(compared),
                static_cast<long long>(bad), worst, worst_lse);
    GPU_EXPECT_EQ(bad, int64_t{0});
  }

  const TestStep step_;
  const int64_t h_;
  int64_t rows_ = 0, num_blocks_ = 0, q_head_ = 0;
  std::vector<Bf16> kv_b_, uk_t_, q_;
  std::vector<uint8_t> cache_memory_;
  std::vector<std::vector<int32_t>> tables_, positions_;
  std::vector<AttentionSequence> sequences_;
  Device device_;
  Arena data_, plan_memory_;
  Bf16 *device_kv_b_, *device_uk_t_, *device_q_, *device_out_;
  float* device_lse_;
  uint8_t* device_cache_;
  std::vector<float> out_, lse_;
};

// Absorbed queries, probabilities and results are rounded to bf16 on the way (2^-9 each), or keys
// and values of heads are.
inline constexpr double kTolerance = 1.2e-2;

inline void ExpectRight(const TestStep& step) {
  Rig rig(step);
  rig.Queue(rig.Plan());
  GPU_ASSERT_OK(rig.Read());
  rig.Expect(rig.rows(), kTolerance);
}

inline constexpr KvForm kForms[] = {KvForm::kBf16, KvForm::kFp8, KvForm::kFp8Groups};

}  // namespace baltoro::cuda::attention_test
