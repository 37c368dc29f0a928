// Replicas on several hosts whose rows cross once, against the exchange of all with all; hosts are
// groups of threads here.

#include "ops/compose/two_level_exchange.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/link_communicator.h"
#include "comm/thread_world.h"
#include "model/host_exchange.h"
#include "ops/group_rows.h"

namespace baltoro {
namespace {

using Rows = std::vector<int64_t>;

constexpr int64_t kHidden = 33, kChosen = 3, kRowsMax = 40;
constexpr int64_t kRowBytes = kHidden * 2 + kHidden + kChosen * 8;

std::unique_ptr<HostExchange> Join(Link* link, const std::string& name, Rows members) {
  GroupOptions options{.name = name, .ranks = {members.begin(), members.end()}};
  Result<std::unique_ptr<Communicator>> group = JoinGroup(link, options);
  EXPECT_TRUE(group.ok()) << group.status().message();
  return std::make_unique<HostExchange>(std::move(group).value());
}

// A rank's exchanges: with all at once, and in two levels.
struct Both {
  Both(Link* link, int64_t hosts, int64_t of_host) {
    const int64_t rank = link->rank(), place = rank % of_host, host = rank / of_host;
    Rows everyone, same_place, same_host;
    for (int64_t i = 0; i < hosts * of_host; ++i) everyone.push_back(i);
    for (int64_t i = 0; i < hosts; ++i) same_place.push_back(i * of_host + place);
    for (int64_t i = 0; i < of_host; ++i) same_host.push_back(host * of_host + i);
    plain = Join(link, "all", everyone);
    across = Join(link, "across" + std::to_string(place), same_place);
    within = Join(link, "within" + std::to_string(host), same_host);
    room = Buffer::Create(static_cast<size_t>(TwoLevelExchange::RoomBytes(
                              hosts, kRowsMax, kRowBytes, kHidden * int64_t{sizeof(float)})),
                          "room")
               .value();
    // What crossed before must not be read again.
    std::memset(room.data(), 0x5A, room.bytes());
    two = std::make_unique<TwoLevelExchange>(TwoLevelExchange::Levels{
        .across = across.get(),
        .within = within.get(),
        .hosts = hosts,
        .of_host = of_host,
        .replica = rank,
        .room = {static_cast<std::byte*>(room.data()), room.bytes()},
        .clear = [](const OpContext&, const TensorView& x) {
          std::memset(x.data, 0, static_cast<size_t>(x.num_elements() * SizeOf(x.dtype)));
        }});
  }

  std::unique_ptr<HostExchange> plain, across, within;
  Buffer room;
  std::unique_ptr<TwoLevelExchange> two;
};

std::vector<float> Drawn(uint64_t seed, int64_t count) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

// Four tensors of different types, bytes of which say whose they are.
struct Tensors {
  Tensors(const Rows& rows, size_t rank, uint64_t seed) {
    const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    const std::pair<DType, int64_t> kinds[] = {{DType::kBf16, kHidden},
                                               {DType::kU8, kHidden},
                                               {DType::kI32, kChosen},
                                               {DType::kF32, kChosen}};
    for (const auto& [type, width] : kinds) {
      const auto row = static_cast<size_t>(width * SizeOf(type));
      own.emplace_back(static_cast<size_t>(rows[rank]) * row);
      all.emplace_back(static_cast<size_t>(total) * row, std::byte{0xEE});
      std::mt19937_64 random(seed * 1000 + rank * 10 + own.size());
      for (std::byte& byte : own.back()) byte = static_cast<std::byte>(random());
      views.push_back({.all = TensorView(all.back().data(), type, {total, width}),
                       .own = TensorView(own.back().data(), type, {rows[rank], width})});
    }
  }
  std::vector<std::vector<std::byte>> own, all;
  std::vector<ExpertExchange::Gathered> views;
};

// own += parts of the ranks of each host, then of the hosts.
std::vector<float> SumsByHost(const Rows& rows,
                              size_t rank,
                              int64_t of_host,
                              std::vector<float> own,
                              const std::vector<std::vector<float>>& parts) {
  const auto first = static_cast<size_t>(
      std::accumulate(rows.begin(), rows.begin() + static_cast<int64_t>(rank), int64_t{0}) *
      kHidden);
  for (size_t i = 0; i < own.size(); ++i) {
    float sum = 0;
    for (size_t host = 0; host < rows.size(); host += static_cast<size_t>(of_host)) {
      float of_this = 0;
      for (size_t r = host; r < host + static_cast<size_t>(of_host); ++r) {
        of_this += parts[r][first + i];
      }
      sum += of_this;
    }
    own[i] += sum;
  }
  return own;
}

void CheckStep(Both& rank, size_t self, int64_t of_host, const Rows& rows, uint64_t seed) {
  const OpContext none;
  Tensors plain(rows, self, seed), two(rows, self, seed);
  rank.plain->Gather(none, plain.views, rows);
  rank.two->Gather(none, two.views, rows);
  EXPECT_EQ(two.all, plain.all);

  const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  std::vector<std::vector<float>> parts;
  for (size_t r = 0; r < rows.size(); ++r) parts.push_back(Drawn(seed + r, total * kHidden));
  std::vector<float> sum = Drawn(seed + 100 + self, rows[self] * kHidden), sum_of_all = sum;
  const std::vector<float> want = SumsByHost(rows, self, of_host, sum, parts);
  std::vector<float> part = parts[self];
  const TensorView all(part.data(), DType::kF32, {total, kHidden});
  rank.two->AddBack(none, TensorView(sum.data(), DType::kF32, {rows[self], kHidden}), all, rows);
  rank.plain->AddBack(none, TensorView(sum_of_all.data(), DType::kF32, {rows[self], kHidden}), all,
                      rows);
  EXPECT_EQ(sum, want);
  for (size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(sum[i], sum_of_all[i], 1e-5) << i;
}

struct Shape {
  int64_t hosts, of_host;
};

void OnRanks(const Shape& shape, const std::function<void(Link*, Both&)>& run) {
  ThreadWorld world(static_cast<int32_t>(shape.hosts * shape.of_host));
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < shape.hosts * shape.of_host; ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Link> link = world.Join(rank);
      Both both(link.get(), shape.hosts, shape.of_host);
      run(link.get(), both);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class TwoLevelExchangeTest : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Shapes,
                         TwoLevelExchangeTest,
                         ::testing::Values(Shape{2, 2}, Shape{2, 4}, Shape{3, 2}),
                         [](const auto& shape) {
                           return std::to_string(shape.param.hosts) + "HostsOf" +
                                  std::to_string(shape.param.of_host);
                         });

// Gathered bits are those of the exchange of all with all, sums those of the hosts' own order.
TEST_P(TwoLevelExchangeTest, RowsAndSumsAreThoseOfTheExchangeOfAll) {
  const auto ranks = static_cast<size_t>(GetParam().hosts * GetParam().of_host);
  std::vector<Rows> steps = {Rows(ranks, 4), Rows(ranks, 0), Rows(ranks, kRowsMax)};
  for (size_t rank = 0; rank < ranks; ++rank) {
    steps.emplace_back(ranks, 0);  // one alone has rows
    steps.back()[rank] = 5;
    steps.emplace_back(ranks, 3);  // one has none
    steps.back()[rank] = 0;
  }
  std::mt19937 random(7);
  for (int i = 0; i < 30; ++i) {
    Rows rows;
    for (size_t rank = 0; rank < ranks; ++rank) {
      rows.push_back(random() % 3 == 0 ? 0 : static_cast<int64_t>(random() % kRowsMax));
    }
    steps.push_back(rows);
  }
  OnRanks(GetParam(), [&](Link* link, Both& both) {
    for (size_t step = 0; step < steps.size(); ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      CheckStep(both, static_cast<size_t>(link->rank()), GetParam().of_host, steps[step],
                step * 1000);
    }
    EXPECT_TRUE(both.across->status().ok() && both.within->status().ok());
  });
}

// Whoever misses a rank in either exchange goes on with zeros: numbers of experts must be some.
TEST_P(TwoLevelExchangeTest, BehindAFailureRowsAreZeros) {
  const Rows rows(static_cast<size_t>(GetParam().hosts * GetParam().of_host), 6);
  OnRanks(GetParam(), [&](Link* link, Both& both) {
    Tensors tensors(rows, static_cast<size_t>(link->rank()), 1);
    both.plain->Gather({}, tensors.views, rows);  // all are there
    if (link->rank() == 1) link->Abort("has had enough");
    for (int i = 0; i < 2; ++i) both.two->Gather({}, tensors.views, rows);
    EXPECT_FALSE(both.across->status().ok() && both.within->status().ok());
    for (const std::vector<std::byte>& all : tensors.all) {
      EXPECT_EQ(all, std::vector<std::byte>(all.size()));
    }
  });
}

}  // namespace
}  // namespace baltoro
