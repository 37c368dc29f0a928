// Ranks that stay away, give up, disagree or live in another process.

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/symmetric/ranks_test_support.cuh"

namespace baltoro::cuda {
namespace {

using namespace ranks_test;  // NOLINT
using Clock = std::chrono::steady_clock;

constexpr int64_t kHidden = 7168;

GpuRankArgs World(int ranks) {
  GpuRankArgs args;
  args.ranks = ranks;
  args.tensor = ranks;
  args.rows_max = 64;
  args.hidden = kHidden;
  args.vocab = 2304;
  args.head_bytes = 8 * 576 * 2;
  return args;
}

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void QueueSum(Rank& self, const Buffer& x, int rows) {
  self.ops->Sum(self.ctx(), TensorView(x.data(), DType::kF32, {rows, kHidden}));
}

GPU_TEST(RanksFailureTest, ARankThatAbortsEndsTheOthers) {
  const int ranks = std::min(RanksPossible(), 4);
  Findings findings;
  MustJoin(RunRanks(World(ranks), [&](Rank& self) {
    const Buffer x = OnDevice(17 * kHidden * 4);
    self.Meet();
    QueueSum(self, x, 17);
    self.Wait();
    self.all->arrive_and_wait();
    const auto begin = Clock::now();
    if (self.rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      self.ops->Abort();
    } else {
      for (int i = 0; i < 500; ++i) QueueSum(self, x, 17);
    }
    self.Wait();
    if (SecondsSince(begin) > 5) findings.Add("ended late");
    const Status status = self.ops->status();
    if (status.message() != "ranks: aborted by rank 1") {
      findings.Add("rank " + std::to_string(self.rank) + ": " + status.message());
    }
  }));
}

GPU_TEST(RanksFailureTest, ARankThatStaysAwayIsNamed) {
  GpuRankArgs world = World(2);
  world.patience_ms = 300;
  Findings findings;
  MustJoin(RunRanks(world, [&](Rank& self) {
    const Buffer x = OnDevice(64 * kHidden * 4);
    for (const int rows : {1, 64}) {
      const auto begin = Clock::now();
      if (self.rank == 0) QueueSum(self, x, rows);
      self.Wait();
      if (SecondsSince(begin) > 5) findings.Add("ended late");
    }
    self.all->arrive_and_wait();
    if (self.ops->status().message() != "ranks: rank 0 waited for rank 1 in vain") {
      findings.Add(self.ops->status().message());
    }
  }));
}

GPU_TEST(RanksFailureTest, RanksOfDifferentModelsDoNotJoin) {
  const auto results = RunRanks(
      World(2), [](Rank&) {}, [](int rank, GpuRankArgs& args) { args.hidden += rank; });
  for (const Status& status : results) {
    GPU_EXPECT_EQ(status.message(),
                  std::string("ranks of GPUs: ranks were started for different models or layouts"));
  }
}

GPU_TEST(RanksFailureTest, AnErrorOfOneIsTheErrorOfAll) {
  const auto results = RunRanks(
      World(2), [](Rank&) {},
      [](int rank, GpuRankArgs& args) { args.rows_max = rank == 1 ? 0 : 64; });
  for (const Status& status : results) {
    GPU_EXPECT_EQ(status.message(),
                  std::string("rank 1: ranks of GPUs: no rows, no columns or no vocabulary"));
  }
}

// ---- ranks of two processes

bool Transfer(int socket, char* data, size_t bytes, bool out) {
  while (bytes > 0) {
    const ssize_t done = out ? write(socket, data, bytes) : read(socket, data, bytes);
    if (done <= 0) return false;
    data += done;
    bytes -= static_cast<size_t>(done);
  }
  return true;
}

Status ExchangeOver(int socket,
                    int rank,
                    std::span<const std::byte> own,
                    std::span<std::byte> all) {
  char* const to = reinterpret_cast<char*>(all.data());
  std::memcpy(to + own.size() * static_cast<size_t>(rank), own.data(), own.size());
  const bool done =
      Transfer(socket, to + own.size() * static_cast<size_t>(rank), own.size(), true) &&
      Transfer(socket, to + own.size() * static_cast<size_t>(1 - rank), own.size(), false);
  return done ? Status() : Status(Code::kUnavailable, "the other process is gone");
}

// What both processes do; the number of things that went wrong. `abort`: rank 1 does so at the end.
int RunAsProcess(int socket, int rank, bool abort) {
  Must(TakeDevice(rank));
  GpuRankArgs args = World(2);
  args.rank = rank;
  args.device = rank;
  args.exchange = [&](std::span<const std::byte> own, std::span<std::byte> all) {
    return ExchangeOver(socket, rank, own, all);
  };
  Device device;
  Result<std::unique_ptr<JoinedRanks>> joined = JoinedRanks::Join(args);
  if (!joined.ok()) {
    std::printf("rank %d: %s\n", rank, joined.status().message().c_str());
    return 1;
  }
  JoinedRanks& ops = *joined.value();
  if (ops.peers() == nullptr) {
    std::printf("rank %d: the other process's memory is not reached\n", rank);
    return 1;
  }
  int wrong = 0;
  constexpr int kRows = 17;
  constexpr size_t kCount = kRows * kHidden;
  const Buffer x = OnDevice(kCount * 4);
  for (int repeat = 0; repeat < 200; ++repeat) {
    const auto drawn = [&](int of) {
      return Drawn(static_cast<uint64_t>(of * 1000 + repeat % 3), kCount);
    };
    const Buffer source = ToDevice(drawn(rank));
    CopyAsync(device.ctx(), x.data(), source.data(), kCount * 4);
    ops.Sum(device.ctx(), TensorView(x.data(), DType::kF32, {kRows, kHidden}));
    device.Wait();
    if (repeat % 20 != 0) continue;
    std::vector<float> want = drawn(0);
    const std::vector<float> other = drawn(1);
    for (size_t i = 0; i < kCount; ++i) want[i] = Rounded(want[i]) + Rounded(other[i]);
    const auto got = FromDevice<float>(x.data(), kCount);
    const std::string difference = Difference(got.data(), want.data(), kCount);
    if (difference.empty()) continue;
    std::printf("rank %d repeat %d: %s\n", rank, repeat, difference.c_str());
    ++wrong;
  }
  if (abort) {
    const auto begin = Clock::now();
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      ops.Abort();
    } else {
      ops.Sum(device.ctx(), TensorView(x.data(), DType::kF32, {kRows, kHidden}));
      device.Wait();
    }
    if (SecondsSince(begin) > 5 || ops.status().message() != "ranks: aborted by rank 1") {
      std::printf("rank %d: after %.1f s: %s\n", rank, SecondsSince(begin),
                  ops.status().message().c_str());
      ++wrong;
    }
  }
  char word = 0;
  std::array<std::byte, 2> both;
  static_cast<void>(ExchangeOver(socket, rank, std::as_bytes(std::span(&word, 1)), both));
  return wrong;
}

GPU_TEST(RanksFailureTest, RanksOfTwoProcessesShareMemory) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) std::abort();
  const std::string socket = std::to_string(sockets[1]);
  const pid_t child = fork();
  if (child == 0) {
    close(sockets[0]);
    execl("/proc/self/exe", "ranks_failure_test", "--rank", socket.c_str(),
          static_cast<char*>(nullptr));
    _exit(127);
  }
  close(sockets[1]);
  int wrong = 0;
  std::thread([&] { wrong = RunAsProcess(sockets[0], 0, true); }).join();
  GPU_EXPECT_EQ(wrong, 0);
  close(sockets[0]);
  int state = 0;
  GPU_EXPECT_EQ(waitpid(child, &state, 0), child);
  GPU_EXPECT_EQ(state, 0);
}

}  // namespace

int RunChild(int socket) {
  return RunAsProcess(socket, 1, true);
}

}  // namespace baltoro::cuda

int main(int argc, char** argv) {
  baltoro::test::UseSharesOfOneCard();
  if (argc == 3 && std::strcmp(argv[1], "--rank") == 0) {
    return baltoro::cuda::RunChild(std::atoi(argv[2]));
  }
  if (baltoro::cuda::ranks_test::RanksPossible() < 2) {
    std::printf("SKIPPED: fewer than 2 GPUs\n");
    return 77;
  }
  return baltoro::testing::RunGpuCases(argc, argv, baltoro::UsableDeviceCount());
}
