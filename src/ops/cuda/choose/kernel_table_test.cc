// The file that BALTORO_KERNEL_TABLE names (launch/kernel_table.h).

#include "ops/cuda/launch/kernel_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "ops/cuda/choose/linear.h"
#include "ops/cuda/choose/recorded_card.h"
#include "support/support.h"

namespace baltoro::cuda {
namespace {

using ::testing::HasSubstr;

constexpr char kEntry[] = "linear rows=64 kernel=bf16_rows128\n";

// A file of this text, for as long as the object lives.
class TableFile {
 public:
  explicit TableFile(const std::string& text) : path_(folder_.path() + "/kernels.txt") {
    std::ofstream(path_, std::ios::binary) << text;
  }
  const std::string& path() const { return path_; }

 private:
  test::TempDir folder_;
  std::string path_;
};

std::string ErrorOf(const std::string& path) {
  return ReadKernelTable(path).status().message();
}

TEST(KernelTableTest, ErrorsNameTheVariableAndTheFile) {
  const TableFile wrong("\nlinear kernel=tails\n");
  const TableFile large(std::string(kOverridesBytesMax + 1, '#'));

  EXPECT_THAT(ErrorOf(wrong.path()),
              HasSubstr("BALTORO_KERNEL_TABLE " + wrong.path() + ":2: no kernel 'tails'"));
  EXPECT_THAT(ErrorOf("/nowhere/kernels.txt"),
              HasSubstr("BALTORO_KERNEL_TABLE /nowhere/kernels.txt: No such file"));
  EXPECT_THAT(ErrorOf("/tmp"), HasSubstr("BALTORO_KERNEL_TABLE /tmp: "));
  EXPECT_THAT(ErrorOf(large.path()), HasSubstr(large.path()));
}

TEST(KernelTableTest, TheTableOfTheProcessIsReadOnce) {
  const TableFile file(kEntry);
  ASSERT_EQ(setenv("BALTORO_KERNEL_TABLE", file.path().c_str(), 1), 0);
  const Result<Overrides*> table = KernelTable();
  ASSERT_TRUE(table.ok()) << table.status().message();
  ASSERT_NE(table.value(), nullptr);
  EXPECT_EQ(table.value()->size(), 1u);

  std::ofstream(file.path()) << "nonsense";
  ASSERT_TRUE(KernelTable().ok());
  EXPECT_EQ(KernelTable().value(), table.value());
}

TEST(KernelTableTest, ErrorsOfSeveralTablesNameTheirOwn) {
  const KernelEntries good = {.text = kEntry, .before_number = "a.json: entry "};
  const KernelEntries bad = {.text = "linear kernel=blas\nlinear kernel=tails\n",
                             .before_number = "b.json: entry "};
  EXPECT_THAT(SetKernelTable({good, bad}).message(),
              HasSubstr("b.json: entry 2: no kernel 'tails'"));
  EXPECT_TRUE(SetKernelTable({good, good}).ok());
  ASSERT_TRUE(KernelTable().ok());
  EXPECT_EQ(KernelTable().value()->size(), 2u);
  EXPECT_EQ(KernelTable().value()->entries()[1].place, "a.json: entry 1");
  const std::vector<KernelEntries> many(kOverridesMax + 1, good);
  EXPECT_THAT(SetKernelTable(many).message(), HasSubstr("65 entries together: 64 are the most"));
}

TEST(KernelTableTest, WhatIsNotTakenIsALineOnStandardError) {
  const TableFile file(kEntry);
  const auto table = ReadKernelTable(file.path());
  ASSERT_TRUE(table.ok()) << table.status().message();
  Card card = kRecordedCard;
  card.overrides = table.value().get();
  const LinearQuestion q = {
      .x = {.rows = 64, .width = 512, .row_bytes = 1024},
      .w = {.form = WeightForm::kFp8Block, .quantise_input = true, .n = 512, .k = 512},
      .out = {.rows = 64, .width = 512, .row_bytes = 1024}};

  ::testing::internal::CaptureStderr();
  ChooseLinear(q, card);
  ChooseLinear(q, card);
  const std::string told = ::testing::internal::GetCapturedStderr();

  EXPECT_THAT(told, HasSubstr("BALTORO_KERNEL_TABLE " + file.path() +
                              ":1: bf16_rows128 does not take linear form=fp8_w8a8 rows=64"));
  EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 1);
}

}  // namespace
}  // namespace baltoro::cuda
