// Joined operations of steps of few rows (bf16_rows16.h, bf16_rows128.h, combine_with_shared.cu)
// against the reference of what they join. Tolerances as in linear_test.cc and expert_bank_test.cc:
// f32 sums of bf16 products, results in bf16 off by half a unit or, after a rounding between, by
// one.

#include <algorithm>
#include <numeric>

#include "device/cuda/device_info.h"
#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/experts/expert_bank.h"
#include "ops/cuda/launch/card.h"
#include "ops/cuda/linear/bf16_rows128.h"
#include "ops/cuda/linear/bf16_rows16.h"
#include "ops/cuda/linear/tiles/tiles.h"
#include "ops/cuda/linear/tiles/tiles_test_support.h"

namespace baltoro::cuda {
namespace {

using namespace product_test;

constexpr FormCase kBf16{"bf16", WeightForm::kBf16};
constexpr FormCase kInt4{"int4 group", WeightForm::kInt4Group};
constexpr FormCase kFp8{"fp8 w8a8", WeightForm::kFp8Block, true};

std::vector<float> Floats(const std::vector<Bf16>& values) {
  std::vector<float> floats;
  for (const Bf16 value : values) floats.push_back(ToFloat(value));
  return floats;
}

TensorView View(const Buffer& buffer, DType type, int64_t rows, int64_t width) {
  return TensorView(buffer.data(), type, {rows, width});
}

void CompareMoeInputs(Context& context, const FormCase& form) {
  struct Shape {
    int64_t shared, experts, hidden;
    int32_t top_k;
  };
  for (const Shape& s : {Shape{256, 384, 7168, 8}, Shape{32, 16, 256, 4}, Shape{40, 24, 1312, 2}}) {
    const Weights gate_up(1, form, 1, 2 * s.shared, s.hidden),
        router(2, kBf16, 1, s.experts, s.hidden);
    const std::vector<float> bias(static_cast<size_t>(s.experts), 0.1f);
    const Buffer bias_memory = OnDevice(bias);
    for (const int64_t rows : {1, 3, 5, 8, 9, 16, 17, 64, 100, 129, 256, 257, 400, 513}) {
      if (rows == 400 && (form.form != WeightForm::kBf16 || s.hidden == 7168)) continue;
      // The borders of what e4m3 weights have at hundreds of rows.
      const bool border = rows == 256 || rows == 257 || rows == 513;
      if (border && (!form.quantise_input || s.hidden != 7168)) continue;
      for (const int64_t nan_row : {-1, 0}) {
        if (nan_row == 0 && (rows == 1 || border)) continue;
        const Rows x(static_cast<uint32_t>(rows), rows, s.hidden, 8, nan_row);
        const Buffer shared = OnDevice(std::vector<Bf16>(static_cast<size_t>(rows * 2 * s.shared)));
        const Buffer logits = OnDevice(std::vector<float>(static_cast<size_t>(rows * s.experts)));
        const size_t chosen = static_cast<size_t>(rows * s.top_k);
        const Buffer ids = OnDevice(std::vector<int32_t>(chosen, -9));
        const Buffer weights = OnDevice(std::vector<float>(chosen, kNaN));
        const RouterParams params{.experts = static_cast<int32_t>(s.experts), .top_k = s.top_k};
        const TensorView bias_view(bias_memory.data(), DType::kF32, {s.experts});
        const MoeInputArgs args{.shared = View(shared, DType::kBf16, rows, 2 * s.shared),
                                .ids = View(ids, DType::kI32, rows, s.top_k),
                                .weights = View(weights, DType::kF32, rows, s.top_k),
                                .logits = View(logits, DType::kF32, rows, s.experts),
                                .x = x.device(),
                                .shared_gate_up = gate_up.device,
                                .router = router.device,
                                .bias = bias_view,
                                .params = params};
        OpContext ctx = context.get();
        RoundedRows rounded;
        Beside with;
        const bool coded = form.quantise_input && s.hidden % 128 == 0 && rows != 3 && nan_row < 0;
        if (coded) {
          // As after a norm that wrote the codes of its rows.
          const QuantisedRows codes =
              QuantiseRows(ctx, {.x = args.x.data, .stride = x.stride, .rows = rows, .k = s.hidden},
                           gate_up.device);
          rounded = {.codes = const_cast<void*>(codes.x),
                     .scales = const_cast<float*>(codes.x_scales),
                     .width = s.hidden,
                     .of = args.x.data,
                     .rows = rows,
                     .stride = x.stride};
          with.rounded = &rounded;
          ctx.beside = &with;
        }
        const int64_t most = s.hidden == 256 ? 8 : coded ? 7 : 2;  // rows
        const ExpertInputsPlan plan = ChooseExpertInputs(QuestionOf(ctx, args), ThisCard());
        const auto together = [&](LinearKernel kernel) {
          return plan.order == ExpertInputsOrder::kTogether && plan.shared.kernel == kernel;
        };
        GPU_EXPECT(together(LinearKernel::kFp8Rows16) ==
                   (form.quantise_input && s.hidden % 128 == 0 && rows <= most));
        GPU_EXPECT(together(LinearKernel::kFp8Rows256) ==
                   (form.quantise_input && s.hidden % 128 == 0 && rows > 8 &&
                    (rows <= 64 || s.hidden == 256)));
        // Of 9 to 16 rows, which MoeInputs gives to bf16_rows128.h, both kernels by turns.
        const auto few =
            PlanBf16Rows16(FactsOf(args.x), FactsOf(args.shared_gate_up), FactsOf(args.shared),
                           FactsOf(args.router), FactsOf(args.logits), ThisCard());
        if (few && (rows < kBf16Rows128Min || nan_row < 0)) {
          Bf16Rows16Products(ctx, *few, args.shared, args.shared_gate_up, args.logits, args.router,
                             args.x);
          Route(ctx, args.ids, args.weights, args.logits, args.bias, args.params);
        } else {
          MoeInputs(ctx, args);
        }
        context.Wait();
        const std::string what = std::string(form.name) + " H " + std::to_string(s.hidden) + " T " +
                                 std::to_string(rows) + (nan_row >= 0 ? " NaN" : "");
        std::vector<float> want(static_cast<size_t>(rows * 2 * s.shared));
        ReferenceSmallOps().linear({}, TensorView(want.data(), DType::kF32, {rows, 2 * s.shared}),
                                   x.reference(), gate_up.reference);
        // The matrix units add more than 8 rows of e4m3 with about 13 bits.
        const float off = form.quantise_input && rows > 8 ? 5e-3f : 1e-4f;
        ExpectNear(what + " shared", Floats(FromDevice<Bf16>(shared.data(), want.size())), want,
                   2 * s.shared, off, 0x1p-8f, off / 5);
        std::vector<float> scores(static_cast<size_t>(rows * s.experts));
        const TensorView score_view(scores.data(), DType::kF32, {rows, s.experts});
        ReferenceSmallOps().linear({}, score_view, x.reference(), router.reference);
        const auto got_logits = FromDevice<float>(logits.data(), scores.size());
        ExpectNear(what + " logits", got_logits, scores, s.experts, 1e-4f, 0, 2e-5f);
        // Choices hang on last bits: those of the logits that came out.
        std::vector<int32_t> want_ids(chosen);
        std::vector<float> want_weights(chosen);
        ReferenceSmallOps().route(
            {}, TensorView(want_ids.data(), DType::kI32, {rows, s.top_k}),
            TensorView(want_weights.data(), DType::kF32, {rows, s.top_k}),
            TensorView(const_cast<float*>(got_logits.data()), DType::kF32, {rows, s.experts}),
            TensorView(const_cast<float*>(bias.data()), DType::kF32, {s.experts}), params);
        const auto got_ids = FromDevice<int32_t>(ids.data(), chosen);
        for (size_t i = 0; i < chosen; ++i) {
          if (static_cast<int64_t>(i) / s.top_k == nan_row || got_ids[i] == want_ids[i]) continue;
          Fail(what + ": choice " + std::to_string(i) + " got " + std::to_string(got_ids[i]) +
               " want " + std::to_string(want_ids[i]));
          break;
        }
      }
    }
  }
}

void CompareQueries(Context& context, const FormCase& form) {
  const bool rounds = form.quantise_input;
  constexpr int64_t kPositions = 300;
  struct Shape {
    int64_t heads, nope, rope, q_lora, latent;
  };
  for (const Shape& s : {Shape{8, 128, 64, 1536, 512}, Shape{2, 128, 64, 256, 512},
                         Shape{4, 16, 8, 288, 64}, Shape{4, 128, 64, 96, 512}}) {
    const int64_t head = s.nope + s.rope, width = s.heads * head, pairs = s.rope / 2;
    const int64_t inputs = s.q_lora + s.latent + s.rope;
    const Weights w(5, form, 1, width, s.q_lora);
    std::mt19937 random(3);
    const auto draw = [&](int64_t count) {
      std::vector<float> values;
      for (int64_t i = 0; i < count; ++i) {
        values.push_back(static_cast<float>(random() % 2048) / 1024 - 1);
      }
      return values;
    };
    const std::vector<float> table = draw(2 * kPositions * pairs), q_norm = draw(s.q_lora),
                             kv_norm = draw(s.latent);
    const Buffer table_memory = OnDevice(table), q_norm_memory = OnDevice(q_norm),
                 kv_norm_memory = OnDevice(kv_norm);
    for (const int64_t rows : {1, 3, 8, 13, 16, 17, 50, 65, 150, 230, 520}) {
      // Of many rows a warp makes the codes of one.
      if (rows > 150 && (!rounds || (rows > 256 && s.heads != 8))) continue;
      for (const int64_t nan_row : {-1, 1}) {
        if (nan_row >= rows) continue;
        const Rows x(static_cast<uint32_t>(rows), rows, inputs, 8, nan_row);
        std::vector<int32_t> positions;
        std::vector<int64_t> slots;
        for (int64_t i = 0; i < rows; ++i) {
          positions.push_back(static_cast<int32_t>(random() % kPositions));
          slots.push_back(i == 2 ? -1 : i * 3);  // the third is padding
        }
        const Buffer positions_memory = OnDevice(positions), slots_memory = OnDevice(slots);
        const int64_t blocks = rows * 3 / 64 + 1;
        const auto cached = static_cast<size_t>(blocks * 64 * (s.latent + s.rope));
        const Buffer caches[2] = {OnDevice(std::vector<Bf16>(cached, ToBf16(2.0f))),
                                  OnDevice(std::vector<Bf16>(cached, ToBf16(2.0f)))};
        const Buffer q =
            OnDevice(std::vector<Bf16>(static_cast<size_t>(rows * width), ToBf16(kNaN)));
        const Buffer copy = OnDevice(x.host);
        bool divides_later = false;
        for (int run = 0; run < 2; ++run) {
          AttentionInputArgs args{
              .qkv_a = run == 0 ? x.device() : x.View(copy.data()),
              .q_norm = TensorView(q_norm_memory.data(), DType::kF32, {s.q_lora}),
              .kv_norm = TensorView(kv_norm_memory.data(), DType::kF32, {s.latent}),
              .positions = TensorView(positions_memory.data(), DType::kI32, {rows}),
              .slots = TensorView(slots_memory.data(), DType::kI64, {rows}),
              .rope = {.cos = static_cast<const float*>(table_memory.data()),
                       .sin = static_cast<const float*>(table_memory.data()) + kPositions * pairs,
                       .positions = kPositions,
                       .dim = s.rope},
              .cache = {.data = caches[run].data(),
                        .form = KvForm::kBf16,
                        .num_blocks = blocks,
                        .latent = s.latent,
                        .rope = s.rope},
              .eps = 1e-5f};
          if (run == 0) {
            args.q = TensorView(q.data(), DType::kBf16, {rows, s.heads, head});
            args.q_weight = w.device;
            const AttentionInputsPlan plan = ChooseAttentionInputs(QuestionOf(args), ThisCard());
            const bool joined = plan.kernel == AttentionInputsKernel::kWithQueries;
            const LinearKernel kernel = plan.query.kernel;
            divides_later = joined && kernel == LinearKernel::kBf16Rows16;
            GPU_EXPECT(divides_later == (!rounds && rows <= 16 && s.q_lora >= 256));
            const bool coded = rounds && s.q_lora % 128 == 0;
            GPU_EXPECT((joined && kernel == LinearKernel::kFp8Rows16) == (coded && rows <= 8));
            GPU_EXPECT((plan.rotates && kernel == LinearKernel::kFp8Rows256) ==
                       (coded && rows > 8 && rows <= 256));
          }
          AttentionInputs(context.get(), args);
        }
        context.Wait();
        const std::string what = std::string(form.name) + " q_lora " + std::to_string(s.q_lora) +
                                 " heads " + std::to_string(s.heads) + " T " +
                                 std::to_string(rows) + (nan_row >= 0 ? " NaN" : "");
        const auto joined = FromDevice<Bf16>(caches[0].data(), cached);
        const auto parted = FromDevice<Bf16>(caches[1].data(), cached);
        if (std::memcmp(joined.data(), parted.data(), cached * 2) != 0) {
          Fail(what + ": another cache");
        }
        // The reference, rounded to bf16 where the operations are: the joined one multiplies with
        // the norm's weight, rounds, and divides by the root what comes out.
        std::vector<Bf16> low;
        std::vector<double> later;
        for (int64_t t = 0; t < rows; ++t) {
          const Bf16* row = &x.host[static_cast<size_t>(t * x.stride)];
          double squares = 0;
          for (int64_t c = 0; c < s.q_lora; ++c)
            squares += double{ToFloat(row[c])} * ToFloat(row[c]);
          const double scale = 1 / std::sqrt(squares / static_cast<double>(s.q_lora) + 1e-5);
          for (int64_t c = 0; c < s.q_lora; ++c) {
            const double value = double{ToFloat(row[c])} * q_norm[c];
            low.push_back(ToBf16(static_cast<float>(divides_later ? value : value * scale)));
          }
          later.push_back(divides_later ? scale : 1);
        }
        std::vector<float> want(static_cast<size_t>(rows * width));
        ReferenceSmallOps().linear({}, TensorView(want.data(), DType::kF32, {rows, width}),
                                   TensorView(low.data(), DType::kBf16, {rows, s.q_lora}),
                                   w.reference);
        for (size_t i = 0; i < want.size(); ++i) {
          const double scale = later[i / static_cast<size_t>(width)];
          want[i] = ToFloat(ToBf16(static_cast<float>(want[i] * scale)));
        }
        TensorView heads(want.data(), DType::kF32, {rows, s.heads, head});
        ReferenceSmallOps().rope({}, heads.columns(s.nope, s.rope),
                                 TensorView(positions.data(), DType::kI32, {rows}),
                                 {.cos = table.data(),
                                  .sin = table.data() + kPositions * pairs,
                                  .positions = kPositions,
                                  .dim = s.rope});
        // A rounded input at the edge of two codes may take the other one, a 16th of it off.
        ExpectNear(what, Floats(FromDevice<Bf16>(q.data(), want.size())), want, width,
                   rounds ? 5e-2f : 8e-3f, 0x1p-7f, rounds ? 1e-2f : 1e-3f);
      }
    }
  }
}

GPU_TEST(Bf16Rows16Test, ProductsOfOneLaunchAreThoseOfTwo) {
  Context context;
  CompareMoeInputs(context, kBf16);
  CompareMoeInputs(context, kFp8);
}

GPU_TEST(Bf16Rows16Test, QueriesAreNormalisedMultipliedAndRotated) {
  Context context;
  CompareQueries(context, kBf16);
  CompareQueries(context, kFp8);
}

GPU_TEST(Bf16Rows16Test, TheBankAddsTheSharedExperts) {
  Context context;
  struct Shape {
    int64_t hidden, intermediate, shared, slots;
    int32_t top_k;
    bool holes;
  };
  // racecheck stops counting at ten million hazards, one for a byte of the ring that is used again.
  const bool short_time = testing::TimeIsShort();
  const Shape large = {7168, 256, 256, short_time ? 4 : 12, short_time ? 2 : 8, true};
  for (const Shape& s :
       {large, Shape{256, 128, 96, 16, 4, false}, Shape{256, 128, 288, 16, 4, true},
        Shape{320, 96, 32, 9, 2, true}, Shape{256, 256, 256, 4, 4, false}}) {
    const Weights gate_up(1, kInt4, s.slots, 2 * s.intermediate, s.hidden, {0, s.intermediate});
    const Weights down(2, kInt4, s.slots, s.hidden, s.intermediate);
    const Weights shared_down(3, kBf16, 1, s.hidden, s.shared);
    std::vector<int32_t> slot_of;
    for (int32_t e = 0; e < s.slots * (s.holes ? 2 : 1); ++e) {
      slot_of.push_back(!s.holes ? e : e % 3 == 1 ? -1 : static_cast<int32_t>(e * 5 % s.slots));
    }
    for (const int64_t rows : {1, 2, 4, 5, 8, 11, 16, 17}) {
      if (short_time && s.hidden == 7168 && rows > 4) break;
      std::mt19937 random(static_cast<uint32_t>(rows));
      const Rows x(9, rows, s.hidden, 8), shared(4, rows, 2 * s.shared, 8);
      std::vector<int32_t> ids, order(slot_of.size());
      std::vector<float> weights;
      std::iota(order.begin(), order.end(), 0);
      for (int64_t t = 0; t < rows; ++t) {
        std::shuffle(order.begin(), order.end(), random);
        ids.insert(ids.end(), order.begin(), order.begin() + s.top_k);
        for (int32_t j = 0; j < s.top_k; ++j) {
          weights.push_back(static_cast<float>(random() % 1024) / 1024);
        }
      }
      const auto count = static_cast<size_t>(rows * s.hidden);
      const Buffer out = OnDevice(std::vector<float>(count, kNaN));
      const Buffer ids_memory = OnDevice(ids), weights_memory = OnDevice(weights);
      ExpertBank(context.get(), {.out = View(out, DType::kF32, rows, s.hidden),
                                 .x = x.device(),
                                 .ids = View(ids_memory, DType::kI32, rows, s.top_k),
                                 .weights = View(weights_memory, DType::kF32, rows, s.top_k),
                                 .gate_up = gate_up.device,
                                 .down = down.device,
                                 .slot_of = slot_of,
                                 .shared = shared.device(),
                                 .shared_down = shared_down.device});
      context.Wait();
      std::vector<float> gated(static_cast<size_t>(rows * s.shared)), want(count);
      const TensorView gated_view(gated.data(), DType::kF32, {rows, s.shared});
      ReferenceSmallOps().swiglu({}, gated_view, shared.reference());
      std::vector<Bf16> rounded;
      for (const float value : gated) rounded.push_back(ToBf16(value));
      const TensorView want_view(want.data(), DType::kF32, {rows, s.hidden});
      ReferenceSmallOps().linear({}, want_view,
                                 TensorView(rounded.data(), DType::kBf16, {rows, s.shared}),
                                 shared_down.reference);
      ReferenceSmallOps().expert_bank(
          {}, {.out = want_view,
               .x = x.reference(),
               .ids = TensorView(ids.data(), DType::kI32, {rows, s.top_k}),
               .weights = TensorView(weights.data(), DType::kF32, {rows, s.top_k}),
               .gate_up = gate_up.reference,
               .down = down.reference,
               .slot_of = slot_of});
      ExpectNear("bank H " + std::to_string(s.hidden) + " I' " + std::to_string(s.shared) + " T " +
                     std::to_string(rows),
                 FromDevice<float>(out.data(), count), want, s.hidden, 3e-2f, 0, 6e-3f);
    }
  }
}

// Logits of 384 experts of a token that are easy and hard to choose from.
std::vector<std::pair<const char*, std::vector<float>>> HardLogits() {
  std::mt19937 random(3);
  std::vector<std::pair<const char*, std::vector<float>>> all;
  const auto add = [&](const char* name, auto one) {
    std::vector<float> logits;
    for (int e = 0; e < 384; ++e) logits.push_back(one(e));
    all.emplace_back(name, std::move(logits));
  };
  const auto any = [&] { return static_cast<float>(random() % 65536) / 8192 - 4; };
  for (int i = 0; i < 4; ++i) add("any", [&](int) { return any(); });
  add("ties", [&](int) { return std::round(any() * 2) / 2; });
  add("one unit apart", [&](int e) { return std::nextafter(1.0f, e % 2 == 0 ? 2.0f : 0.0f); });
  add("twenty nearly equal", [&](int e) {
    return e % 20 == 7 ? 2 + static_cast<float>(random() % 4) * 1e-7f : any() / 4;
  });
  add("all equal", [&](int) { return 0.5f; });
  add("large", [&](int) { return any() * 40; });
  add("NaN in some", [&](int e) { return e % 3 == 0 ? kNaN : any(); });
  add("NaN in all but five", [&](int e) { return e % 80 == 2 ? any() : kNaN; });
  add("NaN", [&](int) { return kNaN; });
  add("infinite", [&](int e) {
    return e % 5 == 0 ? std::numeric_limits<float>::infinity() * (e % 2 == 0 ? 1 : -1) : any();
  });
  return all;
}

GPU_TEST(Bf16Rows16Test, TheBankChoosesItsExperts) {
  Context context;
  constexpr int64_t kHidden = 256, kIntermediate = 256, kShared = 96, kSlots = 12;
  const Weights gate_up(1, kInt4, kSlots, 2 * kIntermediate, kHidden, {0, kIntermediate});
  const Weights down(2, kInt4, kSlots, kHidden, kIntermediate);
  const Weights shared_down(3, kBf16, 1, kHidden, kShared);
  const Rows x(9, 1, kHidden, 8), shared(4, 1, 2 * kShared, 8);
  std::mt19937 random(5);
  int turn = 0;
  for (const auto& [name, all] : HardLogits()) {
    for (const int32_t experts : {384, 132}) {
      const int32_t top_k = experts == 384 ? 8 : 3;
      const std::vector<float> logits(all.begin(), all.begin() + experts);
      std::vector<float> bias;
      std::vector<int32_t> slot_of;
      for (int32_t e = 0; e < experts; ++e) {
        bias.push_back(turn % 3 == 0 ? 0 : static_cast<float>(random() % 64) / 64);
        if (turn % 3 == 2) bias.back() += e % 67 == 0 ? 1000 : 20;
        slot_of.push_back(e % 7 == 3 ? -1 : e % static_cast<int32_t>(kSlots));
      }
      const Buffer logits_memory = OnDevice(logits), bias_memory = OnDevice(bias);
      const auto run = [&](bool chooses) {
        const Buffer out = OnDevice(std::vector<float>(kHidden, kNaN));
        const Buffer ids = OnDevice(std::vector<int32_t>(static_cast<size_t>(top_k), -7));
        const Buffer weights = OnDevice(std::vector<float>(static_cast<size_t>(top_k), kNaN));
        const ExpertChoice choice{
            .logits = View(logits_memory, DType::kF32, 1, experts),
            .bias = turn / 2 % 2 == 0 ? TensorView()
                                      : TensorView(bias_memory.data(), DType::kF32, {experts}),
            .params = {
                .experts = experts, .top_k = top_k, .normalise = turn % 5 != 0, .scaling = 2.5f}};
        ExpertBankArgs args{.out = View(out, DType::kF32, 1, kHidden),
                            .x = x.device(),
                            .ids = View(ids, DType::kI32, 1, top_k),
                            .weights = View(weights, DType::kF32, 1, top_k),
                            .gate_up = gate_up.device,
                            .down = down.device,
                            .slot_of = slot_of,
                            .shared = shared.device(),
                            .shared_down = shared_down.device,
                            .choice = &choice};
        GPU_EXPECT(PlanBank(context.get(), args).chooses());
        if (!chooses) {
          Route(context.get(), args.ids, args.weights, choice.logits, choice.bias, choice.params);
          args.choice = nullptr;
        }
        ExpertBank(context.get(), args);
        context.Wait();
        std::vector<float> made = FromDevice<float>(out.data(), kHidden);
        for (const float weight : FromDevice<float>(weights.data(), static_cast<size_t>(top_k))) {
          made.push_back(weight);
        }
        for (const int32_t id : FromDevice<int32_t>(ids.data(), static_cast<size_t>(top_k))) {
          made.push_back(static_cast<float>(id));
        }
        return made;
      };
      const std::vector<float> want = run(false), got = run(true);
      if (std::memcmp(want.data(), got.data(), want.size() * 4) != 0) {
        Fail(std::string(name) + " of " + std::to_string(experts) + ": not as route and bank");
      }
      ++turn;
    }
  }
}

}  // namespace
}  // namespace baltoro::cuda

int main(int argc, char** argv) {
  return baltoro::testing::RunGpuCases(argc, argv, baltoro::UsableDeviceCount());
}
