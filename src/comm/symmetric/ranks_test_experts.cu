// Replicas that share experts: what is gathered, and sums that come back, against plain loops, to
// the last bit; in both forms, with ranks without rows, late ranks, and from graphs.

#include <algorithm>
#include <numeric>

#include "comm/symmetric/ranks_test_support.cuh"

namespace baltoro::cuda {
namespace {

using namespace ranks_test;  // NOLINT

using Rows = std::vector<int64_t>;

constexpr int kRepeats = 200;

std::vector<int> GroupSizes() {
  std::vector<int> sizes;
  for (const int ranks : {2, 3, 4}) {
    if (ranks <= RanksPossible()) sizes.push_back(ranks);
  }
  return sizes;
}

struct Widths {
  int64_t hidden = 7168, chosen = 8;
};

GpuRankArgs Group(int ranks, const Widths& widths, int64_t rows_max = 1024) {
  GpuRankArgs args;
  args.ranks = args.data = ranks;
  args.rows_max = rows_max;
  args.hidden = widths.hidden;
  args.vocab = 2304;
  args.head_bytes = 64 * 576 * 2;
  args.expert_row_bytes = widths.hidden * 2 + widths.chosen * 8;
  args.patience_ms = 3000;
  return args;
}

// Of every size of group: alike, of different lengths, with none.
std::vector<Rows> StepsOf(int ranks) {
  const auto of = [&](std::initializer_list<int64_t> first) {
    Rows rows(first);
    while (std::ssize(rows) < ranks) rows.push_back(rows[rows.size() - 2]);
    return rows;
  };
  std::vector<Rows> steps = {of({1, 1}), of({5, 2}),  of({0, 3}),   of({4, 0}),
                             of({0, 0}), of({17, 9}), of({64, 64}), of({0, 130})};
  if (!testing::TimeIsShort()) steps.push_back(of({300, 7})), steps.push_back(of({1024, 1000}));
  return steps;
}

int64_t Total(const Rows& rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

// Words of any bits, among them those that stand for no data.
std::vector<uint16_t> Bits(uint64_t seed, int64_t count) {
  std::mt19937_64 random(seed);
  std::vector<uint16_t> words(static_cast<size_t>(count));
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = static_cast<uint16_t>(random());
    if (i % 2 == 1 && random() % 5 == 0) words[i] = words[i - 1] = 0xFFFF;
  }
  return words;
}
uint64_t Seed(int rank, int variant, int tensor) {
  return static_cast<uint64_t>(rank * 10'000 + variant * 10 + tensor);
}

// A rank's side of the exchanges of one step.
class Step {
 public:
  // `own_type` and `all_type` of the sums. `of_host`: replicas of a host, where rows cross between
  // hosts once; 0: they do not.
  Step(const Rank& self,
       const Rows& rows,
       const Widths& widths,
       int variant,
       DType own_type = DType::kF32,
       DType all_type = DType::kF32,
       int of_host = 0)
      : rank_(self.rank),
        rows_(rows),
        widths_(widths),
        variant_(variant),
        own_(own_type),
        all_(all_type),
        of_host_(of_host) {
    const int64_t total = Total(rows), mine = rows[static_cast<size_t>(rank_)];
    const int64_t of_row[3] = {widths.hidden, widths.chosen * 2, widths.chosen * 2};
    for (int i = 0; i < 3; ++i) {
      sent_.push_back(ToDevice(Bits(Seed(rank_, variant, i), mine * of_row[i])));
      gathered_.push_back(OnDevice(static_cast<size_t>(total * of_row[i]) * 2));
      for (int rank = 0; rank < std::ssize(rows); ++rank) {
        const auto bits = Bits(Seed(rank, variant, i), rows[static_cast<size_t>(rank)] * of_row[i]);
        want_[i].insert(want_[i].end(), bits.begin(), bits.end());
      }
    }
    const auto count = static_cast<size_t>(mine * widths.hidden);
    source_ = InType(Drawn(Seed(rank_, variant, 3), count), own_);
    sum_ = OnDevice(count * 4);
    parts_ = InType(PartOf(rank_), all_);
    before_ = Drawn(Seed(rank_, variant, 3), count);
  }

  void Queue(Rank& self) {
    ExpertExchange& exchange = *self.ops->experts();
    const int64_t total = Total(rows_), mine = rows_[static_cast<size_t>(rank_)];
    const DType types[3] = {DType::kBf16, DType::kI32, DType::kF32};
    const int64_t width[3] = {widths_.hidden, widths_.chosen, widths_.chosen};
    std::vector<ExpertExchange::Gathered> tensors;
    for (size_t i = 0; i < 3; ++i) {
      tensors.push_back({.all = TensorView(gathered_[i].data(), types[i], {total, width[i]}),
                         .own = TensorView(sent_[i].data(), types[i], {mine, width[i]})});
    }
    exchange.Gather(self.ctx(), tensors, rows_);
    CopyAsync(self.ctx(), sum_.data(), source_.data(),
              static_cast<size_t>(mine * widths_.hidden * SizeOf(own_)));
    exchange.AddBack(self.ctx(), TensorView(sum_.data(), own_, {mine, widths_.hidden}),
                     TensorView(parts_.data(), all_, {total, widths_.hidden}), rows_);
  }

  // When the stream is idle.
  void Check(const Rank& self, Findings& findings, const std::string& where) const {
    const char* const names[3] = {" rows", " ids", " weights"};
    for (size_t i = 0; i < 3; ++i) {
      const auto got = FromDevice<uint16_t>(gathered_[i].data(), want_[i].size());
      findings.AddDifference(self, where + names[i],
                             Difference(got.data(), want_[i].data(), got.size()));
    }
    std::vector<float> want(before_.size(), 0.0f);
    const int64_t first =
        std::accumulate(rows_.begin(), rows_.begin() + rank_, int64_t{0}) * widths_.hidden;
    std::vector<float> of_host(want.size(), 0.0f);
    for (int rank = 0; rank < std::ssize(rows_); ++rank) {
      const std::vector<float> part = PartOf(rank);
      std::vector<float>& sum = of_host_ == 0 ? want : of_host;
      for (size_t i = 0; i < want.size(); ++i) {
        sum[i] += Rounded(part[static_cast<size_t>(first) + i]);
      }
      if (of_host_ == 0 || (rank + 1) % of_host_ != 0) continue;
      for (size_t i = 0; i < want.size(); ++i) {
        want[i] += Rounded(of_host[i]);
        of_host[i] = 0;
      }
    }
    std::vector<float> got;
    if (own_ == DType::kF32) {
      got = FromDevice<float>(sum_.data(), want.size());
    } else {
      for (const Bf16 x : FromDevice<Bf16>(sum_.data(), want.size())) got.push_back(ToFloat(x));
    }
    for (size_t i = 0; i < want.size(); ++i) {
      const bool rounds = own_ == DType::kBf16;
      want[i] += rounds ? Rounded(before_[i]) : before_[i];
      if (rounds) want[i] = Rounded(want[i]);
    }
    findings.AddDifference(self, where + " sums", Difference(got.data(), want.data(), got.size()));
  }

 private:
  static Buffer InType(const std::vector<float>& values, DType type) {
    if (type == DType::kF32) return ToDevice(values);
    std::vector<Bf16> rounded;
    for (const float x : values) rounded.push_back(ToBf16(x));
    return ToDevice(rounded);
  }
  std::vector<float> PartOf(int rank) const {
    return Drawn(Seed(rank, variant_, 4), static_cast<size_t>(Total(rows_) * widths_.hidden));
  }

  const int rank_;
  const Rows rows_;
  const Widths widths_;
  const int variant_;
  const DType own_, all_;
  const int of_host_;
  std::vector<Buffer> sent_, gathered_;
  std::vector<uint16_t> want_[3];
  Buffer source_, sum_, parts_;
  std::vector<float> before_;
};

std::string NameOf(const Rows& rows, std::optional<ExchangeForm> form) {
  std::string text = !form ? "" : *form == ExchangeForm::kPackets ? "packets" : "chunks";
  for (const int64_t count : rows) (text += ' ') += std::to_string(count);
  return text;
}

void CheckSteps(int ranks, const Widths& widths) {
  Findings findings;
  MustJoin(RunRanks(Group(ranks, widths), [&](Rank& self) {
    int variant = 0;
    for (const Rows& rows : StepsOf(ranks)) {
      for (const std::optional<ExchangeForm> form :
           {std::optional(ExchangeForm::kPackets), std::optional(ExchangeForm::kChunks), {}}) {
        const DType own = variant % 4 >= 2 ? DType::kBf16 : DType::kF32;
        Step step(self, rows, widths, variant, own, variant % 2 == 0 ? DType::kBf16 : DType::kF32);
        ++variant;
        self.ops->peer_exchange()->Choose(form);
        self.Meet();
        if (findings.any()) return;
        step.Queue(self);
        self.Wait();
        step.Check(self, findings, NameOf(rows, form));
      }
    }
    findings.AddStatus(self);
  }));
}

GPU_TEST(RanksTest, ReplicasHaveTheRowsOfAllAndTheSumsOfTheirOwn) {
  for (const int ranks : GroupSizes()) {
    CheckSteps(ranks, {});
    CheckSteps(ranks, {.hidden = 256, .chosen = 2});
    CheckSteps(ranks, {.hidden = 67, .chosen = 1});
  }
}

// Steps of all kinds one after the other, without a wait between them, and a rank that is late at
// random; then the same from a graph.
void CheckRepeated(int ranks, bool graph) {
  const std::vector<Rows> kinds = StepsOf(ranks);
  const std::vector<size_t> used = {5, 0, 2, 6, 3, 1, 7, 0};
  const Widths widths{.hidden = 1024};
  Findings findings;
  MustJoin(RunRanks(Group(ranks, widths), [&](Rank& self) {
    std::vector<std::unique_ptr<Step>> steps;
    for (size_t i = 0; i < used.size(); ++i) {
      steps.push_back(std::make_unique<Step>(self, kinds[used[i]], widths, static_cast<int>(i)));
    }
    const auto queue_all = [&] {
      for (size_t i = 0; i < steps.size(); ++i) {
        self.ops->peer_exchange()->Choose(i % 3 == 1 ? ExchangeForm::kChunks
                                                     : ExchangeForm::kPackets);
        steps[i]->Queue(self);
      }
    };
    std::unique_ptr<OpGraph> recorded;
    if (graph) recorded = Capture(self.ctx(), queue_all);
    std::mt19937 random(static_cast<unsigned>(self.rank));
    self.Meet();
    const int repeats = testing::TimeIsShort() ? 6 : kRepeats;
    for (int repeat = 0; repeat < repeats && !findings.any(); ++repeat) {
      if (random() % 4 == 0) Delay(self.ctx(), random() % 40'000);
      if (random() % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      graph ? recorded->Launch(self.ctx()) : queue_all();
      if (repeat % 20 != 19 && repeat != repeats - 1) continue;
      self.Wait();
      for (size_t i = 0; i < steps.size(); ++i) {
        steps[i]->Check(self, findings,
                        "repeat " + std::to_string(repeat) + NameOf(kinds[used[i]], {}));
      }
      self.Meet();
    }
    findings.AddStatus(self);
  }));
}

GPU_TEST(RanksTest, ExchangesOfLateReplicasAreRightAgainAndAgain) {
  for (const int ranks : GroupSizes()) CheckRepeated(ranks, false);
}
GPU_TEST(RanksTest, ExchangesInGraphsAreRightAgainAndAgain) {
  for (const int ranks : GroupSizes()) CheckRepeated(ranks, true);
}

// Two replicas of two tensor ranks: each rank's exchange is with the rank at its place.
GPU_TEST(RanksTest, ReplicasOfSeveralRanksExchangePlaceByPlace) {
  if (RanksPossible() < 4) testing::SkipCase("fewer than 4 ranks");
  const Widths widths{.hidden = 512};
  GpuRankArgs world = Group(2, widths);
  world.ranks = 4;
  world.tensor = 2;
  Findings findings;
  MustJoin(RunRanks(world, [&](Rank& self) {
    const int replica = self.rank / 2, place = self.rank % 2;
    const Rows rows = place == 0 ? Rows{3, 5} : Rows{70, 2};
    const auto bits = [&](int of) { return Bits(Seed(of, place, 0), rows[size_t(of)] * 512); };
    const Buffer own = ToDevice(bits(replica)), all = OnDevice(size_t(Total(rows) * 512) * 2);
    const Buffer part = ToDevice(std::vector<float>(512, static_cast<float>(1 + self.rank)));
    std::vector<uint16_t> want = bits(0);
    const std::vector<uint16_t> second = bits(1);
    want.insert(want.end(), second.begin(), second.end());
    const ExpertExchange::Gathered tensors[] = {
        {.all = TensorView(all.data(), DType::kBf16, {Total(rows), 512}),
         .own = TensorView(own.data(), DType::kBf16, {rows[size_t(replica)], 512})}};
    for (int repeat = 0; repeat < 20; ++repeat) {
      self.ops->experts()->Gather(self.ctx(), tensors, rows);
      self.ops->Sum(self.ctx(), TensorView(part.data(), DType::kF32, {1, 512}));
    }
    self.Wait();
    const auto got = FromDevice<uint16_t>(all.data(), want.size());
    findings.AddDifference(self, "rows", Difference(got.data(), want.data(), want.size()));
    findings.AddStatus(self);
  }));
}

GPU_TEST(RanksTest, AReplicaThatStaysAwayIsNamed) {
  const Widths widths{.hidden = 512};
  for (const ExchangeForm form : {ExchangeForm::kPackets, ExchangeForm::kChunks}) {
    GpuRankArgs world = Group(2, widths);
    world.patience_ms = 300;
    Findings findings;
    MustJoin(RunRanks(world, [&](Rank& self) {
      Step step(self, {40, 3}, widths, 1);
      self.ops->peer_exchange()->Choose(form);
      self.Meet();
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < 20 && self.rank == 0; ++i) step.Queue(self);
      ExpectVainWait(self, findings, begin);
    }));
  }
}

// By NCCL the same bits; a group of one too, which a replica alone has no need of.
void CheckNccl(int ranks) {
  const Widths widths{.hidden = 1024};
  Findings findings;
  GpuRankArgs world = Group(ranks, widths, 256);
  world.nccl_only = true;
  MustJoin(RunRanks(world, [&](Rank& self) {
    int variant = 0;
    for (const Rows& rows : StepsOf(ranks)) {
      if (*std::ranges::max_element(rows) > 256) continue;
      const DType type = variant % 2 == 0 ? DType::kF32 : DType::kBf16;
      Step step(self, rows, widths, variant++, DType::kF32, type);
      const auto graph = Capture(self.ctx(), [&] { step.Queue(self); });
      self.Meet();
      if (findings.any()) return;
      for (int repeat = 0; repeat < 3; ++repeat) graph->Launch(self.ctx());
      step.Queue(self);
      self.Wait();
      step.Check(self, findings, "NCCL" + NameOf(rows, {}));
    }
    findings.AddStatus(self);
  }));
}

bool NcclIsThere() {
  return Nccl::Open().ok();
}

GPU_TEST(RanksTest, ReplicasExchangeByNccl) {
  if (!NcclIsThere()) testing::SkipCase("no NCCL");
  if (UsableDeviceCount() < 2) testing::SkipCase("fewer than 2 GPUs");
  for (const int ranks : GroupSizes()) {
    if (ranks <= UsableDeviceCount()) CheckNccl(ranks);
  }
}

// Two halves of the ranks count as two hosts. NCCL takes one rank of a group on a card.
void OnTwoHosts(int of_host,
                const Widths& widths,
                int64_t patience_ms,
                const std::function<void(Rank&)>& run) {
  if (!NcclIsThere()) testing::SkipCase("no NCCL");
  if (2 * of_host > RanksPossible() || Must(CardOf(0)) == Must(CardOf(of_host))) {
    testing::SkipCase("two cards with " + std::to_string(of_host) + " ranks each are not there");
  }
  GpuRankArgs world = Group(2 * of_host, widths);
  world.patience_ms = patience_ms;
  MustJoin(RunRanks(world, run, [&](int rank, GpuRankArgs& args) { args.host = rank / of_host; }));
}

// Rows of all have the same bits, sums those of hosts that round theirs; alone and from graphs.
void CheckTwoLevels(int of_host, const Widths& widths) {
  Findings findings;
  OnTwoHosts(of_host, widths, 3000, [&](Rank& self) {
    int variant = 0;
    if (!self.ops->remark().starts_with("rows of " + std::to_string(2 * of_host) +
                                        " replicas cross once between 2 hosts")) {
      findings.Add("not in two levels: " + self.ops->remark());
    }
    std::mt19937 random(static_cast<unsigned>(self.rank));
    for (const Rows& rows : StepsOf(2 * of_host)) {
      for (const std::optional<ExchangeForm> form :
           {std::optional(ExchangeForm::kPackets), std::optional(ExchangeForm::kChunks), {}}) {
        const DType own = variant % 4 >= 2 ? DType::kBf16 : DType::kF32;
        Step step(self, rows, widths, variant, own, variant % 2 == 0 ? DType::kBf16 : DType::kF32,
                  of_host);
        ++variant;
        self.ops->peer_exchange()->Choose(form);
        const auto graph = Capture(self.ctx(), [&] { step.Queue(self); });
        self.Meet();
        if (findings.any()) return;
        for (int repeat = 0; repeat < 5; ++repeat) {
          if (random() % 3 == 0) Delay(self.ctx(), random() % 40'000);
          graph->Launch(self.ctx());
        }
        self.Wait();
        step.Check(self, findings, "two levels, recorded," + NameOf(rows, form));
        self.Meet();
        step.Queue(self);
        self.Wait();
        step.Check(self, findings, "two levels," + NameOf(rows, form));
      }
    }
    findings.AddStatus(self);
  });
}

GPU_TEST(RanksTest, RowsOfReplicasCrossBetweenHostsOnce) {
  CheckTwoLevels(2, {});
  CheckTwoLevels(2, {.hidden = 67, .chosen = 1});
}
GPU_TEST(RanksTest, RowsOfFourReplicasOfAHostCrossOnce) {
  CheckTwoLevels(4, {.hidden = 1024});
}

// The last rank stays away: who waits for it on its host says so; who waits for it in NCCL, on the
// other host, waits until somebody ends it.
GPU_TEST(RanksTest, AReplicaOfAnotherHostThatStaysAwayEndsBothLevels) {
  const Widths widths{.hidden = 512};
  Findings findings;
  OnTwoHosts(2, widths, 300, [&](Rank& self) {
    Step step(self, {40, 3, 5, 6}, widths, 1, DType::kF32, DType::kF32, 2);
    self.Meet();
    const auto begin = std::chrono::steady_clock::now();
    if (self.rank != 3) step.Queue(self);
    std::thread ends([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      self.ops->Abort();
    });
    self.Wait();
    ends.join();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    if (taken.count() > 8) findings.Add("ended late");
    const std::string want[] = {"ranks: rank 0 waited for rank 1 in vain", "",
                                "ranks: rank 2 waited for rank 3 in vain", ""};
    const Status status = self.ops->status();
    const std::string& mine = want[static_cast<size_t>(self.rank)];
    if (status.ok() || (!mine.empty() && status.message() != mine)) {
      findings.Add("rank " + std::to_string(self.rank) + ": " + status.message());
    }
    self.all->arrive_and_wait();
  });
}

GPU_TEST(RanksTest, AReplicaAloneExchangesByNccl) {
  if (!NcclIsThere()) testing::SkipCase("no NCCL");
  const std::shared_ptr<const Nccl> nccl = Must(Nccl::Open());
  Device device;
  constexpr int64_t kRows = 9, kWidth = 1024, kCount = kRows * kWidth;
  const auto exchange = Must(NcclExchange::Create(
      Must(NcclGroup::Join(nccl, Must(nccl->MakeId()), 0, 1)), kWidth, 4));  // in several goes
  const Buffer own = ToDevice(Bits(1, kCount)), all = OnDevice(kCount * 2);
  const std::vector<float> before = Drawn(2, kCount), part = Drawn(3, kCount);
  const Buffer sum = ToDevice(before), parts = ToDevice(part);
  const ExpertExchange::Gathered tensors[] = {
      {.all = TensorView(all.data(), DType::kBf16, {kRows, kWidth}),
       .own = TensorView(own.data(), DType::kBf16, {kRows, kWidth})}};
  const Rows rows = {kRows};
  exchange->Gather(device.ctx(), tensors, rows);
  exchange->AddBack(device.ctx(), TensorView(sum.data(), DType::kF32, {kRows, kWidth}),
                    TensorView(parts.data(), DType::kF32, {kRows, kWidth}), rows);
  device.Wait();
  Must(exchange->status());
  GPU_EXPECT(FromDevice<uint16_t>(all.data(), kCount) == Bits(1, kCount));
  std::vector<float> want = before;
  for (size_t i = 0; i < want.size(); ++i) want[i] += Rounded(part[i]);
  const std::string difference =
      Difference(FromDevice<float>(sum.data(), kCount).data(), want.data(), kCount);
  GPU_EXPECT_EQ(difference, std::string());
}

}  // namespace
}  // namespace baltoro::cuda
