#include "flags/verify_options.h"

#include <gtest/gtest.h>

#include <vector>

namespace baltoro {
namespace {

using Args = std::vector<std::string>;

VerifyOptions Accept(const Args& args, const Environment& environment = {}) {
  const Outcome<VerifyOptions> outcome = ParseVerify(args, environment);
  if (const Ending* ending = std::get_if<Ending>(&outcome)) ADD_FAILURE() << ending->err;
  return std::holds_alternative<VerifyOptions>(outcome) ? std::get<VerifyOptions>(outcome)
                                                        : VerifyOptions();
}

std::string ErrorOf(const Args& args, const Environment& environment = {}) {
  const Outcome<VerifyOptions> outcome = ParseVerify(args, environment);
  const Ending* ending = std::get_if<Ending>(&outcome);
  if (ending == nullptr) return "accepted";
  EXPECT_EQ(ending->exit_code, 2);
  return ending->err;
}

TEST(VerifyOptionsTest, BothServersAreNamed) {
  const VerifyOptions options = Accept({"--against", "https://api.example.com/v1/", "--model", "k",
                                        "--near-tie", "0.2", "--only", "tool-*", "chat-sum"},
                                       {{"VLLM_API_KEY", "a"}, {"BALTORO_AGAINST_API_KEY", "b"}});
  EXPECT_EQ(options.ours.url, "http://127.0.0.1:8000");
  EXPECT_EQ(options.theirs.url, "https://api.example.com");
  EXPECT_EQ(options.theirs.model, "k");
  EXPECT_EQ(options.ours.api_key, "a");
  EXPECT_EQ(options.theirs.api_key, "b");
  EXPECT_EQ(options.near_tie, 0.2);
  EXPECT_EQ(options.only, Args({"tool-*", "chat-sum"}));
  const VerifyOptions other = Accept(
      {"--against", "h:1/prefix", "--model", "k", "--against-model", "l", "--against-api-key", "c"},
      {{"BALTORO_AGAINST_API_KEY", "b"}});
  EXPECT_EQ(other.theirs.url, "http://h:1/prefix");
  EXPECT_EQ(other.ours.model, "k");
  EXPECT_EQ(other.theirs.model, "l");
  EXPECT_EQ(other.theirs.api_key, "c");
}

TEST(VerifyOptionsTest, WhatCannotBeMeantIsRefusedAndNoSecretRepeated) {
  EXPECT_NE(ErrorOf({}).find("required: --against"), std::string::npos);
  EXPECT_NE(ErrorOf({"--against", "ftp://h"}).find("--against: not http"), std::string::npos);
  EXPECT_NE(ErrorOf({"--against", "http://"}).find("names no host"), std::string::npos);
  EXPECT_NE(ErrorOf({"--against", "h", "--concurrency", "0"}).find("--concurrency"),
            std::string::npos);
  EXPECT_NE(ErrorOf({"--against", "h", "more"}).find("unrecognized arguments: more"),
            std::string::npos);
  const std::string password = ErrorOf({"--against", "http://u:secret@h"});
  EXPECT_NE(password.find("--against-api-key"), std::string::npos);
  EXPECT_EQ(password.find("secret"), std::string::npos);
  const std::string key = ErrorOf({"--against", "h"}, {{"BALTORO_AGAINST_API_KEY", "se\ncret"}});
  EXPECT_NE(key.find("BALTORO_AGAINST_API_KEY"), std::string::npos);
  EXPECT_EQ(key.find("cret"), std::string::npos);
}

}  // namespace
}  // namespace baltoro
