// Drafts on a GPU: what the pocket model answers with them is what it answers without, but where
// two tokens are nearly alike: steps of other rows round otherwise. Skipped (77) where there is no
// GPU, or no module (BALTORO_CUDA_MODULE names it, where it is not beside the program).
//
// BALTORO_TEST_ON_CPU=1 puts the CPU's operations in the GPU's place: whether the tests themselves
// are right can be seen without a GPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/backend_choice.h"
#include "engine/testing/event_log.h"
#include "model/k2_config.h"
#include "support/pocket_answers.h"

namespace baltoro {
namespace {

using test::Told;

constexpr int32_t kAnswerMax = 64;
constexpr float kNearlyAlike = 0.1f;  // log-probabilities

bool OnCpu() {
  return std::getenv("BALTORO_TEST_ON_CPU") != nullptr;
}

struct Outcome {
  std::vector<Told> told;
  DraftStats drafts;
};

// The recorded prompts, all at once, greedily.
Outcome AskPocket(const SpeculationConfig& speculation, bool eager = false) {
  EngineConfig config;
  config.model_dir = test::kPocketModel;
  config.device = OnCpu() ? "cpu" : "cuda";
  config.max_model_len = 2048;
  config.kv_cache_bytes = int64_t{512} << 20;
  config.max_num_seqs = 16;
  config.enforce_eager = eager;
  config.speculation = speculation;
  const std::vector<int32_t> ends = K2Config::Read(config.model_dir).value().stop_tokens;
  const std::vector<TokenId> stops(ends.begin(), ends.end());
  test::EventLog log;
  auto engine = StartEngine(config, log.sink(), nullptr);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  uint64_t id = 0;
  const std::vector<test::PocketAnswer> all = test::ReadPocketAnswers();
  for (size_t i = 0; i < all.size(); i += OnCpu() ? 10 : 1) {
    const test::PocketAnswer& recorded = all[i];
    Request request;
    request.id = RequestId{++id};
    request.prompt.assign(recorded.tokens.begin(),
                          recorded.tokens.begin() + recorded.prompt_length);
    request.sampling.temperature = 0;
    request.sampling.logprobs = 2;
    // Behind the end of an answer nothing was learned, and many tokens are nearly alike.
    request.stop.stop_ids = stops;
    request.stop.max_tokens = kAnswerMax;
    EXPECT_TRUE(engine.value()->Submit(request).ok());
  }
  Outcome out;
  for (uint64_t i = 1; i <= id; ++i) out.told.push_back(log.WaitForEnd(i, 120));
  out.drafts = engine.value()->stats().drafts;
  return out;
}

// Of the drawn token and the other of the two best.
float GapOf(const TokenLogprobs& row) {
  return row.size() < 3 ? 0 : row[1].logprob - row[2].logprob;
}

void ExpectSame(const Outcome& with, const Outcome& plain, const char* what) {
  ASSERT_EQ(with.told.size(), plain.told.size());
  ASSERT_GT(plain.told.size(), 10u);
  size_t parted = 0, far = 0;
  for (size_t i = 0; i < plain.told.size(); ++i) {
    const std::vector<TokenId>& wanted = plain.told[i].tokens;
    const std::vector<TokenId>& got = with.told[i].tokens;
    ASSERT_FALSE(wanted.empty());
    const auto parts = static_cast<size_t>(
        std::mismatch(wanted.begin(), wanted.end(), got.begin(), got.end()).first - wanted.begin());
    if (parts == wanted.size() && got.size() == wanted.size()) continue;
    ASSERT_LT(parts, wanted.size()) << what << ", prompt " << i;
    ++parted;
    const float gap = GapOf(plain.told[i].logprobs[parts]);
    if (gap < kNearlyAlike) continue;
    ++far;  // an expert was chosen otherwise
    std::printf("%s: prompt %zu parts at token %zu, %.2f apart\n", what, i, parts, gap);
  }
  const DraftStats& drafts = with.drafts;
  std::printf("%s: %zu of %zu answers part, %llu of %llu drafts accepted\n", what, parted,
              plain.told.size(), static_cast<unsigned long long>(drafts.accepted_tokens),
              static_cast<unsigned long long>(drafts.draft_tokens));
  // Some of 200; on a CPU none.
  EXPECT_LE(parted, OnCpu() ? 0 : plain.told.size() / 50);
  EXPECT_LE(far, OnCpu() ? 0 : plain.told.size() / 200);
  EXPECT_GT(drafts.accepted_tokens, 0u);
}

TEST(GpuSpeculationTest, AnswersAreThoseWithoutDrafts) {
  if (!test::HasPocketWeights()) GTEST_SKIP() << test::kPocketModel << " has no weights";
  const Outcome plain = AskPocket({});
  for (const char* draft : {"pocket/draft-mla", "pocket/draft-llama"}) {
    for (const int32_t drafts : {1, 3, 5}) {
      const Outcome with =
          AskPocket({.method = DraftMethod::kEagle3, .drafts = drafts, .model = draft});
      ExpectSame(with, plain, (std::string(draft) + ", " + std::to_string(drafts)).c_str());
      // As on a CPU: the draft reads what it was trained on.
      EXPECT_GT(with.drafts.accepted_at[0] * 2, with.drafts.drafts) << draft;
    }
  }
  const SpeculationConfig mla{
      .method = DraftMethod::kEagle3, .drafts = 3, .model = "pocket/draft-mla"};
  ExpectSame(AskPocket(mla, /*eager=*/true), plain, "nothing recorded");
  ExpectSame(AskPocket({.method = DraftMethod::kNgram, .drafts = 8, .lookup_min = 1}), plain,
             "look-up");
}

}  // namespace
}  // namespace baltoro

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  baltoro::EngineConfig config;
  config.device = "cuda";
  if (!baltoro::OnCpu()) {
    if (const auto backend = baltoro::ChooseBackend(config); !backend.ok()) {
      std::printf("skipped: %s\n", backend.status().message().c_str());
      return 77;
    }
  }
  return RUN_ALL_TESTS();
}
