#include "engine/tuned_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "support/support.h"

namespace baltoro {
namespace {

using ::testing::HasSubstr;

TunedTable ATable() {
  return {.made_for = {.card = "NVIDIA H200",
                       .version = BALTORO_VERSION,
                       .hidden = 7168,
                       .moe_intermediate = 2048,
                       .experts = 384,
                       .top_k = 8,
                       .heads = 64,
                       .tensor = 8},
          .model = "Kimi-K2-Thinking",
          .form = "int4_group",
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
  EXPECT_EQ(read.value().form, table.form);
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

K2Config AModel() {
  K2Config model;
  model.hidden = 7168;
  model.moe_intermediate = 2048;
  model.experts = 384;
  model.router.top_k = 8;
  model.heads = 64;
  return model;
}

// Without a CUDA module: what has no entries asks for none.
TEST(TunedTableTest, OnlyTablesForThisAreUsed) {
  const test::TempDir folder;
  const BackendChoice backend{.gpu = GpuInfo{.name = "NVIDIA H200"}};
  TunedTable table = ATable();
  table.made_for.card = "NVIDIA H100";
  const std::string other = Put(folder.path() + "/other.json", TunedText(table));
  Put(folder.path() + "/triton.json", "{}");

  const Status refused = UseTunedTables(other, "", AModel(), 8, backend);
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("--tuned-config " + other + ": it was measured on"));
  EXPECT_TRUE(UseTunedTables("", folder.path(), AModel(), 8, backend).ok());
  EXPECT_TRUE(UseTunedTables("", folder.path() + "/none", AModel(), 8, backend).ok());
  EXPECT_TRUE(UseTunedTables(other, "", AModel(), 8, BackendChoice()).ok());  // a CPU

  // One that fits is handed to the module, which is not here.
  setenv("BALTORO_CUDA_MODULE", (folder.path() + "/none.so").c_str(), 1);
  Put(folder.path() + "/this.json", TunedText(ATable()));
  EXPECT_EQ(UseTunedTables("", folder.path(), AModel(), 8, backend).code(), Code::kUnavailable);
  EXPECT_TRUE(UseTunedTables("", folder.path(), AModel(), 4, backend).ok());
}

}  // namespace
}  // namespace baltoro
