// The pocket model in every weight form that `quantize` makes: it loads, and says nearly what it
// said before. Activations and sums are float32, so that the form alone is seen: its weights, and
// in w4a8 its 8-bit inputs. On every instruction set of this machine.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/gzip.h"
#include "ops/thread_pool.h"
#include "support/isas.h"
#include "support/support.h"
#include "support/tiny_model.h"
#include "weights/checkpoint_source.h"
#include "weights/quantize.h"

namespace baltoro {
namespace {

constexpr char kModel[] = "pocket/model";
// A sanitizer makes the arithmetic ten times slower and looks for other things.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kConversations = 2;
#else
constexpr size_t kConversations = 16;
#endif

struct Case {
  const char* name;
  QuantFormat format;
  double logits_error;  // the most, relative to the logits' own size
  double same_choices;  // the least share of tokens after which the same token is the best
};

// A conversation with the answer that float32 weights gave (tools/record_pocket_golden.py).
struct Conversation {
  std::vector<int32_t> tokens;  // all but the last of the answer
  size_t first = 0;             // whose logits choose the answer's first token
};

std::vector<Conversation> Conversations(size_t count) {
  const std::string text = ReadPlainOrGzip("tests/golden/pocket_greedy.json.gz").value();
  const Json golden = ParseJson(text, {.depth = 64, .nodes = 5'000'000}).value();
  std::vector<Conversation> out;
  const size_t step = golden["prompts"].size() / count;  // all kinds of tasks
  for (size_t i = 0; i < count; ++i) {
    const Json& json = golden["prompts"][i * step];
    Conversation one{.tokens = json["ids"].get<std::vector<int32_t>>()};
    one.first = one.tokens.size() - 1;
    const auto answer = json["float32"]["tokens"].get<std::vector<int32_t>>();
    one.tokens.insert(one.tokens.end(), answer.begin(), answer.end() - 1);
    out.push_back(std::move(one));
  }
  return out;
}

class WeightFormsTest : public ::testing::TestWithParam<Case> {
 protected:
  // Of the answer's tokens.
  std::vector<float> Logits(K2Model& model, const Conversation& of) {
    const int64_t count = std::ssize(of.tokens);
    const std::vector<float> all =
        test::TinyRunner(model, count).Run(of.tokens, static_cast<int32_t>(of.first));
    return {all.begin() + of.first * config_.vocab, all.end()};
  }
  std::unique_ptr<K2Model> Load(WeightSource& source) {
    auto model = K2Model::Load(config_, source, CpuOps(DType::kF32), &pool_, {});
    EXPECT_TRUE(model.ok()) << model.status().message();
    return std::move(model).value();
  }
  // Two models of these numbers, on the instruction set that is in use.
  void ExpectNearlyTheSame(K2Model& before, K2Model& after, size_t conversations);

  test::TempDir dir_;
  ThreadPool pool_{1};  // tests run side by side
  K2Config config_ = K2Config::Read(kModel).value();
};

void WeightFormsTest::ExpectNearlyTheSame(K2Model& before, K2Model& after, size_t conversations) {
  const Case& c = GetParam();
  double wrong = 0, sum = 0;
  int same = 0, rows = 0;
  for (const Conversation& each : Conversations(conversations)) {
    const std::vector<float> want = Logits(before, each), got = Logits(after, each);
    for (size_t i = 0; i < want.size(); ++i) {
      wrong += (got[i] - want[i]) * (got[i] - want[i]);
      sum += want[i] * want[i];
    }
    for (size_t row = 0; row < want.size(); row += config_.vocab, ++rows) {
      const auto best = [&](const std::vector<float>& logits) {
        return std::max_element(logits.begin() + row, logits.begin() + row + config_.vocab) -
               logits.begin();
      };
      same += best(want) == best(got);
    }
  }
  const double error = std::sqrt(wrong / sum), share = static_cast<double>(same) / rows;
  std::printf("%s, %s: logits off by %.2f %%, the same choice after %.1f %% of %d tokens\n", c.name,
              std::string(cpu::NameOf(cpu::ActiveIsa())).c_str(), 100 * error, 100 * share, rows);
  EXPECT_LT(error, c.logits_error);
  EXPECT_GT(error, 0);  // the form is really used
  EXPECT_GT(share, c.same_choices);
}

TEST_P(WeightFormsTest, TheModelSaysNearlyTheSame) {
  QuantizeOptions options;
  options.format = GetParam().format;
  const std::string made = dir_.path() + "/made";
  ASSERT_TRUE(QuantizeCheckpoint(kModel, made, options).ok());
  auto plain = CheckpointSource::Open(kModel).value();
  auto decoded = CheckpointSource::Open(made).value();
  config_.positions_max = 8192;
  const auto before = Load(*plain), after = Load(*decoded);

  for (const cpu::Isa isa : test::SupportedIsas()) {
    SCOPED_TRACE(cpu::NameOf(isa));
    const test::ForcedIsa forced(isa);
    // Half of them is enough on those that the machine would not choose itself.
    const bool own_choice = isa == cpu::FastestIsa();
    ExpectNearlyTheSame(*before, *after, own_choice ? kConversations : kConversations / 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Forms,
                         WeightFormsTest,
                         ::testing::Values(Case{"fp8", QuantFormat::kFp8, 0.08, 0.95},
                                           Case{"int4", QuantFormat::kInt4, 0.15, 0.94},
                                           Case{"w4a8", QuantFormat::kW4A8, 0.2, 0.92}),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace baltoro
