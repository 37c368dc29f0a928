#include "engine/tuned_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "base/log.h"
#include "support/support.h"

namespace baltoro {
namespace {

using ::testing::HasSubstr;

TunedTable ATable() {
  return {.made_for = {.card = "NVIDIA H200",
                       .version = BALTORO_VERSION,
                       .form = "int4_group",
                       .hidden = 7168,
                       .moe_intermediate = 2048,
                       .experts = 384,
                       .top_k = 8,
                       .heads = 64,
                       .tensor = 8},
          .model = "Kimi-K2-Thinking",
          .driver = "CUDA 13.0",
          .date = "2026-01-02",
          .entries = {"linear form=bf16 rows=16 kernel=blas"}};
}

std::string Put(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
  return path;
}

TEST(TunedTableTest, WhatIsWrittenIsRead) {
  const test::TempDir folder;
  const TunedTable table = ATable();
  const std::string name = TunedFileName(table);
  EXPECT_EQ(name, "E=384,N=2048,H=7168,tp=8,form=int4_group,device_name=NVIDIA_H200.tuned.json");
  const auto read = ReadTunedTable(Put(folder.path() + "/" + name, TunedText(table)));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read.value().made_for, table.made_for);
  EXPECT_EQ(read.value().entries, table.entries);
  EXPECT_EQ(WhyNotFor(read.value(), table.made_for), "");
}

TEST(TunedTableTest, WhatItIsNotForIsSaid) {
  const TunedTable table = ATable();
  TunedFor wanted = table.made_for;
  wanted.card = "NVIDIA H100";
  EXPECT_EQ(WhyNotFor(table, wanted), "it was measured on NVIDIA H200, and this is NVIDIA H100");
  wanted = table.made_for;
  wanted.version = "0.0.1";
  EXPECT_THAT(WhyNotFor(table, wanted), HasSubstr("and this is 0.0.1"));
  wanted = table.made_for;
  wanted.form = "fp8";
  EXPECT_EQ(WhyNotFor(table, wanted),
            "it was measured for experts in form 'int4_group', and here it is 'fp8'");
  wanted = table.made_for;
  wanted.tensor = 4;
  EXPECT_EQ(WhyNotFor(table, wanted),
            "it was measured for tensor_parallel_size 8, and here it is 4");
}

TEST(TunedTableTest, OtherFilesAreNamed) {
  const test::TempDir folder;
  const std::string triton = Put(folder.path() + "/E=384,N=256,device_name=NVIDIA_H200.json",
                                 R"({"1": {"BLOCK_SIZE_M": 16}})");
  const auto of_triton = ReadTunedTable(triton);
  EXPECT_EQ(of_triton.status().code(), Code::kNotFound);
  EXPECT_THAT(of_triton.status().message(), HasSubstr("Triton"));

  const std::string torn =
      Put(folder.path() + "/torn.json", R"({"kind": "baltoro kernel choices", "card": "x"})");
  EXPECT_THAT(ReadTunedTable(torn).status().message(),
              HasSubstr("torn.json: hidden_size is not a whole number"));
  EXPECT_FALSE(ReadTunedTable(folder.path() + "/none.json").ok());
}

constexpr char kModel[] = "Kimi-K2-Thinking";
const BackendChoice kCard{.gpu = GpuInfo{.name = "NVIDIA H200"}};

// Without a CUDA module: what has no entries asks for none.
TEST(TunedTableTest, OnlyTablesForThisAreUsed) {
  const test::TempDir folder;
  TunedTable table = ATable();
  table.made_for.card = "NVIDIA H100";
  const std::string other = Put(folder.path() + "/other.json", TunedText(table));
  Put(folder.path() + "/triton.json", "{}");

  const Status refused = UseTunedTables(other, "", kModel, 8, kCard);
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("--tuned-config " + other + ": it was measured on"));
  EXPECT_TRUE(UseTunedTables("", folder.path(), kModel, 8, kCard).ok());
  EXPECT_TRUE(UseTunedTables("", folder.path() + "/none", kModel, 8, kCard).ok());
  EXPECT_TRUE(UseTunedTables(other, "", kModel, 8, BackendChoice()).ok());  // a CPU

  // One that fits is handed to the module, which is not here.
  setenv("BALTORO_CUDA_MODULE", (folder.path() + "/none.so").c_str(), 1);
  Put(folder.path() + "/this.json", TunedText(ATable()));
  EXPECT_EQ(UseTunedTables("", folder.path(), kModel, 8, kCard).code(), Code::kUnavailable);
  EXPECT_TRUE(UseTunedTables("", folder.path(), kModel, 4, kCard).ok());
  // Of one shape with it, but with experts in fp8.
  EXPECT_TRUE(UseTunedTables("", folder.path(), "Kimi-K2-Instruct", 8, kCard).ok());
}

// What is logged of the folder by the call; it ends where the module is asked for.
std::string LoggedOf(const std::string& folder) {
  FlushLog();  // a thread of its own writes
  ::testing::internal::CaptureStderr();
  (void)UseTunedTables("", folder, kModel, 8, kCard);
  FlushLog();
  return ::testing::internal::GetCapturedStderr();
}

TEST(TunedTableTest, AWrongEntryIsNamedByItsFile) {
  const test::TempDir folder;
  TunedTable table = ATable();
  table.entries.push_back("linear kernel=tails");
  const std::string path = Put(folder.path() + "/bad.json", TunedText(table));
  const std::string error = path + ": entry 2: no kernel 'tails'";

  const Status refused = UseTunedTables(path, "", kModel, 8, kCard);
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("--tuned-config " + error));
  const std::string told = LoggedOf(folder.path());
  EXPECT_THAT(told, HasSubstr("VLLM_TUNED_CONFIG_FOLDER: not used: " + error));
  EXPECT_THAT(told, HasSubstr("so the built-in choices stand"));
  EXPECT_TRUE(UseTunedTables("", folder.path(), kModel, 8, kCard).ok());
}

TEST(TunedTableTest, OfAFolderOfTooManyNoneIsUsed) {
  const test::TempDir folder;
  for (int i = 0; i < 257; ++i) Put(folder.path() + "/" + std::to_string(i) + ".json", "{}");

  EXPECT_THAT(LoggedOf(folder.path()), HasSubstr("more than 256 tables, of which none is used"));
  EXPECT_TRUE(UseTunedTables("", folder.path(), kModel, 8, kCard).ok());
}

TEST(TunedTableTest, TablesOfAFolderAreBoundedTogetherAndOverlapsTold) {
  const test::TempDir folder;
  TunedTable table = ATable();
  Put(folder.path() + "/a.json", TunedText(table));
  table.entries = {"linear form=fp8_w8a8 kernel=blas", "linear form=bf16 rows=8..32 kernel=tiles"};
  Put(folder.path() + "/b.json", TunedText(table));
  table.entries.assign(62, "experts kernel=int4_digits");
  Put(folder.path() + "/c.json", TunedText(table));

  const std::string told = LoggedOf(folder.path());
  EXPECT_THAT(told, HasSubstr("/a.json: entry 1 and " + folder.path() +
                              "/b.json: entry 2 both answer the same question"));
  EXPECT_THAT(told, HasSubstr("VLLM_TUNED_CONFIG_FOLDER " + folder.path() + ": not used: " +
                              folder.path() + "/c.json: its 62 entries and the 3 of"));
}

}  // namespace
}  // namespace baltoro
