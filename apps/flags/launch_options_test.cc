#include "flags/launch_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baltoro {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

LaunchCommand Read(const std::vector<std::string>& args) {
  const auto parsed = ParseLaunch(args);
  const auto* const command = std::get_if<LaunchCommand>(&parsed);
  EXPECT_NE(command, nullptr);
  return command != nullptr ? *command : LaunchCommand();
}

std::string Error(const std::vector<std::string>& args) {
  const auto parsed = ParseLaunch(args);
  const auto* const ending = std::get_if<Ending>(&parsed);
  EXPECT_TRUE(ending != nullptr && ending->exit_code == 2);
  return ending != nullptr ? ending->err : "";
}

TEST(LaunchOptions, AreThoseOfTheScript) {
  const LaunchCommand command =
      Read({"--dp-size", "32", "--tp-size", "2", "--dp-size-local", "16", "--dp-rank-start", "16",
            "--dp-address", "10.0.0.3", "--dp-rpc-port", "12321", "--vllm-start-port", "7100"});
  EXPECT_EQ(command.template_file, "./run_dp_template.sh");
  EXPECT_EQ(command.here, 16);
  EXPECT_THAT(TemplateArguments(command, 3, "6,7"),
              ElementsAre("6,7", "7103", "32", "19", "10.0.0.3", "12321", "2"));
}

TEST(LaunchOptions, AllRanksAreHereByDefault) {
  const LaunchCommand command = Read({"--dp-size", "4", "--dp-address", "127.0.0.1"});
  EXPECT_EQ(command.here, 4);
  EXPECT_EQ(command.devices, 1);
  EXPECT_THAT(TemplateArguments(command, 0, "0"),
              ElementsAre("0", "9000", "4", "0", "127.0.0.1", "12345", "1"));
}

TEST(LaunchOptions, ARoleHasItsOwnScript) {
  const std::vector<std::string> some = {"--dp-size", "1", "--dp-address", "a"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), some.begin(), some.end());
    return Read(more).template_file;
  };
  EXPECT_EQ(with({"--dp-deploy-role", "prefill"}), "./run_dp_template_p.sh");
  EXPECT_EQ(with({"--dp-deploy-role", "decode"}), "./run_dp_template_d.sh");
  EXPECT_EQ(with({"--template", "mine.sh"}), "mine.sh");
}

TEST(LaunchOptions, BehindTheDashesServeIsMeant) {
  const LaunchCommand command =
      Read({"--dp-size", "2", "--dp-address", "a", "--", "/m", "--max-num-seqs", "8"});
  EXPECT_EQ(command.template_file, "");
  EXPECT_THAT(
      ServeArguments(command, 1),
      ElementsAre("serve", "/m", "--max-num-seqs", "8", "--port", "9001", "--data-parallel-size",
                  "2", "--data-parallel-rank", "1", "--data-parallel-address", "a",
                  "--data-parallel-rpc-port", "12345", "--tensor-parallel-size", "1"));
}

TEST(LaunchOptions, MistakesAreNamed) {
  EXPECT_THAT(Error({"--dp-address", "a"}), HasSubstr("required: --dp-size"));
  EXPECT_THAT(Error({"--dp-size", "2"}), HasSubstr("required: --dp-address"));
  EXPECT_THAT(Error({"--dp-size", "2", "--dp-address", ""}), HasSubstr("--dp-address"));
  EXPECT_THAT(Error({"--dp-size", "2", "--dp-address", "a", "--dp-rank-start", "1"}),
              HasSubstr("--dp-rank-start 1"));
  EXPECT_THAT(Error({"--dp-size", "2", "--dp-address", "a", "--vllm-start-port", "65535"}),
              HasSubstr("--vllm-start-port 65535"));
  EXPECT_THAT(Error({"--dp-size", "2", "--dp-address", "a", "/m"}), HasSubstr("behind --"));
  EXPECT_THAT(Error({"--dp-size", "2", "--dp-address", "a", "--", "--port", "1"}),
              HasSubstr("--port behind --"));
  EXPECT_THAT(Error({"--dp-size", "2", "--dp-address", "a", "--template", "t", "--"}),
              HasSubstr("exclude each other"));
}

}  // namespace
}  // namespace baltoro
