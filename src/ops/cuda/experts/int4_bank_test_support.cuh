#pragma once

// For the test of the INT4 expert bank: banks and steps of it, plain loops in double over the
// checkpoint's own form of the weights, and the comparison of the two.

#include <cmath>
#include <cstring>
#include <memory>
#include <string>

#include "ops/cuda/experts/bank_test_support.cuh"
#include "ops/cuda/experts/streaming/int4_digits.h"
#include "support/gpu_test.h"

namespace baltoro::cuda::moe_test {

inline void Fail(const std::string& what) {
  ::baltoro::testing::ReportFailure(__FILE__, __LINE__, what);
}

enum class Routing { kRandom, kSameForAll, kWithHoles };

struct Bank {
  MoeShape shape;
  Int4Source gate, up, down;
  DeviceSource device_gate, device_up, device_down;
  std::unique_ptr<Memory<char>> packed_gate_up, packed_down;

  Bank(MoeShape s, Random& random)
      : shape(s),
        gate(s.slots, s.intermediate, s.hidden, random),
        up(s.slots, s.intermediate, s.hidden, random),
        down(s.slots, s.hidden, s.intermediate, random),
        device_gate(gate),
        device_up(up),
        device_down(down) {
    const int64_t first = Int4PackedBytes(2 * s.intermediate, s.hidden);
    const int64_t second = Int4PackedBytes(s.hidden, s.intermediate);
    std::vector<char> a(s.slots * first), b(s.slots * second);
    for (int64_t e = 0; e < s.slots; ++e) {
      const int64_t n = 2 * s.intermediate;
      char* const to = &a[e * first];
      Must(PackInt4Rows(to, gate.at(e), n, s.hidden, 0, s.intermediate), "pack gate");
      Must(PackInt4Rows(to, up.at(e), n, s.hidden, s.intermediate, s.intermediate), "pack up");
      Must(PackInt4Rows(&b[e * second], down.at(e), s.hidden, s.intermediate, 0, s.hidden), "pack");
    }
    packed_gate_up = std::make_unique<Memory<char>>(a);
    packed_down = std::make_unique<Memory<char>>(b);
  }
};

struct Step {
  int tokens, experts;
  std::vector<uint16_t> x;
  std::vector<int32_t> ids, slot_of, slots;
  std::vector<float> weights;

  Step(const MoeShape& s, int tokens_, Routing routing, Random& random)
      : tokens(tokens_), experts(s.slots) {
    for (int64_t i = 0; i < static_cast<int64_t>(tokens) * s.hidden; ++i) {
      x.push_back(Bf16Bits(static_cast<float>(random.Uniform() * 2 - 1)));
    }
    const bool holes = routing == Routing::kWithHoles;
    if (holes) experts = 2 * s.slots;
    for (int e = 0; e < experts; ++e) {
      slot_of.push_back(!holes ? e : e % 2 == 0 ? experts / 2 - 1 - e / 2 : -1);
    }
    for (int t = 0; t < tokens; ++t) {
      for (int j = 0; j < s.top_k; ++j) {
        const int64_t first = static_cast<int64_t>(ids.size()) - j;
        int id = 0;
        bool taken = true;
        while (taken) {
          id = routing == Routing::kSameForAll ? j : static_cast<int>(random.Next() % experts);
          taken = false;
          for (int k = 0; k < j; ++k) taken = taken || ids[first + k] == id;
        }
        if (holes && t % 7 == 3) id = t % 2 == 0 ? -1 : experts;  // a padding row
        ids.push_back(id);
        weights.push_back(static_cast<float>(random.Uniform()));
        slots.push_back(id < 0 || id >= experts ? -1 : slot_of[id]);
        if (id < 0 || id >= experts) continue;
      }
    }
  }
};

// The products that do not round weights to bf16, and take 16 bits of activations.
inline bool ByDigits(const MoeShape& shape, int tokens, Way way) {
  return PlanOf(QuestionOf(shape, tokens), way).kernel == ExpertsKernel::kInt4Digits;
}

inline std::vector<double> Reference(const Bank& bank, const Step& step, bool rounded) {
  const MoeShape& s = bank.shape;
  const Memory<uint16_t> x(step.x);
  const Memory<int32_t> slots(step.slots);
  const Memory<float> weights(step.weights);
  const int64_t entries = static_cast<int64_t>(step.tokens) * s.top_k;
  Memory<double> middle(entries * s.intermediate),
      out(static_cast<int64_t>(step.tokens) * s.hidden);
  const ReferenceParams p = {reinterpret_cast<const __nv_bfloat16*>(x.get()),
                             slots.get(),
                             weights.get(),
                             bank.device_gate.values.get(),
                             bank.device_up.values.get(),
                             bank.device_down.values.get(),
                             bank.device_gate.scales.get(),
                             bank.device_up.scales.get(),
                             bank.device_down.scales.get(),
                             s.hidden,
                             s.intermediate,
                             s.top_k,
                             middle.get(),
                             out.get(),
                             rounded};
  ReferenceMiddle<<<dim3(s.intermediate, entries), 32>>>(p);
  ReferenceOut<<<dim3(s.hidden, step.tokens), 32>>>(p);
  Must(cudaDeviceSynchronize(), "reference");
  return out.Download();
}

inline constexpr float kBefore = 0.25f;  // what out holds before it is added to

// x in the order of columns that the grouped ways read.
inline std::vector<uint16_t> Ordered(const std::vector<uint16_t>& x) {
  std::vector<uint16_t> ordered(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t t = i / 8 % 4, q = i / 2 % 4, e = i % 2;
    ordered[i / 32 * 32 + 8 * q + 2 * t + e] = x[i];
  }
  return ordered;
}

// What becomes of `before`, in its own type. ordered: x is given in matrix order alone.
template <typename Element>
std::vector<Element> AddTo(std::vector<Element> before,
                           const Bank& bank,
                           const Step& step,
                           Way way,
                           bool ordered = false) {
  MoeShape s = bank.shape;
  s.max_tokens = step.tokens;
  s.orders = !ordered;
  auto bytes = MoeWorkspaceBytes(s);
  Must(bytes.status(), "workspace");
  Memory<char> workspace(bytes.value());
  workspace.Fill(0xff);  // NaN wherever nothing is written
  // A row of NaN after the last one, which must not be read.
  std::vector<uint16_t> rows = step.x;
  rows.resize(rows.size() + s.hidden, 0x7fc0);
  const Memory<uint16_t> in_order(Ordered(rows));
  if (ordered) std::fill(rows.begin(), rows.end(), 0x7fc0);
  const Memory<uint16_t> x(rows);
  const Memory<int32_t> ids(step.ids), slot_of(step.slot_of);
  const Memory<float> weights(step.weights);
  const Memory<Element> out(before);
  MoeInt4Args args;
  args.x = reinterpret_cast<const __nv_bfloat16*>(x.get());
  args.x_stride = s.hidden;
  if (ordered) args.ordered = reinterpret_cast<const __nv_bfloat16*>(in_order.get());
  args.ids = ids.get();
  args.weights = weights.get();
  args.slot_of = slot_of.get();
  args.experts = step.experts;
  args.tokens = step.tokens;
  args.gate_up = bank.packed_gate_up->get();
  args.down = bank.packed_down->get();
  if constexpr (sizeof(Element) == sizeof(float)) {
    args.out = out.get();
  } else {
    args.rounded_out = reinterpret_cast<__nv_bfloat16*>(out.get());
  }
  args.out_stride = s.hidden;
  args.workspace = workspace.get();
  args.workspace_bytes = bytes.value();
  const bool rounded = args.rounded_out != nullptr;
  const ExpertsPlan plan = PlanOf(QuestionOf(s, step.tokens, rounded, ordered), way);
  Must(LaunchMoeInt4(s, args, plan, OnDefaultStream()), "LaunchMoeInt4");
  Must(cudaDeviceSynchronize(), "the bank");
  ::baltoro::testing::StepDone();
  return out.Download();
}

inline std::vector<float> Product(const Bank& bank,
                                  const Step& step,
                                  Way way,
                                  bool ordered = false) {
  const size_t count = static_cast<size_t>(step.tokens) * bank.shape.hidden;
  return AddTo(std::vector<float>(count, kBefore), bank, step, way, ordered);
}

// Results in bf16 are those in f32, rounded once.
inline void CheckRounded(const Bank& bank, int tokens, Routing routing, Way way, Random& random) {
  const Step step(bank.shape, tokens, routing, random);
  std::vector<float> exact;
  std::vector<uint16_t> rounded;
  for (int64_t i = 0; i < int64_t{tokens} * bank.shape.hidden; ++i) {
    exact.push_back(static_cast<float>(i * 37 % 127 - 63) / 64);  // is a bf16
    rounded.push_back(ToBf16(exact.back()).bits);
  }
  exact = AddTo(exact, bank, step, way);
  rounded = AddTo(rounded, bank, step, way);
  int64_t wrong = 0;
  for (size_t i = 0; i < exact.size(); ++i) wrong += rounded[i] != ToBf16(exact[i]).bits;
  if (wrong == 0) return;
  Fail("T " + std::to_string(tokens) + " way " + std::to_string(static_cast<int>(way)) + ": " +
       std::to_string(wrong) + " results in bf16 are not those in f32, rounded");
}

inline void Check(const Bank& bank, int tokens, Routing routing, Way way, Random& random) {
  const MoeShape& s = bank.shape;
  const Step step(s, tokens, routing, random);
  const bool by_digits = ByDigits(s, tokens, way);
  const std::vector<double> right = Reference(bank, step, !by_digits);
  const std::vector<float> got = Product(bank, step, way);
  double worst = 0, mean = 0;
  int worst_row = -1;
  for (int t = 0; t < tokens; ++t) {
    double error = 0, norm = 1e-12;
    for (int64_t d = 0; d < s.hidden; ++d) {
      const double want = right[t * static_cast<int64_t>(s.hidden) + d];
      const double diff = got[t * static_cast<int64_t>(s.hidden) + d] - kBefore - want;
      error += diff * diff;
      norm += want * want;
    }
    const double relative = std::sqrt(error / norm);
    mean += relative / tokens;
    if (!(relative <= worst)) {
      worst = relative;
      worst_row = t;
    }
  }
  const std::string name = "slots " + std::to_string(s.slots) + " H " + std::to_string(s.hidden) +
                           " I " + std::to_string(s.intermediate) + " k " +
                           std::to_string(s.top_k) + " T " + std::to_string(tokens) + " routing " +
                           std::to_string(static_cast<int>(routing)) + " form " +
                           std::to_string(static_cast<int>(way));
  // Shares are rounded to bf16: 2^-9 at most, about 1.7e-3 on average. By digits a number of the
  // middle comes out on the other side of a bf16 more often, 2^-7 of it at most; rows of which it
  // is most have been seen to be 4.4e-3 off (one of 5,000).
  const double limit = by_digits ? 0x1p-7 + 0x1p-9 : 4e-3;
  if (!(worst < limit)) {
    Fail(name + ": relative error " + std::to_string(worst) + " in row " +
         std::to_string(worst_row));
  }
  if (!(mean < 3e-3)) Fail(name + ": relative error of a row " + std::to_string(mean));
}

// A row's bits must not depend on the rows beside it.
inline void CheckRowsAlone(const Bank& bank, Way way, Random& random) {
  const MoeShape& s = bank.shape;
  const Step all(s, 70, Routing::kRandom, random);
  const std::vector<float> together = Product(bank, all, way);
  if (ByDigits(s, all.tokens, way)) {
    // Few tokens go by other kernels: here as many as before, but others.
    Step others(s, all.tokens, Routing::kSameForAll, random);
    for (int t = 5; t < all.tokens; t += 23) {
      std::copy_n(all.x.begin() + t * s.hidden, s.hidden, others.x.begin() + t * s.hidden);
      std::copy_n(all.ids.begin() + t * s.top_k, s.top_k, others.ids.begin() + t * s.top_k);
      std::copy_n(all.weights.begin() + t * s.top_k, s.top_k, others.weights.begin() + t * s.top_k);
    }
    const std::vector<float> beside = Product(bank, others, way);
    for (int t = 5; t < all.tokens; t += 23) {
      if (std::memcmp(&beside[t * s.hidden], &together[t * s.hidden], s.hidden * sizeof(float)) !=
          0) {
        Fail("row " + std::to_string(t) + " beside others differs");
      }
    }
    return;
  }
  for (int t = 0; t < all.tokens; t += 23) {
    Step one = all;
    one.tokens = 1;
    one.x.assign(all.x.begin() + t * s.hidden, all.x.begin() + (t + 1) * s.hidden);
    one.ids.assign(all.ids.begin() + t * s.top_k, all.ids.begin() + (t + 1) * s.top_k);
    one.weights.assign(all.weights.begin() + t * s.top_k, all.weights.begin() + (t + 1) * s.top_k);
    const std::vector<float> alone = Product(bank, one, way);
    if (std::memcmp(alone.data(), &together[t * s.hidden], s.hidden * sizeof(float)) != 0) {
      Fail("row " + std::to_string(t) + " alone differs");
    }
  }
}

}  // namespace baltoro::cuda::moe_test
