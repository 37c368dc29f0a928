// Operations on rows as a layer of K2 has them, on one rank of eight: microseconds of one in a
// graph of many after each other, so that what a launch costs is seen as a step sees it. Rows lie
// in the L2, as activations do; the router's weights do not. Then sampling: the launch alone, and
// with the copies and the wait. Floor of sampling: each row's bytes over the read bandwidth of the
// same run.
//
// Norms with a sum of many rows: the residual comes from memory (copies take turns at 235 MB of
// it), what was just written lies in the L2 as far as it finds room. Floor: all bytes over the read
// bandwidth of the same run.
//
//   cuda_rows_bench [rows|norms|sample]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "card.h"
#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/rows/rows_test_support.h"
#include "ops/cuda/rows/sample.h"

namespace baltoro::bench {
namespace {

using namespace cuda;             // NOLINT
using namespace cuda::rows_test;  // NOLINT

constexpr int64_t kHidden = 7168, kQueryLora = 1536, kLatent = 512, kRope = 64;
constexpr int64_t kExperts = 384, kVocab = 163840;

double Microseconds(Device& device, int copies, const std::function<void(int)>& one) {
  return 1e6 * Must(MedianSeconds(device.stream(), copies, 15, [&]() -> Status {
           for (int i = 0; i < copies; ++i) one(i);
           return {};
         }));
}

// One line an operation, one column a T.
void TimeRows(Device& device) {
  constexpr int64_t kRowsMax = 256;
  constexpr int kCopies = 24;  // of the router's weights: 132 MB
  std::mt19937_64 random(1);
  const auto filled = [&](DType type, int64_t rows, int64_t width) {
    Tensor tensor(type, rows, width);
    tensor.FillNormal(random, 1);
    return tensor;
  };
  const Tensor residual = filled(DType::kF32, kRowsMax, kHidden);
  const Tensor delta = filled(DType::kF32, kRowsMax, kHidden);
  const Tensor normed = filled(DType::kBf16, kRowsMax, kHidden);
  const Tensor qkv_a = filled(DType::kBf16, kRowsMax, kQueryLora + kLatent + kRope);
  const Tensor q = filled(DType::kBf16, kRowsMax, 64 * 192);
  const Tensor gate_up = filled(DType::kBf16, kRowsMax, 2 * 2048);
  const Tensor gated = filled(DType::kBf16, kRowsMax, 2048);
  const Tensor logits = filled(DType::kF32, kRowsMax, kExperts);
  const Tensor weights(DType::kF32, kRowsMax, 8), ids(DType::kI32, kRowsMax, 8);
  const Tensor codes(DType::kU8, kRowsMax, kHidden), scales(DType::kF32, kRowsMax, kHidden / 128);
  const Tensor bias = filled(DType::kF32, 1, kExperts);
  const Tensor norm = filled(DType::kF32, 1, kHidden);
  const Tensor router = filled(DType::kBf16, kCopies * kExperts, kHidden);
  const Tensor table = filled(DType::kBf16, 1024, kHidden);
  const Tensor turns = filled(DType::kF32, 2, 4096 * kRope / 2);
  const Tensor cache(DType::kI8, 4096, 656);
  Tensor positions = Tensor::Vector(DType::kI32, kRowsMax);
  Tensor slots = Tensor::Vector(DType::kI64, kRowsMax);
  for (int64_t i = 0; i < kRowsMax; ++i) {
    positions.host().as<int32_t>()[i] = static_cast<int32_t>(i * 3);
    slots.host().as<int64_t>()[i] = i * 5;
  }
  positions.ToDevice();
  slots.ToDevice();
  const auto vector = [](const Tensor& tensor, int64_t count) {
    return TensorView(tensor.device().data, DType::kF32, {count});
  };
  const RopeTable rope = {.cos = turns.device().row<float>(0),
                          .sin = turns.device().row<float>(1),
                          .positions = 4096,
                          .dim = kRope};
  const KvLayerView kv = {.data = cache.device().data,
                          .form = KvForm::kFp8Groups,
                          .num_blocks = 64,
                          .latent = kLatent,
                          .rope = kRope};
  const RouterParams params = {.experts = kExperts, .top_k = 8, .scaling = 2.827f};
  const auto heads_of = [](const TensorView& x, int64_t heads, int64_t width) {
    TensorView view = x;
    view.rank = 3;
    view.shape = {x.dim(0), heads, width};
    view.stride = {x.stride[0], width, 1};
    return view;
  };

  struct Line {
    std::string name;
    std::function<void(int, int64_t)> run;
    int64_t rows_max = kRowsMax;
  };
  const OpContext ctx = device.ctx();
  const auto rows_of = [](const Tensor& tensor, int64_t rows) {
    return tensor.device().rows(0, rows);
  };
  const auto some = [](const Tensor& tensor, int64_t rows) {
    TensorView view = tensor.device();
    view.shape[0] = rows;
    return view;
  };
  const auto router_of = [&](int i) {
    return PackedMatrix{
        .data = router.device().row<Bf16>(i % kCopies * kExperts), .n = kExperts, .k = kHidden};
  };
  const TensorView low = qkv_a.device().columns(0, kQueryLora);
  const TensorView latent = qkv_a.device().columns(kQueryLora, kLatent);
  const TensorView key = qkv_a.device().columns(kQueryLora + kLatent, kRope);
  const std::vector<Line> lines = {
      {"embed 7168",
       [&](int, int64_t t) {
         Embed(ctx, rows_of(residual, t), table.device(), some(positions, t), 0);
       }},
      {"rms_norm 7168",
       [&](int, int64_t t) {
         RmsNorm(ctx, rows_of(normed, t), rows_of(residual, t), vector(norm, kHidden), 1e-5f);
       }},
      {"add_rms_norm 7168",
       [&](int, int64_t t) {
         AddRmsNorm(ctx, rows_of(normed, t), rows_of(residual, t), rows_of(delta, t),
                    vector(norm, kHidden), 1e-5f);
       }},
      {"the same to e4m3",
       [&](int, int64_t t) {
         RoundedRows rounded = {
             .codes = codes.device().data, .scales = scales.device().as<float>(), .width = kHidden};
         const Beside with{.rounded = &rounded};
         OpContext norm_ctx = ctx;
         norm_ctx.beside = &with;
         AddRmsNorm(norm_ctx, rows_of(normed, t), rows_of(residual, t), rows_of(delta, t),
                    vector(norm, kHidden), 1e-5f);
       }},
      {"rms_norm 1536",
       [&](int, int64_t t) {
         RmsNorm(ctx, low.rows(0, t), low.rows(0, t), vector(norm, kQueryLora), 1e-6f);
       }},
      {"rms_norm 512",
       [&](int, int64_t t) {
         RmsNorm(ctx, latent.rows(0, t), latent.rows(0, t), vector(norm, kLatent), 1e-6f);
       }},
      {"rope 1 head",
       [&](int, int64_t t) {
         Rope(ctx, heads_of(key.rows(0, t), 1, kRope), some(positions, t), rope);
       }},
      {"rope 8 heads",
       [&](int, int64_t t) {
         Rope(ctx, heads_of(rows_of(q, t), 8, 192).columns(128, kRope), some(positions, t), rope);
       }},
      {"rope 64 heads",
       [&](int, int64_t t) {
         Rope(ctx, heads_of(rows_of(q, t), 64, 192).columns(128, kRope), some(positions, t), rope);
       }},
      {"kv_write",
       [&](int, int64_t t) {
         KvWrite(ctx, kv, latent.rows(0, t), key.rows(0, t), some(slots, t));
       }},
      {"attention_inputs",
       [&](int, int64_t t) {
         AttentionInputs(ctx, {.qkv_a = rows_of(qkv_a, t),
                               .q_norm = vector(norm, kQueryLora),
                               .kv_norm = vector(norm, kLatent),
                               .positions = some(positions, t),
                               .slots = some(slots, t),
                               .rope = rope,
                               .cache = kv,
                               .eps = 1e-6f});
       }},
      {"swiglu 256",
       [&](int, int64_t t) {
         Swiglu(ctx, rows_of(gated, t).columns(0, 256), rows_of(gate_up, t).columns(0, 512));
       }},
      {"swiglu 2048", [&](int, int64_t t) { Swiglu(ctx, rows_of(gated, t), rows_of(gate_up, t)); }},
      {"route 384",
       [&](int, int64_t t) {
         Route(ctx, rows_of(ids, t), rows_of(weights, t), rows_of(logits, t),
               vector(bias, kExperts), params);
       }},
      {"router product",
       [&](int i, int64_t t) {
         const auto plan = PlanRouterRows16(FactsOf(rows_of(normed, t)), FactsOf(router_of(i)));
         RouterProduct(ctx, plan.value(), rows_of(logits, t), rows_of(normed, t), router_of(i));
       },
       16},
      {"router",
       [&](int i, int64_t t) {
         Router(ctx, rows_of(ids, t), rows_of(weights, t), rows_of(logits, t), rows_of(normed, t),
                router_of(i), vector(bias, kExperts), params);
       },
       16},
  };
  std::printf("us of one                 T 1       16       64      256\n");
  for (const Line& line : lines) {
    std::printf("%-20s", line.name.c_str());
    for (const int64_t rows : {1, 16, 64, 256}) {
      if (rows > line.rows_max) continue;
      std::printf(" %8.2f", Microseconds(device, kCopies, [&](int i) { line.run(i, rows); }));
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

void TimeNorms(Device& device) {
  constexpr int64_t kRowsMax = 8192;
  constexpr auto kBytes = static_cast<size_t>(kRowsMax * kHidden * 4);
  const auto filled = [&](const char* name, uint32_t seed) {
    Buffer buffer = Must(Buffer::Create(kBytes, name, CudaMemory()));
    Must(FillRandomBf16(buffer.data(), kBytes / 2, seed, device.stream()));
    return buffer;
  };
  const Buffer residual = filled("residual", 1), delta = filled("delta", 2);
  const Buffer out = filled("rows", 3), beside = filled("ordered or codes", 4);
  const Buffer weight = filled("weight", 5), scales = filled("scales", 6);
  const double bandwidth = Must(ReadBandwidth(delta.data(), kBytes, device.stream()));
  struct Line {
    const char* name;
    DType delta;
    bool orders, quantises;
  };
  const Line lines[] = {{"delta f32", DType::kF32, false, false},
                        {"delta f32, ordered", DType::kF32, true, false},
                        {"delta f32, e4m3", DType::kF32, false, true},
                        {"delta bf16", DType::kBf16, false, false},
                        {"delta bf16, ordered", DType::kBf16, true, false},
                        {"delta bf16, e4m3", DType::kBf16, false, true}};
  constexpr int64_t kCounts[] = {16, 64, 128, 256, 512, 1024, 2048, 4096, 8192};
  std::printf("norms with a sum: us and of the floor (read bandwidth %.2f TB/s)\n%-22s",
              bandwidth * 1e-12, "rows");
  for (const int64_t rows : kCounts) std::printf(" %12d", static_cast<int>(rows));
  std::printf("\n");
  for (const Line& line : lines) {
    std::printf("%-22s", line.name);
    for (const int64_t rows : kCounts) {
      const int copies = static_cast<int>(std::max<int64_t>(4, kRowsMax / rows));
      const auto view = [&](const Buffer& buffer, DType type, int64_t begin = 0) {
        return TensorView(static_cast<char*>(buffer.data()) + begin * kHidden * SizeOf(type), type,
                          {rows, kHidden});
      };
      const double us = Microseconds(device, copies, [&](int i) {
        OrderedRows ordered = {.data = beside.data()};
        RoundedRows rounded = {
            .codes = beside.data(), .scales = static_cast<float*>(scales.data()), .width = kHidden};
        OpContext ctx = device.ctx();
        const Beside with{.rounded = line.quantises ? &rounded : nullptr,
                          .ordered = line.orders ? &ordered : nullptr};
        ctx.beside = &with;
        AddRmsNorm(ctx, view(out, DType::kBf16), view(residual, DType::kF32, i * rows % kRowsMax),
                   view(delta, line.delta), TensorView(weight.data(), DType::kF32, {kHidden}),
                   1e-5f);
      });
      const int64_t element = 4 + 4 + SizeOf(line.delta) + 2 + (line.orders ? 2 : 0);
      const int64_t bytes =
          rows * kHidden * element + (line.quantises ? rows * (kHidden + kHidden / 128 * 4) : 0);
      std::printf(" %7.2f %3.0f%%", us, 1e8 * static_cast<double>(bytes) / bandwidth / us);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

struct Kind {
  const char* name;
  SampleRow row;
  bool lists = false;
};

void TimeSampling(Device& device) {
  constexpr int64_t kRowsMax = 256;
  const Buffer big = Must(Buffer::Create(size_t{4} << 30, "what is read", CudaMemory()));
  const double bandwidth = Must(ReadBandwidth(big.data(), big.bytes(), device.stream()));
  std::printf("sampling, vocabulary %d, read bandwidth %.2f TB/s\n", static_cast<int>(kVocab),
              bandwidth * 1e-12);
  const Kind kinds[] = {
      {"greedy", {.temperature = 0}},
      {"temperature 1", {}},
      {"top_p 0.95 T 0.6", {.temperature = 0.6f, .top_p = 0.95f}},
      {"top_k 50", {.top_k = 50}},
      {"min_p 0.02", {.min_p = 0.02f}},
      {"greedy, logprobs 20", {.temperature = 0, .top_logprobs = 20}},
      {"penalties of 8192", {.temperature = 0, .repetition_penalty = 1.1f}, true}};
  std::mt19937_64 random(2);
  std::normal_distribution<float> normal(0, 1);
  std::vector<int32_t> output(8192);
  for (int32_t& id : output) id = static_cast<int32_t>(random() % kVocab);
  for (const bool flat : {false, true}) {
    Tensor logits(DType::kF32, kRowsMax, kVocab);
    for (int64_t i = 0; i < kRowsMax; ++i) {
      for (int64_t id = 0; id < kVocab; ++id) {
        // Like a model's: a hundred ids that may come, and the others.
        const bool likely = !flat && (id + i) % 1600 == 7;
        logits.Set(i, id, likely ? 14 + 3 * normal(random) : 2.5f * normal(random));
      }
    }
    logits.ToDevice();
    std::printf("%-24s us, us a row, of the floor; with copies and wait\n",
                flat ? "flat normal logits" : "logits like a model's");
    for (const Kind& kind : kinds) {
      std::printf("%-24s", kind.name);
      for (const int64_t count : {1, 64, 256}) {
        std::vector<SampleRow> rows(static_cast<size_t>(count), kind.row);
        for (size_t i = 0; i < rows.size(); ++i) {
          rows[i].logits_row = static_cast<int32_t>(i);
          rows[i].seed = i;
          if (kind.lists) rows[i].output = output;
        }
        device.scratch().Reset();
        const SampleShape shape = SampleShapeOf(rows, kVocab);
        std::vector<char> packed(shape.want_bytes());
        PackSample(rows, kVocab, shape, packed.data());
        void* const wants = device.scratch().Allocate(packed.size());
        void* const answers = device.scratch().Allocate(shape.answer_bytes());
        Must(CudaMemory().CopyIn(wants, packed.data(), packed.size()));
        const double us = Microseconds(device, 4, [&](int) {
          LaunchSample(
              device.ctx(),
              {.logits = logits.device(), .shape = shape, .wants = wants, .answers = answers});
        });
        std::vector<SampleResult> results(rows.size());
        std::vector<double> whole;
        for (int run = 0; run < 12; ++run) {
          device.scratch().Reset();
          device.staging().Reset();
          const auto begin = std::chrono::steady_clock::now();
          Sample(device.ctx(), logits.device(), rows, results);
          whole.push_back(
              std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
                  .count());
        }
        std::ranges::sort(whole);
        const double floor = 1e6 * static_cast<double>(count * kVocab * 4) / bandwidth;
        std::printf(" | %3d: %7.1f %6.2f %3.0f%% %7.1f", static_cast<int>(count), us,
                    us / static_cast<double>(count), 100 * floor / us, whole[whole.size() / 2]);
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
}

int Run(int argc, char** argv) {
  const auto wanted = [&](const char* part) {
    return argc <= 1 || std::strcmp(argv[1], part) == 0;
  };
  Device device;
  if (wanted("rows")) TimeRows(device);
  if (wanted("norms")) TimeNorms(device);
  if (wanted("sample")) TimeSampling(device);
  return 0;
}

}  // namespace
}  // namespace baltoro::bench

int main(int argc, char** argv) {
  return baltoro::bench::Run(argc, argv);
}
