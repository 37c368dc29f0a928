// Ranks of GPUs against plain loops: each operation, alone, again and again with ranks that come
// late, and in graphs. Sums and moved data must be equal to the last bit.

#include <cmath>
#include <limits>

#include "comm/symmetric/ranks_test_support.cuh"

namespace baltoro::cuda {
namespace {

using namespace ranks_test;  // NOLINT

constexpr int kRepeats = 200;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<int> WorldSizes() {
  std::vector<int> sizes;
  for (const int ranks : {2, 3, 4, 8}) {
    if (ranks <= RanksPossible()) sizes.push_back(ranks);
  }
  return sizes;
}

std::vector<int> RowCounts() {
  return {1, 3, 17, 64, 129, 1024};
}

GpuRankArgs World(int ranks, int64_t hidden, int64_t rows_max = 1024) {
  GpuRankArgs args;
  args.ranks = ranks;
  args.tensor = ranks;
  args.rows_max = rows_max;
  args.hidden = hidden;
  args.vocab = 163840;
  args.head_bytes = 64 * 576 * 2;
  args.patience_ms = 3000;
  return args;
}

uint64_t Seed(int rank, int variant) {
  return static_cast<uint64_t>(rank) * 1000 + static_cast<uint64_t>(variant);
}

// What Sum must give, from what Drawn(Seed(rank, variant)) gives each rank.
std::vector<float> SumOf(int ranks, int variant, size_t count, bool rounded) {
  std::vector<float> sum(count, 0.0f);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<float> part = Drawn(Seed(rank, variant), count);
    for (size_t i = 0; i < count; ++i) sum[i] += Rounded(part[i]);
  }
  for (float& x : sum) x = rounded ? Rounded(x) : x;
  return sum;
}

std::vector<Bf16> InBf16(const std::vector<float>& values) {
  std::vector<Bf16> rounded;
  for (const float x : values) rounded.push_back(ToBf16(x));
  return rounded;
}

std::string NameOf(const SumChoice& choice) {
  return std::string(choice.form == SumForm::kOneShot ? "one shot" : "two shots") + " in " +
         std::to_string(choice.blocks_of_row);
}

std::vector<SumChoice> Choices() {
  std::vector<SumChoice> choices;
  for (const SumForm form : {SumForm::kOneShot, SumForm::kTwoShot}) {
    for (const int blocks : {1, 2, 4, 8}) choices.push_back({form, blocks});
  }
  return choices;
}

void CheckSums(int ranks, int64_t hidden) {
  struct Case {
    int rows;
    std::vector<float> exact, rounded;
  };
  std::vector<Case> cases;
  for (const int rows : RowCounts()) {
    const auto count = static_cast<size_t>(rows * hidden);
    cases.push_back({rows, SumOf(ranks, rows, count, false), SumOf(ranks, rows, count, true)});
  }
  Findings findings;
  MustJoin(RunRanks(World(ranks, hidden), [&](Rank& self) {
    for (const Case& one : cases) {
      const size_t count = one.exact.size();
      const std::vector<float> drawn = Drawn(Seed(self.rank, one.rows), count);
      const Buffer source = ToDevice(drawn), parts = ToDevice(InBf16(drawn));
      const Buffer x = OnDevice(count * 4);
      for (const SumChoice& choice : Choices()) {
        self.ops->peers()->Choose(choice);
        self.Meet();
        if (findings.any()) return;
        CopyAsync(self.ctx(), x.data(), source.data(), count * 4);
        self.ops->Sum(self.ctx(), TensorView(x.data(), DType::kF32, {one.rows, hidden}));
        self.Wait();
        const auto got = FromDevice<float>(x.data(), count);
        const auto& want = choice.form == SumForm::kOneShot ? one.exact : one.rounded;
        const std::string where = "H " + std::to_string(hidden) + " T " + std::to_string(one.rows) +
                                  " " + NameOf(choice) + " of " + std::to_string(ranks);
        findings.AddDifference(self, where, Difference(got.data(), want.data(), count));

        // Parts that are rounded already: the same sums, rounded in any case.
        CopyAsync(self.ctx(), x.data(), parts.data(), count * 2);
        self.ops->Sum(self.ctx(), TensorView(x.data(), DType::kBf16, {one.rows, hidden}));
        self.Wait();
        std::vector<float> sums;
        for (const Bf16 y : FromDevice<Bf16>(x.data(), count)) sums.push_back(ToFloat(y));
        findings.AddDifference(self, where + " of bf16",
                               Difference(sums.data(), one.rounded.data(), count));
      }
    }
    findings.AddStatus(self);
  }));
}

GPU_TEST(RanksTest, SumsAreEqualToTheLastBit) {
  for (const int ranks : WorldSizes()) {
    for (const int64_t hidden : {7168, 256, 1003}) CheckSums(ranks, hidden);
  }
}

GPU_TEST(RanksTest, NaNStaysInItsColumn) {
  constexpr int64_t kHidden = 264;
  Findings findings;
  MustJoin(RunRanks(World(2, kHidden, 4), [&](Rank& self) {
    std::vector<float> x(kHidden, 1.0f);
    uint32_t ones = 0xFFFFFFFF;  // the NaN that stands for no data, in two columns
    if (self.rank == 1) std::memcpy(&x[6], &ones, 4), std::memcpy(&x[7], &ones, 4);
    if (self.rank == 0) x[200] = -kInfinity;
    const Buffer source = ToDevice(x), on_device = OnDevice(kHidden * 4);
    self.Meet();
    for (const SumForm form : {SumForm::kOneShot, SumForm::kTwoShot}) {
      CopyAsync(self.ctx(), on_device.data(), source.data(), kHidden * 4);
      self.ops->peers()->Choose(SumChoice{form, 1});
      self.ops->Sum(self.ctx(), TensorView(on_device.data(), DType::kF32, {1, kHidden}));
      self.Wait();
      const auto got = FromDevice<float>(on_device.data(), kHidden);
      for (int64_t i = 0; i < kHidden; ++i) {
        const float y = got[static_cast<size_t>(i)];
        const bool right = i == 6 || i == 7 ? std::isnan(y) : y == (i == 200 ? -kInfinity : 2.0f);
        if (!right) findings.Add("column " + std::to_string(i) + ": " + std::to_string(y));
      }
    }
  }));
}

// Other data and other sizes one after the other, without a wait between them, and a rank that is
// late at random; then the same from a graph.
void CheckRepeatedSums(int ranks, bool graph) {
  constexpr int64_t kHidden = 7168;
  constexpr int kVariants = 5;
  const std::vector<int> rows_of = {17, 1, 130, 3, 48};
  std::vector<std::vector<float>> want;
  for (int v = 0; v < kVariants; ++v) {
    const auto count = static_cast<size_t>(rows_of[static_cast<size_t>(v)] * kHidden);
    want.push_back(SumOf(ranks, v, count, v % 2 == 1));
  }
  Findings findings;
  MustJoin(RunRanks(World(ranks, kHidden), [&](Rank& self) {
    std::vector<Buffer> sources, results;
    for (int v = 0; v < kVariants; ++v) {
      const size_t count = want[static_cast<size_t>(v)].size();
      sources.push_back(ToDevice(Drawn(Seed(self.rank, v), count)));
      results.push_back(OnDevice(count * 4));
    }
    const auto queue = [&](int v) {
      const auto at = static_cast<size_t>(v);
      const size_t bytes = want[at].size() * 4;
      CopyAsync(self.ctx(), results[at].data(), sources[at].data(), bytes);
      self.ops->peers()->Choose(SumChoice{v % 2 == 1 ? SumForm::kTwoShot : SumForm::kOneShot, 4});
      self.ops->Sum(self.ctx(),
                    TensorView(results[at].data(), DType::kF32, {rows_of[at], kHidden}));
    };
    const auto queue_all = [&] {
      for (int v = 0; v < kVariants; ++v) queue(v);
    };
    std::unique_ptr<OpGraph> recorded;
    if (graph) recorded = Capture(self.ctx(), queue_all);
    std::mt19937 random(static_cast<unsigned>(self.rank));
    self.Meet();
    for (int repeat = 0; repeat < kRepeats && !findings.any(); ++repeat) {
      if (random() % 4 == 0) Delay(self.ctx(), random() % 40'000);
      if (random() % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      graph ? recorded->Launch(self.ctx()) : queue_all();
      if (repeat % 10 != 9) continue;
      self.Wait();
      for (int v = 0; v < kVariants; ++v) {
        const auto& right = want[static_cast<size_t>(v)];
        const auto got = FromDevice<float>(results[static_cast<size_t>(v)].data(), right.size());
        findings.AddDifference(self,
                               "repeat " + std::to_string(repeat) + " variant " +
                                   std::to_string(v) + " of " + std::to_string(ranks),
                               Difference(got.data(), right.data(), right.size()));
      }
      self.Meet();
    }
    findings.AddStatus(self);
  }));
}

GPU_TEST(RanksTest, SumsOfLateRanksAreRightAgainAndAgain) {
  for (const int ranks : WorldSizes()) CheckRepeatedSums(ranks, false);
}
GPU_TEST(RanksTest, SumsInGraphsAreRightAgainAndAgain) {
  for (const int ranks : WorldSizes()) CheckRepeatedSums(ranks, true);
}

void CheckNorms(int ranks, int64_t hidden) {
  Findings findings;
  MustJoin(RunRanks(World(ranks, hidden), [&](Rank& self) {
    for (const int rows : RowCounts()) {
      const auto count = static_cast<size_t>(rows * hidden);
      const std::vector<float> residual = Drawn(77, count), weight = Drawn(78, size_t(hidden));
      const std::vector<float> drawn = Drawn(Seed(self.rank, rows), count);
      const Buffer delta = ToDevice(drawn), parts = ToDevice(InBf16(drawn));
      const Buffer scale = ToDevice(weight), out = OnDevice(count * 2);
      for (const bool rounded : {false, true}) {
        const std::vector<float> sum = SumOf(ranks, rows, count, rounded);
        std::vector<float> want(count);
        std::vector<Bf16> normed(count);
        for (size_t i = 0; i < count; ++i) want[i] = residual[i] + sum[i];
        ReferenceSmallOps().rms_norm(
            {}, TensorView(normed.data(), DType::kBf16, {rows, hidden}),
            TensorView(want.data(), DType::kF32, {rows, hidden}),
            TensorView(const_cast<float*>(weight.data()), DType::kF32, {hidden}), 1e-5f);
        const auto check = [&](const SumChoice& choice, const TensorView& part) {
          const Buffer x = ToDevice(residual);
          Copies copies(rows, hidden);
          const bool codes = (rows + static_cast<int>(rounded)) % 2 == 0;
          OpContext context = self.ctx();
          const cuda::Beside with{.rounded = codes ? &copies.rounded : nullptr,
                                  .ordered = codes ? nullptr : &copies.ordered};
          context.beside = &with;
          self.ops->peers()->Choose(choice);
          self.Meet();
          if (findings.any()) return;
          const bool done =
              self.ops->SumAddRmsNorm(context, TensorView(out.data(), DType::kBf16, {rows, hidden}),
                                      TensorView(x.data(), DType::kF32, {rows, hidden}), part,
                                      TensorView(scale.data(), DType::kF32, {hidden}), 1e-5f);
          self.Wait();
          const std::string where = "H " + std::to_string(hidden) + " T " + std::to_string(rows) +
                                    " " + NameOf(choice) +
                                    (part.dtype == DType::kBf16 ? " of bf16" : "");
          if (!done) findings.Add(where + ": not done");
          const auto got = FromDevice<float>(x.data(), count);
          findings.AddDifference(self, where + " residual",
                                 Difference(got.data(), want.data(), count));
          const auto norm = FromDevice<Bf16>(out.data(), count);
          const void* const of = codes ? copies.rounded.of : copies.ordered.of;
          if ((of == out.data()) != (hidden % 128 == 0)) findings.Add(where + ": a copy of what?");
          if (of != nullptr && copies.Wrong(norm, codes) != 0) {
            findings.Add(where + (codes ? " codes: " : " in order: ") +
                         std::to_string(copies.Wrong(norm, codes)) + " bad");
          }
          size_t bad = 0, first = 0;
          for (size_t i = 0; i < count; ++i) {
            const float a = ToFloat(norm[i]), b = ToFloat(normed[i]);
            // One rounding that falls the other way.
            if (!(std::fabs(a - b) <= std::fabs(b) * 0x1p-7f) && bad++ == 0) first = i;
          }
          if (bad != 0) {
            findings.Add(where + " norm: " + std::to_string(bad) + " bad, first " +
                         std::to_string(first) + " got " + std::to_string(ToFloat(norm[first])) +
                         " want " + std::to_string(ToFloat(normed[first])));
          }
        };
        for (const SumChoice& choice : Choices()) {
          if ((choice.form == SumForm::kTwoShot) != rounded) continue;
          check(choice, TensorView(delta.data(), DType::kF32, {rows, hidden}));
          check(choice, TensorView(parts.data(), DType::kBf16, {rows, hidden}));
        }
      }
    }
  }));
}

GPU_TEST(RanksTest, NormsAfterSumsAreThoseOfTheReference) {
  for (const int ranks : WorldSizes()) {
    for (const int64_t hidden : {7168, 1003}) CheckNorms(ranks, hidden);
  }
}

// Columns whose bits say where they come from.
void CheckColumns(GpuRankArgs world, const std::vector<int64_t>& widths, bool heads) {
  const std::vector<int> row_counts = {1, 3, 17, 64};
  int64_t sum = 0;
  for (const int64_t width : widths) sum += width;
  Findings findings;
  const auto value = [](int rank, int64_t row, int64_t column, int round) {
    return static_cast<float>((rank * 31 + row * 7 + column + round) % 251) - 100.0f;
  };
  MustJoin(RunRanks(world, [&](Rank& self) {
    const int64_t width = widths[static_cast<size_t>(self.rank)];
    for (const int rows : row_counts) {
      const size_t own_count = static_cast<size_t>(rows * width), count = size_t(rows * sum);
      const size_t bytes = heads ? 2 : 4;
      const DType type = heads ? DType::kBf16 : DType::kF32;
      const Buffer all = OnDevice(count * bytes);
      const int repeats = rows == 3 ? kRepeats : 2;
      for (int round = 0; round < repeats; ++round) {
        std::vector<float> own(own_count);
        for (size_t i = 0; i < own_count; ++i) {
          own[i] = value(self.rank, static_cast<int64_t>(i) / width,
                         static_cast<int64_t>(i) % width, round);
        }
        std::vector<Bf16> halves;
        for (const float x : own) halves.push_back(ToBf16(x));
        const Buffer from = heads ? ToDevice(halves) : ToDevice(own);
        const TensorView to(all.data(), type, {rows, sum}), mine(from.data(), type, {rows, width});
        self.Meet();
        if (findings.any()) return;
        if ((round + self.rank) % 7 == 0) Delay(self.ctx(), 20'000);
        if (heads) {
          self.ops->GatherHeads(self.ctx(), to, mine);
        } else {
          self.ops->GatherColumns(self.ctx(), to, mine, widths);
        }
        self.Wait();
        std::vector<float> got;
        if (heads) {
          for (const Bf16 x : FromDevice<Bf16>(all.data(), count)) got.push_back(ToFloat(x));
        } else {
          got = FromDevice<float>(all.data(), count);
        }
        std::vector<float> want;
        for (int64_t row = 0; row < rows; ++row) {
          for (int rank = 0; rank < world.ranks; ++rank) {
            for (int64_t c = 0; c < widths[static_cast<size_t>(rank)]; ++c) {
              want.push_back(value(rank, row, c, round));
            }
          }
        }
        findings.AddDifference(self,
                               "T " + std::to_string(rows) + " width " + std::to_string(width) +
                                   (heads ? " heads" : " columns") + " round " +
                                   std::to_string(round),
                               Difference(got.data(), want.data(), count));
      }
    }
    findings.AddStatus(self);
  }));
}

void CheckAllColumns(bool nccl_only) {
  for (const int ranks : WorldSizes()) {
    GpuRankArgs world = World(ranks, 256);
    world.nccl_only = nccl_only;
    const auto equal = static_cast<size_t>(ranks);
    CheckColumns(world, std::vector<int64_t>(equal, 2304 / ranks), false);
    std::vector<int64_t> odd;
    for (int rank = 0; rank < ranks; ++rank) odd.push_back(1 + rank * 333);
    CheckColumns(world, odd, false);
    world.decode_context = ranks;
    CheckColumns(world, std::vector<int64_t>(equal, 8 * 576), true);
    CheckColumns(world, std::vector<int64_t>(equal, 37), true);
  }
}

GPU_TEST(RanksTest, ColumnsAndHeadsLieInTheirPlaces) {
  CheckAllColumns(false);
}

GPU_TEST(RanksTest, AVocabularyIsGathered) {
  GpuRankArgs world = World(2, 256);
  CheckColumns(world, {81920, 81920}, false);
}

void CheckMerge(GpuRankArgs world, int heads, int value) {
  const int ranks = world.ranks;
  Findings findings;
  MustJoin(RunRanks(world, [&](Rank& self) {
    for (const int rows : {1, 17, 129}) {
      const int64_t width = int64_t{heads} * value;
      const size_t parts = static_cast<size_t>(rows * ranks * width);
      const size_t sums = static_cast<size_t>(rows * ranks * heads);
      std::vector<std::vector<Bf16>> partial(static_cast<size_t>(ranks));
      std::vector<std::vector<float>> lse(static_cast<size_t>(ranks));
      for (int rank = 0; rank < ranks; ++rank) {
        for (const float x : Drawn(Seed(rank, rows), parts)) {
          partial[static_cast<size_t>(rank)].push_back(ToBf16(x));
        }
        lse[static_cast<size_t>(rank)] = Drawn(Seed(rank, rows + 1), sums, 3);
        // No keys at one rank; at none; not a number.
        for (size_t i = 0; i < sums; ++i) {
          float& x = lse[static_cast<size_t>(rank)][i];
          if (i % 5 == static_cast<size_t>(rank)) x = -kInfinity;
          if (i % 7 == 3) x = -kInfinity;
          if (i % 11 == 4 && rank == 1) x = std::numeric_limits<float>::quiet_NaN();
        }
      }
      const Buffer mine = ToDevice(partial[static_cast<size_t>(self.rank)]);
      const Buffer my_lse = ToDevice(lse[static_cast<size_t>(self.rank)]);
      const Buffer own = OnDevice(static_cast<size_t>(rows * width) * 2);
      self.Meet();
      if (findings.any()) return;
      for (int repeat = 0; repeat < (rows == 17 ? 20 : 2); ++repeat) {
        if ((repeat + self.rank) % 3 == 0) Delay(self.ctx(), 20'000);
        self.ops->MergeHeads(self.ctx(), TensorView(own.data(), DType::kBf16, {rows, width}),
                             TensorView(mine.data(), DType::kBf16, {rows, ranks * width}),
                             TensorView(my_lse.data(), DType::kF32, {rows, ranks * heads}));
      }
      self.Wait();
      const auto got = FromDevice<Bf16>(own.data(), static_cast<size_t>(rows * width));
      size_t bad = 0;
      std::string first;
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t head = 0; head < heads; ++head) {
          double highest = -kInfinity, total = 0;
          const auto lse_of = [&](int rank) -> double {
            return lse[static_cast<size_t>(rank)]
                      [static_cast<size_t>((row * ranks + self.rank) * heads + head)];
          };
          for (int rank = 0; rank < ranks; ++rank) highest = std::fmax(highest, lse_of(rank));
          if (highest == -kInfinity) highest = 0;
          for (int rank = 0; rank < ranks; ++rank) total += std::exp(lse_of(rank) - highest);
          for (int64_t v = 0; v < value; ++v) {
            double want = 0, size = 0;
            for (int rank = 0; rank < ranks; ++rank) {
              const double weight = std::exp(lse_of(rank) - highest);
              if (weight == 0) continue;
              const auto at =
                  static_cast<size_t>(((row * ranks + self.rank) * heads + head) * value + v);
              want += weight / total * ToFloat(partial[static_cast<size_t>(rank)][at]);
              size += weight / total * std::fabs(ToFloat(partial[static_cast<size_t>(rank)][at]));
            }
            const double x = ToFloat(got[static_cast<size_t>((row * heads + head) * value + v)]);
            // A rounding to bf16, and a few of f32 in the sum.
            const double limit = std::fabs(want) * 0x1p-8 + size * 1e-6;
            const bool right = std::isnan(want) ? std::isnan(x) : std::fabs(x - want) <= limit;
            if (!right && bad++ == 0) {
              first = "row " + std::to_string(row) + " head " + std::to_string(head) + " " +
                      std::to_string(v) + " got " + std::to_string(x) + " want " +
                      std::to_string(want);
            }
          }
        }
      }
      if (bad != 0) {
        findings.Add("T " + std::to_string(rows) + " h " + std::to_string(heads) + " V " +
                     std::to_string(value) + " of " + std::to_string(ranks) + ": " +
                     std::to_string(bad) + " bad, first " + first);
      }
    }
    findings.AddStatus(self);
  }));
}

void CheckMerges(bool nccl_only) {
  for (const int ranks : WorldSizes()) {
    GpuRankArgs world = World(ranks, 256);
    world.nccl_only = nccl_only;
    world.decode_context = ranks;
    CheckMerge(world, 8, 128);
    CheckMerge(world, 3, 20);
    CheckMerge(world, 1, 512);
  }
}

GPU_TEST(RanksTest, HeadsAreMergedByTheirShares) {
  CheckMerges(false);
}

void CheckStages(GpuRankArgs world) {
  constexpr int64_t kHidden = 7168;
  Findings findings;
  MustJoin(RunRanks(world, [&](Rank& self) {
    const int stage = self.rank / world.tensor, stages = world.ranks / world.tensor;
    for (const int rows : RowCounts()) {
      const auto count = static_cast<size_t>(rows * kHidden);
      const int repeats = rows <= 3 ? kRepeats : 8;
      std::vector<Buffer> xs;
      std::vector<std::vector<float>> want;
      for (int v = 0; v < 2; ++v) {
        want.push_back(Drawn(Seed(self.rank % world.tensor, v), count));
        xs.push_back(stage == 0 ? ToDevice(want.back()) : OnDevice(count * 4));
      }
      self.Meet();
      if (findings.any()) return;
      for (int repeat = 0; repeat < repeats; ++repeat) {
        const auto v = static_cast<size_t>(repeat % 2);
        const TensorView x(xs[v].data(), DType::kF32, {rows, kHidden});
        if ((repeat + self.rank) % 11 == 0) Delay(self.ctx(), 30'000);
        if (stage > 0) self.ops->ReceiveFromStageBefore(self.ctx(), x);
        if (stage + 1 < stages) self.ops->SendToNextStage(self.ctx(), x);
        if (repeat < repeats - 2 && repeat % 50 != 49) continue;
        self.Wait();
        const auto got = FromDevice<float>(xs[v].data(), count);
        findings.AddDifference(self,
                               "T " + std::to_string(rows) + " repeat " + std::to_string(repeat),
                               Difference(got.data(), want[v].data(), count));
        self.Meet();
      }
    }
    findings.AddStatus(self);
  }));
}

void CheckPipelines(bool nccl_only) {
  for (const int ranks : WorldSizes()) {
    GpuRankArgs world = World(ranks, 7168);
    world.nccl_only = nccl_only;
    world.tensor = 1;
    CheckStages(world);
    if (ranks % 2 != 0 || ranks == 2) continue;
    world.tensor = 2;
    CheckStages(world);
  }
}

GPU_TEST(RanksTest, StagesPassTheResidualOn) {
  CheckPipelines(false);
}

bool NcclIsThere() {
  const Result<std::shared_ptr<const Nccl>> nccl = Nccl::Open();
  if (!nccl.ok()) std::printf("SKIPPED: %s\n", nccl.status().message().c_str());
  return nccl.ok();
}

GPU_TEST(RanksTest, NcclMovesTheSame) {
  if (!NcclIsThere() || SharesGpu()) return;
  CheckAllColumns(true);
  CheckMerges(true);
  CheckPipelines(true);
}

GPU_TEST(RanksTest, NcclAddsInGraphs) {
  if (!NcclIsThere() || SharesGpu()) return;
  constexpr int64_t kHidden = 7168;
  for (const int ranks : WorldSizes()) {
    GpuRankArgs world = World(ranks, kHidden);
    world.nccl_only = true;
    Findings findings;
    MustJoin(RunRanks(world, [&](Rank& self) {
      if (self.ops->adds_in_order()) findings.Add("NCCL's order is taken for that of the ranks");
      for (const int rows : {1, 17, 129}) {
        const auto count = static_cast<size_t>(rows * kHidden);
        const Buffer source = ToDevice(Drawn(Seed(self.rank, rows), count));
        const Buffer x = OnDevice(count * 4);
        const auto graph = Capture(self.ctx(), [&] {
          CopyAsync(self.ctx(), x.data(), source.data(), count * 4);
          self.ops->Sum(self.ctx(), TensorView(x.data(), DType::kF32, {rows, kHidden}));
          Must(self.ops->status());
        });
        for (int repeat = 0; repeat < 20; ++repeat) graph->Launch(self.ctx());
        self.Wait();
        const auto got = FromDevice<float>(x.data(), count);
        std::vector<double> want(count), size(count);
        for (int rank = 0; rank < ranks; ++rank) {
          const auto part = Drawn(Seed(rank, rows), count);
          for (size_t i = 0; i < count; ++i) want[i] += part[i], size[i] += std::fabs(part[i]);
        }
        for (size_t i = 0; i < count; ++i) {
          if (std::fabs(got[i] - want[i]) <= size[i] * 1e-6) continue;
          findings.Add("T " + std::to_string(rows) + " at " + std::to_string(i) + " got " +
                       std::to_string(got[i]) + " want " + std::to_string(want[i]));
          break;
        }
      }
      findings.AddStatus(self);
    }));
  }
}

}  // namespace
}  // namespace baltoro::cuda

int main(int argc, char** argv) {
  baltoro::test::UseSharesOfOneCard();
  if (baltoro::cuda::ranks_test::RanksPossible() < 2) {
    std::printf("SKIPPED: fewer than 2 GPUs\n");
    return 77;
  }
  return baltoro::testing::RunGpuCases(argc, argv, baltoro::UsableDeviceCount());
}
