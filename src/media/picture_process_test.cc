#include "media/picture_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "media/test_pictures.h"

namespace baltoro {
namespace {

using namespace std::string_literals;
using ::testing::HasSubstr;

PictureProcess::Options Worker(const char* kind, int processes = 1) {
  return {.command = {BT_PICTURE_WORKER, kind}, .processes = processes, .seconds_max = 20};
}

std::string Png(int width, int height) {
  std::string rows;
  for (int y = 0; y < height; ++y) {
    rows += '\0';
    for (int x = 0; x < 3 * width; ++x) rows += static_cast<char>(x * 7 + y * 31);
  }
  return MakePng(static_cast<uint32_t>(width), static_cast<uint32_t>(height), 8, 2, rows);
}

Result<PicturePatches> Here(const std::string& file) {
  BT_ASSIGN_OR_RETURN(Rgb picture, DecodePicture(file));
  return CutPatches(std::move(picture), {});
}

std::string BytesOf(const PicturePatches& patches) {
  return {reinterpret_cast<const char*>(patches.bytes.bytes.get()), patches.size};
}

TEST(PictureProcessTest, APictureIsTheSameAsItWouldBeHere) {
  PictureProcess process(Worker("work"));
  const std::vector<uint8_t> samples(4 * 90 * 70, 99);
  for (const std::string& file :
       {Png(40, 30), Png(3000, 1500), MakeJpeg(90, 70, samples, {.progressive = true}),
        MakeWebp(90, 70, samples), MakeWebp(90, 70, samples, /*lossless=*/false),
        GifHeader(2, 1, "abcdefghijkl") + GifFrame(0, 0, 2, 1, "\1\2") + ";"}) {
    const auto there = process.Prepare(file, {}, {});
    const auto here = Here(file);
    ASSERT_TRUE(there.ok()) << there.status().message();
    EXPECT_EQ(there.value().grid_height, here.value().grid_height);
    EXPECT_EQ(there.value().grid_width, here.value().grid_width);
    EXPECT_EQ(there.value().tokens, here.value().tokens);
    EXPECT_TRUE(BytesOf(there.value()) == BytesOf(here.value()));
  }
}

TEST(PictureProcessTest, RefusalsAreTheSameToo) {
  PictureProcess process(Worker("work"));
  for (const std::string& file : {""s, "hello"s, Png(9, 9).substr(0, 80), Png(201, 1)}) {
    const auto there = process.Prepare(file, {}, {});
    ASSERT_FALSE(there.ok());
    EXPECT_EQ(there.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(there.status().message(), Here(file).status().message());
  }
  EXPECT_THAT(process.Prepare(Png(9, 9), {}, {.bytes_max = 10}).status().message(),
              HasSubstr("10 are the most"));
  EXPECT_TRUE(process.Prepare(Png(9, 9), {}, {}).ok());
}

TEST(PictureProcessTest, ManyThreadsShareAFew) {
  PictureProcess process(Worker("work", 2));
  std::vector<std::jthread> threads;
  for (int i = 1; i <= 6; ++i) {
    threads.emplace_back([&process, i] {
      for (int turn = 0; turn < 5; ++turn) {
        const std::string file = Png(10 * i, 10 + turn);
        const auto there = process.Prepare(file, {}, {});
        ASSERT_TRUE(there.ok()) << there.status().message();
        EXPECT_TRUE(BytesOf(there.value()) == BytesOf(Here(file).value()));
      }
    });
  }
}

TEST(PictureProcessTest, APictureThatEndsItsProcessIsRefusedAndTheNextFindsANewOne) {
  PictureProcess process(Worker("die"));
  for (int i = 0; i < 3; ++i) {
    const auto made = process.Prepare(Png(9, 9), {}, {});
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(made.status().message(),
              "the picture broke the process that decodes pictures: save it anew");
  }
}

TEST(PictureProcessTest, APictureThatTakesTooLongIsRefused) {
  PictureProcess::Options options = Worker("hang");
  options.seconds_max = 0.2;
  PictureProcess process(options);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(process.Prepare(Png(9, 9), {}, {}).status().message(),
            "the picture takes longer than 0.2 s to decode: make it smaller");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(PictureProcessTest, AnAnswerThatCannotBeIsNotBelieved) {
  PictureProcess process(Worker("lie"));
  EXPECT_THAT(process.Prepare(Png(9, 9), {}, {}).status().message(),
              HasSubstr("broke the process"));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The picture is not to blame, nor is its client: another may come in its place.
TEST(PictureProcessTest, TooLittleMemoryIsNotThePicturesFault) {
  PictureProcess process(Worker("narrow"));
  const std::string large = Png(2000, 1500);
  EXPECT_EQ(process.Prepare(large, {}, {}).status().code(), Code::kResourceExhausted);
  const std::string file(size_t{20} << 20, '\0');
  EXPECT_EQ(process.Prepare(file, {}, {}).status().code(), Code::kResourceExhausted);
  EXPECT_TRUE(process.Prepare(Png(9, 9), {}, {}).ok());
}
#endif

TEST(PictureProcessTest, WhatDoesNotStartIsTheServersTrouble) {
  EXPECT_EQ(PictureProcess(Worker("none")).Prepare(Png(9, 9), {}, {}).status().code(),
            Code::kUnavailable);
  const auto made = PictureProcess({.command = {"/no/such/program"}}).Prepare(Png(9, 9), {}, {});
  EXPECT_EQ(made.status().code(), Code::kUnavailable);
  EXPECT_EQ(made.status().message(),
            "the process that decodes pictures does not start; the server's log says why");
}

TEST(PictureProcessTest, WhatRunsThereCanDoNothingElse) {
  const auto child = StartChild({BT_PICTURE_WORKER, "probe"});
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(ReapChild(child.value().pid, 20), "exit code 0");
  close(child.value().fd);
  close(child.value().last_words);
}

TEST(PictureProcessTest, AProcessThatDiedBetweenPicturesCostsNone) {
  PictureProcess process(Worker("work"));
  ASSERT_TRUE(process.Prepare(Png(9, 9), {}, {}).ok());
  // The worker is the one child that this process has.
  std::string children;
  {
    FILE* file =
        std::fopen(("/proc/self/task/" + std::to_string(getpid()) + "/children").c_str(), "r");
    ASSERT_NE(file, nullptr);
    char line[64] = {};
    if (std::fgets(line, sizeof(line), file) != nullptr) children = line;
    std::fclose(file);
  }
  const int pid = std::atoi(children.c_str());
  ASSERT_GT(pid, 1);
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_TRUE(process.Prepare(Png(9, 9), {}, {}).ok());
}

}  // namespace
}  // namespace baltoro
