#include "pull/listing.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baltoro {
namespace {

using ::testing::HasSubstr;

const std::string kCommit(40, 'c');
const std::string kSha1(40, '1');
const std::string kSha256(64, '2');

std::string Listing(const std::string& files) {
  return fmt::format(R"({{"sha":"{}","siblings":[{}]}})", kCommit, files);
}
std::string PlainFile(const std::string& name) {
  return fmt::format(R"({{"rfilename":{},"size":3,"blobId":"{}"}})", Json(name).dump(), kSha1);
}
std::string ErrorOf(const std::string& listing) {
  const auto parsed = ParseHuggingFaceListing(listing);
  return parsed.ok() ? "accepted" : parsed.status().message();
}

TEST(ListingTest, FilesHaveTheSumOfLfsOrOfGit) {
  const auto listing = ParseHuggingFaceListing(Listing(
      PlainFile("sub/config.json") +
      fmt::format(
          R"(,{{"rfilename":"m.safetensors","size":7,"blobId":"{}","lfs":{{"sha256":"{}"}}}})",
          kSha1, kSha256)));

  ASSERT_TRUE(listing.ok()) << listing.status().message();
  EXPECT_EQ(listing.value().commit, kCommit);
  EXPECT_EQ(listing.value().files[0],
            (RepoFile{.path = "sub/config.json", .bytes = 3, .git_sha1 = kSha1}));
  EXPECT_EQ(listing.value().files[1].sum(), kSha256);
}

TEST(ListingTest, NamesThatLeadOutOfTheFolderAreRefused) {
  for (const char* name :
       {"../x", "a/../../x", "/etc/passwd", "a//b", ".", "a/.", "", "a\\b", "a\nb", "a\x7f",
        "a\xc2\x9b"
        "b",
        "a\xe2\x80\xae"
        "b",
        ".git/config", "sub/.GIT/hooks/x", ".cache/huggingface/download/x.metadata"}) {
    EXPECT_THAT(ErrorOf(Listing(PlainFile(name))), HasSubstr("nothing is downloaded")) << name;
  }
  EXPECT_EQ(ErrorOf(Listing(PlainFile("..x/a..b"))), "accepted");
  EXPECT_EQ(ErrorOf(Listing(PlainFile(".gitattributes") + "," + PlainFile("\xc3\xa9"))),
            "accepted");
  EXPECT_THAT(ErrorOf(Listing(PlainFile(std::string(200, 'n')))), HasSubstr("longer than"));
}

TEST(ListingTest, WhatCannotBeCheckedIsRefused) {
  EXPECT_THAT(ErrorOf(Listing(R"({"rfilename":"x","size":3})")), HasSubstr("no checksum of x"));
  EXPECT_THAT(ErrorOf(Listing(R"({"rfilename":"x","size":3,"blobId":"../../../etc"})")),
              HasSubstr("no checksum"));
  EXPECT_THAT(ErrorOf(Listing(fmt::format(R"({{"rfilename":"x","blobId":"{}"}})", kSha1))),
              HasSubstr("no size of x"));
  EXPECT_THAT(
      ErrorOf(Listing(fmt::format(R"({{"rfilename":"x","size":-1,"blobId":"{}"}})", kSha1))),
      HasSubstr("no sensible size"));
  EXPECT_THAT(ErrorOf(R"({"sha":"../..","siblings":[]})"), HasSubstr("names no commit"));
  EXPECT_THAT(ErrorOf("<html>"), HasSubstr("no JSON"));
}

TEST(ListingTest, ListingsAreBounded) {
  std::string files = PlainFile("f");
  for (size_t i = 0; i < kListedFilesMax; ++i) files += "," + PlainFile(fmt::format("f{}", i));

  EXPECT_THAT(ErrorOf(Listing(files)), HasSubstr("more than 20000 files"));
}

TEST(ListingTest, ANameIsThereOnceAndNoFolderIsAFile) {
  EXPECT_THAT(ErrorOf(Listing(PlainFile("a") + "," + PlainFile("a"))), HasSubstr("twice"));
  EXPECT_THAT(ErrorOf(Listing(PlainFile("a/b") + "," + PlainFile("a"))),
              HasSubstr("as a file and as a folder"));
}

TEST(ListingTest, ModelScopeHasFoldersAndItsOwnWords) {
  const auto listing = ParseModelScopeListing(fmt::format(
      R"({{"Code":200,"Success":true,"Data":{{"Files":[{{"Type":"tree","Path":"sub"}},
          {{"Type":"blob","Path":"sub/m.bin","Size":9,"Sha256":"{}"}}]}}}})",
      kSha256));
  ASSERT_TRUE(listing.ok()) << listing.status().message();
  EXPECT_EQ(listing.value().files,
            (std::vector<RepoFile>{{.path = "sub/m.bin", .bytes = 9, .sha256 = kSha256}}));

  const auto refused = ParseModelScopeListing(R"({"Success":false,"Message":"no such model"})");
  EXPECT_THAT(refused.status().message(), HasSubstr("no such model"));
}

}  // namespace
}  // namespace baltoro
