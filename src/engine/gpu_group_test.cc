// Replicas on GPUs that share experts say what one GPU says; where there is one GPU, on shares of
// it. Skipped where no GPU, or no module, is.
//
// BALTORO_TEST_ON_CPU=1 puts ranks on CPUs in the GPUs' place: whether the tests themselves are
// right can be seen without GPUs.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend_choice.h"
#include "engine/expert_group.h"
#include "engine/gpu_ranks.h"
#include "engine/group_team.h"
#include "engine/rank_team.h"
#include "engine/testing/model_engine.h"
#include "engine/testing/tiny_ranks.h"
#include "support/card_shares.h"
#include "support/support.h"
#include "weights/dummy_source.h"
#include "weights/tensor_names.h"

namespace baltoro {
namespace {

[[maybe_unused]] const bool kShares = test::UseSharesOfOneCard();

constexpr int32_t kSeqs = 16, kTokens = 256, kBlocks = 128, kModelLen = 1024;

enum class Weights { kBf16, kFp8, kInt4, kW4A8 };

struct Case {
  Weights weights = Weights::kBf16;
  KvForm kv = KvForm::kBf16;
  bool graphs = true;
  int32_t drafts = 0;
  bool balances = false;     // experts move in every step, to wherever
  bool two_at_once = false;  // so many to a rank in a step, else one
  // Of log-probabilities, beside the part of the best tokens that stays: three times what an H200
  // gave.
  test::Tolerance tolerance = {.nmse = 1e-5, .max_abs = 0.06};
};

bool OnCpu() {
  return std::getenv("BALTORO_TEST_ON_CPU") != nullptr;
}

WeightForm FormOf(Weights weights, std::string_view module) {
  const TensorRole role = RoleOf(module);
  switch (weights) {
    case Weights::kBf16:
      break;
    case Weights::kFp8:
      return WeightForm::kFp8Block;
    case Weights::kInt4:
      return role == TensorRole::kExperts ? WeightForm::kInt4Group : WeightForm::kBf16;
    case Weights::kW4A8:
      if (role == TensorRole::kExperts) return WeightForm::kInt4;
      return role == TensorRole::kAttention ? WeightForm::kInt8Static : WeightForm::kInt8;
  }
  return WeightForm::kBf16;
}

// What kernels are made for, but few layers, heads and experts. All experts are chosen: rounding
// cannot choose others.
K2Config Config() {
  K2Config config = test::KernelConfig(3, 8);
  config.router.top_k = config.experts;
  config.positions_max = kModelLen;
  return config;
}

Result<const OpsTable*> Open(int device) {
  if (OnCpu()) return &CpuOps(DType::kBf16);
  EngineConfig engine;
  engine.device = "cuda";
  BT_ASSIGN_OR_RETURN(const BackendChoice backend, ChooseBackend(engine));
  return OpenBackend(backend, device);
}

Result<std::unique_ptr<K2Model>> Load(const Case& one,
                                      const OpsTable& ops,
                                      ThreadPool* pool,
                                      ModelRanks* ranks) {
  DummySource source(3, [&](std::string_view module) { return FormOf(one.weights, module); });
  K2LoadOptions options;
  options.ranks = ranks;
  options.weights.quantise_fp8_inputs = true;
  options.positions_max = kModelLen;
  BT_ASSIGN_OR_RETURN(std::unique_ptr<K2Model> model,
                      K2Model::Load(Config(), source, ops, pool, options));
  if (one.graphs) model->UseGraphs();
  return model;
}

// Ranks as on several machines: BALTORO_TEST_HOSTS=2x4 deals them out to two, which have four
// devices each (BALTORO_TEST_CARD_SHARES=2x4: shares of two GPUs).
struct Seat {
  int device = 0;
  int32_t host = 0;
};
Seat SeatOf(int32_t rank, int32_t ranks) {
  const char* const wish = std::getenv("BALTORO_TEST_HOSTS");
  int hosts = 1, devices = 0;
  if (wish == nullptr || std::sscanf(wish, "%dx%d", &hosts, &devices) != 2 || ranks < hosts) {
    return {.device = rank};
  }
  const int32_t of_host = ranks / hosts;
  return {.device = rank / of_host * devices + rank % of_host, .host = rank / of_host};
}

// What experts that moved came to, of the ranks that tell it.
struct Moves {
  std::atomic<uint64_t> rearrangements = 0, experts = 0;
};
Moves& AllMoves() {
  static Moves moves;
  return moves;
}

// All experts have the same load here, so no placement is better than another: any are taken in
// turn, the same on all ranks.
ExpertBalanceOptions MovesAlways(bool two_at_once) {
  return {.window = 4,
          .interval = 4,
          .tell =
              [](const BalanceNews& news) {
                AllMoves().rearrangements = news.rearrangements;
                AllMoves().experts = news.moved_experts;
              },
          .step_bytes = two_at_once ? int64_t{1} << 30 : 1,
          .place =
              [random = std::mt19937(5)](const BalanceShape& shape, const ExpertSlots&) mutable {
                ExpertSlots slots;
                for (int32_t slot = 0; slot < shape.slots; ++slot) {
                  slots.push_back(slot < shape.experts
                                      ? slot
                                      : static_cast<int32_t>(random()) & (shape.experts - 1));
                }
                std::ranges::shuffle(slots, random);
                return slots;
              }};
}

Result<RankParts> MakeRankOf(const Case& one,
                             const ParallelLayout& layout,
                             Link* link,
                             bool samples,
                             const std::shared_ptr<ConstraintTable>& table) {
  const Seat seat = SeatOf(link->rank(), layout.ranks());
  BT_ASSIGN_OR_RETURN(const OpsTable* const ops, Open(seat.device));
  RankParts parts;
  if (layout.ranks() == 1) {
    // Alone.
  } else if (OnCpu()) {
    BT_ASSIGN_OR_RETURN(parts.ranks, ModelRanks::Join(link, layout));
  } else {
    BT_ASSIGN_OR_RETURN(
        parts.ranks,
        JoinGpuRanks(
            link, layout, Config(),
            {.ops = ops, .device = seat.device, .tokens_max = kTokens, .host = seat.host}));
  }
  auto pool = std::make_unique<ThreadPool>(1);
  BT_ASSIGN_OR_RETURN(std::unique_ptr<K2Model> model,
                      Load(one, *ops, pool.get(), parts.ranks.get()));
  BT_ASSIGN_OR_RETURN(KvStorage kv,
                      KvStorage::Create({.layers = model->layers(),
                                         .num_blocks = kBlocks / layout.decode_context,
                                         .latent = static_cast<int32_t>(model->config().kv_lora),
                                         .rope = static_cast<int32_t>(model->config().rope_dim),
                                         .form = one.kv},
                                        *ops->memory));
  std::optional<ExpertBalanceOptions> balance;
  if (layout.balanced_experts) {
    balance = MovesAlways(one.two_at_once);
    balance->tells = link->rank() == 0;
  }
  BT_ASSIGN_OR_RETURN(parts.worker,
                      Worker::Create({.max_num_seqs = kSeqs,
                                      .max_num_batched_tokens = kTokens,
                                      .logits_rows_max = kSeqs * (1 + one.drafts) + 64,
                                      .constraints = samples ? table : nullptr,
                                      .mask_threads = 1,
                                      .samples = samples,
                                      .speculation = test::TinyDrafts(one.drafts),
                                      .balance = std::move(balance)},
                                     std::move(pool), std::move(model), std::move(kv)));
  return parts;
}

Result<std::vector<std::unique_ptr<Executor>>> Executors(const Case& one,
                                                         const ParallelLayout& layout) {
  const auto table = std::make_shared<ConstraintTable>();
  const MakeRank make = [&](Link* link, bool samples) {
    return MakeRankOf(one, layout, link, samples, table);
  };
  std::vector<std::unique_ptr<Executor>> out;
  if (layout.data > 1) {
    BT_ASSIGN_OR_RETURN(const std::shared_ptr<GroupTeam> team, GroupTeam::Start(layout, make));
    return GroupTeam::Members(team);
  }
  BT_ASSIGN_OR_RETURN(std::unique_ptr<Executor> team, RankTeam::Start(layout, make));
  out.push_back(std::move(team));
  return out;
}

// Ranks on threads of their own, one rank too: a thread keeps its share of a card.
class Group {
 public:
  Group(const Case& one, const ParallelLayout& layout) {
    auto executors = Executors(one, layout);
    EXPECT_TRUE(executors.ok()) << executors.status().message();
    if (!executors.ok()) return;
    EngineConfig config;
    config.max_num_seqs = kSeqs;
    config.max_num_batched_tokens = kTokens;
    config.speculation = test::TinyDrafts(one.drafts);
    EngineInfo info;
    info.max_model_len = kModelLen;
    info.vocab_size = Config().vocab;
    info.num_blocks = kBlocks;
    info.kv_cache_tokens = kBlocks * kBlockTokens;
    std::vector<std::unique_ptr<LocalEngine>> replicas;
    int32_t number = 0;
    for (std::unique_ptr<Executor>& member : executors.value()) {
      replicas.push_back(std::make_unique<LocalEngine>(config, info, std::move(member),
                                                       ExpertGroup::SinkOf(number++, log_.sink())));
    }
    group_ = std::make_unique<ExpertGroup>(std::move(replicas));
  }
  bool ok() const { return group_ != nullptr; }

  void Submit(const Request& request) {
    const Status status = group_->Submit(request);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  test::Told Wait(uint64_t id) { return log_.WaitForEnd(id, 60); }

 private:
  test::EventLog log_;
  std::unique_ptr<ExpertGroup> group_;
};

// Prompts of one token to several chunks. Each is answered with a token of its own, again and
// again: what is told of it, and which token would have been the best, follows from no choice.
std::vector<Request> Requests(uint64_t id) {
  std::vector<Request> requests;
  for (const int length : {447, 1, 64, 130, 3, 300, 65, 20, 129}) {
    Request request = test::MakeRequest(id + requests.size() + 1, length, 14);
    for (TokenId& token : request.prompt) token = token * 23 % 2281;
    request.replica = 0;
    request.sampling.allowed_token_ids = {static_cast<TokenId>(100 + 7 * requests.size())};
    request.sampling.logprobs = 1;
    request.sampling.prompt_logprobs = length < 200 ? 1 : -1;
    requests.push_back(std::move(request));
  }
  return requests;
}

struct Said {
  std::vector<float> logprobs;
  std::vector<TokenId> best;
};

template <typename Engine>
Said Ask(Engine& engine, const std::vector<Request>& requests) {
  for (const Request& request : requests) engine.Submit(request);
  Said said;
  for (const Request& request : requests) {
    const test::Told told = engine.Wait(static_cast<uint64_t>(request.id));
    EXPECT_EQ(told.finish, FinishReason::kLength) << told.error;
    EXPECT_EQ(told.tokens, std::vector<TokenId>(14, request.sampling.allowed_token_ids[0]));
    for (const auto* const rows : {&told.prompt_logprobs, &told.logprobs}) {
      for (const TokenLogprobs& row : *rows) {
        if (row.empty()) continue;  // of the first token
        said.logprobs.push_back(row[0].logprob);
        said.best.push_back(row.back().id);
      }
    }
  }
  return said;
}

Said OfOne(Case one) {
  one.drafts = 0;
  one.balances = false;
  Group engine(one, {});
  return engine.ok() ? Ask(engine, Requests(0)) : Said();
}

void ExpectNear(const Case& one, const Said& got, const Said& want) {
  ASSERT_EQ(got.logprobs.size(), want.logprobs.size());
  EXPECT_TRUE(test::Near(got.logprobs, want.logprobs, one.tolerance));
  double same = 0, square = 0, most = 0;
  for (size_t i = 0; i < got.best.size(); ++i) {
    same += got.best[i] == want.best[i] ? 1 : 0;
    const double error = got.logprobs[i] - want.logprobs[i];
    square += error * error;
    most = std::max(most, std::abs(error));
  }
  const auto count = static_cast<double>(got.best.size());
  EXPECT_GE(same / count, 0.9);
  fmt::print("  of {} log-probabilities: rms {:.4f}, most {:.4f}, {:.3f} the same best token\n",
             got.best.size(), std::sqrt(square / count), most, same / count);
}

// Those of eight ranks want BALTORO_TEST_CARD_SHARES=8 where there is one GPU.
std::vector<ParallelLayout> Layouts(bool balances) {
  std::vector<ParallelLayout> layouts = {
      {.data = 2, .whole_experts = true},
      {.data = 4, .whole_experts = true},
      {.tensor = 2, .data = 2, .whole_experts = true},
      {.tensor = 2, .decode_context = 2, .data = 2, .whole_experts = true},
      {.data = 8, .whole_experts = true},
      {.tensor = 2, .data = 4, .whole_experts = true}};
  if (!balances) return layouts;
  layouts.push_back({.tensor = 2, .whole_experts = true});
  layouts.push_back({.tensor = 4, .whole_experts = true});
  layouts.push_back({.tensor = 8, .whole_experts = true});
  layouts.push_back({.tensor = 2, .pipeline = 2, .whole_experts = true});
  for (ParallelLayout& layout : layouts) {
    layout.balanced_experts = true;
    layout.redundant_experts = layout.ranks() < 8 ? 4 : 8;
  }
  // Without copies experts change places.
  layouts.push_back({.data = 4, .whole_experts = true, .balanced_experts = true});
  layouts.push_back({.tensor = 2, .data = 4, .whole_experts = true, .balanced_experts = true});
  return layouts;
}

void ExpectSame(const Case& one) {
  const Said want = OfOne(one);
  for (const ParallelLayout& layout : Layouts(one.balances)) {
    AllMoves().rearrangements = AllMoves().experts = 0;
    // Heads of an eighth would cut a block of scales.
    if (one.weights == Weights::kFp8 && layout.tensor == 8) continue;
    if (!OnCpu() && !CheckGpus(layout.ranks()).ok()) continue;
    const std::string name =
        fmt::format("TP{} DCP{} DP{} PP{}, {} redundant experts", layout.tensor,
                    layout.decode_context, layout.data, layout.pipeline, layout.redundant_experts);
    SCOPED_TRACE(name);
    fmt::print("  {}\n", name);
    Group group(one, layout);
    ASSERT_TRUE(group.ok());
    std::vector<Request> requests = Requests(0);
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].replica = static_cast<int32_t>(i) % layout.data;
    }
    ExpectNear(one, Ask(group, requests), want);
    // All at the last, while the others have nothing to do.
    requests = Requests(100);
    std::vector<Request> same = Requests(0);
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].prompt = same[i].prompt;
      requests[i].replica = layout.data - 1;
    }
    ExpectNear(one, Ask(group, requests), want);
    if (!one.balances) continue;
    EXPECT_GT(AllMoves().rearrangements, 2u);
    // One expert a rank moves nowhere: ranks are alike.
    const int32_t slots = Config().experts + layout.redundant_experts;
    EXPECT_GE(AllMoves().experts, slots == layout.expert_ranks() ? 0u : 21u);
  }
}

class GpuGroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (OnCpu()) return;
    if (const Status gpus = CheckGpus(2); !gpus.ok()) GTEST_SKIP() << gpus.message();
  }
};

TEST_F(GpuGroupTest, Bf16) {
  ExpectSame({});
}
TEST_F(GpuGroupTest, Bf16WithoutGraphs) {
  ExpectSame({.graphs = false});
}
TEST_F(GpuGroupTest, Bf16WithDrafts) {
  ExpectSame({.drafts = 3});
}
TEST_F(GpuGroupTest, Int4WithAnFp8Cache) {
  ExpectSame({.weights = Weights::kInt4, .kv = KvForm::kFp8});
}
TEST_F(GpuGroupTest, Int4WithoutGraphs) {
  ExpectSame({.weights = Weights::kInt4, .graphs = false});
}
TEST_F(GpuGroupTest, Fp8) {
  // Tensor ranks round what they have of a row by the largest value of each 128.
  ExpectSame({.weights = Weights::kFp8, .tolerance = {.nmse = 1e-4, .max_abs = 0.5}});
}
TEST_F(GpuGroupTest, W4A8) {
  ExpectSame({.weights = Weights::kW4A8, .tolerance = {.nmse = 5e-5, .max_abs = 0.3}});
}

// Experts that move and are doubled while steps run.
TEST_F(GpuGroupTest, Bf16ThatMoves) {
  ExpectSame({.balances = true});
}
TEST_F(GpuGroupTest, Bf16ThatMovesWithoutGraphs) {
  ExpectSame({.graphs = false, .balances = true, .two_at_once = true});
}
TEST_F(GpuGroupTest, Bf16ThatMovesWithDrafts) {
  ExpectSame({.drafts = 3, .balances = true});
}
TEST_F(GpuGroupTest, Int4ThatMoves) {
  ExpectSame(
      {.weights = Weights::kInt4, .kv = KvForm::kFp8, .balances = true, .two_at_once = true});
}
TEST_F(GpuGroupTest, Fp8ThatMoves) {
  ExpectSame(
      {.weights = Weights::kFp8, .balances = true, .tolerance = {.nmse = 1e-4, .max_abs = 0.5}});
}
TEST_F(GpuGroupTest, W4A8ThatMoves) {
  ExpectSame(
      {.weights = Weights::kW4A8, .balances = true, .tolerance = {.nmse = 5e-5, .max_abs = 0.3}});
}

}  // namespace
}  // namespace baltoro
