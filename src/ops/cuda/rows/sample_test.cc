// Sampling, held to the reference: the same tokens, but for draws that fall within the rounding of
// weights to f32, of which there may be very few.

#include "ops/cuda/rows/sample.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "device/cuda/device_info.h"
#include "ops/cuda/rows/rows_test_support.h"

namespace baltoro::cuda {
namespace {

using namespace rows_test;  // NOLINT

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A row with the lists that its spans point to.
struct Want {
  SampleRow row;
  std::vector<int32_t> prompt, output, banned;
  std::vector<std::pair<int32_t, float>> bias;
  std::vector<uint32_t> mask;

  SampleRow Row(int32_t logits_row) {
    row.logits_row = logits_row;
    row.prompt = prompt;
    row.output = output;
    row.banned = banned;
    row.logit_bias = bias;
    row.mask = mask;
    return row;
  }
  std::string Text() const {
    char text[256];
    std::snprintf(text, sizeof(text),
                  "T %g top_p %g min_p %g top_k %d pen %g %g %g lists %zu %zu %zu %zu mask %zu top "
                  "%d given %d",
                  double{row.temperature}, double{row.top_p}, double{row.min_p}, row.top_k,
                  double{row.repetition_penalty}, double{row.presence_penalty},
                  double{row.frequency_penalty}, prompt.size(), output.size(), banned.size(),
                  bias.size(), mask.size(), row.top_logprobs, row.given);
    return text;
  }
};

struct Tally {
  int rows = 0, drawn = 0, other = 0;
};

std::vector<SampleResult> RunOnDevice(Device& device,
                                      Tensor& logits,
                                      std::span<const SampleRow> rows) {
  std::vector<SampleResult> results(rows.size());
  device.scratch().Reset();
  device.staging().Reset();
  Sample(device.ctx(), logits.device(), rows, results);
  testing::StepDone();
  return results;
}

void ExpectSame(const std::string& what,
                const Want& want,
                const SampleResult& got,
                const SampleResult& expected,
                Tally& tally) {
  ++tally.rows;
  tally.drawn += expected.token >= 0 ? 1 : 0;
  const std::string name = what + " (" + want.Text() + ")";
  if (got.token != expected.token) {
    const bool drawn = want.row.given < 0 && want.row.temperature >= 1e-5f;
    const std::string text =
        name + ": token " + std::to_string(got.token) + " want " + std::to_string(expected.token);
    ++tally.other;
    if (drawn && got.token >= 0 && expected.token >= 0) {
      std::printf("  %s\n", text.c_str());
    } else {
      testing::ReportFailure(__FILE__, __LINE__, text);
    }
    return;
  }
  if (got.logprobs.size() != expected.logprobs.size()) {
    testing::ReportFailure(__FILE__, __LINE__,
                           name + ": " + std::to_string(got.logprobs.size()) + " logprobs, want " +
                               std::to_string(expected.logprobs.size()));
    return;
  }
  for (size_t k = 0; k < expected.logprobs.size(); ++k) {
    const SampledLogprob& a = got.logprobs[k];
    const SampledLogprob& b = expected.logprobs[k];
    const float limit = 2e-6f + 2e-7f * std::fabs(b.logprob);
    if (a.id == b.id && a.rank == b.rank && std::fabs(a.logprob - b.logprob) <= limit) continue;
    char text[160];
    std::snprintf(text, sizeof(text), ": logprob %zu: id %d rank %d %.8g, want id %d rank %d %.8g",
                  k, a.id, a.rank, double{a.logprob}, b.id, b.rank, double{b.logprob});
    testing::ReportFailure(__FILE__, __LINE__, name + text);
    return;
  }
}

// The rows of `logits` with the wants of the same index.
void Compare(Device& device,
             const std::string& what,
             Tensor& logits,
             std::vector<Want>& wants,
             Tally& tally) {
  std::vector<SampleRow> rows;
  for (Want& want : wants) rows.push_back(want.Row(static_cast<int32_t>(rows.size())));
  logits.ToDevice();
  const std::vector<SampleResult> got = RunOnDevice(device, logits, rows);
  std::vector<SampleResult> expected(rows.size());
  ReferenceOps().sample({}, logits.host(), rows, expected);
  for (size_t i = 0; i < rows.size(); ++i) {
    ExpectSame(what + " row " + std::to_string(i), wants[i], got[i], expected[i], tally);
  }
}

void ExpectFewOthers(const Tally& tally) {
  std::printf("  %d rows, %d drawn, %d other tokens\n", tally.rows, tally.drawn, tally.other);
  GPU_EXPECT_LE(tally.other, 1 + tally.rows / 500);
}

template <typename T>
T OneOf(std::mt19937_64& random, std::initializer_list<T> values) {
  return values.begin()[random() % values.size()];
}

Want RandomWant(std::mt19937_64& random, int64_t vocab, size_t list_max) {
  Want want;
  SampleRow& row = want.row;
  row.temperature = OneOf(random, {0.0f, 0.01f, 0.7f, 1.0f, 2.0f});
  row.top_p = OneOf(random, {1.0f, 1.0f, 0.999f, 0.9f, 0.3f});
  row.min_p = OneOf(random, {0.0f, 0.0f, 0.05f, 0.001f, 1.0f});
  row.top_k = OneOf(random, {0, 0, 1, 20, 3000});
  row.repetition_penalty = OneOf(random, {1.0f, 1.3f});
  row.presence_penalty = OneOf(random, {0.0f, 0.5f});
  row.frequency_penalty = OneOf(random, {0.0f, -0.3f});
  row.seed = random();
  row.index = random() % 100;
  row.top_logprobs = static_cast<int32_t>(random() % 22) - 1;
  if (random() % 16 == 0) row.given = static_cast<int32_t>(random() % vocab);
  want.prompt.resize(random() % list_max);
  want.output.resize(random() % list_max);
  want.banned.resize(random() % 3);
  for (auto* ids : {&want.prompt, &want.output, &want.banned}) {
    for (int32_t& id : *ids) id = static_cast<int32_t>(random() % vocab);
  }
  want.bias.resize(random() % 4);
  for (auto& [id, value] : want.bias) {
    id = static_cast<int32_t>(random() % std::min<int64_t>(vocab, 20));
    value = 3.1f;
  }
  if (random() % 2 == 0) {
    want.mask.resize((vocab + 31) / 32);
    for (uint32_t& word : want.mask) word = static_cast<uint32_t>(random());
  }
  return want;
}

GPU_TEST(SampleTest, EqualsTheReferenceOnRandomRows) {
  Device device;
  std::mt19937_64 random(3);
  Tally tally;
  for (int batch = 0; batch < 100; ++batch) {
    const int64_t vocab = OneOf<int64_t>(random, {7, 256, 1000, 5003, 20480});
    const int64_t count = testing::TimeIsShort() ? 4 : 30;
    Tensor logits(DType::kF32, count, vocab, vocab + OneOf<int64_t>(random, {0, 0, 1, 8}));
    std::vector<Want> wants;
    for (int64_t i = 0; i < count; ++i) {
      std::normal_distribution<float> normal(0, OneOf(random, {0.1f, 2.0f, 8.0f}));
      const bool ties = random() % 2 == 0;
      for (int64_t id = 0; id < vocab; ++id) {
        const float x = normal(random);
        logits.Set(i, id, ties ? std::round(x * 4) / 4 : x);
      }
      wants.push_back(RandomWant(random, vocab, 50));
    }
    Compare(device, "vocab " + std::to_string(vocab), logits, wants, tally);
  }
  ExpectFewOthers(tally);
  GPU_EXPECT(tally.drawn > tally.rows * 29 / 30);
}

// Distributions that defeat a histogram, each with every kind of filter.
GPU_TEST(SampleTest, EqualsTheReferenceOnTheWholeVocabulary) {
  Device device;
  std::mt19937_64 random(4);
  Tally tally;
  constexpr int64_t kVocab = 163840;
  std::normal_distribution<float> normal(0, 1);
  const std::vector<std::pair<const char*, std::function<float(int64_t)>>> kinds = {
      {"flat normal", [&](int64_t) { return 2 * normal(random); }},
      {"like a model's",
       [&](int64_t id) {
         return id % 1600 == 7 ? 14 + 3 * normal(random) : 2.5f * normal(random);
       }},
      {"one far above", [&](int64_t id) { return id == 99999 ? 40.0f : normal(random); }},
      {"all equal", [](int64_t) { return 1.5f; }},
      {"three values", [](int64_t id) { return static_cast<float>(id % 3) * 0.5f; }},
      {"of bf16", [&](int64_t) { return ToFloat(ToBf16(3 * normal(random))); }},
      {"one beyond reason", [&](int64_t id) { return id == 5 ? 3e38f : normal(random) * 1e37f; }},
      {"tiny", [&](int64_t) { return normal(random) * 1e-41f; }},
      {"a narrow hill and a far tail",
       [&](int64_t id) {
         return id % 7 == 0 ? -1e6f * normal(random) * normal(random) - 1
                            : 10 + 1e-4f * normal(random);
       }},
  };
  for (const auto& [name, draw] : kinds) {
    std::vector<Want> wants(10);
    wants[0].row.temperature = 0;
    wants[1].row.temperature = 1;
    wants[2].row.top_p = 0.95f;
    wants[3].row.top_p = 0.3f;
    wants[3].row.temperature = 0.6f;
    wants[4].row.top_k = 50;
    wants[4].row.top_logprobs = 20;
    wants[5].row.top_k = 40000;
    wants[5].row.top_p = 0.9f;
    wants[6].row.min_p = 0.02f;
    wants[6].row.top_logprobs = 0;
    wants[7].row.min_p = 0.0001f;
    wants[7].row.top_k = 1000;
    wants[7].row.top_p = 0.5f;
    wants[7].row.temperature = 1.7f;
    wants[8] = RandomWant(random, kVocab, 100000);
    wants[8].row.given = -1;
    wants[8].row.repetition_penalty = 1.1f;
    wants[8].row.top_logprobs = 5;
    wants[9].row.given = 163839;
    wants[9].row.top_logprobs = 20;
    Tensor logits(DType::kF32, 10, kVocab);
    for (size_t i = 0; i < 10; ++i) {
      wants[i].row.seed = random();
      for (int64_t id = 0; id < kVocab; ++id) logits.Set(static_cast<int64_t>(i), id, draw(id));
    }
    Compare(device, name, logits, wants, tally);
  }
  ExpectFewOthers(tally);
}

GPU_TEST(SampleTest, NothingAllowedOrSomethingNotFiniteGivesNoTokenInItsRowAlone) {
  Device device;
  std::mt19937_64 random(5);
  constexpr int64_t kVocab = 5003, kRows = 9;
  Tensor logits(DType::kF32, kRows, kVocab);
  logits.FillNormal(random, 2);
  std::vector<Want> wants(kRows);
  for (Want& want : wants) {
    want.row.seed = random();
    want.row.top_logprobs = 3;
  }
  wants[1].mask.assign((kVocab + 31) / 32, 0);
  wants[2].mask = wants[1].mask;
  wants[2].row.top_k = 5;
  wants[2].row.top_p = 0.9f;
  logits.Set(4, 3000, std::numeric_limits<float>::quiet_NaN());
  logits.Set(5, 0, kInfinity);
  logits.Set(6, kVocab - 1, -kInfinity);
  wants[6].row.given = 17;
  wants[7].mask = wants[1].mask;
  wants[7].mask[156] = 1u << 10;  // id 5002 alone
  wants[7].row.top_p = 0.1f;
  Tally tally;
  Compare(device, "refused", logits, wants, tally);
  GPU_EXPECT_EQ(tally.drawn, 4);
  ExpectFewOthers(tally);
}

GPU_TEST(SampleTest, PenaltiesAndBiasRoundAsTheReferenceDoes) {
  Device device;
  std::mt19937_64 random(6);
  Tally tally;
  for (int batch = 0; batch < 10; ++batch) {
    constexpr int64_t kVocab = 3000;
    const int64_t count = testing::TimeIsShort() ? 4 : 32;
    Tensor logits(DType::kF32, count, kVocab);
    logits.FillNormal(random, 0.02f);
    std::vector<Want> wants(static_cast<size_t>(count));
    for (Want& want : wants) {
      want.row.temperature = 0;
      want.row.repetition_penalty = 1.05f;
      want.row.frequency_penalty = 1e-3f;
      want.row.presence_penalty = OneOf(random, {0.0f, 1e-3f, -0.07f});
      want.prompt.resize(2000);
      want.output.resize(5000);
      for (int32_t& id : want.prompt) id = static_cast<int32_t>(random() % kVocab);
      for (int32_t& id : want.output) id = static_cast<int32_t>(random() % kVocab);
      want.bias.resize(3000);
      for (auto& [id, value] : want.bias) {
        id = static_cast<int32_t>(random() % kVocab);
        value = 0.013f * (static_cast<float>(random() % 100) / 50 - 1);
      }
    }
    Compare(device, "penalties", logits, wants, tally);
  }
  GPU_EXPECT_EQ(tally.other, 0);
}

GPU_TEST(SampleTest, ARowDoesNotDependOnItsNeighbours) {
  Device device;
  std::mt19937_64 random(7);
  constexpr int64_t kVocab = 20480, kRows = 320;
  Tensor logits(DType::kF32, kRows, kVocab);
  logits.FillNormal(random, 2);
  std::vector<Want> wants;
  std::vector<SampleRow> rows;
  for (int64_t i = 0; i < kRows; ++i) wants.push_back(RandomWant(random, kVocab, 50));
  for (Want& want : wants) rows.push_back(want.Row(static_cast<int32_t>(rows.size())));
  const std::vector<SampleResult> together = RunOnDevice(device, logits, rows);
  std::reverse(rows.begin(), rows.end());
  const std::vector<SampleResult> reversed = RunOnDevice(device, logits, rows);
  for (size_t i = 0; i < kRows; ++i) {
    const SampleResult& a = together[i];
    const SampleResult& b = reversed[kRows - 1 - i];
    GPU_EXPECT_EQ(a.token, b.token);
    GPU_EXPECT_EQ(a.logprobs.size(), b.logprobs.size());
    for (size_t k = 0; k < a.logprobs.size() && k < b.logprobs.size(); ++k) {
      GPU_EXPECT_EQ(a.logprobs[k].id, b.logprobs[k].id);
      GPU_EXPECT_EQ(a.logprobs[k].logprob, b.logprobs[k].logprob);
    }
  }
  for (const size_t i : {size_t{0}, size_t{77}, size_t{319}}) {
    const std::vector<SampleResult> alone = RunOnDevice(device, logits, {&rows[kRows - 1 - i], 1});
    GPU_EXPECT_EQ(alone[0].token, together[i].token);
  }
}

GPU_TEST(SampleTest, AGraphSamplesWhatItsLaunchIsGiven) {
  Device device;
  std::mt19937_64 random(8);
  constexpr int64_t kVocab = 20480, kRows = 6;
  Tensor logits(DType::kF32, kRows, kVocab);
  logits.FillNormal(random, 2);
  const SampleShape shape = {.rows = kRows, .words = 8192, .top_max = 4, .penalties = true};
  void* const wants_at = device.scratch().Allocate(shape.want_bytes());
  void* const answers_at = device.scratch().Allocate(shape.answer_bytes());
  auto* const tokens_at = device.scratch().AllocateArray<int32_t>(kRows);
  const std::unique_ptr<OpGraph> graph = Capture(device.ctx(), [&] {
    LaunchSample(device.ctx(), {.logits = logits.device(),
                                .shape = shape,
                                .wants = wants_at,
                                .answers = answers_at,
                                .tokens = tokens_at});
  });
  Tally tally;
  for (int round = 0; round < 3; ++round) {
    std::vector<Want> wants;
    std::vector<SampleRow> rows;
    for (int64_t i = 0; i < kRows; ++i) wants.push_back(RandomWant(random, kVocab, 50));
    for (Want& want : wants) {
      want.row.top_logprobs = std::min(want.row.top_logprobs, 4);
      rows.push_back(want.Row(static_cast<int32_t>(rows.size())));
    }
    rows.back().logits_row = -1;  // padding
    rows.back().top_logprobs = -1;
    SampleShape packed = SampleShapeOf(rows, kVocab);
    std::vector<char> host(packed.want_bytes());
    PackSample(rows, kVocab, packed, host.data());
    Must(CudaMemory().CopyIn(wants_at, host.data(), host.size()));
    graph->Launch(device.ctx());
    device.Wait();
    std::vector<char> answers(shape.answer_bytes());
    Must(CudaMemory().CopyOut(answers.data(), answers_at, answers.size()));
    int32_t tokens[kRows];
    Must(CudaMemory().CopyOut(tokens, tokens_at, sizeof(tokens)));
    std::vector<SampleResult> got(kRows), expected(kRows - 1);
    ReadSample(shape, answers.data(), got);
    rows.pop_back();
    ReferenceOps().sample({}, logits.host(), rows, expected);
    for (size_t i = 0; i + 1 < kRows; ++i) {
      ExpectSame("graph row " + std::to_string(i), wants[i], got[i], expected[i], tally);
      GPU_EXPECT_EQ(tokens[i], got[i].token);
    }
    GPU_EXPECT_EQ(got[kRows - 1].token, -1);
    GPU_EXPECT_EQ(tokens[kRows - 1], -1);
  }
  ExpectFewOthers(tally);
}

}  // namespace
}  // namespace baltoro::cuda

int main(int argc, char** argv) {
  return baltoro::testing::RunGpuCases(argc, argv, baltoro::UsableDeviceCount());
}
