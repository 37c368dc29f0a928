#include "model/k2_model.h"

#include <gtest/gtest.h>

#include <numeric>

#include "ops/thread_pool.h"
#include "support/support.h"
#include "support/tiny_model.h"
#include "weights/dummy_source.h"

namespace baltoro {
namespace {

// Small, with the family's real widths of a head, and more tokens than two cache blocks.
K2Config SmallConfig() {
  return test::SmallConfig(/*layers=*/3, /*heads=*/4);
}

std::vector<int32_t> Tokens(int64_t count) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(MixBits(static_cast<uint32_t>(i)) % 90));
  }
  return tokens;
}

struct Backend {
  const char* name;
  DType act;
};

class K2ModelTest : public ::testing::TestWithParam<Backend> {
 protected:
  std::unique_ptr<K2Model> Load(ThreadPool* pool) {
    test::TinySource source(true);
    return std::move(K2Model::Load(SmallConfig(), source, CpuOps(GetParam().act), pool, {}))
        .value();
  }
  // Logits of all tokens, computed in pieces of these sizes.
  std::vector<float> InPieces(K2Model& model,
                              const std::vector<int32_t>& tokens,
                              const std::vector<int64_t>& sizes,
                              int32_t absorbed_from) {
    test::TinyRunner runner(model, std::ssize(tokens));
    std::vector<float> logits;
    int64_t begin = 0;
    for (const int64_t size : sizes) {
      const auto piece = runner.Run(std::span(tokens).subspan(begin, size), absorbed_from);
      logits.insert(logits.end(), piece.begin(), piece.end());
      begin += size;
    }
    EXPECT_EQ(begin, std::ssize(tokens));
    return logits;
  }

  ThreadPool pool_{2};
  const std::vector<int32_t> tokens_ = Tokens(150);
};

TEST_P(K2ModelTest, APromptInPiecesIsTheSameBitForBit) {
  const auto model = Load(&pool_);
  for (const int32_t absorbed_from : {INT32_MAX, 0, 77}) {
    const auto whole = InPieces(*model, tokens_, {150}, absorbed_from);

    EXPECT_EQ(InPieces(*model, tokens_, {64, 86}, absorbed_from), whole);
    EXPECT_EQ(InPieces(*model, tokens_, {1, 31, 32, 33, 53}, absorbed_from), whole);
    EXPECT_EQ(InPieces(*model, tokens_, {149, 1}, absorbed_from), whole);
  }
}

TEST_P(K2ModelTest, TokenByTokenIsTheSameBitForBit) {
  const auto model = Load(&pool_);
  const std::vector<int32_t> tokens = Tokens(70);

  EXPECT_EQ(InPieces(*model, tokens, std::vector<int64_t>(70, 1), 0),
            InPieces(*model, tokens, {70}, 0));
}

TEST_P(K2ModelTest, CompanyDoesNotChangeASequence) {
  const auto model = Load(&pool_);
  const auto among = [&](int padding) {
    test::TinyRunner runner(*model, 150);
    std::vector<float> logits = runner.RunAmong(std::span(tokens_).subspan(0, 100), 100, padding);
    for (int64_t i = 100; i < 110; ++i) {  // then a few tokens one by one
      const auto next = runner.RunAmong(std::span(tokens_).subspan(i, 1), 100, padding);
      logits.insert(logits.end(), next.begin(), next.end());
    }
    return logits;
  };

  const auto alone = among(0);

  EXPECT_EQ(among(1), alone);
  EXPECT_EQ(among(37), alone);
}

TEST_P(K2ModelTest, TheNumberOfThreadsDoesNotMatter) {
  const auto alone = InPieces(*Load(nullptr), tokens_, {149, 1}, 100);
  for (const int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(InPieces(*Load(&pool), tokens_, {149, 1}, 100), alone);
  }
}

TEST_P(K2ModelTest, TheAbsorbedFormAgreesWithTheExpandedOne) {
  const auto model = Load(&pool_);
  const auto expanded = InPieces(*model, tokens_, {150}, INT32_MAX);
  const auto absorbed = InPieces(*model, tokens_, {150}, 0);

  const bool exact = GetParam().act == DType::kF32;
  const test::Tolerance tolerance =
      exact ? test::Tolerance{.nmse = 1e-9, .max_abs = 1e-3}
            // The two round at different places, and a rounding may tip an expert.
            : test::Tolerance{.nmse = 0.02, .max_abs = 2};
  EXPECT_TRUE(test::Near(absorbed, expanded, tolerance));
  EXPECT_NE(absorbed, expanded);  // or one form was used for both
}

TEST_P(K2ModelTest, ScratchIsReservedOnce) {
  const auto model = Load(&pool_);
  Arena arena;
  ASSERT_TRUE(model->ReserveScratch(PlainKvForm(GetParam().act), 150, 40, arena).ok());
  const int64_t scratch = model->scratch_bytes();

  InPieces(*model, tokens_, {150}, INT32_MAX);
  test::TinyRunner(*model, 10).RunAmong(std::span(tokens_).subspan(0, 1), 0, 39);

  EXPECT_EQ(model->scratch_bytes(), scratch);
  EXPECT_GT(arena.bytes_reserved(), 0u);
}

// What is tried for them are several, which takes less time.
TEST_P(K2ModelTest, LongSequencesFindTheirScratchReserved) {
  test::TinySource source(true);
  K2LoadOptions options;
  options.positions_max = 5000;
  const auto model = std::move(K2Model::Load(test::SmallConfig(2, 2), source,
                                             CpuOps(GetParam().act), &pool_, options))
                         .value();
  const std::vector<int32_t> tokens(5000, 7);
  Arena arena;
  ASSERT_TRUE(model->ReserveScratch(PlainKvForm(GetParam().act), 5000, 4, arena).ok());
  const int64_t scratch = model->scratch_bytes();

  InPieces(*model, tokens, {5000}, INT32_MAX);

  EXPECT_EQ(model->scratch_bytes(), scratch);
}

// Whoever waits for a step has to know how much longer than its trial it may take.
TEST_P(K2ModelTest, ItIsToldInHowManyPartsASequenceIsTried) {
  const auto parts = [&](int64_t positions, int64_t tokens) {
    test::TinySource source(true);
    K2LoadOptions options;
    options.positions_max = positions;
    const auto model =
        K2Model::Load(test::SmallConfig(2, 2), source, CpuOps(GetParam().act), &pool_, options);
    return model.value()->TrialParts(tokens);
  };
  EXPECT_EQ(parts(5000, 64), 1);
  EXPECT_EQ(parts(5000, 2048), 1);
  EXPECT_EQ(parts(5000, 5000), 3);
  EXPECT_EQ(parts(5000, 50000), 3) << "the others are of other sequences";
  EXPECT_EQ(parts(300, 5000), 1);
}

// A step of many tokens is one of several sequences, where a sequence cannot be that long.
TEST_P(K2ModelTest, ScratchIsThatOfTheLargestStepWhereSequencesAreShort) {
  const auto bytes = [&](int64_t positions) {
    test::TinySource source(true);
    K2LoadOptions options;
    options.positions_max = positions;
    const auto model =
        K2Model::Load(test::SmallConfig(2, 2), source, CpuOps(GetParam().act), &pool_, options);
    Arena arena;
    EXPECT_TRUE(model.value()->ReserveScratch(PlainKvForm(GetParam().act), 150, 8, arena).ok());
    return arena.bytes_reserved();
  };
  EXPECT_EQ(bytes(20), bytes(200));
}

TEST_P(K2ModelTest, AnOverriddenRowTakesTheEmbeddingGiven) {
  const auto model = Load(&pool_);
  test::TinySource source(true);
  const auto table = source.Find("model.embed_tokens.weight", {90, 128});
  std::vector<Bf16> stored(128);
  ASSERT_TRUE(source.Read(*table, 5, TensorView(stored.data(), DType::kBf16, {1, 128})).ok());
  std::vector<float> row;
  for (const Bf16 x : stored) row.push_back(ToFloat(x));
  const auto run = [&](int32_t token, bool overridden) {
    const std::vector<int32_t> ids{token}, positions{0}, rows{0}, blocks{0};
    const std::vector<int64_t> slots{0};
    const std::vector<int32_t> override_rows(overridden ? 1 : 0, 0);
    std::vector<char> memory(static_cast<size_t>(64 * 576 * 4));
    const KvLayerView view{.data = memory.data(),
                           .form = PlainKvForm(GetParam().act),
                           .num_blocks = 1,
                           .latent = 512,
                           .rope = 64};
    const std::vector<KvLayerView> cache(3, view);
    const std::vector<AttentionSequence> sequences{{.query_begin = 0,
                                                    .query_count = 1,
                                                    .first_position = 0,
                                                    .absorbed_from = 0,
                                                    .blocks = blocks,
                                                    .block_positions = {},
                                                    .key_count = 1}};
    std::vector<float> logits(90);
    Arena arena;
    const TensorView piece(row.data(), DType::kF32, {1, 128});
    model->Forward({.tokens = ids,
                    .positions = positions,
                    .slots = slots,
                    .sequences = sequences,
                    .logits_rows = rows,
                    .override_rows = override_rows,
                    .embedding_overrides = std::span(&piece, overridden ? 1 : 0)},
                   cache, TensorView(logits.data(), DType::kF32, {1, 90}), arena);
    return logits;
  };

  EXPECT_EQ(run(77, true), run(5, false));
  EXPECT_NE(run(77, false), run(5, false));
}

INSTANTIATE_TEST_SUITE_P(Cpu,
                         K2ModelTest,
                         ::testing::Values(Backend{"bf16", DType::kBf16},
                                           Backend{"f32", DType::kF32}),
                         [](const auto& instance) { return instance.param.name; });

TEST(K2ModelBytesTest, KvBytesAreThoseOfTheFamily) {
  const K2Config config = SmallConfig();

  EXPECT_EQ(KvBytesPerToken(config, KvForm::kBf16, 61), 70272);
  EXPECT_EQ(KvBytesPerToken(config, KvForm::kFp8, 61), 35136);
  EXPECT_EQ(KvBytesPerToken(config, KvForm::kFp8Groups, 61), 61 * 656);
}

}  // namespace
}  // namespace baltoro
