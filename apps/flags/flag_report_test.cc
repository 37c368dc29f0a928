#include "flags/flag_report.h"

#include <gtest/gtest.h>

#include <map>

#include "flags/command_line.h"
#include "flags/serve_flags.h"

namespace baltoro {
namespace {

using Args = std::vector<std::string>;

TEST(FlagReportTest, AFlagOfWhichNothingIsSaidIsInForce) {
  const std::vector<FlagEntry> entries = ReportFlags(
      {"--seed 1", "--seeds 1 (--old-seeds)", "--block-size 16", "--swap-space 4", "--enable-eplb"},
      {"--seeds 1 has no effect here: x", "--block-size 16 is taken as 64: y",
       "--swap-space 4 is ignored, as it was removed from vLLM: z"},
      {"--enable-eplb is not available yet in this version: w; leave it out"});

  EXPECT_EQ(FlagReportText(entries),
            "  in force   --seed 1\n"
            "  no effect  --seeds 1 (--old-seeds) has no effect here: x\n"
            "  changed    --block-size 16 is taken as 64: y\n"
            "  no effect  --swap-space 4 is ignored, as it was removed from vLLM: z\n"
            "  refused    --enable-eplb is not available yet in this version: w; leave it out\n");
  EXPECT_EQ(FlagsInForce(entries), "--seed 1, --block-size 16");
  EXPECT_EQ(FlagReportJson(entries)[2].dump(),
            R"({"flag":"--block-size 16","state":"changed","why":"is taken as 64: y"})");
}

// However a flag is spelled, its entry has the name of the table, and no secret.
TEST(FlagReportTest, WhatIsGivenIsToldOnceAndWithoutSecrets) {
  const Args args = {"serve",
                     "m",
                     "-tp",
                     "8",
                     "--api-key",
                     "k1",
                     "--max_num_seqs=4",
                     "--hf-token",
                     "hf_abc",
                     "--no-async-sch",
                     "--seed",
                     "3",
                     "--eplb-config",
                     R"({"window_size":5})"};
  const Command command = ParseCommandLine(args, {});
  ASSERT_TRUE(std::holds_alternative<ServeOptions>(command));
  const auto& options = std::get<ServeOptions>(command);
  EXPECT_EQ(options.given_flags,
            (Args{"--api-key", "--seed 3", "--hf-token", "--max-num-seqs 4",
                  "--no-async-scheduling", "--tensor-parallel-size 8", "--eplb-config"}));
  EXPECT_EQ(options.given_values["api_key"], "...");
  EXPECT_EQ(options.given_values.dump().find("hf_abc"), std::string::npos);
  EXPECT_EQ(options.given_values["eplb_config"]["window_size"], 5);
  EXPECT_EQ(options.given_values["model"], "m");
}

// A plan of what is refused tells of all flags nevertheless.
TEST(FlagReportTest, ARefusedPlanTellsOfEveryFlag) {
  const Command command = ParseCommandLine(
      Args{"plan", "m", "--flags", "-tp", "2", "-ep", "--enable-elastic-ep", "--seed", "1",
           "--enforce-eager", "--skip-non-local-expert-weights", "--device", "cpu"},
      {});
  ASSERT_TRUE(std::holds_alternative<Ending>(command));
  const auto& ending = std::get<Ending>(command);
  EXPECT_EQ(ending.exit_code, 1);
  EXPECT_EQ(ending.out.find("--flags"), std::string::npos);
  for (const char* line :
       {"  in force   --seed 1\n", "  in force   --tensor-parallel-size 2\n",
        "  refused    --enable-elastic-ep is not available yet",
        "  in force   --enable-expert-parallel\n",
        "  no effect  --enable-ep-weight-filter (--skip-non-local-expert-weights) has no effect "
        "here",
        "  no effect  --enforce-eager has no effect here: a CPU has no graphs\n"}) {
    EXPECT_NE(ending.out.find(line), std::string::npos) << line << ending.out;
  }
}

// Every row that can be refused says what to do without it.
TEST(FlagReportTest, WhatIsRefusedSaysWhatToDo) {
  const FlagTable table = ServeFlags();
  int refused = 0;
  for (const FlagGroup& group : table.groups()) {
    for (const FlagSpec& spec : group.flags) {
      if (spec.state != FlagState::kNotYet && spec.state != FlagState::kRefused) continue;
      const std::string name = "--" + std::string(spec.name);
      FlagUse use{.spec = &spec, .spelling = name, .value = "odd", .times = 1};
      ParsedFlags flags;
      flags.uses.emplace(spec.name, use);
      Availability judged = Judge(table, flags);
      if (!judged.open.empty()) judged = JudgeRun(judged.open, {.gpu = true});
      ASSERT_EQ(judged.refusals.size(), 1u) << name;
      EXPECT_NE(judged.refusals.front().find("; "), std::string::npos) << judged.refusals.front();
      ++refused;
    }
  }
  EXPECT_GT(refused, 50);
}

}  // namespace
}  // namespace baltoro
