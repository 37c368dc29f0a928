// The heavy operations at the shapes of the family, each beside what the machine can do at best:
// bytes of weights and cache against the streaming-read ceiling where few rows share them,
// operations against the peak of register-only products where many do.
//
//   ops_bench [--threads=N] [--only=TEXT]
//
// BALTORO_CPU chooses the instruction set, as it does for the server.
//
// Weights are cycled through copies that together exceed the caches, so that every pass reads them
// from memory, as a model's layers do. Where bytes matter, plain reads of the same memory alternate
// with the operation, so that both see the same pages and the same neighbours on a shared machine.

#include <fmt/format.h>

#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <string_view>

#include "base/check.h"
#include "ceilings.h"
#include "device/buffer.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/isa.h"

namespace baltoro::bench {
namespace {

constexpr int64_t kColdBytes = int64_t{3} << 30;  // copies of weights in all
constexpr int64_t kCopiesMax = 4096;

// How weights are kept; `quantised`: inputs are rounded to the form where it leaves the choice.
struct Kind {
  const char* name = "bf16";
  WeightForm form = WeightForm::kBf16;
  bool quantised = false;
};
constexpr Kind kKinds[] = {{},
                           {"int4_group", WeightForm::kInt4Group},
                           {"fp8_block", WeightForm::kFp8Block},
                           {"fp8_block_w8a8", WeightForm::kFp8Block, true},
                           {"int8", WeightForm::kInt8},
                           {"int8_static", WeightForm::kInt8Static},
                           {"int4", WeightForm::kInt4}};

Buffer Filled(int64_t bytes) {
  Buffer buffer = Buffer::Create(static_cast<size_t>(bytes), "benchmark").value();
  // Any finite numbers will do: 0x3c.. is about 0.01.
  auto* words = static_cast<uint16_t*>(buffer.data());
  for (int64_t i = 0; i < bytes / 2; ++i) {
    words[i] = static_cast<uint16_t>(0x3C00 + i * 31 % 256 + (i % 3 == 0 ? 0x8000 : 0));
  }
  return buffer;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class OpsBench {
 public:
  OpsBench(int threads, std::string only) : pool_(threads), only_(std::move(only)) {}

  void Run() {
    product_gflops_ = MeasureProductGflops(pool_);
    fmt::print("{} threads, {}: products {:.0f} GFLOP/s\n\n", pool_.threads(),
               NameOf(cpu::ActiveIsa()), product_gflops_);
    fmt::print("{:<56} {:>10} {:>7} {:>7} {:>6} {:>9} {:>6}\n", "operation", "median us", "GB/s",
               "read", "%read", "GFLOP/s", "%peak");
    Loops();
    for (const auto& [name, n, k] : {std::tuple{"moonlight q", 3072, 2048},
                                     {"moonlight o", 2048, 2048},
                                     {"moonlight kv_a", 576, 2048},
                                     {"moonlight router", 64, 2048},
                                     {"moonlight dense", 22528, 2048},
                                     {"pocket gate/up", 256, 256},
                                     {"K2 q_a+kv_a", 2112, 7168},
                                     {"K2 rank q_b", 1536, 1536},
                                     {"K2 rank o", 7168, 1024}}) {
      for (const int64_t rows : {1, 4, 8, 32, 64, 512}) LinearOp(name, rows, n, k);
    }
    for (const int64_t rows : {1, 4, 8, 32, 64, 512}) {
      Experts("moonlight experts", rows, 2048, 1408, 64, 6);
    }
    for (const Kind& kind : kKinds) {
      for (const int64_t rows : {1, 8, 32, 512}) {
        LinearOp("forms", rows, 7168, 2048, kind);
        Experts("forms experts", rows, 2048, 1408, 64, 6, kind);
      }
    }
    for (const int64_t rows : {1, 32, 512}) Experts("pocket experts", rows, 256, 128, 16, 4);
    for (const int64_t rows : {1, 32, 512}) Experts("K2 rank experts", rows, 7168, 256, 96, 8);
    for (const int32_t heads : {8, 16, 64}) {
      for (const int64_t keys : {512, 4096}) {
        for (const int64_t sequences : {1, 8, 32}) Decode(heads, keys, sequences);
      }
      Prefill(heads, 512, 512);
      Prefill(heads, 512, 4096);
      Prefill(heads, 2048, 2048);
    }
    for (const KvForm form : {KvForm::kBf16, KvForm::kFp8, KvForm::kFp8Groups}) {
      for (const int32_t heads : {16, 64}) {
        for (const int64_t keys : {1024, 4096, 32768}) Decode(heads, keys, 1, form, "KV forms ");
        Decode(heads, 4096, 8, form, "KV forms ");
        Prefill(heads, 2048, 2048, form, "KV forms ");
      }
    }
  }

 private:
  // What one call must do: `bytes` of `memory`, which is read beside it where it is given.
  struct Cost {
    double bytes = 0;
    double flops = 0;
    const Buffer* memory = nullptr;
  };

  bool Wanted(const std::string& name) const { return name.find(only_) != std::string::npos; }

  template <typename Body>
  void Measure(const std::string& name, Cost cost, const Body& body) {
    body(0);
    const double once = Time(1, body).best;
    const int rounds = std::clamp(static_cast<int>(0.25 / std::max(once, 1e-6)), 5, 2000);
    std::vector<double> calls;
    std::vector<double> reads;
    const auto span = static_cast<int64_t>(cost.bytes) / 256 * 256;
    for (int i = 0; i < rounds; ++i) {
      calls.push_back(Time(1, [&](int) { body(i); }).best);
      if (cost.memory == nullptr) continue;
      // Half way round from where the operation is.
      const auto size = static_cast<int64_t>(cost.memory->bytes());
      const int64_t spans = std::max<int64_t>(1, size / span);
      const char* at =
          static_cast<const char*>(cost.memory->data()) + (i + spans / 2) % spans * span / 64 * 64;
      reads.push_back(Time(1, [&](int) { StreamRead(pool_, at, std::min(span, size)); }).best);
    }
    const double seconds = Median(calls);
    const double read_gbps = reads.empty() ? 0 : cost.bytes / Median(reads) * 1e-9;
    const double gbps = cost.bytes / seconds * 1e-9;
    const double gflops = cost.flops / seconds * 1e-9;
    fmt::print("{:<56} {:>10.1f} {:>7.2f} {:>7.2f} {:>5.0f}% {:>9.1f} {:>5.0f}%\n", name,
               seconds * 1e6, gbps, read_gbps, read_gbps > 0 ? 100 * gbps / read_gbps : 0, gflops,
               100 * gflops / product_gflops_);
    std::fflush(stdout);
  }

  OpContext Context() {
    scratch_.Reset();
    return {.pool = &pool_, .scratch = &scratch_};
  }

  void Loops() {
    if (!Wanted("empty loop")) return;
    Measure("empty loop", {},
            [&](int) { pool_.ParallelFor(pool_.threads(), [](int64_t, int) {}); });
  }

  static PackedMatrix Matrix(
      const Buffer& memory, int64_t n, int64_t k, int64_t count, const Kind& kind) {
    return {.data = memory.data(),
            .form = kind.form,
            .n = n,
            .k = k,
            .count = count,
            .stride_bytes = cpu::PackedBytes(kind.form, n, k),
            .quantise_input = kind.quantised};
  }

  void LinearOp(
      const std::string& what, int64_t rows, int64_t n, int64_t k, const Kind& kind = {}) {
    const std::string name =
        fmt::format("linear {} {} T={} n={} k={}", what, kind.name, rows, n, k);
    if (!Wanted(name)) return;
    const int64_t bytes = cpu::PackedBytes(kind.form, n, k);
    const int64_t copies = std::clamp<int64_t>(kColdBytes / bytes, 1, kCopiesMax);
    const Buffer weights = Filled(bytes * copies);
    const Buffer x = Filled(rows * k * 2);
    const Buffer out = Filled(rows * n * 4);
    const PackedMatrix w = Matrix(weights, n, k, copies, kind);
    Measure(name,
            {.bytes = static_cast<double>(bytes),
             .flops = 2.0 * static_cast<double>(rows * n) * static_cast<double>(k),
             .memory = &weights},
            [&](int i) {
              cpu::Linear(Context(), TensorView(out.data(), DType::kF32, {rows, n}),
                          TensorView(x.data(), DType::kBf16, {rows, k}), w.at(i % copies));
            });
  }

  void Experts(const std::string& what,
               int64_t rows,
               int64_t hidden,
               int64_t inter,
               int64_t experts,
               int64_t top_k,
               const Kind& kind = {}) {
    const std::string name = fmt::format("{} {} T={} H={} I={} {} of {}", what, kind.name, rows,
                                         hidden, inter, top_k, experts);
    if (!Wanted(name)) return;
    const int64_t up_bytes = cpu::PackedBytes(kind.form, 2 * inter, hidden);
    const int64_t down_bytes = cpu::PackedBytes(kind.form, hidden, inter);
    const Buffer up = Filled(up_bytes * experts);
    const Buffer down = Filled(down_bytes * experts);
    const Buffer x = Filled(rows * hidden * 2);
    const Buffer out = Filled(rows * hidden * 4);
    const Buffer weights = Filled(rows * top_k * 4);
    // Each round has its own uniform choice.
    constexpr int64_t kRounds = 64;
    const Buffer ids = Filled(kRounds * rows * top_k * 4);
    std::mt19937 engine(1);
    std::vector<int32_t> order(static_cast<size_t>(experts));
    std::iota(order.begin(), order.end(), 0);
    double used = 0;
    for (int64_t round = 0; round < kRounds; ++round) {
      std::vector<bool> seen(order.size());
      for (int64_t t = 0; t < rows; ++t) {
        std::shuffle(order.begin(), order.end(), engine);
        for (int64_t j = 0; j < top_k; ++j) {
          static_cast<int32_t*>(ids.data())[(round * rows + t) * top_k + j] = order[j];
          seen[static_cast<size_t>(order[j])] = true;
        }
      }
      used += static_cast<double>(std::count(seen.begin(), seen.end(), true)) / kRounds;
    }
    std::iota(order.begin(), order.end(), 0);
    Measure(name,
            {.bytes = used * static_cast<double>(up_bytes + down_bytes),
             .flops = 6.0 * static_cast<double>(rows * top_k * hidden) * static_cast<double>(inter),
             .memory = &up},
            [&](int i) {
              char* chosen = static_cast<char*>(ids.data()) + i % kRounds * rows * top_k * 4;
              cpu::ExpertBank(Context(),
                              {.out = TensorView(out.data(), DType::kF32, {rows, hidden}),
                               .x = TensorView(x.data(), DType::kBf16, {rows, hidden}),
                               .ids = TensorView(chosen, DType::kI32, {rows, top_k}),
                               .weights = TensorView(weights.data(), DType::kF32, {rows, top_k}),
                               .gate_up = Matrix(up, 2 * inter, hidden, experts, kind),
                               .down = Matrix(down, hidden, inter, experts, kind),
                               .slot_of = order});
            });
  }

  // Attention of `sequences` sequences of `keys` keys, the last `queries` tokens of each.
  void Attention(const std::string& name,
                 int32_t heads,
                 int64_t keys,
                 int64_t queries,
                 int64_t sequences,
                 bool absorbed,
                 Cost cost,
                 KvForm form) {
    if (!Wanted(name)) return;
    constexpr int64_t kNope = 128, kRope = 64, kValue = 128, kLatent = 512;
    const int64_t blocks = (keys + 63) / 64;
    const Buffer cache = FilledCache(form, sequences * blocks, kLatent, kRope);
    const Buffer kv_b =
        Filled(cpu::PackedBytes(WeightForm::kBf16, heads * (kNope + kValue), kLatent));
    const int64_t uk_bytes = cpu::PackedBytes(WeightForm::kBf16, kLatent, kNope);
    const Buffer uk_t = Filled(heads * uk_bytes);
    const int64_t rows = sequences * queries;
    const Buffer q = Filled(rows * heads * (kNope + kRope) * 2);
    const Buffer out = Filled(rows * heads * kValue * 2);
    std::vector<int32_t> ids(static_cast<size_t>(sequences * blocks));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(2));
    std::vector<AttentionSequence> all;
    for (int64_t i = 0; i < sequences; ++i) {
      all.push_back({.query_begin = static_cast<int32_t>(i * queries),
                     .query_count = static_cast<int32_t>(queries),
                     .first_position = static_cast<int32_t>(keys - queries),
                     .absorbed_from = absorbed ? 0 : 1 << 30,
                     .blocks = std::span(ids).subspan(static_cast<size_t>(i * blocks),
                                                      static_cast<size_t>(blocks)),
                     .block_positions = {},
                     .key_count = static_cast<int32_t>(keys)});
    }
    if (absorbed) cost.memory = &cache;
    Measure(name, cost, [&](int) {
      cpu::MlaAttention(Context(),
                        {.out = TensorView(out.data(), DType::kBf16, {rows, heads * kValue}),
                         .q = TensorView(q.data(), DType::kBf16, {rows, heads, kNope + kRope}),
                         .cache = {.data = cache.data(),
                                   .form = form,
                                   .num_blocks = sequences * blocks,
                                   .latent = kLatent,
                                   .rope = kRope},
                         .sequences = all,
                         .kv_b = {.data = kv_b.data(), .n = heads * (kNope + kValue), .k = kLatent},
                         .uk_t = {.data = uk_t.data(),
                                  .n = kLatent,
                                  .k = kNope,
                                  .count = heads,
                                  .stride_bytes = uk_bytes},
                         .scale = 0.07f,
                         .heads = heads,
                         .nope = kNope,
                         .rope = kRope,
                         .value = kValue,
                         .latent = kLatent,
                         .lse = {}});
    });
  }

  // Blocks of a cache as tokens of random values leave them.
  Buffer FilledCache(KvForm form, int64_t blocks, int64_t latent, int64_t rope) {
    const int64_t tokens = blocks * 64;
    Buffer values = Filled(tokens * (latent + rope) * 2);
    if (form == KvForm::kBf16) return values;
    Buffer cache = Filled(tokens * KvTokenBytes(form, latent, rope));
    std::vector<int64_t> slots(static_cast<size_t>(tokens));
    std::iota(slots.begin(), slots.end(), 0);
    const TensorView rows(values.data(), DType::kBf16, {tokens, latent + rope});
    cpu::KvWrite(
        Context(),
        {.data = cache.data(), .form = form, .num_blocks = blocks, .latent = latent, .rope = rope},
        rows.columns(0, latent), rows.columns(latent, rope),
        TensorView(slots.data(), DType::kI64, {tokens}));
    return cache;
  }

  void Decode(int32_t heads,
              int64_t keys,
              int64_t sequences,
              KvForm form = KvForm::kBf16,
              const std::string& group = "") {
    const auto s = static_cast<double>(sequences);
    const auto h = static_cast<double>(heads);
    const auto n = static_cast<double>(keys);
    const auto token = static_cast<double>(KvTokenBytes(form, 512, 64));
    Attention(group +
                  fmt::format("decode {} heads, {} keys, {} sequences", heads, keys, sequences) +
                  Suffix(form, group),
              heads, keys, 1, sequences, true,
              {.bytes = s * n * token + h * 256 * 512 * 2,
               .flops = s * h * (2 * n * (576 + 512) + 2.0 * 256 * 512)},
              form);
  }

  // Counts the products of the causal half only, and the expansion of each key once.
  void Prefill(int32_t heads,
               int64_t queries,
               int64_t keys,
               KvForm form = KvForm::kBf16,
               const std::string& group = "") {
    const auto h = static_cast<double>(heads);
    const auto n = static_cast<double>(keys);
    const auto t = static_cast<double>(queries);
    const auto token = static_cast<double>(KvTokenBytes(form, 512, 64));
    Attention(group + fmt::format("prefill {} heads, {} queries of {} keys", heads, queries, keys) +
                  Suffix(form, group),
              heads, keys, queries, 1, false,
              {.bytes = n * token + h * 256 * 512 * 2,
               .flops = h * (2 * t * (n - t / 2) * (192 + 128) + 2 * n * 256 * 512)},
              form);
  }

  static std::string Suffix(KvForm form, const std::string& group) {
    return group.empty() ? "" : fmt::format(", {}", KvFormName(form));
  }

  ThreadPool pool_;
  std::string only_;
  Arena scratch_;
  double product_gflops_ = 0;
};

int Main(int argc, char** argv) {
  int threads = 0;
  std::string only;
  UseIsaOfEnvironment();
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg.starts_with("--threads=")) {
      threads = std::atoi(argv[i] + 10);
    } else if (arg.starts_with("--only=")) {
      only = arg.substr(7);
    } else {
      fmt::print(stderr, "usage: ops_bench [--threads=N] [--only=TEXT]\n");
      return 2;
    }
  }
  OpsBench(threads, only).Run();
  return 0;
}

}  // namespace
}  // namespace baltoro::bench

int main(int argc, char** argv) {
  return baltoro::bench::Main(argc, argv);
}
