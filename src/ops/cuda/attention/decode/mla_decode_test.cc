#include "ops/cuda/attention/decode/mla_decode.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "device/cuda/cuda_status.h"
#include "device/cuda/device_buffer.h"
#include "device/cuda/device_info.h"
#include "device/cuda/graph.h"
#include "device/cuda/stream.h"
#include "ops/cuda/attention/decode/mla_decode_internal.h"
#include "support/gpu_test.h"

namespace baltoro::cuda {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

uint16_t ToBf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (value != value) return 0x7FFF;
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

float FromBf16(uint16_t half) {
  const uint32_t bits = uint32_t{half} << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

float FromE4m3(uint8_t code) {
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
  const std::vector<int32_t>& begins() const { return first_query_; }
  std::vector<int32_t> counts() const {
    std::vector<int32_t> counts;
    for (const TestSequence& s : step_.sequences) counts.push_back(s.keys);
    return counts;
  }
  std::vector<char> workspace() const { return Download<char>(workspace_); }

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

  Status Queue(const Stream& stream) const {
    const MlaDecodeArgs args = this->args();
    BT_RETURN_IF_ERROR(PlanMlaDecode(limits_, args.sequences, workspace_.data(), stream.get()));
    return MlaDecode(limits_, args, workspace_.data(), stream.get());
  }

  Result<Answer> Run() const {
    Result<Stream> stream = Stream::Create();
    BT_RETURN_IF_ERROR(stream.status());
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
};

// Each row's error over its norm; the exponentials and the output are rounded to bf16.
void ExpectNear(const Answer& answer, const Answer& expected, double tolerance) {
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

void ExpectRight(const TestStep& step) {
  const Rig rig(step);
  const Result<Answer> answer = rig.Run();
  GPU_ASSERT_OK(answer.status());
  ExpectNear(answer.value(), rig.Expected(), 6e-3);
}

std::vector<TestSequence> OneToken(const std::vector<int>& lengths) {
  std::vector<TestSequence> sequences;
  for (const int length : lengths) {
    TestSequence s;
    s.keys = length;
    sequences.push_back(s);
  }
  return sequences;
}

const MlaCacheType kCacheTypes[] = {MlaCacheType::kBf16, MlaCacheType::kFp8E4m3};

GPU_TEST(MlaDecodeTest, IsRightForEveryHeadCountAndOddLengths) {
  for (const MlaCacheType type : kCacheTypes) {
    for (const int heads : {1, 8, 12, 16, 32, 64, 128}) {
      TestStep step;
      step.heads = heads;
      step.cache_type = type;
      step.sequences = OneToken({1, 63, 64, 65, 0, 127, 128, 129, 200, 777});
      ExpectRight(step);
    }
  }
}

GPU_TEST(MlaDecodeTest, IsRightWhenFewPartsHoldManySequences) {
  for (const MlaCacheType type : kCacheTypes) {
    TestStep step;
    step.heads = 8;
    step.cache_type = type;
    step.multiprocessors = 16;
    std::vector<int> lengths;
    for (int i = 0; i < 100; ++i) lengths.push_back(i * 37 % 400);
    step.sequences = OneToken(lengths);
    ExpectRight(step);
  }
}

// Whole tiles, so few parts that places in shared memory come round many times, with pieces of no,
// one and many blocks next to each other.
GPU_TEST(MlaDecodeTest, IsRightWhenFewPartsHoldManyBlocksOfWholeTiles) {
  for (const auto& [heads, tokens] : {std::pair{64, 1}, {128, 1}, {64, 3}}) {
    for (const float slope : {0.0f, 1.0f}) {
      TestStep step;
      step.heads = heads;
      step.multiprocessors = 16;
      step.slope = slope;
      for (const int keys : {0, 5, 64, 1900, 0, 0, 65, 130, 7, 700, 64, 64, 3333, 1}) {
        TestSequence s;
        s.query_tokens = tokens;
        s.keys = std::max(keys, keys == 0 ? 0 : tokens);
        step.sequences.push_back(s);
      }
      ExpectRight(step);
    }
  }
}

GPU_TEST(MlaDecodeTest, IsRightWhenOneSequenceIsCutIntoManyPieces) {
  for (const MlaCacheType type : kCacheTypes) {
    for (const int heads : {8, 64, 128}) {
      TestStep step;
      step.heads = heads;
      step.cache_type = type;
      step.sequences = OneToken({heads == 8 ? 20011 : 6001});
      ExpectRight(step);
    }
  }
}

GPU_TEST(MlaDecodeTest, QueryTokensSeeOnlyEarlierOnes) {
  for (const MlaCacheType type : kCacheTypes) {
    for (const int heads : {8, 16, 64}) {
      TestStep step;
      step.heads = heads;
      step.cache_type = type;
      for (const auto& [tokens, keys] :
           {std::pair{2, 130}, {8, 8}, {3, 66}, {0, 0}, {1, 64}, {8, 515}, {5, 64}, {4, 1000}}) {
        TestSequence s;
        s.query_tokens = tokens;
        s.keys = keys;
        step.sequences.push_back(s);
      }
      ExpectRight(step);
    }
  }
}

// Sequences that have every tile of 64 rows are cut at the same places in each, and thread blocks
// of the same keys are neighbours; with one that lacks a tile they are not.
GPU_TEST(MlaDecodeTest, TilesOfTheSameKeysAreCutAlikeOrNot) {
  for (const auto& [heads, tokens] : {std::pair{64, 4}, {128, 1}, {128, 3}, {64, 3}}) {
    for (const bool alike : {true, false}) {
      TestStep step;
      step.heads = heads;
      for (const int keys : {700, 64, 1500, 129}) {
        TestSequence s;
        s.query_tokens = tokens;
        s.keys = keys;
        step.sequences.push_back(s);
      }
      TestSequence other;
      other.query_tokens = alike ? 0 : tokens == 1 ? 2 : 1;
      other.keys = alike ? 0 : 333;
      step.sequences.push_back(other);
      ExpectRight(step);
    }
  }
}

GPU_TEST(MlaDecodeTest, ExplicitPositionsDecideWhatIsSeen) {
  TestStep step;
  step.heads = 16;
  // Every third block of a sequence, as one rank of three holds it; queries before, among and after
  // its keys.
  for (const int first : {0, 63, 64, 200, 500, 1000, 5000}) {
    TestSequence s;
    s.query_tokens = 4;
    s.keys = 700;
    s.first_position = first;
    for (int b = 0; b < 11; ++b) s.block_positions.push_back(64 * (3 * b + 1));
    step.sequences.push_back(s);
  }
  ExpectRight(step);
  step.chunk_blocks = 2;
  ExpectRight(step);
}

// Up to 8 rows of up to 64 query tokens go a way of their own.
GPU_TEST(MlaDecodeTest, FewSequencesOfSeveralTokensAndWithPositions) {
  for (const MlaCacheType type : kCacheTypes) {
    TestStep tokens;
    tokens.heads = 1;
    tokens.cache_type = type;
    for (const int keys : {515, 8}) {
      TestSequence s;
      s.query_tokens = 8;
      s.keys = keys;
      tokens.sequences.push_back(s);
    }
    ExpectRight(tokens);
    TestStep placed;
    placed.heads = 2;
    placed.cache_type = type;
    for (const int first : {0, 200, 1000, 5000}) {
      TestSequence s;
      s.query_tokens = 4;
      s.keys = 700;
      s.first_position = first;
      for (int b = 0; b < 11; ++b) s.block_positions.push_back(64 * (3 * b + 1));
      placed.sequences.push_back(s);
    }
    ExpectRight(placed);
    for (const float slope : {1.0f, -1.0f}) {
      TestStep steep;
      steep.heads = 8;
      steep.cache_type = type;
      steep.slope = slope;
      steep.multiprocessors = 16;
      steep.sequences = OneToken({900, 64, 0, 3000});
      ExpectRight(steep);
    }
  }
}

GPU_TEST(MlaDecodeTest, KeepsUpWithScoresThatGrowAndShrink) {
  for (const MlaCacheType type : kCacheTypes) {
    for (const float slope : {1.0f, -1.0f, 0.1f}) {
      TestStep step;
      step.heads = 64;
      step.cache_type = type;
      step.slope = slope;
      step.sequences = OneToken({900, 64, 3000});
      ExpectRight(step);
    }
  }
}

// Whatever is in the step: sequences before it in its part, of odd and even numbers of blocks.
void ExpectSameBitsInAnyStep(MlaCacheType type, int heads) {
  TestStep alone;
  alone.heads = heads;
  alone.cache_type = type;
  alone.chunk_blocks = 4;
  alone.sequences = OneToken({1500});
  TestStep longer_queries = alone;
  longer_queries.multiprocessors = 20;
  const Rig one(alone), few(longer_queries);
  const Result<Answer> a = one.Run(), c = few.Run();
  GPU_ASSERT_OK(a.status());
  GPU_ASSERT_OK(c.status());
  const size_t size = static_cast<size_t>(heads) * kMlaLatent;
  GPU_EXPECT(std::memcmp(a.value().out.data(), c.value().out.data(),
                         size * sizeof(a.value().out[0])) == 0);
  for (const int before : {64, 130, 999}) {
    TestStep together = alone;
    together.sequences = OneToken({3, before, 0, 1500, 64, 256, 2000});
    for (int i = 0; i < 12; ++i) together.sequences.push_back(OneToken({33 * i})[0]);
    together.seed = 2;
    if (before == 130 && heads < 64) ExpectRight(together);
    // The same keys and queries, at another place.
    const Rig many(together);
    const Result<Answer> b = many.Run();
    GPU_ASSERT_OK(b.status());
    const size_t row = size_t{3} * static_cast<size_t>(heads);
    size_t different = 0;
    for (size_t i = 0; i < size; ++i) {
      different += a.value().out[i] != b.value().out[row * kMlaLatent + i];
    }
    for (size_t i = 0; i < static_cast<size_t>(heads); ++i) {
      different += a.value().lse[i] != b.value().lse[row + i];
    }
    if (different > 0) {
      std::printf("cache %d, %d heads, %d keys before: %zu values differ\n", static_cast<int>(type),
                  heads, before, different);
    }
    GPU_EXPECT_EQ(different, size_t{0});
  }
}

GPU_TEST(MlaDecodeTest, ChunksGiveTheSameBitsInAnyStep) {
  for (const MlaCacheType type : kCacheTypes) {
    for (const int heads : {8, 16, 64}) ExpectSameBitsInAnyStep(type, heads);
  }
}

GPU_TEST(MlaDecodeTest, AGraphFollowsTheLengthsOnTheDevice) {
  TestStep step;
  step.heads = 32;
  step.sequences = OneToken({1000, 3000, 64, 500});
  Rig rig(step);
  Result<Stream> stream = Stream::Create();
  GPU_ASSERT_OK(stream.status());
  Result<Graph> graph = Graph::Capture(stream.value(), [&] { return rig.Queue(stream.value()); });
  GPU_ASSERT_OK(graph.status());
  GPU_ASSERT_OK(graph.value().Launch(stream.value()));
  GPU_ASSERT_OK(stream.value().Synchronize());
  ExpectNear(rig.Read(), rig.Expected(), 6e-3);
  rig.SetKeys({1, 77, 0, 500}, {0, 76, 0, 499});
  GPU_ASSERT_OK(graph.value().Launch(stream.value()));
  GPU_ASSERT_OK(stream.value().Synchronize());
  ExpectNear(rig.Read(), rig.Expected(), 6e-3);
}

GPU_TEST(MlaDecodeTest, TheHostPlansAsTheDeviceDoes) {
  for (const int heads : {8, 64, 128}) {
    for (const int chunk_blocks : {0, 4}) {
      TestStep step;
      step.heads = heads;
      step.chunk_blocks = chunk_blocks;
      for (int i = 0; i < 40; ++i) step.sequences.push_back(OneToken({i * 97 % 1500})[0]);
      step.sequences[7].query_tokens = 0;
      step.sequences[9].query_tokens = 5;
      const Rig rig(step);
      GPU_ASSERT_OK(rig.Run().status());
      const Result<size_t> bytes = MlaDecodePlanBytes(rig.limits());
      GPU_ASSERT_OK(bytes.status());
      std::vector<char> image(bytes.value() + 256);
      void* start = image.data();
      size_t room = image.size();
      start = std::align(256, bytes.value(), start, room);
      GPU_ASSERT_OK(
          PlanMlaDecodeOnHost(rig.limits(), rig.begins().data(), rig.counts().data(), start));
      const MlaPlan host = CutMlaWorkspace(ChooseDecode(rig.limits()), start);
      const std::vector<char> on_device = rig.workspace();
      const auto* const parts = reinterpret_cast<const MlaPart*>(on_device.data());
      const auto* const merges = reinterpret_cast<const MlaMerge*>(
          on_device.data() + (reinterpret_cast<char*>(host.merges) - static_cast<char*>(start)));
      for (int i = 0; i <= host.num_parts; ++i) {
        GPU_EXPECT_EQ(std::memcmp(&host.parts[i], &parts[i], sizeof(MlaPart)), 0);
      }
      GPU_EXPECT_EQ(host.merges[0].count, merges[0].count);
      GPU_EXPECT_EQ(host.merges[0].tile_parts, merges[0].tile_parts);
      for (int i = 1; i <= host.merges[0].count; ++i) {
        GPU_EXPECT_EQ(std::memcmp(&host.merges[i], &merges[i], sizeof(MlaMerge)), 0);
      }
    }
  }
}

GPU_TEST(MlaDecodeTest, SaysWhichArgumentIsWrong) {
  TestStep step;
  step.sequences = OneToken({64});
  const Rig rig(step);
  const auto message = [&](const MlaDecodeLimits& limits, const MlaDecodeArgs& args) {
    return MlaDecode(limits, args, rig.args().out, nullptr).message();
  };
  MlaDecodeLimits limits = rig.limits();
  limits.heads = 129;
  GPU_EXPECT_EQ(message(limits, rig.args()), std::string("MLA decode: heads is 129"));
  MlaDecodeArgs args = rig.args();
  args.scale = 0;
  GPU_EXPECT_EQ(message(rig.limits(), args),
                std::string("MLA decode: scale is not a positive number"));
  args = rig.args();
  args.q = nullptr;
  GPU_EXPECT_EQ(message(rig.limits(), args), std::string("MLA decode: a required array is null"));
}

}  // namespace
}  // namespace baltoro::cuda

int main(int argc, char** argv) {
  return baltoro::testing::RunGpuCases(argc, argv, baltoro::UsableDeviceCount());
}
