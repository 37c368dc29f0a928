#include "support/golden_draft.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "support/golden_model.h"
#include "weights/dummy_source.h"

namespace baltoro::test {
namespace {

constexpr uint64_t kSeed = 11;  // of drafts

const Json& Golden() {
  static const Json golden = ReadRecording("tests/golden/eagle3/drafts.json.gz");
  return golden;
}

// Names and shapes by the file's own names, but for its prefix and that of its layer.
std::vector<std::pair<std::string, std::vector<int64_t>>> TensorsOf(const Json& config) {
  const auto size = [&](const char* key) { return config[key].get<int64_t>(); };
  const int64_t hidden = size("hidden_size"), heads = size("num_attention_heads");
  const int64_t vocab = size("vocab_size"), inter = size("intermediate_size");
  const std::string attention = "midlayer.self_attn.", mlp = "midlayer.mlp.";
  std::vector<std::pair<std::string, std::vector<int64_t>>> out = {
      {"embed_tokens.weight", {vocab, hidden}},
      {"fc.weight", {hidden, 3 * hidden}},
      {"midlayer.input_layernorm.weight", {hidden}},
      {"midlayer.hidden_norm.weight", {hidden}},
      {"midlayer.post_attention_layernorm.weight", {hidden}},
      {mlp + "gate_proj.weight", {inter, hidden}},
      {mlp + "up_proj.weight", {inter, hidden}},
      {mlp + "down_proj.weight", {hidden, inter}},
      {"norm.weight", {hidden}},
      {"lm_head.weight", {config.value("draft_vocab_size", vocab), hidden}}};
  if (!config.contains("kv_lora_rank")) {
    const int64_t width = size("head_dim"), key_heads = size("num_key_value_heads");
    out.push_back({attention + "q_proj.weight", {heads * width, 2 * hidden}});
    out.push_back({attention + "k_proj.weight", {key_heads * width, 2 * hidden}});
    out.push_back({attention + "v_proj.weight", {key_heads * width, 2 * hidden}});
    out.push_back({attention + "o_proj.weight", {hidden, heads * width}});
    return out;
  }
  const int64_t nope = size("qk_nope_head_dim"), rope = size("qk_rope_head_dim");
  const int64_t value = size("v_head_dim"), latent = size("kv_lora_rank");
  const int64_t q_lora = size("q_lora_rank");
  const std::vector<std::pair<std::string, std::vector<int64_t>>> mla = {
      {"q_a_proj", {q_lora, 2 * hidden}},
      {"q_a_layernorm", {q_lora}},
      {"q_b_proj", {heads * (nope + rope), q_lora}},
      {"kv_a_proj_with_mqa", {latent + rope, 2 * hidden}},
      {"kv_a_layernorm", {latent}},
      {"kv_b_proj", {heads * (nope + value), latent}},
      {"o_proj", {hidden, heads * value}}};
  for (const auto& [name, shape] : mla) out.emplace_back(attention + name + ".weight", shape);
  return out;
}

void WriteDraft(const Json& golden, const std::string& dir) {
  const Json& config = golden["config"];
  WriteFile(dir + "/config.json", config.dump());
  const auto prefix = golden["names"]["prefix"].get<std::string>();
  const auto layer = golden["names"]["layer"].get<std::string>();
  TinySource source(false, kSeed);
  std::vector<FileTensor> tensors;
  for (const auto& [name, shape] : TensorsOf(config)) {
    if (name == "embed_tokens.weight" && !golden["embed_tokens"].get<bool>()) continue;
    const SourceTensor found = *source.Find(name, shape);
    std::string in_file = name;
    if (name.starts_with("midlayer.")) in_file.replace(0, std::strlen("midlayer."), layer);
    if (!name.starts_with("lm_head")) in_file = prefix + in_file;
    tensors.push_back({.name = in_file,
                       .dtype = found.dtype,
                       .shape = shape,
                       .bytes = source.made()[found.handle].bytes});
  }
  if (golden.contains("draft_ids")) {
    std::string offsets;
    int64_t row = 0;
    for (const Json& id : golden["draft_ids"]) {
      const int64_t offset = id.get<int64_t>() - row++;
      offsets.append(reinterpret_cast<const char*>(&offset), sizeof(offset));
    }
    tensors.push_back({.name = "d2t", .dtype = DType::kI64, .shape = {row}, .bytes = offsets});
  }
  WriteFile(dir + "/model.safetensors", SafetensorsFile(tensors));
}

}  // namespace

size_t GoldenDraft::Count() {
  return Golden()["cases"].size();
}

std::string GoldenDraft::NameOf(size_t index) {
  return Golden()["cases"][index]["name"].get<std::string>();
}

GoldenDraft::GoldenDraft(size_t index)
    : golden_(Golden()["cases"][index]), target_(SmallConfig(8, 2)) {
  WriteDraft(golden_, dir());
}

bool GoldenDraft::CanBeCut(int32_t ranks) const {
  return CheckLayout({.tensor = ranks}, ShapeOf(Config().value())).ok();
}

std::unique_ptr<K2Model> GoldenDraft::Load(const OpsTable& ops, ModelRanks* ranks) {
  const std::lock_guard lock(loading_);
  K2LoadOptions options;
  options.ranks = ranks;
  ThreadPool* const pool = ranks == nullptr ? &pool_ : nullptr;
  auto source = OpenDraftWeights(dir(), Config().value(), target_weights_);
  EXPECT_TRUE(source.ok()) << source.status().message();
  auto model = K2Model::Load(Config().value(), *source.value(), ops, pool, options);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return std::move(model).value();
}

std::vector<int32_t> GoldenDraft::Tokens() const {
  auto tokens = ReadDraftTokens(dir(), Config().value());
  EXPECT_TRUE(tokens.ok()) << tokens.status().message();
  return std::move(tokens).value();
}

std::vector<std::vector<float>> GoldenDraft::Taps(int64_t count) const {
  const int64_t hidden = target_.hidden;
  const uint32_t stream = HashStream(golden_["name"].get<std::string>() + ".features", kSeed);
  std::vector<std::vector<float>> taps(3);
  uint32_t at = 0;
  for (int64_t position = 0; position < count; ++position) {
    for (std::vector<float>& tap : taps) {
      for (int64_t d = 0; d < hidden; ++d, ++at) {
        tap.push_back(ToFloat(ToBf16(0.5f * HashUniform(stream, at))));
      }
    }
  }
  return taps;
}

}  // namespace baltoro::test
