// What a checkpoint in a quantised form says that cannot be served. The folders are those that
// tools/record_format_golden.py wrote.

#include "weights/checkpoint_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/file.h"
#include "base/json.h"
#include "support/support.h"

namespace baltoro {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kGolden[] = "tests/golden/formats/ascend";
constexpr char kIndex[] = "/quant_model_weights.safetensors.index.json";
const std::string kStatic = "model.layers.0.self_attn.o_proj";
const std::string kExpert = "model.layers.1.mlp.experts.2.down_proj";
const std::string kDense = "model.layers.0.mlp.up_proj";

class CheckpointSourceTest : public ::testing::Test {
 protected:
  CheckpointSourceTest() { fs::copy(kGolden, dir_.path(), fs::copy_options::recursive); }

  std::string FileOf(const std::string& tensor) {
    const Json index = ReadJsonFile(dir_.path() + kIndex).value();
    return dir_.path() + "/" + index["weight_map"]["language_model." + tensor].get<std::string>();
  }
  // Writes over the first bytes of a tensor.
  template <typename T>
  void Patch(const std::string& tensor, T value) {
    const std::string path = FileOf(tensor);
    const Result<std::string> whole = ReadFile(path);
    const std::string& bytes = whole.value();
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof(header));
    const Json entries = Json::parse(bytes.substr(sizeof(header), header));
    const auto begin = entries["language_model." + tensor]["data_offsets"][0].get<uint64_t>();
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(sizeof(header) + header + begin));
    file.write(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void Drop(const std::string& tensor) {
    Json index = ReadJsonFile(dir_.path() + kIndex).value();
    index["weight_map"].erase("language_model." + tensor);
    std::ofstream(dir_.path() + kIndex) << index.dump();
  }
  // Of telling the form, and then of reading the first rows.
  std::string Problem(const std::string& module) {
    auto source = CheckpointSource::Open(dir_.path()).value();
    const auto tensor = source->Find(module + ".weight", {});
    const auto stored = source->StoredAs(*tensor);
    if (!stored.ok()) return stored.status().message();
    StoredBytes bytes;
    return source->ReadStored(*tensor, 0, 32, bytes).message();
  }
  // Of reading the first rows as the numbers that they stand for.
  std::string ProblemDecoded(const std::string& module) {
    auto source = CheckpointSource::Open(dir_.path()).value();
    const auto tensor = source->Find(module + ".weight", {});
    std::vector<float> rows(static_cast<size_t>(32 * tensor->shape[1]));
    return source->Read(*tensor, 0, TensorView(rows.data(), DType::kF32, {32, tensor->shape[1]}))
        .message();
  }

  test::TempDir dir_;
};

TEST_F(CheckpointSourceTest, WhatOthersWroteHasNoProblem) {
  for (const std::string& module : {kStatic, kExpert, kDense}) {
    EXPECT_EQ(Problem(module), "");
    EXPECT_EQ(ProblemDecoded(module), "");
  }
}

TEST_F(CheckpointSourceTest, RowsAreReadWithTheirScalesAndBiases) {
  auto source = CheckpointSource::Open(dir_.path()).value();
  const auto tensor = source->Find(kStatic + ".weight", {});
  StoredBytes all, last;
  ASSERT_TRUE(source->ReadStored(*tensor, 0, 160, all).ok());
  ASSERT_TRUE(source->ReadStored(*tensor, 128, 32, last).ok());
  EXPECT_TRUE(std::equal(last.values.begin(), last.values.end(), all.values.begin() + 128 * 64));
  EXPECT_TRUE(std::equal(last.scales.begin(), last.scales.end(), all.scales.begin() + 128 * 4));
  EXPECT_TRUE(std::equal(last.bias.begin(), last.bias.end(), all.bias.begin() + 128));
  EXPECT_EQ(last.bias.size(), 32u);
}

TEST_F(CheckpointSourceTest, WeightsWithAnOffsetAreRefused) {
  Patch(kExpert + ".weight_offset", 0.5f);
  Patch(kDense + ".weight_offset", -1.0f);
  EXPECT_THAT(Problem(kExpert), HasSubstr(kExpert + ".weight_offset is not zero"));
  EXPECT_THAT(Problem(kDense), HasSubstr(kDense + ".weight_offset is not zero"));
  EXPECT_THAT(ProblemDecoded(kDense), HasSubstr(kDense + ".weight_offset is not zero"));
}

TEST_F(CheckpointSourceTest, ScalesThatAreNotFiniteAreRefused) {
  Patch(kExpert + ".weight_scale", std::numeric_limits<float>::infinity());
  Patch(kStatic + ".deq_scale", std::numeric_limits<float>::quiet_NaN());
  EXPECT_THAT(Problem(kExpert), HasSubstr(kExpert + ".weight_scale holds a value that is not"));
  EXPECT_THAT(Problem(kStatic), HasSubstr(kStatic + ".deq_scale holds a value that is not finite"));
  EXPECT_THAT(ProblemDecoded(kExpert), HasSubstr(kExpert + ".weight_scale holds a value that is"));
}

TEST_F(CheckpointSourceTest, ConstantsOfActivationsMustBeNumbers) {
  Patch(kStatic + ".input_scale", 0.0f);
  EXPECT_THAT(Problem(kStatic), HasSubstr(kStatic + ": input_scale is 0"));
  Patch(kStatic + ".input_scale", 0.1f);
  Patch(kStatic + ".input_offset", std::numeric_limits<float>::infinity());
  EXPECT_THAT(Problem(kStatic), HasSubstr("input_offset inf"));
}

TEST_F(CheckpointSourceTest, WhatIsMissingIsToldWithTheFile) {
  Drop(kStatic + ".quant_bias");
  EXPECT_EQ(Problem(kStatic),
            FileOf(kStatic + ".weight") + ": " + kStatic + ": quant_bias is missing");
}

TEST_F(CheckpointSourceTest, ADescriptionThatSaysAnotherFormIsToldBeforeAnythingIsRead) {
  const std::string path = dir_.path() + "/quant_model_description.json";
  Json types = ReadJsonFile(path).value();
  types["language_model." + kDense + ".weight"] = "FLOAT";
  std::ofstream(path) << types.dump();
  EXPECT_THAT(Problem(kDense), AllOf(HasSubstr(kDense), HasSubstr("says FLOAT, its tensors are")));
}

}  // namespace
}  // namespace baltoro
