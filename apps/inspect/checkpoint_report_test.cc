#include "inspect/checkpoint_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "inspect/family_tensors.h"
#include "support/support.h"
#include "weights/quantize.h"

namespace baltoro {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace fs = std::filesystem;
const char kPocket[] = "pocket/model";

std::vector<std::string> Problems(const std::string& dir) {
  std::vector<std::string> out;
  for (const ReportProblem& each : InspectCheckpoint(dir).problems) {
    out.push_back(each.where + ": " + each.what);
  }
  return out;
}

// Copies of the pocket model, in its own form or another, that tests spoil.
class CheckpointReportTest : public ::testing::Test {
 protected:
  void CopyPocket() { fs::copy(kPocket, to_, fs::copy_options::recursive); }
  void Quantize(QuantFormat format) {
    QuantizeOptions options;
    options.format = format;
    const auto made = QuantizeCheckpoint(kPocket, to_, options);
    ASSERT_TRUE(made.ok()) << made.status().message();
  }
  void EditJson(const std::string& name, const std::function<void(Json&)>& edit) {
    Json json = ReadJsonFile(to_ + "/" + name).value();
    edit(json);
    std::ofstream(to_ + "/" + name) << json.dump();
  }
  // Changes the header of a weight file; its length must stay the same.
  void EditHeader(const std::string& name, const std::string& from, const std::string& to) {
    std::string bytes = ReadFile(to_ + "/" + name).value();
    const size_t at = bytes.find(from);
    ASSERT_NE(at, std::string::npos);
    ASSERT_EQ(from.size(), to.size());
    bytes.replace(at, from.size(), to);
    std::ofstream(to_ + "/" + name, std::ios::binary) << bytes;
  }

  test::TempDir dir_;
  const std::string to_ = dir_.path() + "/model";
  const std::string first_ = "model-00001-of-00002.safetensors";
  const std::string index_ = "model.safetensors.index.json";
};

TEST_F(CheckpointReportTest, ThePocketModelIsWhole) {
  const CheckpointReport report = InspectCheckpoint(kPocket);

  EXPECT_THAT(Problems(kPocket), IsEmpty());
  EXPECT_EQ(report.model_type, "kimi_k25");
  EXPECT_EQ(report.files, 3);
  EXPECT_EQ(report.tensor_bytes, 30315168);  // the index says the same
  EXPECT_EQ(report.roles.at(TensorRole::kExperts).tensors, 3 * 3 * 16);
  EXPECT_EQ(report.roles.at(TensorRole::kHead).bytes, 2304 * 256 * 2);
  int64_t bytes = 0, tensors = 0;
  for (const TensorKind& kind : report.kinds) {
    bytes += kind.bytes;
    tensors += kind.count;
  }
  EXPECT_EQ(bytes, report.tensor_bytes);
  EXPECT_EQ(tensors, report.tensors);
  const std::string text = ReportText(report);
  EXPECT_THAT(text, HasSubstr("language_model.model.layers.*.mlp.experts.*.down_proj.weight"));
  EXPECT_THAT(text, HasSubstr("no problem found"));
  EXPECT_EQ(ReportJson(report)["tensor_bytes"], 30315168);
}

TEST_F(CheckpointReportTest, QuantisedCheckpointsAreWholeInEveryFormat) {
  const std::map<QuantFormat, std::map<WeightForm, int64_t>> experts = {
      {QuantFormat::kFp8, {{WeightForm::kFp8Block, 144}}},
      {QuantFormat::kInt4, {{WeightForm::kInt4Group, 144}}},
      {QuantFormat::kW4A8, {{WeightForm::kInt4, 144}}}};
  for (const auto& [format, forms] : experts) {
    Quantize(format);
    EXPECT_THAT(Problems(to_), IsEmpty());
    EXPECT_EQ(InspectCheckpoint(to_).roles.at(TensorRole::kExperts).forms, forms);
    fs::remove_all(to_);
  }
}

TEST_F(CheckpointReportTest, ChosenPartsAreWholeToo) {
  for (const QuantFormat format : {QuantFormat::kFp8, QuantFormat::kInt4}) {
    for (const char* parts : {"attention", "experts,shared", "dense"}) {
      QuantizeOptions options;
      options.format = format;
      options.parts = ParseQuantParts(parts).value();
      ASSERT_TRUE(QuantizeCheckpoint(kPocket, to_, options).ok());
      EXPECT_THAT(Problems(to_), IsEmpty()) << parts;
      fs::remove_all(to_);
    }
  }
}

TEST_F(CheckpointReportTest, MissingAndMisshapenTensorsAreTold) {
  CopyPocket();
  EditJson(index_, [](Json& index) {
    index["weight_map"].erase("language_model.model.norm.weight");
    index["weight_map"]["language_model.model.extra"] = "model-00001-of-00002.safetensors";
  });
  EditJson("config.json",
           [](Json& config) { config["text_config"]["moe_intermediate_size"] = 96; });
  const auto problems = Problems(to_);
  EXPECT_THAT(problems, Contains("model.norm.weight: is missing"));
  EXPECT_THAT(problems, Contains("language_model.model.norm.weight: is in " + first_ +
                                 ", but not so in the index"));
  EXPECT_THAT(problems, Contains("language_model.model.extra: is not in " + first_ +
                                 ", though the index says so"));
  EXPECT_THAT(problems, Contains("language_model.model.layers.1.mlp.experts.0.gate_proj: is [128, "
                                 "256], config.json makes it [96, 256]"));
}

TEST_F(CheckpointReportTest, AlikeProblemsAreCountedOnce) {
  CopyPocket();
  EditJson("config.json",
           [](Json& config) { config["text_config"]["moe_intermediate_size"] = 96; });
  int64_t gates = 0, lines = 0;
  for (const ReportProblem& each : InspectCheckpoint(to_).problems) {
    if (each.where.find("experts.0.gate_proj") == std::string::npos) continue;
    ++lines;
    gates = each.count;
  }
  EXPECT_EQ(lines, 1);
  EXPECT_EQ(gates, 3 * 16);
}

TEST_F(CheckpointReportTest, WhatTheConfigurationDoesNotAskForIsTold) {
  CopyPocket();
  EditJson("config.json", [](Json& config) {
    config["text_config"]["n_shared_experts"] = 0;
    config["text_config"]["num_hidden_layers"] = 3;
  });
  EXPECT_THAT(Problems(to_),
              ::testing::ElementsAre(
                  HasSubstr("shared_experts.down_proj.weight: is not a tensor that config.json"),
                  HasSubstr("shared_experts.gate_proj.weight: is not a tensor"),
                  HasSubstr("shared_experts.up_proj.weight: is not a tensor")));
}

TEST_F(CheckpointReportTest, FilesThatAreNotWholeAreNamed) {
  CopyPocket();
  const std::string path = to_ + "/" + first_;
  fs::resize_file(path, fs::file_size(path) - 2);
  EXPECT_THAT(Problems(to_), Contains(HasSubstr(first_ + ": tensor ")));
  fs::resize_file(path, 5);
  EXPECT_THAT(Problems(to_), Contains(first_ + ": shorter than 8 bytes"));
  fs::remove(path);
  EXPECT_THAT(Problems(to_), Contains(first_ + ": No such file or directory"));
  std::ofstream(path) << "\xff\xff\xff\xff\xff\xff\xff\x7f{}";
  EXPECT_THAT(Problems(to_), Contains(HasSubstr("not a safetensors file")));
  fs::remove(to_ + "/" + index_);
  EXPECT_THAT(Problems(to_), Contains(HasSubstr("no weights")));
}

TEST_F(CheckpointReportTest, ATypeThatFitsNoFormIsTold) {
  Quantize(QuantFormat::kFp8);
  EditHeader("model-00001-of-00001.safetensors",
             R"(model.layers.0.self_attn.o_proj.weight":{"dtype":"F8_E4M3")",
             R"(model.layers.0.self_attn.o_proj.weight":{"dtype":"U8"     )");
  EXPECT_THAT(Problems(to_), Contains("language_model.model.layers.0.self_attn.o_proj: weight is "
                                      "U8, which no known form has"));
}

TEST_F(CheckpointReportTest, AMissingScaleIsTold) {
  Quantize(QuantFormat::kFp8);
  EditJson(index_, [](Json& index) {
    index["weight_map"].erase("language_model.model.layers.0.self_attn.o_proj.weight_scale_inv");
  });
  EXPECT_THAT(Problems(to_), Contains("language_model.model.layers.0.self_attn.o_proj: "
                                      "weight_scale_inv is missing (fp8, blocks of 128x128)"));
}

TEST_F(CheckpointReportTest, AConfigurationThatContradictsTheTensorsIsTold) {
  Quantize(QuantFormat::kInt4);
  const auto edit = [&](const std::function<void(Json&)>& change) {
    EditJson("config.json",
             [&](Json& config) { change(config["text_config"]["quantization_config"]); });
  };
  edit([](Json& quantization) { quantization["ignore"].push_back("re:.*experts\\.3\\..*"); });
  EXPECT_THAT(Problems(to_), Contains(HasSubstr("experts.3.down_proj: is int4, groups of 32, "
                                                "config.json says bf16")));
  edit([](Json& quantization) { quantization["ignore"] = {"re:((a{999}){999}){999}"}; });
  EXPECT_THAT(Problems(to_), Contains(HasSubstr("too complicated")));
  edit([](Json& quantization) { quantization["ignore"] = Json::array(); });
  EXPECT_THAT(Problems(to_),
              Contains(HasSubstr("self_attn.o_proj: is bf16, config.json says int4")));
  edit([](Json& quantization) {
    quantization["config_groups"]["group_0"]["weights"]["group_size"] = 128;
  });
  EXPECT_THAT(Problems(to_), Contains(HasSubstr("group_size is 128; known is 32")));
  edit([](Json& quantization) { quantization = {{"quant_method", "awq"}}; });
  EXPECT_THAT(Problems(to_), Contains(HasSubstr("quant_method is \"awq\"")));
  edit([](Json& quantization) { quantization = nullptr; });
  EXPECT_THAT(Problems(to_), Contains(HasSubstr("is int4, groups of 32, config.json says bf16")));
}

TEST_F(CheckpointReportTest, ADescriptionThatContradictsTheTensorsIsTold) {
  Quantize(QuantFormat::kW4A8);
  const std::string name = "quant_model_description.json";
  const std::string o = "language_model.model.layers.0.self_attn.o_proj";
  EditJson(name, [&](Json& types) {
    types[o + ".weight"] = "W8A8";
    types.erase(o + ".weight_scale");
    types["language_model.model.layers.0.mlp.nothing.weight"] = "FLOAT";
  });
  const auto problems = Problems(to_);
  EXPECT_THAT(
      problems,
      Contains(HasSubstr(o + ": is int8, dynamic activations, quant_model_description.json says "
                             "int8, static activations")));
  EXPECT_THAT(problems, Contains(o + ".weight_scale: is not named by " + name));
  EXPECT_THAT(problems, Contains("model.layers.0.mlp.nothing.weight: is not there, though " + name +
                                 " names it"));
  EditJson("config.json", [](Json& config) {
    config["quantization_config"] = {{"quant_method", "fp8"}};
  });
  EXPECT_THAT(Problems(to_), Contains(HasSubstr("only one can hold")));
}

TEST(FamilyTensorsTest, EveryParameterOfTheLargeModelIsCounted) {
  K2Config c;
  c.heads = 64;
  c.hidden = 7168;
  c.layers = 61;
  c.q_lora = 1536;
  c.kv_lora = 512;
  c.nope = 128;
  c.rope_dim = 64;
  c.value = 128;
  c.intermediate = 18432;
  c.moe_intermediate = 2048;
  c.experts = 384;
  c.shared_experts = 1;
  c.dense_layers = 1;
  c.vocab = 163840;
  c.router_has_bias = true;
  const FamilyTensors family = TensorsOfFamily(c);
  int64_t parameters = 0;
  for (const auto* matrices : {&family.projections, &family.plain}) {
    for (const FamilyMatrix& each : *matrices) parameters += each.outputs * each.inputs;
  }
  for (const FamilyVector& each : family.vectors) parameters += each.size;
  EXPECT_EQ(parameters, 1'026'408'232'448);  // the published total of the text model
}

}  // namespace
}  // namespace baltoro
