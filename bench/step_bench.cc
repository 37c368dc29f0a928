// One step of a whole model with dummy weights, of the shape of the 16-billion-parameter member of
// the family cut to a few layers: decode at several batch sizes beside the bytes it must read, and
// prefill beside the operations it must do.
//
//   step_bench [--layers=N] [--vocab=N] [--q-lora=N] [--threads=N] [--form=bf16|fp8|int4|w4a8]
//              [--serve]
//
// The forms quantise what the public checkpoints of each do: fp8 every projection, int4 the routed
// experts, w4a8 those to 4 bits and the rest to 8.
//
// BALTORO_CPU chooses the instruction set, as it does for the server.
//
// Without --serve it prints a table. With --serve it takes commands from standard input, so that
// another program can alternate its own measurements with these: `decode BATCH STEPS`, `prefill
// TOKENS ROUNDS`, `read`, `peak`; each answers one line of JSON.

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <string_view>

#include "ceilings.h"
#include "model/k2_model.h"
#include "ops/cpu/isa.h"

namespace baltoro::bench {
namespace {

constexpr int64_t kContext = 256;  // tokens that a sequence has when decoding starts
constexpr int64_t kBlock = KvLayerView::kBlockTokens;

struct Options {
  int32_t layers = 4;
  int64_t vocab = 163840;
  int64_t q_lora = 0;
  int threads = 0;
  std::string form = "bf16";
  bool serve = false;
};

// In which each part of the model is kept.
struct Forms {
  const char* quantization;  // that makes dummy weights of these forms
  WeightForm attention, dense, experts;
};

std::optional<Forms> FormsOf(const std::string& name) {
  using enum WeightForm;
  if (name == "bf16") return Forms{"none", kBf16, kBf16, kBf16};
  if (name == "fp8") return Forms{"fp8", kFp8Block, kFp8Block, kFp8Block};
  if (name == "int4") return Forms{"compressed-tensors", kBf16, kBf16, kInt4Group};
  if (name == "w4a8") return Forms{"ascend", kInt8Static, kInt8, kInt4};
  return std::nullopt;
}

K2Config Shape(const Options& options) {
  K2Config config;
  config.model_type = "deepseek_v3";
  config.hidden = 2048;
  config.layers = options.layers;
  config.heads = 16;
  config.q_lora = options.q_lora;
  config.kv_lora = 512;
  config.nope = 128;
  config.rope_dim = 64;
  config.value = 128;
  config.intermediate = 11264;
  config.moe_intermediate = 1408;
  config.experts = 64;
  config.shared_experts = 2;
  config.dense_layers = 1;
  config.router.experts = 64;
  config.router.top_k = 6;
  config.router.scaling = 2.446f;
  config.router_has_bias = true;
  config.norm_eps = 1e-5;
  config.rope.theta = 50000;
  config.positions_max = 8192;
  config.vocab = options.vocab;
  return config;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class StepBench {
 public:
  StepBench(const Options& options,
            std::unique_ptr<ThreadPool> pool,
            std::unique_ptr<K2Model> model)
      : options_(options), pool_(std::move(pool)), model_(std::move(model)) {}

  ThreadPool& pool() { return *pool_; }

  // Median seconds of a step in which `batch` sequences decode one token each.
  double Decode(int64_t batch, int64_t steps) {
    Start(batch, kContext + steps + 2);
    for (int64_t i = 0; i < batch; ++i) Step({i}, kContext, /*absorbed=*/false);
    std::vector<int64_t> all(static_cast<size_t>(batch));
    std::iota(all.begin(), all.end(), 0);
    Step(all, 1, true);
    std::vector<double> seconds;
    for (int64_t i = 0; i < steps; ++i) {
      const double start = Now();
      Step(all, 1, true);
      seconds.push_back(Now() - start);
    }
    return Median(seconds);
  }

  // Median seconds of a step of one prompt of `tokens` tokens.
  double Prefill(int64_t tokens, int64_t rounds) {
    std::vector<double> seconds;
    for (int64_t i = 0; i <= rounds; ++i) {
      Start(1, tokens);
      const double start = Now();
      Step({0}, tokens, false);
      if (i > 0) seconds.push_back(Now() - start);
    }
    return Median(seconds);
  }

  // Bytes of weights that a decode step of `batch` tokens reads when experts are chosen evenly.
  double StepBytes(int64_t batch) const {
    const K2Config& c = model_->config();
    const double used = c.experts * (1 - std::pow(1 - double{1.0} * c.router.top_k / c.experts,
                                                  static_cast<double>(batch)));
    const auto bytes = [](WeightForm form, int64_t outputs, int64_t inputs) {
      return static_cast<double>(MatrixBytes(form, outputs, inputs));
    };
    return Layers(used, bytes) + bytes(WeightForm::kBf16, c.vocab, c.hidden);
  }

  // Operations of a prompt of `tokens` tokens, logits of the last one only, causal half of
  // attention.
  double PrefillFlops(int64_t tokens) const {
    const K2Config& c = model_->config();
    const auto t = static_cast<double>(tokens);
    const double attention = static_cast<double>(c.layers) * c.heads * t * t / 2 *
                             static_cast<double>(c.head_dim() + c.value);
    const auto elements = [](WeightForm, int64_t outputs, int64_t inputs) {
      return static_cast<double>(outputs * inputs);
    };
    return 2 * (t * Layers(c.router.top_k, elements) + attention +
                static_cast<double>(c.vocab * c.hidden));
  }

 private:
  // The sum of `size(form, outputs, inputs)` over the matrices of all layers, of `experts` routed
  // experts in each that has them.
  template <typename Size>
  double Layers(double experts, const Size& size) const {
    const K2Config& c = model_->config();
    const Forms forms = *FormsOf(options_.form);
    const int64_t q_width = c.heads * c.head_dim();
    double attention = size(forms.attention, c.cache_width(), c.hidden) +
                       size(forms.attention, c.hidden, c.heads * c.value) +
                       size(WeightForm::kBf16, c.heads * (c.nope + c.value), c.kv_lora);
    if (c.q_lora > 0) {
      attention +=
          size(forms.attention, c.q_lora, c.hidden) + size(forms.attention, q_width, c.q_lora);
    } else {
      attention += size(forms.attention, q_width, c.hidden);
    }
    const auto mlp = [&](WeightForm form, int64_t width) {
      return 2 * size(form, width, c.hidden) + size(form, c.hidden, width);
    };
    const double moe = experts * mlp(forms.experts, c.moe_intermediate) +
                       mlp(forms.dense, c.moe_intermediate * c.shared_experts) +
                       size(WeightForm::kBf16, c.experts, c.hidden);
    return c.layers * attention + (c.layers - c.dense_layers) * moe +
           c.dense_layers * mlp(forms.dense, c.intermediate);
  }

  void Start(int64_t sequences, int64_t tokens_each) {
    blocks_each_ = (tokens_each + kBlock - 1) / kBlock;
    positions_.assign(static_cast<size_t>(sequences), 0);
    const K2Config& c = model_->config();
    const int64_t blocks = sequences * blocks_each_;
    const KvForm form = PlainKvForm(model_->ops().act);
    const auto bytes = static_cast<size_t>(blocks * kBlock * KvBytesPerToken(c, form, 1));
    block_ids_.resize(static_cast<size_t>(blocks));
    std::iota(block_ids_.begin(), block_ids_.end(), 0);
    std::shuffle(block_ids_.begin(), block_ids_.end(), random_);
    memory_.clear();
    cache_.clear();
    for (int32_t layer = 0; layer < c.layers; ++layer) {
      memory_.push_back(Buffer::Create(bytes, "benchmark cache").value());
      cache_.push_back({.data = memory_.back().data(),
                        .form = form,
                        .num_blocks = blocks,
                        .latent = c.kv_lora,
                        .rope = c.rope_dim});
    }
  }

  // The next `count` tokens of each of these sequences.
  void Step(const std::vector<int64_t>& sequences, int64_t count, bool absorbed) {
    std::vector<int32_t> tokens;
    std::vector<int32_t> positions;
    std::vector<int64_t> slots;
    std::vector<int32_t> rows;
    std::vector<AttentionSequence> attention;
    for (const int64_t s : sequences) {
      const std::span<const int32_t> blocks =
          std::span<const int32_t>(block_ids_)
              .subspan(static_cast<size_t>(s * blocks_each_), static_cast<size_t>(blocks_each_));
      int64_t& position = positions_[static_cast<size_t>(s)];
      attention.push_back({.query_begin = static_cast<int32_t>(tokens.size()),
                           .query_count = static_cast<int32_t>(count),
                           .first_position = static_cast<int32_t>(position),
                           .absorbed_from = absorbed ? 0 : INT32_MAX,
                           .blocks = blocks,
                           .block_positions = {},
                           .key_count = static_cast<int32_t>(position + count)});
      for (int64_t i = 0; i < count; ++i, ++position) {
        tokens.push_back(static_cast<int32_t>(random_() % static_cast<uint64_t>(options_.vocab)));
        positions.push_back(static_cast<int32_t>(position));
        slots.push_back(blocks[static_cast<size_t>(position / kBlock)] * kBlock +
                        position % kBlock);
      }
      rows.push_back(static_cast<int32_t>(tokens.size()) - 1);
    }
    logits_.resize(rows.size() * static_cast<size_t>(options_.vocab));
    arena_.Reset();
    model_->Forward({.tokens = tokens,
                     .positions = positions,
                     .slots = slots,
                     .sequences = attention,
                     .logits_rows = rows,
                     .override_rows = {},
                     .embedding_overrides = {}},
                    cache_,
                    TensorView(logits_.data(), DType::kF32,
                               {static_cast<int64_t>(rows.size()), options_.vocab}),
                    arena_);
  }

  Options options_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<K2Model> model_;
  std::mt19937 random_{1};
  int64_t blocks_each_ = 0;
  std::vector<int64_t> positions_;
  std::vector<int32_t> block_ids_;
  std::vector<Buffer> memory_;
  std::vector<KvLayerView> cache_;
  std::vector<float> logits_;
  Arena arena_;
};

void Table(StepBench& bench) {
  const double peak = MeasureProductGflops(bench.pool());
  fmt::print("{:<14} {:>9} {:>10} {:>12}\n", "step", "ms", "GB/s", "of reads");
  for (const int64_t batch : {1, 8, 32}) {
    const double before = MeasureReadGbps(bench.pool());
    const double seconds = bench.Decode(batch, 30);
    const double read = (before + MeasureReadGbps(bench.pool())) / 2;
    const double gbps = bench.StepBytes(batch) / seconds * 1e-9;
    fmt::print("decode {:<7} {:>9.2f} {:>10.1f} {:>5.0f}% of {:.1f}\n", batch, seconds * 1e3, gbps,
               100 * gbps / read, read);
  }
  for (const int64_t tokens : {128, 512, 2048}) {
    const double seconds = bench.Prefill(tokens, 5);
    const double gflops = bench.PrefillFlops(tokens) / seconds * 1e-9;
    fmt::print("prefill {:<6} {:>9.2f} {:>7.0f} tokens/s {:>6.0f} GFLOP/s {:>4.0f}% of {:.0f}\n",
               tokens, seconds * 1e3, static_cast<double>(tokens) / seconds, gflops,
               100 * gflops / peak, peak);
  }
}

void Serve(StepBench& bench) {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string what;
    int64_t size = 0;
    int64_t rounds = 0;
    words >> what >> size >> rounds;
    if (what == "decode" && size > 0 && rounds > 0) {
      fmt::print("{{\"seconds\": {:.9f}, \"bytes\": {:.0f}}}\n", bench.Decode(size, rounds),
                 bench.StepBytes(size));
    } else if (what == "prefill" && size > 0 && rounds > 0) {
      fmt::print("{{\"seconds\": {:.9f}, \"flops\": {:.0f}}}\n", bench.Prefill(size, rounds),
                 bench.PrefillFlops(size));
    } else if (what == "read") {
      fmt::print("{{\"gbps\": {:.3f}}}\n", MeasureReadGbps(bench.pool()));
    } else if (what == "peak") {
      fmt::print("{{\"gflops\": {:.3f}}}\n", MeasureProductGflops(bench.pool()));
    } else {
      fmt::print("{{\"error\": \"not a command\"}}\n");
    }
    std::fflush(stdout);
  }
}

int Main(int argc, char** argv) {
  Options options;
  UseIsaOfEnvironment();
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg.starts_with("--layers=")) {
      options.layers = std::atoi(arg.c_str() + 9);
    } else if (arg.starts_with("--vocab=")) {
      options.vocab = std::atoll(arg.c_str() + 8);
    } else if (arg.starts_with("--q-lora=")) {
      options.q_lora = std::atoll(arg.c_str() + 9);
    } else if (arg.starts_with("--threads=")) {
      options.threads = std::atoi(arg.c_str() + 10);
    } else if (arg.starts_with("--form=") && FormsOf(arg.substr(7))) {
      options.form = arg.substr(7);
    } else if (arg == "--serve") {
      options.serve = true;
    } else {
      fmt::print(stderr,
                 "usage: step_bench [--layers=N] [--vocab=N] [--q-lora=N] [--threads=N] "
                 "[--form=bf16|fp8|int4|w4a8] [--serve]\n");
      return 2;
    }
  }
  auto pool = std::make_unique<ThreadPool>(options.threads);
  K2LoadOptions load;
  load.choice = {.format = LoadFormat::kDummy, .quantization = FormsOf(options.form)->quantization};
  auto model = K2Model::Load(Shape(options), "", CpuOps(DType::kBf16), pool.get(), load);
  if (!model.ok()) {
    fmt::print(stderr, "{}\n", model.status().message());
    return 1;
  }
  fmt::print(stderr, "{} threads, {}, {:.2f} GB of weights\n", pool->threads(),
             NameOf(cpu::ActiveIsa()), static_cast<double>(model.value()->weight_bytes()) * 1e-9);
  StepBench bench(options, std::move(pool), std::move(model).value());
  options.serve ? Serve(bench) : Table(bench);
  return 0;
}

}  // namespace
}  // namespace baltoro::bench

int main(int argc, char** argv) {
  return baltoro::bench::Main(argc, argv);
}
