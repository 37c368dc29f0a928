#include "ops/cuda/launch_table/table.h"

#include <gtest/gtest.h>

namespace baltoro::cuda::launch_table {
namespace {

Launch Kernel(const char* name, unsigned blocks) {
  return {.name = name, .grid = {blocks, 1, 1}, .block = {256, 1, 1}, .shared_bytes = 100};
}

// Changes at 9, 601 and 604, between rows that are not asked for at first, and at 7001.
bool Answer(int64_t rows, std::vector<Launch>& launches) {
  if (rows > 7000) return false;
  const char* const name = rows <= 8 ? "few" : rows <= 600 ? "tens" : rows <= 603 ? "odd" : "many";
  launches.push_back(Kernel(name, rows <= 8 ? 132 : 7));
  if (rows > 600) launches.push_back({.name = "cuBLASLt"});
  return true;
}

TEST(LaunchTableTest, IntervalsEndWhereAnswersChange) {
  const std::vector<std::string> want = {
      "1..8  few 132/256/100", "9..600  tens 7/256/100", "601..603  odd 7/256/100 + cuBLASLt",
      "604..7000  many 7/256/100 + cuBLASLt", "7001..8192  not taken"};
  EXPECT_EQ(Intervals({}, Answer), want);
}

TEST(LaunchTableTest, WhatGrowsIsSummed) {
  const auto growing = [](unsigned odd) {
    return Intervals({.most = 64}, [=](int64_t rows, std::vector<Launch>& launches) {
      launches.push_back(Kernel("k", static_cast<unsigned>(rows) + (rows == 20 ? odd : 0)));
      launches.back().shared_bytes = rows > 30 ? 116 : 100;
      return true;
    });
  };
  ASSERT_EQ(growing(0).size(), 1u);
  EXPECT_TRUE(growing(0)[0].starts_with("1..64  k 1>64/256/100>116 #")) << growing(0)[0];
  EXPECT_NE(growing(0), growing(1));
}

TEST(LaunchTableTest, TextIsReadBackAndDifferencesAreNamed) {
  Table table, other;
  table.Add("linear b", {"1..8  x"});
  table.Add("linear a", {"1..8  x"});
  table.Add("norm", {"1..4  y", "5..8  z"});
  const std::string text = table.Text("# head\n");
  EXPECT_EQ(text, "# head\n\nlinear a\nlinear b\n  1..8  x\n\nnorm\n  1..4  y\n  5..8  z\n");
  EXPECT_TRUE(table.DifferencesFrom(Table::Parse(text)).empty());
  other.Add("norm", {"1..4  y", "5..8  w"});
  EXPECT_EQ(other.DifferencesFrom(table.Containing("norm")),
            (std::vector<std::string>{"norm", "  - 5..8  z", "  + 5..8  w"}));
}

}  // namespace
}  // namespace baltoro::cuda::launch_table
