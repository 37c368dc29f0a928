#include "weights/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "support/support.h"
#include "weights/dummy_source.h"

namespace baltoro {
namespace {

using ::testing::HasSubstr;

class CheckpointTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, std::string_view bytes) {
    std::ofstream(dir_.path() + "/" + name, std::ios::binary)
        .write(bytes.data(), std::ssize(bytes));
  }
  static std::string File(std::string_view json, std::string_view data) {
    const uint64_t length = json.size();
    std::string file(sizeof(length), '\0');
    std::memcpy(file.data(), &length, sizeof(length));
    return file.append(json).append(data);
  }
  std::string Refusal() {
    const auto checkpoint = Checkpoint::Open(dir_.path());
    return checkpoint.ok() ? "opened" : checkpoint.status().message();
  }

  test::TempDir dir_;
};

constexpr char kOne[] = R"({"x":{"dtype":"U8","shape":[3,2],"data_offsets":[0,6]}})";

TEST_F(CheckpointTest, RowsAreReadWhereTheHeaderSays) {
  Write("model.safetensors", File(kOne, "abcdef"));
  auto checkpoint = Checkpoint::Open(dir_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();

  const auto tensor = checkpoint.value().Find("x", {});
  ASSERT_TRUE(tensor.has_value());
  std::string rows(4, '\0');
  ASSERT_TRUE(
      checkpoint.value().Read(*tensor, 1, TensorView(rows.data(), DType::kU8, {2, 2})).ok());

  EXPECT_EQ(tensor->shape, (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(rows, "cdef");
  EXPECT_FALSE(checkpoint.value().Find("y", {}).has_value());
}

TEST_F(CheckpointTest, AFileCutShortIsRefusedByName) {
  const std::string whole = File(kOne, "abcdef");
  for (const size_t length : {size_t{0}, size_t{7}, size_t{8}, size_t{20}, whole.size() - 1}) {
    Write("model.safetensors", whole.substr(0, length));
    EXPECT_THAT(Refusal(), HasSubstr("/model.safetensors: ")) << length;
  }
}

TEST_F(CheckpointTest, OfAHeaderAloneTensorsAreKnownAndNumbersAreNot) {
  const std::string index = R"({"weight_map":{"x":"one.safetensors"}})";
  Write("model.safetensors.index.json", index);
  Write("one.safetensors.header", File(kOne, ""));
  auto checkpoint = Checkpoint::Open(dir_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const auto tensor = checkpoint.value().Find("x", {});
  ASSERT_TRUE(tensor.has_value());
  EXPECT_EQ(SizeByHeader(dir_.path() + "/one.safetensors").value(), File(kOne, "abcdef").size());

  std::string rows(6, '\0');
  const Status read =
      checkpoint.value().Read(*tensor, 0, TensorView(rows.data(), DType::kU8, {3, 2}));
  EXPECT_THAT(read.message(), HasSubstr("only its header is here"));

  // The whole file goes before its header, and a header with more behind it is none.
  Write("one.safetensors", File(kOne, "abcdef"));
  EXPECT_EQ(Refusal(), "opened");
  std::filesystem::remove(dir_.path() + "/one.safetensors");
  Write("one.safetensors.header", File(kOne, "abc"));
  EXPECT_THAT(Refusal(), HasSubstr("one.safetensors: header of"));

  // A size that no file has: with the header's it would be more than an offset holds.
  Write("one.safetensors.header", File(R"({"x":{"dtype":"U8","shape":[9223372036854775807],)"
                                       R"("data_offsets":[0,9223372036854775807]}})",
                                       ""));
  EXPECT_THAT(SizeByHeader(dir_.path() + "/one.safetensors").status().message(),
              HasSubstr("which none has"));
}

TEST_F(CheckpointTest, AFileThatShrinksLaterIsAnErrorThatNamesTheTensor) {
  Write("model.safetensors", File(kOne, "abcdef"));
  auto checkpoint = Checkpoint::Open(dir_.path());
  ASSERT_TRUE(checkpoint.ok());
  const auto tensor = checkpoint.value().Find("x", {});
  Write("model.safetensors", File(kOne, "abc"));

  std::string rows(6, '\0');
  const Status read =
      checkpoint.value().Read(*tensor, 0, TensorView(rows.data(), DType::kU8, {3, 2}));

  EXPECT_THAT(read.message(), HasSubstr("model.safetensors: tensor x: the file ended at byte"));
}

TEST_F(CheckpointTest, TheIndexIsFollowedAndChecked) {
  struct Case {
    const char* index;
    const char* message;
  };
  Write("a.safetensors", File(kOne, "abcdef"));
  const Case cases[] = {
      {R"({"weight_map":{"x":"a.safetensors"}})", "opened"},
      {R"([])", "no weight_map object"},
      {R"({"weight_map":[]})", "no weight_map object"},
      {R"({"weight_map":{"x":7}})", "tensor x: no plain file name"},
      {R"({"weight_map":{"x":"../a.safetensors"}})", "tensor x: no plain file name"},
      {R"({"weight_map":{"x":"b.safetensors"}})", "b.safetensors: No such file"},
      {R"({"weight_map":{"x":"a.safetensors","y":"a.safetensors"}})", "tensor y is not in it"},
  };
  for (const Case& c : cases) {
    Write("model.safetensors.index.json", c.index);
    EXPECT_THAT(Refusal(), HasSubstr(c.message));
  }
}

TEST_F(CheckpointTest, TheSameTensorUnderTwoPrefixesIsRefused) {
  Write("model.safetensors", File(R"({"model.x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
                 "language_model.model.x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                                  "ab"));

  EXPECT_THAT(Refusal(), HasSubstr("is there twice"));
}

TEST(CanonicalNameTest, PrefixesAreTakenOff) {
  EXPECT_EQ(CanonicalName("model.norm.weight"), "model.norm.weight");
  EXPECT_EQ(CanonicalName("language_model.model.norm.weight"), "model.norm.weight");
  EXPECT_EQ(CanonicalName("language_model.norm.weight"), "model.norm.weight");
  EXPECT_EQ(CanonicalName("language_model.lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(CanonicalName("lm_head.weight"), "lm_head.weight");
}

TEST(DummySourceTest, ValuesDependOnSeedNameAndPlaceAlone) {
  const auto read = [](uint64_t seed, const char* name, int64_t row, int64_t rows) {
    DummySource source(seed);
    const auto tensor = source.Find(name, {8, 64});
    std::vector<Bf16> out(static_cast<size_t>(rows * 64));
    EXPECT_TRUE(source.Read(*tensor, row, TensorView(out.data(), DType::kBf16, {rows, 64})).ok());
    return out;
  };
  const std::vector<Bf16> whole = read(1, "a.weight", 0, 8);

  EXPECT_EQ(read(1, "a.weight", 3, 2), std::vector<Bf16>(whole.begin() + 192, whole.begin() + 320));
  EXPECT_NE(read(2, "a.weight", 0, 8), whole);
  EXPECT_NE(read(1, "b.weight", 0, 8), whole);
  double squares = 0;
  for (const Bf16 x : whole) squares += double{ToFloat(x)} * double{ToFloat(x)};
  EXPECT_NEAR(squares / 512, 1.0 / 64, 0.1 / 64);  // variance 1 / fan-in
}

}  // namespace
}  // namespace baltoro
