#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/cpu/test_tensors.h"
#include "support/support.h"

namespace baltoro::cpu {
namespace {

using test::Context;
using test::Random;
using test::Tensor;

struct Routed {
  Tensor ids, weights;
  Routed(int64_t rows, int64_t k) : ids(DType::kI32, {rows, k}), weights(DType::kF32, {rows, k}) {}
  std::vector<int32_t> chosen() const {
    const auto* begin = ids.view.as<const int32_t>();
    return {begin, begin + ids.view.num_elements()};
  }
};

using RouteFunction = decltype(SmallOps::route);

Routed RunRoute(RouteFunction route,
                const OpContext& context,
                const TensorView& logits,
                const TensorView& bias,
                const RouterParams& params) {
  Routed routed(logits.dim(0), params.top_k);
  route(context, routed.ids.view, routed.weights.view, logits, bias, params);
  return routed;
}

// The routers of the family: K2, DeepSeek-V3, Moonlight, V2-Lite, V2, and groups without a bias.
struct Case {
  RouterParams params;
  bool bias;
};
const Case kCases[] = {
    {{.experts = 384, .top_k = 8, .scaling = 2.827f}, true},
    {{.experts = 256, .top_k = 8, .groups = 8, .groups_used = 4, .scaling = 2.5f}, true},
    {{.experts = 64, .top_k = 6, .scaling = 2.446f}, true},
    {{.score = RouterScore::kSoftmax, .experts = 64, .top_k = 6, .normalise = false}, false},
    {{.score = RouterScore::kSoftmax,
      .experts = 160,
      .top_k = 6,
      .groups = 8,
      .groups_used = 3,
      .group_by_top2 = false,
      .normalise = false,
      .scaling = 16},
     false},
    {{.experts = 12, .top_k = 12, .groups = 4, .groups_used = 4, .group_by_top2 = false}, false},
    {{.experts = 1, .top_k = 1}, false},
};

TEST(RouteTest, AgreesWithTheReference) {
  Context context(2);
  for (const Case& c : kCases) {
    for (const int64_t rows : {0, 1, 100}) {
      const Tensor logits = Random(1, DType::kF32, {rows, c.params.experts}, 1);
      const Tensor bias = Random(2, DType::kF32, {c.params.experts}, 0.3f);
      const TensorView chosen_bias = c.bias ? bias.view : TensorView();

      const Routed got = RunRoute(Route, context.get(), logits.view, chosen_bias, c.params);

      const Routed want = RunRoute(reference::Route, {}, logits.view, chosen_bias, c.params);
      EXPECT_EQ(got.chosen(), want.chosen()) << c.params.experts << " experts";
      EXPECT_TRUE(baltoro::test::Near(got.weights.values(), want.weights.values(),
                                      {.nmse = 1e-12, .max_abs = 1e-5}));
    }
  }
}

TEST(RouteTest, ARowDoesNotDependOnItsCompany) {
  Context context(3);
  const Case& c = kCases[1];
  const Tensor logits = Random(3, DType::kF32, {50, 256}, 1);
  const Tensor bias = Random(4, DType::kF32, {256}, 0.3f);
  const Routed whole = RunRoute(Route, context.get(), logits.view, bias.view, c.params);
  for (int64_t t = 0; t < 50; ++t) {
    const Routed alone = RunRoute(Route, {}, logits.view.rows(t, 1), bias.view, c.params);

    for (int64_t j = 0; j < 8; ++j) {
      EXPECT_EQ(alone.chosen()[j], whole.chosen()[t * 8 + j]);
      EXPECT_EQ(alone.weights.at(j), whole.weights.at(t * 8 + j));
    }
  }
}

class RouteBothTest : public ::testing::TestWithParam<RouteFunction> {};

TEST_P(RouteBothTest, TiesGoToTheLowerExpertAndTheBestComesFirst) {
  Tensor logits(DType::kF32, {1, 6});
  const float values[] = {0, 2, 1, 2, 1, 1};
  for (int64_t e = 0; e < 6; ++e) logits.set(e, values[e]);

  const Routed routed = RunRoute(GetParam(), {}, logits.view, {}, {.experts = 6, .top_k = 4});

  EXPECT_EQ(routed.chosen(), (std::vector<int32_t>{1, 3, 2, 4}));
}

TEST_P(RouteBothTest, TheBiasSteersTheChoiceButNotTheWeight) {
  Tensor logits(DType::kF32, {1, 3});
  Tensor bias(DType::kF32, {3});
  bias.set(2, 0.5f);

  const Routed routed =
      RunRoute(GetParam(), {}, logits.view, bias.view, {.experts = 3, .top_k = 2, .scaling = 4});

  EXPECT_EQ(routed.chosen(), (std::vector<int32_t>{2, 0}));
  EXPECT_FLOAT_EQ(routed.weights.at(0), 2);  // 4 x 0.5 / (0.5 + 0.5)
  EXPECT_FLOAT_EQ(routed.weights.at(1), 2);
}

TEST_P(RouteBothTest, AGroupCountsByItsTwoBestOrByItsBest) {
  // Group 0 has the single best expert, group 1 the better pair.
  Tensor logits(DType::kF32, {1, 4});
  const float values[] = {3, -3, 2, 2};
  for (int64_t e = 0; e < 4; ++e) logits.set(e, values[e]);
  RouterParams params{.experts = 4, .top_k = 2, .groups = 2, .groups_used = 1};

  EXPECT_EQ(RunRoute(GetParam(), {}, logits.view, {}, params).chosen(),
            (std::vector<int32_t>{2, 3}));
  params.group_by_top2 = false;
  EXPECT_EQ(RunRoute(GetParam(), {}, logits.view, {}, params).chosen(),
            (std::vector<int32_t>{0, 1}));
}

TEST_P(RouteBothTest, ABrokenRowStillNamesDistinctExpertsAndShowsInTheWeights) {
  Tensor logits(DType::kF32, {1, 4});
  for (int64_t e = 0; e < 4; ++e) logits.set(e, std::numeric_limits<float>::quiet_NaN());

  const Routed routed =
      RunRoute(GetParam(), {}, logits.view, {}, {.experts = 4, .top_k = 2, .groups = 2});

  EXPECT_NE(routed.chosen()[0], routed.chosen()[1]);
  for (const int32_t id : routed.chosen()) EXPECT_TRUE(id >= 0 && id < 4);
  EXPECT_TRUE(std::isnan(routed.weights.at(0)));
}

INSTANTIATE_TEST_SUITE_P(Ops, RouteBothTest, ::testing::Values(Route, reference::Route));

}  // namespace
}  // namespace baltoro::cpu
