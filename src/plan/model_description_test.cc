#include "plan/model_description.h"

#include <gtest/gtest.h>

namespace baltoro {
namespace {

K2Config Small() {
  K2Config c;
  c.layers = 2;
  c.experts = 4;
  c.shared_experts = 1;
  c.dense_layers = 1;
  return c;
}

Json Index(std::initializer_list<const char*> names) {
  Json map = Json::object();
  for (const char* name : names) map[name] = "model-1.safetensors";
  return Json{{"metadata", {{"total_size", 12345}}}, {"weight_map", map}};
}

TEST(ModelDescriptionTest, TheIndexTellsTheForms) {
  const Json index =
      Index({"model.norm.weight", "model.layers.1.self_attn.o_proj.weight",
             "model.layers.1.self_attn.kv_b_proj.weight", "model.layers.0.mlp.down_proj.weight",
             "model.layers.0.mlp.down_proj.weight_scale_inv",
             "model.layers.1.mlp.experts.0.down_proj.weight_packed",
             "model.layers.1.mlp.shared_experts.down_proj.weight"});
  const auto model = DescribeFiles(Small(), index, Json());
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model.value().experts, WeightForm::kInt4Group);
  EXPECT_EQ(model.value().dense, WeightForm::kFp8Block);
  EXPECT_EQ(model.value().attention, WeightForm::kBf16);
  EXPECT_EQ(model.value().file_bytes, 12345);
}

TEST(ModelDescriptionTest, AMissingTensorIsNamed) {
  const auto model = DescribeFiles(Small(), Index({"model.norm.weight"}), Json());
  ASSERT_FALSE(model.ok());
  EXPECT_NE(model.status().message().find("model.layers.1.self_attn.o_proj.weight"),
            std::string::npos);
}

TEST(ModelDescriptionTest, TheAscendDescriptionDecidesAndItsUnknownTypesAreNamed) {
  Json types = {{"model.layers.1.self_attn.o_proj.weight", "W8A8"},
                {"model.layers.1.self_attn.kv_b_proj.weight", "FLOAT"},
                {"model.layers.0.mlp.down_proj.weight", "W8A8_DYNAMIC"},
                {"model.layers.1.mlp.shared_experts.down_proj.weight", "W8A8_DYNAMIC"},
                {"model.layers.1.mlp.experts.0.down_proj.weight", "W4A8_DYNAMIC"}};
  const auto model = DescribeFiles(Small(), Json(), types);
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model.value().attention, WeightForm::kInt8Static);
  EXPECT_EQ(model.value().experts, WeightForm::kInt4);
  types["model.layers.0.mlp.down_proj.weight"] = "W3A3";
  EXPECT_NE(DescribeFiles(Small(), Json(), types).status().message().find("\"W3A3\""),
            std::string::npos);
}

TEST(ModelDescriptionTest, ThePocketModelIsDescribedFromItsDirectory) {
  const auto model = DescribeModel("pocket/model");
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model.value().experts, WeightForm::kBf16);
  EXPECT_EQ(model.value().config.layers, 4);
}

TEST(ModelDescriptionTest, AnUnknownNameListsTheKnownOnes) {
  const auto model = DescribeModel("acme/llama");
  ASSERT_FALSE(model.ok());
  EXPECT_NE(model.status().message().find("Kimi-K2-Thinking"), std::string::npos);
}

}  // namespace
}  // namespace baltoro
