// MlaAttention as the model calls it, one layer: expanded steps (prompts, whole or behind a cached
// prefix), and absorbed steps with what they need around MlaDecode.
//
//   cuda_prefill_bench [HEADS SEQUENCES QUERIES PREFIX [bf16|fp8|fp8_ds_mla]] [, ...]
//
// "keys us" is what making keys and values of the heads from the latents takes, "attend" the rest.
// FLOPs are those of the form that is used and of pairs of a query token and a key that it sees,
// without keys and values.

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "card.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/device_info.h"
#include "device/cuda/stream.h"
#include "ops/cuda/attention/attention_plan.h"
#include "ops/cuda/cuda_ops.h"

namespace baltoro::bench {
namespace {

constexpr double kMatrixRate = 790e12;  // bf16 FLOP/s that a large product reaches on these cards
constexpr int64_t kBlock = KvLayerView::kBlockTokens;
constexpr int64_t kQueryWidth = cuda::kAttentionNope + cuda::kAttentionRope;
constexpr int64_t kExpandedWidth = cuda::kAttentionNope + cuda::kAttentionValue;
constexpr int kRuns = 21;

#define ABORT_IF_ERROR(expr)                                                \
  do {                                                                      \
    const ::baltoro::Status bt_status = (expr);                             \
    if (!bt_status.ok()) {                                                  \
      std::fprintf(stderr, "%s: %s\n", #expr, bt_status.message().c_str()); \
      std::exit(1);                                                         \
    }                                                                       \
  } while (false)

struct Case {
  int32_t heads;
  int32_t sequences;
  int32_t queries;  // of each
  int32_t prefix;   // keys before them
  KvForm form = KvForm::kBf16;
};

class Bench {
 public:
  explicit Bench(cuda::RankState& rank) : rank_(rank), stream_(rank.stream()) {
    std::printf("%5s %5s %7s %7s %10s | %9s %9s %9s %8s %7s\n", "heads", "seqs", "queries",
                "prefix", "cache", "us", "keys us", "attend us", "TFLOP/s", "of rate");
  }

  void Run(const Case& c) {
    Arena memory(CudaMemory()), scratch(CudaMemory()), staging(PinnedMemory());
    const OpContext ctx = {.scratch = &scratch, .staging = &staging, .rank = &rank_};
    const int64_t tokens = int64_t{c.sequences} * c.queries;
    const int64_t keys = c.queries + c.prefix;
    const int64_t blocks = (keys + kBlock - 1) / kBlock;
    const int64_t pool = blocks * c.sequences;
    const int64_t token_bytes = KvTokenBytes(c.form, cuda::kMlaLatent, cuda::kAttentionRope);
    std::vector<int32_t> table(static_cast<size_t>(pool));
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), std::mt19937(5));
    std::vector<AttentionSequence> sequences;
    for (int32_t s = 0; s < c.sequences; ++s) {
      sequences.push_back({.query_begin = s * c.queries,
                           .query_count = c.queries,
                           .first_position = c.prefix,
                           .absorbed_from = 0,
                           .blocks = std::span(table).subspan(s * blocks, blocks),
                           .block_positions = {},
                           .key_count = static_cast<int32_t>(keys)});
    }
    const auto random = [&](int64_t count, uint32_t seed) {
      void* const data = memory.Allocate(static_cast<size_t>(count) * 2);
      ABORT_IF_ERROR(FillRandomBf16(data, static_cast<size_t>(count), seed, stream_));
      return data;
    };
    MlaAttentionArgs args;
    args.heads = c.heads;
    args.nope = cuda::kAttentionNope;
    args.rope = cuda::kAttentionRope;
    args.value = cuda::kAttentionValue;
    args.latent = cuda::kMlaLatent;
    args.scale = 0.07f;
    args.sequences = sequences;
    args.q = TensorView(random(tokens * c.heads * kQueryWidth, 1), DType::kBf16,
                        {tokens, c.heads, kQueryWidth});
    args.out = TensorView(random(tokens * c.heads * cuda::kAttentionValue, 2), DType::kBf16,
                          {tokens, int64_t{c.heads} * cuda::kAttentionValue});
    args.kv_b = {.data = random(c.heads * kExpandedWidth * cuda::kMlaLatent, 3),
                 .n = c.heads * kExpandedWidth,
                 .k = cuda::kMlaLatent};
    args.uk_t = {.data = random(int64_t{c.heads} * cuda::kMlaLatent * cuda::kAttentionNope, 4),
                 .n = cuda::kMlaLatent,
                 .k = cuda::kAttentionNope,
                 .count = c.heads,
                 .stride_bytes = int64_t{cuda::kMlaLatent} * cuda::kAttentionNope * 2};
    // Random bf16 are finite scales and codes too, near enough for a measurement of time.
    args.cache = {.data = random(pool * kBlock * token_bytes / 2, 6),
                  .form = c.form,
                  .num_blocks = pool,
                  .latent = cuda::kMlaLatent,
                  .rope = cuda::kAttentionRope,
                  .scale = 0.01f};
    args.plan = cuda::PlanAttention(ctx, memory,
                                    {.sequences = sequences,
                                     .tokens = tokens,
                                     .form = c.form,
                                     .heads = c.heads,
                                     .nope = args.nope,
                                     .rope = args.rope,
                                     .value = args.value,
                                     .latent = args.latent});
    ABORT_IF_ERROR(cuda::Wait(ctx));
    const bool expanded = c.queries > cuda::kAbsorbedTokensMax;
    const auto attend = [&] {
      scratch.Reset();
      cuda::MlaAttention(ctx, args);
      return Status();
    };
    ABORT_IF_ERROR(attend());  // scratch memory is taken outside of the recording
    ABORT_IF_ERROR(cuda::Wait(ctx));
    const double seconds = Seconds(attend);
    double keys_seconds = 0;
    if (expanded) {
      const int64_t rows = std::min<int64_t>(
          pool * kBlock, cuda::kAttentionPassBytes / (c.heads * kExpandedWidth * 2));
      const TensorView x(random(rows * cuda::kMlaLatent, 7), DType::kBf16,
                         {rows, cuda::kMlaLatent});
      const TensorView y(random(rows * c.heads * kExpandedWidth, 8), DType::kBf16,
                         {rows, c.heads * kExpandedWidth});
      const auto expand = [&] {
        scratch.Reset();
        cuda::Linear(ctx, y, x, args.kv_b);
        return Status();
      };
      ABORT_IF_ERROR(expand());
      ABORT_IF_ERROR(cuda::Wait(ctx));
      keys_seconds =
          Seconds(expand) * static_cast<double>(pool * kBlock) / static_cast<double>(rows);
    }
    const double pairs = c.sequences * (c.queries * (c.queries + 1.0) / 2 +
                                        static_cast<double>(c.queries) * c.prefix);
    const double width =
        expanded ? kQueryWidth + cuda::kAttentionValue : cuda::kMlaWidth + cuda::kMlaLatent;
    const double rest = seconds - keys_seconds;
    const double rate = 2 * width * c.heads * pairs / rest;
    std::printf("%5d %5d %7d %7d %10s | %9.1f %9.1f %9.1f %8.0f %6.1f%%\n", c.heads, c.sequences,
                c.queries, c.prefix, KvFormName(c.form), seconds * 1e6, keys_seconds * 1e6,
                rest * 1e6, rate / 1e12, 100 * rate / kMatrixRate);
    std::fflush(stdout);
  }

 private:
  double Seconds(const std::function<Status()>& record) {
    const Result<double> seconds = MedianSeconds(stream_, 1, kRuns, record);
    ABORT_IF_ERROR(seconds.status());
    return seconds.value();
  }

  cuda::RankState& rank_;
  const Stream& stream_;
};

// From the arguments; `,` begins the next case.
std::vector<Case> CasesOf(int argc, char** argv) {
  std::vector<Case> cases;
  std::vector<std::string> words;
  for (int i = 1; i <= argc; ++i) {
    if (i < argc && std::string(argv[i]) != ",") {
      words.push_back(argv[i]);
      continue;
    }
    if (words.size() >= 4) {
      Case c{std::stoi(words[0]), std::stoi(words[1]), std::stoi(words[2]), std::stoi(words[3])};
      if (words.size() > 4) {
        const Result<KvForm> form =
            ParseKvForm(words[4] == "bf16" ? "auto" : words[4], DType::kBf16);
        ABORT_IF_ERROR(form.status());
        c.form = form.value();
      }
      cases.push_back(c);
    }
    words.clear();
  }
  return cases;
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const int32_t heads : {8, 64}) {
    for (const int32_t queries : {1024, 4096, 8192}) cases.push_back({heads, 1, queries, 0});
  }
  cases.push_back({8, 8, 1024, 0});
  cases.push_back({8, 1, 2048, 30720});
  cases.push_back({64, 1, 8192, 8192});
  cases.push_back({64, 1, 8192, 0, KvForm::kFp8Groups});
  for (const int32_t heads : {8, 64}) {
    for (const int32_t batch : {1, 16, 64}) cases.push_back({heads, batch, 1, 4095});
  }
  for (const KvForm form : {KvForm::kFp8, KvForm::kFp8Groups}) {
    cases.push_back({8, 64, 1, 8191, form});
    cases.push_back({64, 64, 1, 8191, form});
  }
  cases.push_back({64, 64, 1, 8191});
  cases.push_back({8, 1, 64, 4096});
  cases.push_back({8, 1, 128, 4096});
  cases.push_back({8, 1, 129, 4096});
  return cases;
}

}  // namespace
}  // namespace baltoro::bench

int main(int argc, char** argv) {
  if (baltoro::UsableDeviceCount() == 0) {
    std::printf("no GPU that this build can use\n");
    return 77;
  }
  baltoro::Result<std::unique_ptr<baltoro::cuda::RankState>> rank =
      baltoro::cuda::RankState::Create();
  ABORT_IF_ERROR(rank.status());
  baltoro::bench::Bench bench(*rank.value());
  std::vector<baltoro::bench::Case> cases = baltoro::bench::CasesOf(argc, argv);
  if (cases.empty()) cases = baltoro::bench::AllCases();
  for (const auto& c : cases) bench.Run(c);
  return 0;
}
