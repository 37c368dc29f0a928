#include "comm/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "comm/test_ranks.h"

namespace baltoro {
namespace {

using test::AllOf;
using test::Group;
using test::RunRanks;
using test::WorldKind;
using ::testing::HasSubstr;

// What rank `rank` brings: values of such different sizes that the order of a sum shows.
std::vector<float> Contribution(int32_t rank, size_t count) {
  constexpr float kScales[] = {1e-4f, 3e-3f, 0.1f, 1, 7, 110, 1900, 3e4f};
  uint32_t state = 7 + static_cast<uint32_t>(rank) * 1000003u;
  std::vector<float> values(count);
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = kScales[state >> 29] * (static_cast<float>(state >> 12 & 0xffff) - 32000.0f);
  }
  return values;
}

std::vector<float> PlainSum(const std::vector<int32_t>& ranks, size_t count) {
  std::vector<float> sum = Contribution(ranks[0], count);
  for (size_t r = 1; r < ranks.size(); ++r) {
    const std::vector<float> next = Contribution(ranks[r], count);
    for (size_t i = 0; i < count; ++i) sum[i] += next[i];
  }
  return sum;
}

// What the ranks of a world bring, and its sum, of which a test takes as much as it needs.
struct WorldData {
  WorldData(int32_t ranks, size_t count) {
    for (int32_t rank = 0; rank < ranks; ++rank) {
      brought.push_back(Contribution(rank, count));
      all.push_back(rank);
    }
    sum = PlainSum(all, count);
  }
  std::vector<float> Of(const Link& link, size_t count) const {
    const std::vector<float>& whole = brought[static_cast<size_t>(link.rank())];
    return {whole.begin(), whole.begin() + static_cast<ptrdiff_t>(count)};
  }
  std::span<const float> Sum(size_t count) const { return std::span(sum).first(count); }

  std::vector<int32_t> all;
  std::vector<std::vector<float>> brought;
  std::vector<float> sum;
};

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

std::vector<std::byte> Pattern(int32_t rank, size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<std::byte>(i * 31 + static_cast<size_t>(rank) * 57 + 1);
  }
  return data;
}

// Uneven, and 0 for some ranks.
std::vector<size_t> UnevenCounts(int32_t ranks, size_t unit) {
  std::vector<size_t> counts;
  for (int32_t r = 0; r < ranks; ++r) counts.push_back(static_cast<size_t>((r * 5 + 3) % 4) * unit);
  return counts;
}

class CommunicatorTest : public ::testing::TestWithParam<WorldKind> {};
INSTANTIATE_TEST_SUITE_P(Worlds,
                         CommunicatorTest,
                         ::testing::Values(WorldKind::kThreads, WorldKind::kUnixSockets),
                         test::KindName);

TEST(CommunicatorTestData, ShowsTheOrderOfASum) {
  EXPECT_FALSE(SameBits(PlainSum({0, 1, 2}, 1000), PlainSum({2, 1, 0}, 1000)));
}

TEST_P(CommunicatorTest, AllReduceIsThePlainSumInTheOrderOfTheRanks) {
  for (int32_t ranks = 1; ranks <= 8; ++ranks) {
    const WorldData world(ranks, 70001);
    RunRanks(GetParam(), ranks, [&](std::unique_ptr<Link> link) {
      const auto all = Group(link.get(), "all", AllOf(*link));
      for (const size_t count : {0, 1, 2, 3, 7, 16, 17, 129, 3584, 4099, 16385, 20001, 70001}) {
        std::vector<float> data = world.Of(*link, count);
        BT_EXPECT_OK(all->AllReduceSum(data));
        EXPECT_TRUE(SameBits(data, world.Sum(count))) << ranks << " x " << count;
      }
    });
  }
}

TEST_P(CommunicatorTest, AnAllReduceLongerThanItsBuffersGoesInRounds) {
  const size_t count = (1 << 20) + 4097;
  const WorldData world(3, count);
  RunRanks(GetParam(), 3, [&](std::unique_ptr<Link> link) {
    std::vector<float> data = world.Of(*link, count);
    BT_EXPECT_OK(Group(link.get(), "all", AllOf(*link))->AllReduceSum(data));
    EXPECT_TRUE(SameBits(data, world.Sum(count)));
  });
}

TEST_P(CommunicatorTest, AllReduceDoesNotDependOnWhoComesFirst) {
  const WorldData world(4, 1001);
  RunRanks(GetParam(), 4, [&](std::unique_ptr<Link> link) {
    const auto all = Group(link.get(), "all", AllOf(*link));
    std::mt19937 random(static_cast<uint32_t>(link->rank()));
    for (int round = 0; round < 30; ++round) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
      std::vector<float> data = world.Of(*link, 1001);
      BT_EXPECT_OK(all->AllReduceSum(data));
      ASSERT_TRUE(SameBits(data, world.Sum(1001))) << round;
    }
  });
}

TEST_P(CommunicatorTest, ReduceScatterGivesEachRankItsPartOfTheSum) {
  for (int32_t ranks = 1; ranks <= 8; ++ranks) {
    const size_t longest = ranks == 5 ? 80001 : 999;  // with five, longer than a round
    const WorldData world(ranks, 12 * std::max(longest, size_t{2001}));
    RunRanks(GetParam(), ranks, [&](std::unique_ptr<Link> link) {
      const auto all = Group(link.get(), "all", AllOf(*link));
      for (const size_t unit : {size_t{1}, size_t{13}, size_t{2001}, longest}) {
        const std::vector<size_t> counts = UnevenCounts(ranks, unit);
        const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0});
        const auto me = static_cast<size_t>(link->rank());
        const size_t begin = std::accumulate(counts.begin(), counts.begin() + me, size_t{0});
        const auto want = world.Sum(total).subspan(begin, counts[me]);
        std::vector<float> in = world.Of(*link, total), out(counts[me]);
        BT_EXPECT_OK(all->ReduceScatterSum(in, counts, out));
        EXPECT_TRUE(SameBits(out, want)) << ranks << " x " << unit;
        const auto in_place = std::span(in).subspan(begin, counts[me]);
        BT_EXPECT_OK(all->ReduceScatterSum(in, counts, in_place));
        EXPECT_TRUE(SameBits(in_place, want)) << ranks << " x " << unit << " in place";
      }
    });
  }
}

TEST_P(CommunicatorTest, AllGatherPutsUnequalPartsInOrder) {
  for (int32_t ranks = 1; ranks <= 8; ++ranks) {
    RunRanks(GetParam(), ranks, [&](std::unique_ptr<Link> link) {
      const auto all = Group(link.get(), "all", AllOf(*link));
      for (const size_t unit : {1, 1023, 65537}) {
        const std::vector<size_t> bytes = UnevenCounts(ranks, unit);
        std::vector<std::byte> want;
        for (int32_t r = 0; r < ranks; ++r) {
          const auto part = Pattern(r, bytes[static_cast<size_t>(r)]);
          want.insert(want.end(), part.begin(), part.end());
        }
        std::vector<std::byte> out(want.size());
        BT_EXPECT_OK(all->AllGather(Pattern(link->rank(), bytes[static_cast<size_t>(link->rank())]),
                                    bytes, out));
        EXPECT_EQ(out, want);
      }
    });
  }
}

TEST_P(CommunicatorTest, BroadcastReachesAllFromAnyRoot) {
  RunRanks(GetParam(), 5, [&](std::unique_ptr<Link> link) {
    const auto all = Group(link.get(), "all", AllOf(*link));
    for (int32_t root = 0; root < 5; ++root) {
      for (const size_t bytes : {0, 1, 14337, 300001}) {
        std::vector<std::byte> data(bytes);
        if (link->rank() == root) data = Pattern(root, bytes);
        BT_EXPECT_OK(all->Broadcast(data, root));
        EXPECT_EQ(data, Pattern(root, bytes));
      }
    }
  });
}

TEST_P(CommunicatorTest, MessagesUpToTheEagerSizeDoNotWaitForTheirReceiver) {
  RunRanks(GetParam(), 4, [&](std::unique_ptr<Link> link) {
    const auto all = Group(link.get(), "all", AllOf(*link), 20);
    const int32_t me = link->rank();
    for (int round = 0; round < 20; ++round) {  // all send first, in a ring
      const int32_t from = (me + 3) % 4;
      std::vector<std::byte> data(kEagerBytes);
      BT_EXPECT_OK(all->Send(Pattern(me + round, kEagerBytes), (me + 1) % 4));
      BT_EXPECT_OK(all->Receive(data, from));
      ASSERT_EQ(data, Pattern(from + round, kEagerBytes));
    }
  });
}

TEST_P(CommunicatorTest, LongMessagesFlowDownAChain) {
  RunRanks(GetParam(), 3, [&](std::unique_ptr<Link> link) {
    const auto chain = Group(link.get(), "pp", AllOf(*link));
    const size_t bytes = 700001;
    for (int batch = 0; batch < 4; ++batch) {
      std::vector<std::byte> data = Pattern(batch, bytes);
      if (link->rank() > 0) {
        std::fill(data.begin(), data.end(), std::byte{0});
        BT_EXPECT_OK(chain->Receive(data, link->rank() - 1));
      }
      if (link->rank() < 2) BT_EXPECT_OK(chain->Send(data, link->rank() + 1));
      ASSERT_EQ(data, Pattern(batch, bytes));
    }
  });
}

TEST_P(CommunicatorTest, LongMessagesAreTradedBothWaysAtOnce) {
  RunRanks(GetParam(), 3, [&](std::unique_ptr<Link> link) {
    const auto all = Group(link.get(), "ep", AllOf(*link));
    const int32_t me = link->rank();
    const size_t bytes = 10 * kEagerBytes;
    std::vector<std::vector<std::byte>> out, in;
    std::vector<Outgoing> outgoing;
    std::vector<Incoming> incoming;
    for (int32_t peer = 0; peer < 3; ++peer) {
      out.push_back(Pattern(me * 3 + peer, bytes));
      in.emplace_back(bytes);
    }
    for (int32_t peer = 0; peer < 3; ++peer) {
      if (peer == me) continue;
      outgoing.push_back({.peer = peer, .bytes = out[static_cast<size_t>(peer)]});
      incoming.push_back({.peer = peer, .bytes = in[static_cast<size_t>(peer)]});
    }
    BT_EXPECT_OK(all->Trade(outgoing, incoming));
    for (int32_t peer = 0; peer < 3; ++peer) {
      if (peer == me) continue;
      ASSERT_EQ(in[static_cast<size_t>(peer)], Pattern(peer * 3 + me, bytes));
    }
  });
}

TEST_P(CommunicatorTest, NobodyPassesABarrierBeforeAllHaveCome) {
  std::atomic<int> entered = 0;
  RunRanks(GetParam(), 6, [&](std::unique_ptr<Link> link) {
    const auto all = Group(link.get(), "all", AllOf(*link));
    for (int round = 1; round <= 20; ++round) {
      if (link->rank() == round % 6) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ++entered;
      BT_EXPECT_OK(all->Barrier());
      EXPECT_GE(entered.load(), 6 * round);
    }
  });
}

TEST_P(CommunicatorTest, ARankIsInSeveralGroupsAtOnce) {
  RunRanks(GetParam(), 8, [&](std::unique_ptr<Link> link) {
    const int32_t me = link->rank(), stage = me / 4;
    std::vector<int32_t> tensor, context, neighbours = {me % 4 + 4, me % 4};  // not in order
    for (int32_t r = 0; r < 4; ++r) tensor.push_back(stage * 4 + r);
    for (int32_t r = 0; r < 2; ++r) context.push_back(me / 2 * 2 + r);
    const auto tp = Group(link.get(), "tp", tensor), dcp = Group(link.get(), "dcp", context);
    const auto pp = Group(link.get(), "pp", neighbours),
               all = Group(link.get(), "all", AllOf(*link));
    EXPECT_EQ(pp->rank(), 1 - stage);
    for (int round = 0; round < 5; ++round) {
      for (const auto& [group, ranks] :
           {std::pair(&tp, tensor), std::pair(&dcp, context), std::pair(&pp, neighbours),
            std::pair(&all, AllOf(*link))}) {
        std::vector<float> data = Contribution(me, 777);
        BT_EXPECT_OK((*group)->AllReduceSum(data));
        ASSERT_TRUE(SameBits(data, PlainSum(ranks, 777)));
      }
    }
  });
}

TEST_P(CommunicatorTest, CallsThatDoNotFitEachOtherAreNamed) {
  RunRanks(GetParam(), 2, [&](std::unique_ptr<Link> link) {
    const auto all = Group(link.get(), "all", AllOf(*link), 20);
    std::vector<float> data(link->rank() == 0 ? 8 : 9);
    Status got = all->AllReduceSum(data);
    // The first rank to see it may have sent all that the other needed.
    while (got.ok()) got = all->Barrier();
    EXPECT_THAT(got.message(), HasSubstr("bytes of all-reduce"));
    EXPECT_THAT(got.message(), HasSubstr("rank "));
  });
  RunRanks(GetParam(), 2, [&](std::unique_ptr<Link> link) {
    const auto tp = Group(link.get(), "tp", {0, 1}), dcp = Group(link.get(), "dcp", {0, 1});
    Status got = (link->rank() == 0 ? tp : dcp)->Barrier();
    while (got.ok()) got = tp->Barrier();
    EXPECT_THAT(got.message(), HasSubstr("of barrier in group"));
  });
}

TEST(JoinGroupTest, RefusesGroupsThatCannotBe) {
  ThreadWorld world(3);
  const auto link = world.Join(1);
  const auto why = [&](std::vector<int32_t> ranks) {
    return JoinGroup(link.get(), {.name = "tp", .ranks = std::move(ranks)}).status().message();
  };
  EXPECT_THAT(why({1, 3}), HasSubstr("rank 3 is not one of the world's 3 ranks"));
  EXPECT_THAT(why({1, -1}), HasSubstr("rank -1"));
  EXPECT_THAT(why({1, 0, 1}), HasSubstr("rank 1 is named twice"));
  EXPECT_THAT(why({0, 2}), HasSubstr("does not hold this rank, 1"));
  EXPECT_THAT(why({}), HasSubstr("does not hold this rank"));
}

}  // namespace
}  // namespace baltoro
