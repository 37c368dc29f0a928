// Drafts do not bend what is sampled: the worker over a model whose logits are known, each draw
// with drafts, against the distribution of its tokens in plain double arithmetic.
//
// Every draw is a request of its own, seeds 1, 2, 3 and on: its first three tokens, which come
// from steps with drafts of every kind (the likeliest token, the least likely, one from a seed).
// The three together are compared, so that a token that depends wrongly on those before it counts.
// The cells of the chi-square are the triples, those that are expected less than 20 times put
// together.
//
// A test of `kContexts` contexts may fail for one of honest sampling with a probability of
// kFamilyError, so that each of them fails where its p-value is below kFamilyError / kContexts.
// Seeds are fixed: a run either always passes or never.
//
// BALTORO_LONG=1 draws 200,000 times for each context, otherwise 20,000 times.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <random>

#include "engine/testing/known_logits.h"
#include "engine/worker.h"
#include "support/tiny_model.h"
#include "weights/dummy_source.h"

namespace baltoro {
namespace {

using Tokens = std::vector<TokenId>;

constexpr size_t kVocab = 90;
constexpr size_t kDepth = 3;       // tokens that are compared
constexpr int32_t kDrafts = 3;     // of a step
constexpr int32_t kTogether = 64;  // requests of a step
constexpr double kSmallest = 20;   // expected in a cell
constexpr size_t kContexts = 20;
constexpr double kFamilyError = 0.001;

int Draws() {
  const char* const wanted = std::getenv("BALTORO_LONG");
  return wanted != nullptr && *wanted == '1' ? 200'000 : 20'000;
}

// Some tokens leave little choice, others a lot.
std::shared_ptr<const test::LogitsTable> Table() {
  auto table = std::make_shared<test::LogitsTable>();
  for (size_t token = 0; token < kVocab; ++token) {
    const uint32_t stream = HashStream("logits behind " + std::to_string(token), 5);
    std::vector<float>& row = table->emplace_back();
    for (uint32_t id = 0; id < kVocab; ++id) {
      row.push_back((3 + static_cast<float>(token % 4)) * HashUniform(stream, id));
    }
  }
  return table;
}

struct Context {
  const char* name;
  void (*choose)(SamplingParams&);
  Tokens prompt = {17, 4, 61, 4, 33, 80};
  Tokens output = {};  // sampled before, as of a request that was preempted
  Tokens banned = {};  // while the output is shorter than
  int32_t min_tokens = 0;

  SamplingParams sampling() const {
    SamplingParams sampling;
    choose(sampling);
    return sampling;
  }
};

const Tokens kFew = {3, 4, 8, 9, 17, 33, 34, 61, 80};

const std::vector<Context>& Contexts() {
  using Params = SamplingParams;
  static const std::vector<Context> contexts = {
      {.name = "plain", .choose = [](Params&) {}},
      {.name = "cool", .choose = [](Params& p) { p.temperature = 0.5f; }},
      {.name = "hot", .choose = [](Params& p) { p.temperature = 2.5f; }, .prompt = {1}},
      {.name = "top_k", .choose = [](Params& p) { p.top_k = 5; }},
      {.name = "top_k of one", .choose = [](Params& p) { p.top_k = 1; }},
      {.name = "top_p", .choose = [](Params& p) { p.top_p = 0.8f; }, .prompt = {42, 7}},
      {.name = "small top_p",
       .choose =
           [](Params& p) {
             p.temperature = 1.5f;
             p.top_p = 0.3f;
           }},
      {.name = "min_p", .choose = [](Params& p) { p.min_p = 0.1f; }, .prompt = {12, 13, 14}},
      {.name = "top_k, top_p, min_p",
       .choose =
           [](Params& p) {
             p.temperature = 1.4f;
             p.top_p = 0.9f;
             p.min_p = 0.02f;
             p.top_k = 20;
           }},
      {.name = "repetition",
       .choose =
           [](Params& p) {
             p.repetition_penalty = 1.8f;
             p.allowed_token_ids = kFew;
           },
       .output = {9, 34, 9}},
      {.name = "repetition below one", .choose = [](Params& p) { p.repetition_penalty = 0.6f; }},
      {.name = "presence",
       .choose =
           [](Params& p) {
             p.presence_penalty = 1.5f;
             p.allowed_token_ids = kFew;
           },
       .output = {8, 8, 3}},
      {.name = "frequency",
       .choose =
           [](Params& p) {
             p.frequency_penalty = 0.9f;
             p.allowed_token_ids = kFew;
           }},
      {.name = "negative penalties",
       .choose =
           [](Params& p) {
             p.presence_penalty = -0.7f;
             p.frequency_penalty = -0.4f;
           },
       .output = {5, 5, 6}},
      {.name = "logit bias",
       .choose =
           [](Params& p) {
             p.logit_bias = {{3, 4.0f}, {80, 2.5f}, {33, -100.0f}};
           }},
      {.name = "allowed ids",
       .choose =
           [](Params& p) {
             p.temperature = 1.3f;
             p.allowed_token_ids = kFew;
           }},
      {.name = "two allowed ids",
       .choose =
           [](Params& p) {
             p.allowed_token_ids = {2, 89};
           },
       .prompt = {89}},
      {.name = "min_tokens that end inside",
       .choose = [](Params& p) { p.allowed_token_ids = kFew; },
       .output = {9},
       .banned = {4, 33, 61, 80},
       .min_tokens = 3},
      {.name = "penalties, top_p, bias",
       .choose =
           [](Params& p) {
             p.temperature = 0.9f;
             p.top_p = 0.95f;
             p.presence_penalty = 0.5f;
             p.frequency_penalty = 0.3f;
             p.repetition_penalty = 1.2f;
             p.logit_bias = {{9, 3.0f}, {17, 1.0f}};
           },
       .output = {17, 9, 9}},
      {.name = "everything",
       .choose =
           [](Params& p) {
             p.temperature = 1.2f;
             p.top_p = 0.97f;
             p.min_p = 0.01f;
             p.top_k = 7;
             p.presence_penalty = 0.4f;
             p.frequency_penalty = 0.2f;
             p.repetition_penalty = 1.1f;
             p.logit_bias = {{4, 1.0f}, {61, -1.0f}};
             p.allowed_token_ids = kFew;
           },
       .output = {3, 3},
       .banned = {17, 80},
       .min_tokens = 4},
  };
  return contexts;
}

// The probability of each token behind `output`, by what sampling.h says.
std::vector<double> Probabilities(const test::LogitsTable& table,
                                  const Context& context,
                                  const Tokens& output) {
  const SamplingParams sampling = context.sampling();
  const TokenId last = output.empty() ? context.prompt.back() : output.back();
  const std::vector<float>& raw = table[static_cast<size_t>(last)];
  std::vector<double> logits(raw.begin(), raw.end());
  std::array<int, kVocab> in_output{}, anywhere{};
  for (const TokenId id : output) ++in_output[static_cast<size_t>(id)];
  anywhere = in_output;
  for (const TokenId id : context.prompt) ++anywhere[static_cast<size_t>(id)];
  for (const auto& [id, bias] : sampling.logit_bias) logits[static_cast<size_t>(id)] += bias;
  const bool bans = std::ssize(output) < context.min_tokens;
  std::vector<size_t> kept;
  for (size_t id = 0; id < kVocab; ++id) {
    double& x = logits[id];
    if (anywhere[id] > 0) {
      const double penalty = sampling.repetition_penalty;
      x = x > 0 ? x / penalty : x * penalty;
    }
    x -= in_output[id] * double{sampling.frequency_penalty};
    if (in_output[id] > 0) x -= sampling.presence_penalty;
    const Tokens& allowed = sampling.allowed_token_ids;
    const auto token = static_cast<TokenId>(id);
    if (!allowed.empty() && std::ranges::count(allowed, token) == 0) continue;
    if (bans && std::ranges::count(context.banned, token) > 0) continue;
    kept.push_back(id);
  }
  std::ranges::sort(kept, [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  std::vector<double> weights(kVocab, 0.0);
  const double highest = logits[kept[0]];
  for (const size_t id : kept)
    weights[id] = std::exp((logits[id] - highest) / sampling.temperature);
  std::erase_if(kept, [&](size_t id) { return weights[id] < sampling.min_p; });
  const auto most = static_cast<size_t>(sampling.top_k);
  if (most > 0 && kept.size() > most) kept.resize(most);
  const auto sum = [&] {
    double total = 0;
    for (const size_t id : kept) total += weights[id];
    return total;
  };
  if (sampling.top_p < 1) {
    const double wanted = sum() * sampling.top_p;
    double got = 0;
    size_t count = 0;
    while (count < kept.size() && (count == 0 || got < wanted)) got += weights[kept[count++]];
    kept.resize(count);
  }
  const double total = sum();
  std::vector<double> out(kVocab, 0.0);
  for (const size_t id : kept) out[id] = weights[id] / total;
  return out;
}

// P(X >= x) of a chi-square of `freedom` degrees: the regularised upper incomplete gamma function,
// as a series below its bend and as a continued fraction above.
double TailOfChiSquare(double x, double freedom) {
  const double a = freedom / 2, z = x / 2;
  if (z <= 0) return 1;
  const double front = std::exp(a * std::log(z) - z - std::lgamma(a));
  if (z < a + 1) {
    double term = 1 / a, sum = term;
    for (double n = a + 1; term > sum * 1e-15; ++n) sum += term *= z / n;
    return 1 - front * sum;
  }
  double b = z + 1 - a, c = 1e300, d = 1 / b, h = d;
  for (int i = 1; i < 10'000; ++i) {
    const double an = -i * (i - a);
    b += 2;
    d = 1 / (an * d + b);
    c = b + an / c;
    h *= d * c;
    if (std::abs(d * c - 1) < 1e-15) break;
  }
  return front * h;
}

// What is expected of the first kDepth tokens, in cells that are large enough, and what came.
class Cells {
 public:
  Cells(const test::LogitsTable& table, const Context& context, int draws)
      : table_(table), context_(context), draws_(draws) {
    Split({}, 1);
    if (rest_ < kSmallest) {
      expected_.front() += rest_;
    } else {
      rest_cell_ = expected_.size();
      expected_.push_back(rest_);
    }
    counts_.resize(expected_.size());
  }

  void Count(const Tokens& tokens) {
    Tokens begin;
    for (size_t i = 0; i < kDepth; ++i) {
      const auto known = probabilities_.find(begin);
      if (known == probabilities_.end()) break;
      if (known->second[static_cast<size_t>(tokens[i])] <= 0) ++impossible_;
      begin.push_back(tokens[i]);
      if (cells_.contains(begin) || probabilities_.contains(begin)) continue;
      begin.back() = kOthers;
      break;
    }
    const auto cell = cells_.find(begin);
    ++counts_[cell == cells_.end() ? rest_cell_ : cell->second];
  }

  int impossible() const { return impossible_; }
  int cells() const { return static_cast<int>(expected_.size()); }
  double ChiSquare() const {
    double sum = 0;
    for (size_t i = 0; i < expected_.size(); ++i) {
      const double off = counts_[i] - expected_[i];
      sum += off * off / expected_[i];
    }
    return sum;
  }
  double PValue() const { return cells() < 2 ? 1 : TailOfChiSquare(ChiSquare(), cells() - 1); }

 private:
  static constexpr TokenId kOthers = -1;  // those behind the same tokens that have no cell

  void Split(const Tokens& begin, double probability) {
    Tokens output = context_.output;
    output.insert(output.end(), begin.begin(), begin.end());
    const std::vector<double> next = Probabilities(table_, context_, output);
    probabilities_[begin] = next;
    double others = 0;
    for (size_t id = 0; id < kVocab; ++id) {
      const double p = probability * next[id];
      if (p * draws_ < kSmallest) {
        others += p;
        continue;
      }
      Tokens longer = begin;
      longer.push_back(static_cast<TokenId>(id));
      if (longer.size() == kDepth) {
        AddCell(longer, p);
      } else {
        Split(longer, p);
      }
    }
    if (others * draws_ < kSmallest) {
      rest_ += others * draws_;
      return;
    }
    Tokens longer = begin;
    longer.push_back(kOthers);
    AddCell(longer, others);
  }
  void AddCell(const Tokens& tokens, double probability) {
    cells_[tokens] = expected_.size();
    expected_.push_back(probability * draws_);
  }

  const test::LogitsTable& table_;
  const Context& context_;
  const int draws_;
  std::map<Tokens, std::vector<double>> probabilities_;  // behind the beginnings that are split
  std::map<Tokens, size_t> cells_;
  std::vector<double> expected_;
  std::vector<int> counts_;
  double rest_ = 0;       // expected of all that has no cell of its own
  size_t rest_cell_ = 0;  // theirs
  int impossible_ = 0;
};

// Requests by the dozen, each with drafts in every step but its first.
class Drawer {
 public:
  explicit Drawer(const SpeculationConfig& speculation = {}) {
    test::TinySource source(true);
    auto pool = std::make_unique<ThreadPool>(1);
    auto model = K2Model::Load(test::SmallConfig(1, 2), source, ops_, pool.get(), {});
    auto kv = KvStorage::Create({.layers = 1, .num_blocks = kTogether, .latent = 512, .rope = 64});
    worker_ =
        std::move(Worker::Create({.max_num_seqs = kTogether,
                                  .max_num_batched_tokens = kTogether * 16,
                                  .logits_rows_max = kTogether * (1 + kDrafts),
                                  .constraints = nullptr,
                                  .speculation = speculation},
                                 std::move(pool), std::move(model).value(), std::move(kv).value()))
            .value();
  }

  const test::LogitsTable& table() const { return *table_; }
  int accepted() const { return accepted_; }
  int refused() const { return refused_; }

  // Fills `cells` with what the seeds from 1 on give.
  void Draw(const Context& context, int draws, bool likeliest_only, Cells& cells) {
    OrderDrafts(context);
    for (int first = 1; first <= draws; first += kTogether) {
      outputs_.assign(static_cast<size_t>(std::min(kTogether, draws - first + 1)), {});
      Begin(context, static_cast<uint64_t>(first));
      while (std::ranges::any_of(outputs_, [](const Tokens& one) { return one.size() < kDepth; })) {
        if (::testing::Test::HasFatalFailure()) return;
        GoOn(context, likeliest_only);
      }
      for (const Tokens& output : outputs_) cells.Count(output);
    }
  }

 private:
  // Of each token, what follows it, the likeliest first, if nothing else had come before.
  void OrderDrafts(const Context& context) {
    order_.clear();
    for (size_t token = 0; token < kVocab; ++token) {
      const auto next = Probabilities(*table_, context, {static_cast<TokenId>(token)});
      Tokens& ids = order_.emplace_back(kVocab);
      std::iota(ids.begin(), ids.end(), 0);
      std::ranges::sort(ids, [&](TokenId a, TokenId b) {
        return next[static_cast<size_t>(a)] > next[static_cast<size_t>(b)];
      });
    }
  }
  TokenId DraftBehind(TokenId token, bool likeliest) {
    const Tokens& ids = order_[static_cast<size_t>(token)];
    switch (likeliest ? 0 : random_() % 3) {
      case 0:
        return ids.front();
      case 1:
        return ids.back();
      default:
        return ids[random_() % 4];
    }
  }

  void Begin(const Context& context, uint64_t first_seed) {
    StepPlan plan;
    for (int32_t slot = 0; slot < std::ssize(outputs_); ++slot) {
      AdmittedSequence& admitted = plan.admitted.emplace_back();
      admitted.slot = SlotId{slot};
      admitted.request = RequestId{first_seed + static_cast<uint64_t>(slot)};
      admitted.sampling = context.sampling();
      admitted.sampling.seed = static_cast<uint64_t>(admitted.request);
      admitted.prompt = context.prompt;
      admitted.output = context.output;
      admitted.banned_until_min = context.banned;
      admitted.min_tokens = context.min_tokens;
      Tokens tokens = context.prompt;
      tokens.insert(tokens.end(), context.output.begin(), context.output.end());
      AddTo(plan, slot, 0, tokens, 1);
      plan.sequences.back().block_count = 1;
      plan.new_blocks.push_back(BlockId{slot});
    }
    Run(plan, {});
  }
  // One token without a draft and up to kDrafts with.
  void GoOn(const Context& context, bool likeliest_only) {
    StepPlan plan;
    std::vector<Tokens> drafts;
    for (int32_t slot = 0; slot < std::ssize(outputs_); ++slot) {
      const Tokens& output = outputs_[static_cast<size_t>(slot)];
      if (output.size() >= kDepth) continue;
      Tokens tokens = {kSampledToken};
      TokenId last = output.back();
      for (int32_t i = 0; i < kDrafts; ++i) {
        tokens.push_back(last = DraftBehind(last, likeliest_only));
      }
      const auto known =
          std::ssize(context.prompt) + std::ssize(context.output) + std::ssize(output);
      AddTo(plan, slot, static_cast<int32_t>(known) - 1, tokens, 1 + kDrafts);
      drafts.emplace_back(tokens.begin() + 1, tokens.end());
    }
    Run(plan, drafts);
  }
  static void AddTo(StepPlan& plan,
                    int32_t slot,
                    int32_t first_position,
                    const Tokens& tokens,
                    int32_t sampled_rows) {
    PlannedSequence& planned = plan.sequences.emplace_back();
    planned.slot = SlotId{slot};
    planned.first_position = first_position;
    planned.token_begin = plan.num_tokens();
    planned.token_count = static_cast<int32_t>(tokens.size());
    planned.block_begin = static_cast<int32_t>(plan.new_blocks.size());
    planned.sampled_rows = sampled_rows;
    plan.tokens.insert(plan.tokens.end(), tokens.begin(), tokens.end());
  }
  void Run(StepPlan& plan, const std::vector<Tokens>& drafts) {
    plan.step = ++step_;
    plan.retired = std::exchange(retired_, {});
    const auto result = worker_->Run(plan);
    ASSERT_TRUE(result.ok()) << result.status().message();
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      const SequenceResult& one = result.value().sequences[i];
      ASSERT_FALSE(one.failed || one.tokens.empty()) << one.error;
      Tokens& output = outputs_[static_cast<size_t>(one.slot)];
      output.insert(output.end(), one.tokens.begin(), one.tokens.end());
      if (output.size() >= kDepth) retired_.push_back(one.slot);
      if (drafts.empty()) continue;
      const auto taken = static_cast<int>(one.tokens.size()) - 1;
      accepted_ += taken;
      if (taken < kDrafts) ++refused_;
    }
  }

  const std::shared_ptr<const test::LogitsTable> table_ = Table();
  const OpsTable ops_ = test::OpsOfKnownLogits(table_);
  std::unique_ptr<Worker> worker_;
  std::vector<Tokens> order_, outputs_;
  std::vector<SlotId> retired_;
  std::mt19937_64 random_{3};  // of drafts
  uint64_t step_ = 0;
  int accepted_ = 0, refused_ = 0;
};

class DraftDistributionTest : public ::testing::TestWithParam<size_t> {};

TEST_P(DraftDistributionTest, TokensAreDrawnAsWithoutDrafts) {
  const Context context = Contexts()[GetParam()];
  const int draws = Draws();
  Drawer drawer;
  Cells cells(drawer.table(), context, draws);
  drawer.Draw(context, draws, false, cells);
  std::printf(
      "%-28s %6d cells, chi-square %9.1f, p %.3g; %d drafts accepted, %d steps with a refused "
      "one\n",
      context.name, cells.cells(), cells.ChiSquare(), cells.PValue(), drawer.accepted(),
      drawer.refused());
  EXPECT_EQ(cells.impossible(), 0);
  EXPECT_GT(cells.PValue(), kFamilyError / kContexts);
  EXPECT_GT(drawer.accepted(), draws / 50);
  EXPECT_GT(drawer.refused(), draws / 5);
}

INSTANTIATE_TEST_SUITE_P(Contexts, DraftDistributionTest, ::testing::Range(size_t{0}, kContexts));

TEST(ChiSquareTest, AcceptanceByChanceIsSeen) {
  ASSERT_EQ(Contexts().size(), kContexts);
  const Context context = Contexts()[0];
  // The likeliest token is accepted about as often as it is drawn, but not as often where it is
  // less likely than elsewhere.
  SpeculationConfig speculation{.method = DraftMethod::kNgram, .drafts = kDrafts};
  speculation.synthetic_rates = {0.25, 0.0625, 0.016};
  Drawer drawer(speculation);
  Cells cells(drawer.table(), context, 20'000);
  drawer.Draw(context, 20'000, true, cells);
  EXPECT_EQ(cells.impossible(), 0);
  EXPECT_LT(cells.PValue(), kFamilyError / kContexts);
}

// The tail against values of tables: 3.841 and 6.635 of one degree, 124.342 of a hundred.
TEST(ChiSquareTest, TheTailIsThatOfTables) {
  EXPECT_NEAR(TailOfChiSquare(3.841459, 1), 0.05, 1e-6);
  EXPECT_NEAR(TailOfChiSquare(6.634897, 1), 0.01, 1e-6);
  EXPECT_NEAR(TailOfChiSquare(124.342, 100), 0.05, 1e-5);
  EXPECT_NEAR(TailOfChiSquare(90, 100), 0.7532, 1e-3);
}

}  // namespace
}  // namespace baltoro
