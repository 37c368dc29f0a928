// The INT4 expert bank against plain loops in double over the checkpoint's own form of the weights.

#include "ops/cuda/experts/int4_bank_test_support.cuh"
#include "support/gpu_test.h"

namespace baltoro::cuda::moe_test {
namespace {

const auto kWays = {Way::kStreaming, Way::kGrouped};
// The way with the sum takes intermediates of 256 alone.
const auto kSumShapes = {MoeShape{16, 256, 256, 4, 0}, MoeShape{9, 1152, 256, 3, 0},
                         MoeShape{200, 384, 256, 9, 0}};
// Of the streaming way's kernels by digits: tiles of 1 to 16 rows, units of fewer strips.
const auto kDigitShapes = {MoeShape{40, 256, 256, 4, 0}, MoeShape{12, 1152, 256, 3, 0}};
// The pocket model's bank, and one whose sizes no piece divides.
const auto kSmallShapes = {MoeShape{16, 256, 128, 4, 0}, MoeShape{9, 1152, 384, 3, 0}};

GPU_TEST(MoeExpertBankTest, SmallBanksAgreeWithPlainLoops) {
  Random random = {1};
  for (const MoeShape& shape : kSmallShapes) {
    const Bank bank(shape, random);
    for (const Way way : kWays) {
      for (const int tokens : {1, 2, 7, 8, 9, 63, 64, 65, 257}) {
        Check(bank, tokens, Routing::kRandom, way, random);
      }
      for (const int tokens : {1, 33, 130}) Check(bank, tokens, Routing::kSameForAll, way, random);
    }
  }
}

GPU_TEST(MoeExpertBankTest, FewRowsOfAnExpertAgreeWithPlainLoops) {
  Random random = {8};
  for (const MoeShape& shape : kDigitShapes) {
    const Bank bank(shape, random);
    for (const int tokens : {11, 16, 29, 64, 150}) {
      Check(bank, tokens, Routing::kRandom, Way::kStreaming, random);
    }
    for (const int tokens : {11, 17, 50}) {
      Check(bank, tokens, Routing::kSameForAll, Way::kStreaming, random);
      Check(bank, tokens, Routing::kWithHoles, Way::kStreaming, random);
    }
    CheckRowsAlone(bank, Way::kStreaming, random);
  }
  // Enough experts for pieces of every size among what blocks have in common.
  const Bank dealt({.slots = 96, .hidden = 640, .intermediate = 256, .top_k = 8}, random);
  for (const int tokens : {40, 110}) {
    Check(dealt, tokens, Routing::kRandom, Way::kStreaming, random);
  }
  // Rows longer than the threads that make digits of one hold.
  const Bank bank({.slots = 3, .hidden = 8320, .intermediate = 256, .top_k = 3}, random);
  Check(bank, 11, Routing::kRandom, Way::kStreaming, random);
}

// What an emulator ends in a minute: gate/up of a middling number of rows and of many.
GPU_TEST(MoeExpertBankTest, SmallBanksWithTheSumAgreeWithPlainLoops) {
  Random random = {9};
  const Bank few({16, 256, 256, 4, 0}, random), many({4, 640, 256, 2, 0}, random);
  for (const int tokens : {7, 60}) Check(few, tokens, Routing::kRandom, Way::kGroupedSum, random);
  // Tiles of up to 40 rows, of experts that have more, and few of many experts.
  for (const int tokens : {100, 112}) {
    Check(few, tokens, Routing::kRandom, Way::kGroupedSum, random);
  }
  Check(few, 110, Routing::kSameForAll, Way::kGroupedSum, random);
  Check(many, 170, Routing::kRandom, Way::kGroupedSum, random);
  // More chunks than buffers; tokens that have all of eight shares, that lack some, more than
  // eight.
  const Bank eight({12, 1280, 256, 8, 0}, random), nine({11, 256, 256, 9, 0}, random);
  for (const Routing routing : {Routing::kRandom, Routing::kWithHoles}) {
    Check(eight, 110, routing, Way::kGroupedSum, random);
    Check(nine, 21, routing, Way::kGroupedSum, random);
  }
  // More than twice as many chunks as barriers of chunks.
  const Bank long_rows({4, 2304, 256, 2, 0}, random);
  for (const int tokens : {3, 100}) {
    Check(long_rows, tokens, Routing::kRandom, Way::kGroupedSum, random);
  }
}

GPU_TEST(MoeExpertBankTest, ResultsInBf16AreThoseInF32Rounded) {
  Random random = {10};
  const Bank few({16, 256, 256, 4, 0}, random), many({4, 1152, 256, 2, 0}, random);
  for (const Way way : {Way::kStreaming, Way::kGrouped, Way::kGroupedSum}) {
    CheckRounded(few, 3, Routing::kRandom, way, random);
    CheckRounded(few, 60, Routing::kWithHoles, way, random);
    CheckRounded(many, 170, Routing::kRandom, way, random);
  }
}

GPU_TEST(MoeExpertBankTest, RoundedPartsOfTheFamilyAreThoseInF32Rounded) {
  Random random = {11};
  const Bank rank({24, 7168, 256, 8, 0}, random), small({16, 256, 256, 4, 0}, random);
  for (const int tokens : {300, 700}) {
    CheckRounded(rank, tokens, Routing::kRandom, Way::kGroupedSum, random);
    CheckRounded(rank, tokens, Routing::kWithHoles, Way::kChosen, random);
  }
  CheckRounded(small, 12001, Routing::kRandom, Way::kGroupedSum, random);
}

GPU_TEST(MoeExpertBankTest, TheSumAgreesWithPlainLoops) {
  Random random = {6};
  for (const MoeShape& shape : kSumShapes) {
    const Bank bank(shape, random);
    for (const int tokens : {1, 2, 7, 16, 17, 63, 129, 257, 1500}) {
      Check(bank, tokens, Routing::kRandom, Way::kGroupedSum, random);
    }
    for (const int tokens : {1, 33, 129, 700}) {
      Check(bank, tokens, Routing::kSameForAll, Way::kGroupedSum, random);
    }
    for (const int tokens : {1, 4, 33, 130, 900}) {
      Check(bank, tokens, Routing::kWithHoles, Way::kGroupedSum, random);
    }
    CheckRowsAlone(bank, Way::kGroupedSum, random);
  }
}

GPU_TEST(MoeExpertBankTest, TheSumTakesManyTokensInParts) {
  Random random = {7};
  const Bank small({16, 256, 256, 4, 0}, random);
  for (const int tokens : {5000, 12001}) {
    Check(small, tokens, Routing::kRandom, Way::kGroupedSum, random);
  }
  const Bank rank({24, 7168, 256, 8, 0}, random);
  for (const int tokens : {1, 3, 65, 200, 700}) {
    Check(rank, tokens, Routing::kRandom, Way::kGroupedSum, random);
  }
  Check(rank, 40, Routing::kWithHoles, Way::kGroupedSum, random);
  // Tens of tokens a block, all of whose warps add; chunks by the dozen.
  const Bank long_rows({24, 2304, 256, 8, 0}, random);
  for (const Routing routing : {Routing::kRandom, Routing::kWithHoles}) {
    Check(long_rows, 2900, routing, Way::kGroupedSum, random);
  }
}

void CheckOrdered(const Bank& bank, int tokens, Way way, Random& random) {
  const Step step(bank.shape, tokens, Routing::kRandom, random);
  if (Product(bank, step, way, true) != Product(bank, step, way)) {
    Fail("rows in matrix order give other bits: T " + std::to_string(tokens));
  }
}

GPU_TEST(MoeExpertBankTest, RowsInMatrixOrderAreTaken) {
  Random random = {11};
  const Bank grouped({9, 1152, 384, 3, 0}, random), sum({4, 640, 256, 2, 0}, random);
  for (const int tokens : {1, 65}) CheckOrdered(grouped, tokens, Way::kGrouped, random);
  for (const int tokens : {60, 170}) CheckOrdered(sum, tokens, Way::kGroupedSum, random);
}

GPU_TEST(MoeExpertBankTest, RowsInMatrixOrderAreTakenInParts) {
  Random random = {12};
  const Bank bank({16, 256, 256, 4, 0}, random);
  for (const int tokens : {5000, 12001}) CheckOrdered(bank, tokens, Way::kGroupedSum, random);
}

GPU_TEST(MoeExpertBankTest, ExpertsHeldElsewhereAndPaddingRowsAreLeftOut) {
  Random random = {2};
  for (const MoeShape& shape : kSmallShapes) {
    const Bank bank(shape, random);
    for (const Way way : kWays) {
      for (const int tokens : {1, 4, 33, 130}) {
        Check(bank, tokens, Routing::kWithHoles, way, random);
      }
    }
  }
}

// More shares of a token than the sum over them asks for at once.
GPU_TEST(MoeExpertBankTest, ManyExpertsOfATokenAreAdded) {
  Random random = {10};
  const Bank bank({16, 256, 128, 11, 0}, random);
  for (const int tokens : {5, 33}) {
    Check(bank, tokens, Routing::kRandom, Way::kStreaming, random);
    Check(bank, tokens, Routing::kWithHoles, Way::kGrouped, random);
  }
}

GPU_TEST(MoeExpertBankTest, ManyTokensRouteThroughSeveralBlocks) {
  Random random = {3};
  const Bank bank({16, 256, 128, 4, 0}, random);
  for (const Way way : kWays) {
    for (const int tokens : {300, 2047, 5000}) {
      Check(bank, tokens, Routing::kRandom, way, random);
    }
  }
  const Bank digits({16, 256, 256, 4, 0}, random);
  for (const int tokens : {300, 2047, 5000}) {
    Check(digits, tokens, Routing::kRandom, Way::kStreaming, random);
  }
}

GPU_TEST(MoeExpertBankTest, BanksOfTheFamilyAgreeWithPlainLoops) {
  Random random = {4};
  for (const Way way : kWays) {
    const Bank rank({24, 7168, 256, 8, 0}, random);
    for (const int tokens : {1, 3, 16, 65, 200, 700}) {
      Check(rank, tokens, Routing::kRandom, way, random);
    }
    Check(rank, 40, Routing::kWithHoles, way, random);
    const Bank whole({8, 7168, 2048, 8, 0}, random);
    for (const int tokens : {1, 5, 40}) Check(whole, tokens, Routing::kRandom, way, random);
  }
}

GPU_TEST(MoeExpertBankTest, ARowsBitsDoNotDependOnTheRowsBesideIt) {
  Random random = {5};
  for (const MoeShape& shape : kSmallShapes) {
    const Bank bank(shape, random);
    for (const Way way : kWays) CheckRowsAlone(bank, way, random);
  }
}

GPU_TEST(MoeExpertBankTest, TheLaunchRefusesWhatItCannotDo) {
  const MoeShape s = {16, 256, 128, 4, 8};
  const ExpertsPlan plan = PlanOf(QuestionOf(s, 1), Way::kStreaming);
  MoeInt4Args args;
  if (MoeWorkspaceBytes({16, 200, 128, 4, 8}).ok()) Fail("hidden 200 was taken");
  if (MoeWorkspaceBytes({2000, 256, 128, 4, 8}).ok()) Fail("2000 slots were taken");
  args.tokens = 9;
  if (LaunchMoeInt4(s, args, plan, OnDefaultStream()).ok()) Fail("too many tokens were taken");
  args.tokens = 1;
  args.x_stride = args.out_stride = 256;
  args.experts = 16;
  if (LaunchMoeInt4(s, args, plan, OnDefaultStream()).ok()) Fail("no workspace was taken");
  args.tokens = 0;
  if (!LaunchMoeInt4(s, args, plan, OnDefaultStream()).ok()) Fail("no tokens were refused");
  uint16_t packed = 0;
  if (!PackInt4Scale(0x4200, &packed) || packed != 0x4200 + (122 << 7)) Fail("scale 32");
  if (PackInt4Scale(0x4280, &packed)) Fail("scale 64 was taken");
  if (PackInt4Scale(0x7f80, &packed)) Fail("an infinite scale was taken");
  if (!PackInt4Scale(0x8000, &packed) || packed != 0x8000) Fail("scale -0");
}

}  // namespace
}  // namespace baltoro::cuda::moe_test

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) devices = 0;
  return baltoro::testing::RunGpuCases(argc, argv, devices);
}
