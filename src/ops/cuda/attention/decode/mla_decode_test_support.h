#pragma once

// For the test of MLA decoding: a step's data on both sides, and its answer by the definition.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "device/cuda/cuda_status.h"
#include "device/cuda/device_buffer.h"
#include "device/cuda/stream.h"
#include "ops/cuda/attention/decode/mla_decode_internal.h"
#include "ops/cuda/launch/launch_stream.h"
#include "support/gpu_test.h"

namespace baltoro::cuda::mla_test {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline uint16_t ToBf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (value != value) return 0x7FFF;
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

inline float FromBf16(uint16_t half) {
  const uint32_t bits = uint32_t{half} << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline float FromE4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  if ((code & 0x7F) == 0x7F) return kNaN;
  return code & 0x80 ? -magnitude : magnitude;
}

struct TestSequence {
  int query_tokens = 1;
  int keys = 0;
  int first_position = -1;               // -1: the queries are the last keys
  std::vector<int32_t> block_positions;  // of all its blocks, or empty
};

struct TestStep {
  int heads = 64;
  std::vector<TestSequence> sequences;
  int multiprocessors = 132;
  int chunk_blocks = 0;
  MlaCacheType cache_type = MlaCacheType::kBf16;
  float slope = 0;  // added to the score of key k for every head: slope * k
  uint32_t seed = 1;
};

struct Answer {
  std::vector<float> out;  // [rows, heads, 512]
  std::vector<float> lse;  // [rows, heads]
};

template <typename T>
DeviceBuffer Upload(const std::vector<T>& values) {
  Result<DeviceBuffer> buffer = DeviceBuffer::Create(values.size() * sizeof(T), "test data");
  BT_CHECK(buffer.ok());
  if (values.empty()) return std::move(buffer).value();
  BT_CHECK(cudaMemcpy(buffer.value().data(), values.data(), values.size() * sizeof(T),
                      cudaMemcpyHostToDevice) == cudaSuccess);
  // From pageable memory the call may return before the last bytes have arrived.
  BT_CHECK(cudaDeviceSynchronize() == cudaSuccess);
  return std::move(buffer).value();
}

template <typename T>
std::vector<T> Download(const DeviceBuffer& buffer) {
  std::vector<T> values(buffer.bytes() / sizeof(T));
  BT_CHECK(cudaMemcpy(values.data(), buffer.data(), buffer.bytes(), cudaMemcpyDeviceToHost) ==
           cudaSuccess);
  return values;
}

// A step's data on both sides. Every sequence draws from its own seed, so that it is the same in
// any step; what no key lies in is NaN.
class Rig {
 public:
  explicit Rig(const TestStep& step) : step_(step) {
    int blocks = 0;
    for (const TestSequence& s : step.sequences) {
      rows_ += s.query_tokens;
      const int mine = (s.keys + 63) / 64;
      blocks += mine;
      stride_ = std::max(stride_, mine);
    }
    const bool fp8 = step.cache_type == MlaCacheType::kFp8E4m3;
    num_blocks_ = blocks + 3;
    std::vector<int32_t> physical(num_blocks_);
    std::iota(physical.begin(), physical.end(), 0);
    std::shuffle(physical.begin(), physical.end(), std::mt19937(step.seed));
    const size_t cached = size_t{64} * num_blocks_ * kMlaWidth;
    cache_.assign(cached, kNaN);
    std::vector<uint8_t> codes(fp8 ? cached : 0, 0x7F);
    std::vector<int32_t> begin = {0}, counts, firsts, table, positions;
    size_t taken = 0;
    for (size_t i = 0; i < step.sequences.size(); ++i) {
      const TestSequence& s = step.sequences[i];
      std::mt19937 random(1000u * static_cast<uint32_t>(s.keys) + s.query_tokens);
      std::normal_distribution<float> normal;
      const int first = s.first_position >= 0 ? s.first_position : s.keys - s.query_tokens;
      begin.push_back(begin.back() + s.query_tokens);
      counts.push_back(s.keys);
      firsts.push_back(first);
      for (int b = 0; b < stride_; ++b) {
        const bool used = b * 64 < s.keys;
        table.push_back(used ? physical[taken++] : -7);
        positions.push_back(used && !s.block_positions.empty() ? s.block_positions[b] : 64 * b);
        explicit_positions_ |= !s.block_positions.empty();
      }
      for (int n = 0; n < s.query_tokens * step.heads * kMlaWidth; ++n) {
        q_.push_back(FromBf16(ToBf16(normal(random))));
        if (step.slope != 0 && n % kMlaWidth == kMlaWidth - 1) q_.back() = 1 / kScale;
      }
      for (int key = 0; key < s.keys; ++key) {
        const size_t row = size_t{64} * table[i * stride_ + key / 64] + key % 64;
        for (int e = 0; e < kMlaWidth; ++e) {
          float& value = cache_[row * kMlaWidth + e];
          if (fp8) {
            uint8_t& code = codes[row * kMlaWidth + e];
            code = static_cast<uint8_t>(random());
            // Mostly middling magnitudes, some subnormal, no NaN.
            code = static_cast<uint8_t>((code & 0x87) | (random() % 8) << 3);
            value = FromE4m3(code);
          } else {
            value = FromBf16(ToBf16(normal(random)));
            if (step.slope != 0 && e == kMlaWidth - 1) {
              value = FromBf16(ToBf16(step.slope * static_cast<float>(key)));
            }
          }
        }
      }
    }
    first_query_ = begin;
    tables_ = table;
    block_positions_ = positions;
    firsts_ = firsts;
    std::vector<uint16_t> bits;
    for (const float value : cache_) bits.push_back(ToBf16(value));
    device_cache_ = fp8 ? Upload(codes) : Upload(bits);
    bits.clear();
    for (const float value : q_) bits.push_back(ToBf16(value));
    device_q_ = Upload(bits);
    device_begin_ = Upload(begin);
    device_counts_ = Upload(counts);
    device_firsts_ = Upload(firsts);
    device_table_ = Upload(table);
    device_positions_ = Upload(positions);
    device_out_ = Upload(std::vector<uint16_t>(size_t{512} * rows_ * step.heads, 0x7FC0));
    device_lse_ = Upload(std::vector<float>(static_cast<size_t>(rows_) * step.heads, kNaN));
    limits_.heads = step.heads;
    limits_.sequences = static_cast<int>(step.sequences.size());
    for (const TestSequence& s : step.sequences) {
      limits_.max_query_tokens = std::max(limits_.max_query_tokens, s.query_tokens);
    }
    limits_.multiprocessors = step.multiprocessors;
    limits_.cache_type = step.cache_type;
    limits_.chunk_blocks = step.chunk_blocks;
    limits_.max_total_blocks = std::max(blocks, 1);
    Result<size_t> bytes = MlaDecodeWorkspaceBytes(limits_);
    BT_CHECK(bytes.ok());
    // NaN everywhere: nothing may rely on what a workspace holds.
    workspace_ = Upload(std::vector<uint8_t>(bytes.value(), 0xFF));
  }

  MlaDecodeLimits limits() const { return limits_; }

  MlaDecodeArgs args() const {
    MlaDecodeArgs args;
    args.out = device_out_.data();
    args.lse = device_lse_.as<float>();
    args.q = device_q_.data();
    args.rows = rows_;
    args.cache = device_cache_.data();
    args.cache_scale = kCacheScale;
    args.num_blocks = num_blocks_;
    args.scale = kScale;
    args.sequences.query_begin = device_begin_.as<int32_t>();
    args.sequences.key_count = device_counts_.as<int32_t>();
    args.sequences.first_position = device_firsts_.as<int32_t>();
    args.sequences.block_table = device_table_.as<int32_t>();
    args.sequences.block_positions =
        explicit_positions_ ? device_positions_.as<int32_t>() : nullptr;
    args.sequences.table_stride = std::max(stride_, 1);
    return args;
  }

  // Of lengths as they are now.
  Status Plan() const {
    BT_ASSIGN_OR_RETURN(const size_t bytes, MlaDecodePlanBytes(limits_));
    std::vector<char> image(bytes, '\xff');
    std::vector<int32_t> counts;
    for (const TestSequence& s : step_.sequences) counts.push_back(s.keys);
    BT_RETURN_IF_ERROR(
        PlanMlaDecodeOnHost(limits_, first_query_.data(), counts.data(), image.data()));
    BT_CHECK(cudaMemcpy(workspace_.data(), image.data(), bytes, cudaMemcpyHostToDevice) ==
             cudaSuccess);
    BT_CHECK(cudaDeviceSynchronize() == cudaSuccess);
    return Status();
  }

  // By the plan that the workspace holds.
  Status Queue(const Stream& stream) const {
    const LaunchStream launches{stream.get(), &order_};
    const DecodePlan plan = ChooseDecode(limits_);
    BT_ASSIGN_OR_RETURN(const MlaKernelArgs pieces,
                        MlaDecodePieces(plan, limits_, args(), workspace_.data(), launches));
    return LaunchMlaMerge(ChooseMergeAlone(limits_, plan), pieces, launches);
  }

  Result<Answer> Run() const {
    Result<Stream> stream = Stream::Create();
    BT_RETURN_IF_ERROR(stream.status());
    BT_RETURN_IF_ERROR(Plan());
    BT_RETURN_IF_ERROR(Queue(stream.value()));
    BT_RETURN_IF_ERROR(stream.value().Synchronize());
    ::baltoro::testing::StepDone();
    return Read();
  }

  Answer Read() const {
    Answer answer;
    for (const uint16_t bits : Download<uint16_t>(device_out_)) {
      answer.out.push_back(FromBf16(bits));
    }
    answer.lse = Download<float>(device_lse_);
    return answer;
  }

  void SetKeys(const std::vector<int32_t>& counts, const std::vector<int32_t>& firsts) {
    for (size_t i = 0; i < counts.size(); ++i) step_.sequences[i].keys = counts[i];
    firsts_ = firsts;
    device_counts_ = CopyOver(std::move(device_counts_), counts);
    device_firsts_ = CopyOver(std::move(device_firsts_), firsts);
  }

  // By the definition, in double.
  Answer Expected() const {
    Answer answer;
    const bool fp8 = step_.cache_type == MlaCacheType::kFp8E4m3;
    const double cache_scale = fp8 ? kCacheScale : 1;
    std::vector<double> scores;
    std::vector<double> sum(kMlaLatent);
    for (size_t i = 0; i < step_.sequences.size(); ++i) {
      const TestSequence& s = step_.sequences[i];
      for (int r = 0; r < s.query_tokens * step_.heads; ++r) {
        const float* const q =
            &q_[(static_cast<size_t>(first_query_[i]) * step_.heads + r) * kMlaWidth];
        const int position = firsts_[i] + r / step_.heads;
        scores.assign(s.keys, -kInfinity);
        double highest = -kInfinity, total = 0;
        for (int key = 0; key < s.keys; ++key) {
          if (block_positions_[i * stride_ + key / 64] + key % 64 > position) continue;
          const float* const k = Key(i, key);
          double dot = 0;
          for (int e = 0; e < kMlaWidth; ++e) dot += double{q[e]} * k[e];
          scores[key] = dot * kScale * cache_scale;
          highest = std::max(highest, scores[key]);
        }
        std::fill(sum.begin(), sum.end(), 0.0);
        for (int key = 0; key < s.keys; ++key) {
          if (scores[key] == -kInfinity) continue;
          const double weight = std::exp(scores[key] - highest);
          total += weight;
          const float* const v = Key(i, key);
          for (int e = 0; e < kMlaLatent; ++e) sum[e] += weight * v[e];
        }
        for (const double value : sum) {
          answer.out.push_back(total > 0 ? static_cast<float>(value / total * cache_scale) : 0);
        }
        answer.lse.push_back(total > 0 ? static_cast<float>(highest + std::log(total)) : -INFINITY);
      }
    }
    return answer;
  }

 private:
  static constexpr float kScale = 0.0625f;
  static constexpr float kCacheScale = 0.75f;

  static DeviceBuffer CopyOver(DeviceBuffer buffer, const std::vector<int32_t>& values) {
    BT_CHECK(cudaMemcpy(buffer.data(), values.data(), buffer.bytes(), cudaMemcpyHostToDevice) ==
             cudaSuccess);
    BT_CHECK(cudaDeviceSynchronize() == cudaSuccess);
    return buffer;
  }
  const float* Key(size_t sequence, int key) const {
    const int32_t block = tables_[sequence * stride_ + key / 64];
    return &cache_[(size_t{64} * block + key % 64) * kMlaWidth];
  }

  TestStep step_;
  int rows_ = 0, num_blocks_ = 0, stride_ = 0;
  bool explicit_positions_ = false;
  std::vector<float> cache_, q_;
  std::vector<int32_t> tables_, first_query_, block_positions_, firsts_;
  MlaDecodeLimits limits_;
  DeviceBuffer device_cache_, device_q_, device_begin_, device_counts_, device_firsts_,
      device_table_, device_positions_, device_out_, device_lse_, workspace_;
  mutable LaunchOrder order_;
};

// Each row's error over its norm; the exponentials and the output are rounded to bf16.
inline void ExpectNear(const Answer& answer, const Answer& expected, double tolerance) {
  GPU_EXPECT_EQ(answer.lse.size(), expected.lse.size());
  double worst = 0;
  for (size_t row = 0; row < expected.lse.size(); ++row) {
    double error = 0, norm = 0;
    for (size_t i = row * kMlaLatent; i < (row + 1) * kMlaLatent; ++i) {
      error += std::pow(double{answer.out[i]} - expected.out[i], 2);
      norm += std::pow(double{expected.out[i]}, 2);
    }
    const double relative = norm == 0 ? std::sqrt(error) : std::sqrt(error / norm);
    if (!(relative <= tolerance)) {
      return ::baltoro::testing::ReportUnequal(__FILE__, __LINE__, "error of a row, its index",
                                               relative, row);
    }
    worst = std::max(worst, relative);
    if (std::isinf(expected.lse[row])) {
      GPU_EXPECT_EQ(answer.lse[row], expected.lse[row]);
    } else {
      GPU_EXPECT_LE(std::abs(answer.lse[row] - expected.lse[row]),
                    1e-3 + 1e-5 * std::abs(expected.lse[row]));
    }
  }
  std::printf("  %zu rows, worst error %.2e\n", expected.lse.size(), worst);
}

inline void ExpectRight(const TestStep& step) {
  const Rig rig(step);
  const Result<Answer> answer = rig.Run();
  GPU_ASSERT_OK(answer.status());
  ExpectNear(answer.value(), rig.Expected(), 6e-3);
}

inline std::vector<TestSequence> OneToken(const std::vector<int>& lengths) {
  std::vector<TestSequence> sequences;
  for (const int length : lengths) {
    TestSequence s;
    s.keys = length;
    sequences.push_back(s);
  }
  return sequences;
}

inline const MlaCacheType kCacheTypes[] = {MlaCacheType::kBf16, MlaCacheType::kFp8E4m3};

}  // namespace baltoro::cuda::mla_test
