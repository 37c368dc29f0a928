#include "weights/quantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/file.h"
#include "support/support.h"
#include "weights/checkpoint_source.h"

namespace baltoro {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

namespace fs = std::filesystem;
const char kPocket[] = "pocket/model";
const std::string kExpert = "model.layers.1.mlp.experts.3.down_proj";

std::string Hash(std::string_view bytes) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  std::string out(16, '0');
  for (int i = 15; i >= 0; --i, hash >>= 4) out[i] = "0123456789abcdef"[hash & 15];
  return out;
}

std::string BytesOf(Checkpoint& checkpoint, const std::string& name) {
  const auto tensor = checkpoint.Find(name, {});
  if (!tensor) {
    ADD_FAILURE() << name << " is not there";
    return "";
  }
  int64_t bytes = SizeOf(tensor->dtype);
  for (const int64_t dim : tensor->shape) bytes *= dim;
  std::string out(static_cast<size_t>(bytes), '\0');
  EXPECT_TRUE(checkpoint.ReadBytes(*tensor, 0, out.data(), out.size()).ok());
  return out;
}

std::vector<float> Decoded(CheckpointSource& source, const std::string& name) {
  const auto tensor = source.Find(name, {});
  if (!tensor || tensor->dtype != DType::kF32) {
    ADD_FAILURE() << name;
    return {};
  }
  std::vector<float> out(static_cast<size_t>(tensor->shape[0] * tensor->shape[1]));
  const Status read = source.Read(
      *tensor, 0, TensorView(out.data(), DType::kF32, {tensor->shape[0], tensor->shape[1]}));
  EXPECT_TRUE(read.ok()) << read.message();
  return out;
}

class QuantizeTest : public ::testing::Test {
 protected:
  QuantizeSummary Make(const std::string& to, QuantFormat format, QuantizeOptions options = {}) {
    options.format = format;
    auto made = QuantizeCheckpoint(kPocket, to, options);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.ok() ? std::move(made).value() : QuantizeSummary();
  }
  static Json Config(const std::string& dir) { return ReadJsonFile(dir + "/config.json").value(); }

  // Every projection of the pocket model is within `error` of what it was, where it is not bf16;
  // all other tensors are the same bytes. Returns the forms by role.
  static std::map<TensorRole, WeightForm> Compare(const std::string& dir, double error) {
    std::map<TensorRole, WeightForm> forms;
    Checkpoint before = Checkpoint::Open(kPocket).value();
    Checkpoint after = Checkpoint::Open(dir).value();
    auto decoded = CheckpointSource::Open(dir);
    EXPECT_TRUE(decoded.ok()) << decoded.status().message();
    for (const CheckpointTensor& each : before.tensors()) {
      const std::string& name = each.tensor.name;
      const auto found = decoded.value()->Find(name, {});
      if (!found) {
        ADD_FAILURE() << name;
        continue;
      }
      EXPECT_EQ(found->shape, each.tensor.shape) << name;
      const WeightForm form = decoded.value()->StoredAs(*found).value().form;
      if (IsProjection(ModuleOf(name))) forms[RoleOf(name)] = form;
      const std::string original = BytesOf(before, name);
      if (IsPlain(form)) {
        EXPECT_EQ(BytesOf(after, name), original) << name;
        continue;
      }
      const std::vector<float> values = Decoded(*decoded.value(), name);
      double wrong = 0, sum = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        Bf16 bits;
        std::memcpy(&bits, original.data() + 2 * i, 2);
        const double want = ToFloat(bits);
        wrong += (values[i] - want) * (values[i] - want);
        sum += want * want;
      }
      EXPECT_LT(std::sqrt(wrong / sum), error) << name;
    }
    return forms;
  }

  test::TempDir dir_;
  const std::string to_ = dir_.path() + "/made";
};

TEST_F(QuantizeTest, Fp8HoldsEveryProjectionInBlocks) {
  const QuantizeSummary made = Make(to_, QuantFormat::kFp8);

  for (const auto& [role, form] : Compare(to_, 0.03)) EXPECT_EQ(form, WeightForm::kFp8Block);
  EXPECT_EQ(made.parts.size(), 5u);
  EXPECT_EQ(Config(to_)["text_config"]["quantization_config"],
            Json::parse(R"({"activation_scheme":"dynamic","fmt":"e4m3","quant_method":"fp8",
                            "weight_block_size":[128,128]})"));
  Checkpoint after = Checkpoint::Open(to_).value();
  const auto scale = after.Find("model.layers.1.self_attn.kv_a_proj_with_mqa.weight_scale_inv", {});
  ASSERT_TRUE(scale.has_value());
  EXPECT_THAT(scale->shape, ElementsAre(5, 2));  // 576 x 256
  EXPECT_EQ(scale->dtype, DType::kF32);
}

TEST_F(QuantizeTest, Int4HoldsTheExpertsAloneAndWhatTheLibraryWouldWrite) {
  Make(to_, QuantFormat::kInt4);

  for (const auto& [role, form] : Compare(to_, 0.15)) {
    EXPECT_EQ(form, role == TensorRole::kExperts ? WeightForm::kInt4Group : WeightForm::kBf16);
  }
  const Json config = Config(to_)["text_config"]["quantization_config"];
  EXPECT_EQ(config["ignore"], Json::parse(R"(["lm_head","re:.*self_attn.*","re:.*shared_experts.*",
                            "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"])"));
  EXPECT_EQ(config["format"], "pack-quantized");
  EXPECT_EQ(config["config_groups"]["group_0"]["weights"]["group_size"], 32);

  Checkpoint after = Checkpoint::Open(to_).value();
  auto decoded = CheckpointSource::Open(to_).value();
  const Json golden = ReadJsonFile("tests/golden/quant.json").value();
  ASSERT_FALSE(golden["pocket"].empty());
  for (const Json& c : golden["pocket"]) {
    const std::string module = CanonicalName(c["name"].get<std::string>());
    EXPECT_EQ(Hash(BytesOf(after, module + ".weight_packed")), c["hash_of_packed"]) << module;
    EXPECT_EQ(Hash(BytesOf(after, module + ".weight_scale")), c["hash_of_scales"]) << module;
    std::vector<Bf16> rounded;
    for (const float x : Decoded(*decoded, module + ".weight")) rounded.push_back(ToBf16(x));
    EXPECT_EQ(Hash({reinterpret_cast<const char*>(rounded.data()), rounded.size() * 2}),
              c["hash_of_bf16_back"]);
  }
  int64_t shape[2];
  std::memcpy(shape, BytesOf(after, kExpert + ".weight_shape").data(), sizeof(shape));
  EXPECT_THAT(shape, ElementsAre(256, 128));
}

TEST_F(QuantizeTest, W4A8IsDescribedByItsFileAndNotByTheConfiguration) {
  Make(to_, QuantFormat::kW4A8);

  const std::map<TensorRole, WeightForm> want = {{TensorRole::kAttention, WeightForm::kInt8},
                                                 {TensorRole::kKvB, WeightForm::kBf16},
                                                 {TensorRole::kDense, WeightForm::kInt8},
                                                 {TensorRole::kShared, WeightForm::kInt8},
                                                 {TensorRole::kExperts, WeightForm::kInt4}};
  EXPECT_EQ(Compare(to_, 0.2), want);
  EXPECT_FALSE(Config(to_).contains("quantization_config"));
  EXPECT_FALSE(Config(to_)["text_config"].contains("quantization_config"));
  EXPECT_TRUE(FileExists(to_ + "/quant_model_weights.safetensors.index.json"));
  EXPECT_FALSE(FileExists(to_ + "/model.safetensors.index.json"));
  const Json types = ReadJsonFile(to_ + "/quant_model_description.json").value();
  const std::string prefix = "language_model." + kExpert;
  EXPECT_EQ(types[prefix + ".weight"], "W4A8_DYNAMIC");
  EXPECT_EQ(types[prefix + ".scale_bias"], "W4A8_DYNAMIC");
  EXPECT_EQ(types["language_model.model.norm.weight"], "FLOAT");
  EXPECT_EQ(types["group_size"], 0);
  const Json index = ReadJsonFile(to_ + "/quant_model_weights.safetensors.index.json").value();
  for (const auto& [name, file] : index["weight_map"].items()) {
    EXPECT_TRUE(types.contains(name)) << name;
  }
  Checkpoint after = Checkpoint::Open(to_).value();
  EXPECT_THAT(after.Find(kExpert + ".weight", {})->shape, ElementsAre(128, 128));
  EXPECT_THAT(after.Find(kExpert + ".scale_bias", {})->shape, ElementsAre(256, 16));
}

TEST_F(QuantizeTest, ErrorsOfTheSummaryAreThoseOfTheFiles) {
  const QuantizeSummary made = Make(to_, QuantFormat::kInt4);
  Checkpoint before = Checkpoint::Open(kPocket).value();
  auto decoded = CheckpointSource::Open(to_).value();
  double wrong = 0, sum = 0;
  int64_t matrices = 0;
  for (const CheckpointTensor& each : before.tensors()) {
    if (RoleOf(each.tensor.name) != TensorRole::kExperts) continue;
    ++matrices;
    const std::string original = BytesOf(before, each.tensor.name);
    const std::vector<float> values = Decoded(*decoded, each.tensor.name);
    for (size_t i = 0; i < values.size(); ++i) {
      Bf16 bits;
      std::memcpy(&bits, original.data() + 2 * i, 2);
      const double want = ToFloat(bits);
      wrong += (values[i] - want) * (values[i] - want);
      sum += want * want;
    }
  }
  const QuantizeError& experts = made.parts.at(TensorRole::kExperts);
  EXPECT_EQ(experts.matrices, matrices);
  EXPECT_NEAR(experts.relative(), std::sqrt(wrong / sum), 1e-9);
  EXPECT_EQ(experts.bytes_after * 32, experts.bytes_before * 9 + matrices * 16 * 32);
}

TEST_F(QuantizeTest, RowsAreReadFromAnyPlace) {
  Make(to_, QuantFormat::kW4A8);
  auto source = CheckpointSource::Open(to_).value();
  const auto tensor = source->Find(kExpert + ".weight", {});
  const std::vector<float> whole = Decoded(*source, kExpert + ".weight");
  std::vector<float> some(5 * 128);
  ASSERT_TRUE(source->Read(*tensor, 131, TensorView(some.data(), DType::kF32, {5, 128})).ok());
  EXPECT_TRUE(std::equal(some.begin(), some.end(), whole.begin() + 131 * 128));
}

TEST_F(QuantizeTest, ThreadsAndShardsChangeNoByte) {
  QuantizeOptions small;
  small.shard_bytes = 1'000'000;
  small.threads = 3;
  const std::string other = dir_.path() + "/other";
  const QuantizeSummary one = Make(to_, QuantFormat::kFp8);
  const QuantizeSummary many = Make(other, QuantFormat::kFp8, small);

  EXPECT_EQ(one.files, 1u);
  EXPECT_GT(many.files, 10u);
  EXPECT_EQ(one.bytes_after, many.bytes_after);
  for (const auto& file : fs::directory_iterator(other)) {
    if (file.path().extension() == ".safetensors") {
      EXPECT_LT(file.file_size(), 1'300'000u) << file.path();  // an embedding is 1.18 MB alone
    }
  }
  Checkpoint a = Checkpoint::Open(to_).value(), b = Checkpoint::Open(other).value();
  ASSERT_EQ(a.num_tensors(), b.num_tensors());
  for (const CheckpointTensor& each : a.tensors()) {
    EXPECT_EQ(BytesOf(a, each.tensor.name), BytesOf(b, each.tensor.name)) << each.stored_name;
  }
}

TEST_F(QuantizeTest, OtherFilesComeAlongAndNothingElse) {
  Make(to_, QuantFormat::kInt4);
  std::vector<std::string> names;
  for (const auto& file : fs::directory_iterator(to_)) {
    names.push_back(file.path().filename().string());
  }
  EXPECT_THAT(names, ::testing::UnorderedElementsAre(
                         "chat_template.jinja", "config.json", "generation_config.json",
                         "model-00001-of-00001.safetensors", "model.safetensors.index.json",
                         "preprocessor_config.json", "tiktoken.model", "tokenizer_config.json"));
  EXPECT_EQ(ReadFile(to_ + "/tiktoken.model").value(),
            ReadFile(std::string(kPocket) + "/tiktoken.model").value());
}

TEST_F(QuantizeTest, PartsMayBeChosenAndTheConfigurationSaysSo) {
  QuantizeOptions options;
  options.parts = ParseQuantParts("experts,dense").value();
  Make(to_, QuantFormat::kFp8, options);
  for (const auto& [role, form] : Compare(to_, 0.03)) {
    const bool chosen = role == TensorRole::kExperts || role == TensorRole::kDense;
    EXPECT_EQ(form, chosen ? WeightForm::kFp8Block : WeightForm::kBf16) << NameOf(role);
  }
  const Json left = Config(to_)["text_config"]["quantization_config"]["modules_to_not_convert"];
  EXPECT_THAT(left.get<std::vector<std::string>>(),
              ::testing::Contains("language_model.model.layers.3.self_attn.o_proj"));
  EXPECT_FALSE(ParseQuantParts("experts,").ok());
  EXPECT_FALSE(ParseQuantParts("router").ok());
}

TEST_F(QuantizeTest, NothingIsOverwrittenAndNothingIsLeftAfterAnError) {
  fs::create_directory(to_);
  EXPECT_THAT(QuantizeCheckpoint(kPocket, to_, {}).status().message(), HasSubstr("is there"));
  fs::remove(to_);
  fs::create_directory(to_ + ".partial");
  EXPECT_THAT(QuantizeCheckpoint(kPocket, to_ + "/", {}).status().message(),
              HasSubstr("made.partial: is there"));
  fs::remove(to_ + ".partial");
  EXPECT_FALSE(QuantizeCheckpoint(dir_.path() + "/nowhere", to_, {}).ok());
  EXPECT_TRUE(fs::is_empty(dir_.path()));
}

TEST_F(QuantizeTest, AnAlreadyQuantisedSourceIsRefusedByName) {
  for (const QuantFormat format : {QuantFormat::kFp8, QuantFormat::kInt4, QuantFormat::kW4A8}) {
    fs::remove_all(to_);
    Make(to_, format);
    // Also parts that the first time left in bf16.
    QuantizeOptions options;
    options.parts = ParseQuantParts("attention").value();
    const auto again = QuantizeCheckpoint(to_, dir_.path() + "/again", options);
    EXPECT_THAT(again.status().message(),
                ::testing::AllOf(HasSubstr("tensor language_model.model.layers."),
                                 HasSubstr("quantised already; a BF16 checkpoint is expected")));
    EXPECT_FALSE(fs::exists(dir_.path() + "/again"));
  }
}

// A checkpoint of one expert matrix.
class OneMatrixTest : public QuantizeTest {
 protected:
  Status Quantize(int64_t rows, int64_t columns, Bf16 value, QuantFormat format) {
    const std::string from = dir_.path() + "/from";
    fs::create_directory(from);
    const int64_t bytes = rows * columns * 2;
    const Json header = {
        {kExpert + ".weight",
         {{"dtype", "BF16"}, {"shape", {rows, columns}}, {"data_offsets", {0, bytes}}}}};
    const std::string json = header.dump();
    const uint64_t length = json.size();
    std::ofstream file(from + "/model.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof(length));
    file << json;
    for (int64_t i = 0; i < rows * columns; ++i) {
      file.write(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    file.close();
    std::ofstream(from + "/config.json") << "{}";
    QuantizeOptions options;
    options.format = format;
    return QuantizeCheckpoint(from, to_, options).status();
  }
};

TEST_F(OneMatrixTest, ValuesThatAreNotFiniteAreRefused) {
  const Status status =
      Quantize(4, 32, ToBf16(std::numeric_limits<float>::infinity()), QuantFormat::kInt4);
  EXPECT_THAT(status.message(), HasSubstr(kExpert + ".weight: holds a value that is not finite"));
  EXPECT_FALSE(fs::exists(to_));
  EXPECT_FALSE(fs::exists(to_ + ".partial"));
}

TEST_F(OneMatrixTest, ShapesThatAFormatCannotHoldAreRefused) {
  EXPECT_THAT(Quantize(4, 48, Bf16{}, QuantFormat::kInt4).message(), HasSubstr("multiple of 32"));
  EXPECT_THAT(Quantize(3, 32, Bf16{}, QuantFormat::kW4A8).message(), HasSubstr("odd number"));
  EXPECT_THAT(Quantize(4, 40, Bf16{}, QuantFormat::kW4A8).message(), HasSubstr("16 equal slices"));
  EXPECT_TRUE(Quantize(3, 40, ToBf16(1), QuantFormat::kFp8).ok());  // blocks may be cut
}

TEST_F(QuantizeTest, ADescriptionThatContradictsTheTensorsIsToldWhenTheyAreRead) {
  Make(to_, QuantFormat::kW4A8);
  const std::string path = to_ + "/quant_model_description.json";
  Json types = ReadJsonFile(path).value();
  types["language_model." + kExpert + ".weight"] = "W8A8_DYNAMIC";
  std::ofstream(path) << types.dump();
  auto source = CheckpointSource::Open(to_).value();
  const auto tensor = source->Find(kExpert + ".weight", {});
  std::vector<float> out(128);
  EXPECT_THAT(source->Read(*tensor, 0, TensorView(out.data(), DType::kF32, {1, 128})).message(),
              HasSubstr("says W8A8_DYNAMIC, its tensors are int4 per channel"));
}

TEST(QuantDescriptionTest, WhatIsNotKnownIsRefused) {
  const auto refusal = [](const char* text) {
    return ParseQuantDescription(Json::parse(text)).status().message();
  };
  EXPECT_EQ(refusal(R"({"a.weight":"W8A8","version":"1.0.0","group_size":0})"), "");
  EXPECT_THAT(refusal(R"({"a.weight":"W3A3"})"), HasSubstr("a.weight has the type \"W3A3\""));
  EXPECT_THAT(refusal(R"({"a.weight":7})"), HasSubstr("not a string"));
  EXPECT_THAT(refusal(R"([])"), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal(R"({"a.weight":"W4A8_DYNAMIC","group_size":256})"),
              HasSubstr("group_size is 256"));
  EXPECT_THAT(refusal(R"({"model.a.weight":"FLOAT","language_model.model.a.weight":"FLOAT"})"),
              HasSubstr("twice"));
}

}  // namespace
}  // namespace baltoro
