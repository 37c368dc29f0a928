// The attention half of a layer in one launch (resident_attention.h) against the reference
// of its operations, and beside the launches that it joins; alone, and several layers in a row as a
// decode step queues and records them.

#include <array>

#include "ops/cuda/attention/layer/resident_attention_test_case.h"

namespace baltoro::cuda {
namespace {

using namespace resident_test;

// The product takes the launches of their own there.
void SkipWhereNeverTaken() {
  int device = 0, count = 0;
  CheckCuda(cudaGetDevice(&device), "cudaGetDevice");
  CheckCuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
            "cudaDeviceGetAttribute");
  if (count == 132) return;
  ::baltoro::testing::SkipCase("not taken by a GPU of " + std::to_string(count) +
                               " multiprocessors");
}

void Compare(const std::vector<Step>& steps,
             const FormCase& form = kBf16,
             KvForm cache = KvForm::kBf16) {
  SkipWhereNeverTaken();
  const Layer layer(form, cache);
  Context context;
  Arena staging(PinnedMemory());
  for (Step step : steps) {
    if (layer.coded()) step.before = step.behind = false;
    Case one(layer, step);
    const std::vector<float> of_launches = one.Run(context, staging, false);
    const double apart = one.Error(of_launches);
    const std::vector<float> first = one.Run(context, staging, true);
    const double error = one.Error(first);
    // Roundings to e4m3 hide smaller errors from the reference, which rounds other numbers.
    if (layer.coded() && !(one.Difference(first, of_launches) <= 8e-3)) {
      Fail(std::string(step.name) + ": too far from the launches of their own");
    }
    std::printf("  %s: error %.2e, as launches of their own %.2e, from these %.2e\n", step.name,
                error, apart, one.Difference(first, of_launches));
    // As many roundings to bf16, most at the same places.
    if (!(error <= 1.3 * apart + 1e-4)) Fail(std::string(step.name) + ": too far from reference");
    const std::vector<float> second = one.Run(context, staging, true);
    if (std::memcmp(first.data(), second.data(), first.size() * 4) != 0 && step.nan_row < 0) {
      Fail(std::string(step.name) + ": other bits in a second run");
    }
  }
}

GPU_TEST(ResidentAttentionTest, OneToken) {
  Compare({{"100 keys", {100}}});
}

GPU_TEST(ResidentAttentionTest, RowsOfSomeLengths) {
  Compare({{"a first key", {1}},
           {"no norms, 3 rows", {64, 65, 3}, false, false},
           {"padding", {130, 0, 31, 0}},
           {"8 rows", {200, 1, 64, 63, 129, 7, 300, 90}},
           {"NaN in a row", {70, 40}, true, true, 0}});
}

// e4m3 weights, on the way from qkv_a to o as without them but for what is rounded on it.
GPU_TEST(ResidentAttentionTest, CodedOneToken) {
  Compare({{"a first key", {1}}, {"100 keys", {100}}}, kFp8, KvForm::kFp8);
}

GPU_TEST(ResidentAttentionTest, CodedLongContexts) {
  // A part has room for three blocks: from 16,897 keys on it fills it, from 25,345 on again.
  Compare({{"32 blocks", {2048}},
           {"33 blocks", {2049}},
           {"10000 keys", {10000}},
           {"three blocks a part", {17000}},
           {"four", {33000}}},
          kFp8, KvForm::kFp8);
}

GPU_TEST(ResidentAttentionTest, CodedWithPlainKeys) {
  Compare({{"100 keys", {100}}, {"9000 keys", {9000}}}, kFp8);
}

GPU_TEST(ResidentAttentionTest, LongContexts) {
  Compare({{"10000 keys", {10000}}, {"more blocks than parts", {4000, 5000, 100, 700, 2000}}});
}

// Three layers of a decode step, queued without a wait, with ordinary kernels between them: norms
// on both sides of the first, before the second, behind the third. With e4m3 weights a norm of its
// own behind each, which writes the next one's codes.
class Layers {
 public:
  static constexpr int kCount = 3;
  using Errors = std::array<double, kCount>;

  Layers(const Layer& layer, const Step& step)
      : layer_(layer), cases_(CasesOf(step)), rows_(cases_[0]->rows()) {
    std::vector<int32_t> ids(static_cast<size_t>(rows_));
    std::iota(ids.begin(), ids.end(), 0);
    ids_ = OnDevice(ids);
    for (int i = 0; i < kCount; ++i) {
      memory_.emplace_back(layer, rows_, cases_[0]->num_blocks());
      sums_.push_back(LayerMemory::Nothing(rows_ * kHidden * 4));
    }
    if (!layer.coded()) memory_[1].before = memory_[0].behind;
    memory_[2].behind.residual = memory_[0].behind.residual;
  }

  // Lengths, rows and keys to where they were before: as many rows, a cache as large.
  void Upload(const Step& step) {
    cases_ = CasesOf(step);
    for (int i = 0; i < kCount; ++i) cases_[i]->Upload(memory_[i]);
    if (layer_.coded()) cases_[0]->RoundX(context_, memory_[0]);
    for (const Buffer& sum : sums_) {
      Overwrite(sum, std::vector<float>(static_cast<size_t>(rows_ * kHidden), kNaN));
    }
    const AttentionPlanArgs args = cases_[0]->PlanArgs();
    plan_ = Plan(context_, staging_, plan_memory_, args);
    GPU_EXPECT(plan_->sequences.block_positions != nullptr);
    GPU_EXPECT_EQ(plan_->sequences.table_stride, args.blocks_max);
  }

  void Queue(bool resident) {
    const TensorView residual = memory_[0].before.residual;
    const TensorView ids(ids_.data(), DType::kI32, {rows_});
    for (int i = 0; i < kCount; ++i) {
      const AttentionLayerArgs args = cases_[i]->Args(memory_[i], plan_);
      OpContext ctx = context_.get();
      const Beside with{.rounded = layer_.coded() ? &memory_[i].rounded : nullptr};
      ctx.beside = &with;
      if (!resident) {
        Apart(context_, args, with.rounded);
      } else if (!AttentionLayer(ctx, args)) {
        Fail("not taken");
      }
      if (layer_.coded()) {
        OpContext next = context_.get();
        Beside ahead;
        next.beside = &ahead;
        TensorView x = memory_[i].behind.rows;
        if (i + 1 < kCount) {
          x = memory_[i + 1].before.rows;
          ahead.rounded = &memory_[i + 1].rounded;
        }
        AddRmsNorm(next, x, residual, args.out, memory_[0].before.weight, kEps);
      } else if (i == 1) {
        AddRmsNorm(context_.get(), memory_[2].before.rows, residual, args.out,
                   memory_[0].before.weight, kEps);
      }
      GatherRows(context_.get(), OnCard(sums_[i], DType::kF32, rows_, kHidden), residual, ids);
    }
  }
  std::unique_ptr<OpGraph> Record() {
    return Capture(context_.get(), [&] { Queue(true); });
  }
  void Replay(const OpGraph& graph) { graph.Launch(context_.get()); }

  // Waits, and compares each layer with the reference for what the layer ahead gave to it.
  Errors Finish() {
    context_.Wait();
    const auto size = static_cast<size_t>(rows_ * kHidden);
    std::vector<float> before = cases_[0]->residual();
    Errors errors;
    made_.clear();
    for (int i = 0; i < kCount; ++i) {
      Made made = cases_[i]->Read(memory_[i]);
      made.residual = FromDevice<float>(sums_[i].data(), size);
      if (layer_.coded()) {
        if (i > 0) cases_[i]->Give(FromDevice<Bf16>(memory_[i].x.data(), size), made_[0].squares);
        ExpectSum(before, made);
      } else if (i == 1) {
        cases_[i]->Give(made_[0].rows, made_[0].squares);
        ExpectSum(before, made);
      } else {
        if (i == 2) cases_[i]->Give(FromDevice<Bf16>(memory_[i].x.data(), size), made_[0].squares);
        for (size_t at = 0; at < size; ++at) made.delta[at] = made.residual[at] - before[at];
      }
      cases_[i]->Expect(made);
      errors[i] = cases_[i]->Error(made.delta);
      before = made.residual;
      made_.push_back(std::move(made));
    }
    return errors;
  }

  const std::vector<Made>& made() const { return made_; }

 private:
  using Cases = std::array<std::unique_ptr<Case>, kCount>;

  Cases CasesOf(Step step) const {
    static constexpr const char* kNames[kCount] = {"layer 0", "layer 1", "layer 2"};
    Cases cases;
    for (int i = 0; i < kCount; ++i) {
      step.name = kNames[i];
      step.before = !layer_.coded() && i < 2;
      step.behind = !layer_.coded() && i != 1;
      step.seed += 100;
      cases[i] = std::make_unique<Case>(layer_, step);
    }
    return cases;
  }

  // The norm's kernel behind the second layer read all that it wrote.
  void ExpectSum(const std::vector<float>& before, const Made& made) const {
    for (size_t at = 0; at < before.size(); ++at) {
      if (!cases_[1]->Counts(static_cast<int64_t>(at) / kHidden)) continue;
      if (made.residual[at] == before[at] + made.delta[at]) continue;
      return Fail("another sum at " + std::to_string(at));
    }
  }

  const Layer& layer_;
  Context context_;
  Arena staging_{PinnedMemory()}, plan_memory_{CudaMemory()};
  Cases cases_;  // of the layers
  const int64_t rows_;
  Buffer ids_;
  std::vector<LayerMemory> memory_;
  std::vector<Buffer> sums_;  // the residual behind each layer
  std::vector<Made> made_;
  const AttentionPlan* plan_ = nullptr;
};

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}
bool SameBits(const Made& a, const Made& b) {
  return SameBits(a.residual, b.residual) && SameBits(a.squares, b.squares) &&
         SameBits(a.delta, b.delta) && SameBits(a.rows, b.rows) && SameBits(a.cache, b.cache);
}
bool SameBits(const std::vector<Made>& a, const std::vector<Made>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Made& one, const Made& other) { return SameBits(one, other); });
}

// As a recorded step is planned: room for longer sequences than there are.
constexpr int64_t kBlocksMax = 9, kCacheBlocks = 12;
// Twice what the launches of their own are off by.
constexpr double kReplayError = 1e-2, kCodedReplayError = 6e-2;

void CompareLayers(const Layer& layer, const std::vector<int32_t>& keys) {
  SkipWhereNeverTaken();
  const Step step{
      .name = "layers", .keys = keys, .blocks_max = kBlocksMax, .cache_blocks = kCacheBlocks};
  Layers layers(layer, step);
  layers.Upload(step);
  layers.Queue(false);
  const Layers::Errors apart = layers.Finish();
  layers.Upload(step);
  layers.Queue(true);
  const Layers::Errors errors = layers.Finish();
  for (int i = 0; i < Layers::kCount; ++i) {
    std::printf("  layer %d: error %.2e, as launches of their own %.2e\n", i, errors[i], apart[i]);
    GPU_EXPECT_LE(errors[i], 1.3 * apart[i] + 1e-4);
  }
}

// Replays of one recording, and the launches themselves beside each.
void CompareReplays(const Layer& layer, const std::vector<std::vector<int32_t>>& lengths) {
  SkipWhereNeverTaken();
  Step step{
      .name = "layers", .keys = lengths[0], .blocks_max = kBlocksMax, .cache_blocks = kCacheBlocks};
  Layers layers(layer, step);
  std::unique_ptr<OpGraph> graph;
  for (const std::vector<int32_t>& keys : lengths) {
    step.keys = keys;
    step.seed += 1000;
    layers.Upload(step);
    layers.Queue(true);
    layers.Finish();
    const std::vector<Made> direct = layers.made();
    if (graph == nullptr) graph = layers.Record();
    layers.Upload(step);
    layers.Replay(*graph);
    for (const double error : layers.Finish()) {
      std::printf("  %d keys and others: error %.2e\n", keys[0], error);
      GPU_EXPECT_LE(error, layer.coded() ? kCodedReplayError : kReplayError);
    }
    if (!SameBits(direct, layers.made())) Fail("a replay has other bits than launches");
  }
}

GPU_TEST(ResidentAttentionTest, LayersInARowOfOneToken) {
  CompareLayers(Layer(), {70});
}

GPU_TEST(ResidentAttentionTest, LayersInARowOfSomeTokens) {
  CompareLayers(Layer(), {130, 0, 64});
}

GPU_TEST(ResidentAttentionTest, AGraphOfLayersOfOneToken) {
  CompareReplays(Layer(), {{70}, {1}, {200}});
}

GPU_TEST(ResidentAttentionTest, AGraphOfLayersOfSomeTokens) {
  CompareReplays(Layer(), {{130, 0, 64}, {1, 300, 65}, {0, 129, 2}});
}

GPU_TEST(ResidentAttentionTest, CodedLayersInARow) {
  CompareLayers(Layer(kFp8, KvForm::kFp8), {130});
  CompareLayers(Layer(kFp8), {70});
}

GPU_TEST(ResidentAttentionTest, AGraphOfCodedLayers) {
  CompareReplays(Layer(kFp8, KvForm::kFp8), {{70}, {1}, {200}});
  CompareReplays(Layer(kFp8), {{130}, {1}, {65}});
}

GPU_TEST(ResidentAttentionTest, LeavesWhatItDoesNotTake) {
  const Layer layer;
  Context context;
  Arena staging(PinnedMemory()), plan_memory(CudaMemory());
  const auto left = [&](const char* what, const std::vector<int32_t>& keys, auto change) {
    const Case one(layer, {.name = what, .keys = keys, .blocks_max = kBlocksMax});
    const LayerMemory memory(layer, one.rows(), one.num_blocks());
    one.Upload(memory);
    const Made before = one.Read(memory);
    AttentionPlanArgs plan = one.PlanArgs();
    AttentionLayerArgs args = one.Args(memory, nullptr);
    std::vector<AttentionSequence> sequences = one.sequences();
    change(plan, args, sequences);
    plan.sequences = args.attention.sequences = sequences;
    args.attention.plan = Plan(context, staging, plan_memory, plan);
    const bool taken = AttentionLayer(context.get(), args);
    context.Wait();
    if (taken) return true;
    if (!SameBits(one.Read(memory), before)) Fail(std::string(what) + ": written to");
    return false;
  };
  using Plans = AttentionPlanArgs;
  using Args = AttentionLayerArgs;
  using Sequences = std::vector<AttentionSequence>;
  GPU_EXPECT(!left("9 rows", std::vector<int32_t>(9, 3), [](Plans&, Args&, Sequences&) {}));
  GPU_EXPECT(!left("an fp8 cache", {70, 3}, [](Plans& plan, Args& args, Sequences&) {
    plan.form = args.inputs.cache.form = args.attention.cache.form = KvForm::kFp8;
  }));
  GPU_EXPECT(!left("two query tokens", {70, 70}, [](Plans&, Args&, Sequences& sequences) {
    sequences.pop_back();
    sequences[0].query_count = 2;
    --sequences[0].first_position;
  }));
  GPU_EXPECT(!left("16 heads", {70, 3}, [](Plans& plan, Args& args, Sequences&) {
    plan.heads = args.attention.heads = 2 * kHeads;
    args.inputs.q.shape[1] *= 2;
    args.inputs.q_weight.n *= 2;
    args.attention.uk_t.count *= 2;
    args.attention.kv_b.n *= 2;
    args.o.k *= 2;
  }));
  GPU_EXPECT(!left("keys in parts of 4 blocks", {70, 3},
                   [](Plans& plan, Args&, Sequences&) { plan.part_blocks = 4; }));
  const Layer coded(kFp8, KvForm::kFp8);
  const auto takes_coded = [&](const std::vector<int32_t>& keys, bool with_codes) {
    const Case one(coded, {.name = "coded", .keys = keys, .before = false, .behind = false});
    LayerMemory memory(coded, one.rows(), one.num_blocks());
    one.Upload(memory);
    OpContext ctx = context.get();
    const Beside with{.rounded = &memory.rounded};
    if (with_codes) {
      one.RoundX(context, memory);
      ctx.beside = &with;
    }
    const bool taken =
        AttentionLayer(ctx, one.Args(memory, Plan(context, staging, plan_memory, one.PlanArgs())));
    context.Wait();
    return taken;
  };
  GPU_EXPECT(!takes_coded({70}, false));
  GPU_EXPECT(!takes_coded({70, 3}, true));  // several rows: the launches of their own are faster
  SkipWhereNeverTaken();
  GPU_EXPECT(left("nothing else", {70, 3}, [](Plans&, Args&, Sequences&) {}));
}

}  // namespace
}  // namespace baltoro::cuda

int main(int argc, char** argv) {
  return baltoro::testing::RunGpuCases(argc, argv, baltoro::UsableDeviceCount());
}
