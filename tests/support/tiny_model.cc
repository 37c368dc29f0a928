#include "support/tiny_model.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "weights/dummy_source.h"

namespace baltoro::test {
namespace {

constexpr int64_t kBlock = KvLayerView::kBlockTokens;

// The elements of a tensor are base + scale * u, rounded to bf16, with u uniform in [-1, 1).
struct Spread {
  float base, scale;
};

Spread SpreadOf(const SourceTensor& tensor) {
  const std::string_view name = tensor.name;
  if (name.ends_with("e_score_correction_bias")) return {0, 0.4f};
  if (name.ends_with(".bias")) return {0, 0.5f};
  if (tensor.shape.size() == 1) return {1, 0.25f};
  if (name.ends_with("embed_tokens.weight") || name.ends_with("pos_emb.weight")) return {0, 1};
  int64_t inputs = 1;
  for (size_t i = 1; i < tensor.shape.size(); ++i) inputs *= tensor.shape[i];
  const auto scale = static_cast<float>(std::sqrt(3.0 / static_cast<double>(inputs)));
  return {0, name.ends_with("mlp.gate.weight") ? 2 * scale : scale};
}

std::string TinyBytes(const SourceTensor& tensor, uint32_t stream) {
  uint32_t count = 1;
  for (const int64_t dim : tensor.shape) count *= static_cast<uint32_t>(dim);
  const Spread spread = SpreadOf(tensor);
  std::string bytes(static_cast<size_t>(count * SizeOf(tensor.dtype)), '\0');
  for (uint32_t i = 0; i < count; ++i) {
    const Bf16 value = ToBf16(spread.base + spread.scale * HashUniform(stream, i));
    if (tensor.dtype == DType::kF32) {
      reinterpret_cast<float*>(bytes.data())[i] = ToFloat(value);
    } else {
      reinterpret_cast<Bf16*>(bytes.data())[i] = value;
    }
  }
  return bytes;
}

}  // namespace

K2Config SmallConfig(int32_t layers, int32_t heads) {
  K2Config config;
  config.hidden = 128;
  config.layers = layers;
  config.heads = heads;
  config.q_lora = 64;
  config.kv_lora = 512;
  config.nope = 128;
  config.rope_dim = 64;
  config.value = 128;
  config.intermediate = 192;
  config.moe_intermediate = 64;
  config.experts = 8;
  config.shared_experts = 1;
  config.dense_layers = 1;
  config.router.experts = 8;
  config.router.top_k = 3;
  config.router.scaling = 2;
  config.router_has_bias = true;
  config.positions_max = 512;
  config.vocab = 90;
  return config;
}

K2Config KernelConfig(int32_t layers, int32_t heads) {
  K2Config config = SmallConfig(layers, heads);
  config.hidden = 512;
  config.q_lora = 256;
  config.intermediate = 1024;
  config.moe_intermediate = 512;
  config.vocab = 2304;
  return config;
}

std::optional<SourceTensor> TinySource::Find(std::string_view name,
                                             const std::vector<int64_t>& wanted) {
  const bool bias = name.ends_with("e_score_correction_bias");
  if (bias && !has_bias_) return std::nullopt;
  const auto [known, is_new] = by_name_.emplace(name, made_.size());
  if (is_new) {
    const DType type = bias ? DType::kF32 : DType::kBf16;
    SourceTensor tensor{
        .name = std::string(name), .dtype = type, .shape = wanted, .handle = made_.size()};
    std::string bytes = TinyBytes(tensor, HashStream(name, seed_));
    made_.push_back({std::move(tensor), std::move(bytes)});
  }
  return made_[known->second].tensor;
}

Status TinySource::Read(const SourceTensor& tensor, int64_t row, TensorView out) const {
  BT_CHECK(out.contiguous() && out.dtype == tensor.dtype);
  const int64_t row_bytes = out.dim(1) * SizeOf(out.dtype);
  const std::string& bytes = made_[tensor.handle].bytes;
  std::memcpy(out.data, bytes.data() + row * row_bytes, out.dim(0) * row_bytes);
  return {};
}

std::string SafetensorsFile(std::span<const FileTensor> tensors) {
  Json header = Json::object();
  std::string data;
  for (const FileTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", NameOf(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  const std::string json = header.dump();
  const uint64_t length = json.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  return file + json + data;
}

void WriteFile(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::ssize(bytes));
}

std::vector<FileTensor> TinyTensors(const K2Config& config, bool has_bias) {
  TinySource source(has_bias);
  const auto model = K2Model::Load(config, source, ReferenceOps(), nullptr, {});
  BT_CHECK(model.ok());
  std::vector<FileTensor> tensors;
  for (const TinySource::Made& made : source.made()) {
    tensors.push_back({made.tensor.name, made.tensor.dtype, made.tensor.shape, made.bytes});
  }
  return tensors;
}

void WriteCheckpoint(const std::string& dir,
                     std::vector<FileTensor> tensors,
                     const CheckpointOptions& options) {
  constexpr std::string_view kModel = "model.";
  for (FileTensor& tensor : tensors) {
    if (options.drop_model && tensor.name.starts_with(kModel)) {
      tensor.name = tensor.name.substr(kModel.size());
    }
    tensor.name = options.prefix + tensor.name;
  }
  if (options.shards == 0) {
    WriteFile(dir + "/model.safetensors", SafetensorsFile(tensors));
    return;
  }
  std::vector<std::vector<FileTensor>> shards(static_cast<size_t>(options.shards));
  Json map = Json::object();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const size_t shard = i % shards.size();
    map[tensors[i].name] = fmt::format("part-{}.safetensors", shard);
    shards[shard].push_back(std::move(tensors[i]));
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    WriteFile(fmt::format("{}/part-{}.safetensors", dir, i), SafetensorsFile(shards[i]));
  }
  WriteFile(dir + "/model.safetensors.index.json", Json{{"weight_map", map}}.dump());
}

TinyRunner::TinyRunner(K2Model& model, int64_t tokens_max)
    : TinyRunner(model, tokens_max, PlainKvForm(model.ops().act)) {}

TinyRunner::TinyRunner(K2Model& model, int64_t tokens_max, KvForm kv)
    : TinyRunner(model, tokens_max, kv, Arena(*model.ops().memory)) {}

TinyRunner::TinyRunner(K2Model& model, int64_t tokens_max, KvForm kv, Arena arena)
    : model_(model), arena_(std::move(arena)) {
  const Memory& where = *model.ops().memory;
  const K2Config& config = model.config();
  const int64_t needed = (tokens_max + kBlock - 1) / kBlock;
  const int64_t blocks = 2 * needed + 1;
  const int64_t layer_bytes = blocks * kBlock * KvBytesPerToken(config, kv, 1);
  auto memory =
      Buffer::Create(static_cast<size_t>(model.layers() * layer_bytes), "test cache", where);
  memory_ = std::move(memory).value();
  for (int32_t layer = 0; layer < model.layers(); ++layer) {
    cache_.push_back({.data = static_cast<char*>(memory_.data()) + layer * layer_bytes,
                      .form = kv,
                      .num_blocks = blocks,
                      .latent = config.kv_lora,
                      .rope = config.rope_dim});
  }
  const auto logits = static_cast<size_t>(tokens_max * config.vocab) * sizeof(float);
  logits_ = Buffer::Create(logits, "test logits", where).value();
  // Odd blocks, backwards, so that no two neighbours are neighbours in memory; block 0 is spare.
  for (int64_t i = 0; i < needed; ++i) blocks_.push_back(static_cast<int32_t>(blocks - 2 - 2 * i));
}

std::vector<float> TinyRunner::Run(std::span<const int32_t> tokens, int32_t absorbed_from) {
  return RunAmong(tokens, absorbed_from, 0);
}

std::vector<float> TinyRunner::RunAmong(std::span<const int32_t> tokens,
                                        int32_t absorbed_from,
                                        int padding) {
  const auto count = static_cast<int32_t>(tokens.size());
  std::vector<int32_t> ids, positions, rows;
  std::vector<int64_t> slots;
  std::vector<AttentionSequence> sequences;
  const std::vector<int32_t> spare{static_cast<int32_t>(spare_block_)};
  for (int32_t i = 0; i < padding; ++i) {  // sequences of one token, before ours
    ids.push_back(i % static_cast<int32_t>(model_.config().vocab));
    positions.push_back(i);
    slots.push_back(i);
    sequences.push_back({.query_begin = i,
                         .query_count = 1,
                         .first_position = i,
                         .absorbed_from = i % 2 == 0 ? 0 : i + 1,
                         .blocks = spare,
                         .block_positions = {},
                         .key_count = i + 1});
  }
  for (int32_t i = 0; i < count; ++i) {
    const int32_t position = position_ + i;
    ids.push_back(tokens[i]);
    positions.push_back(position);
    slots.push_back(blocks_[position / kBlock] * kBlock + position % kBlock);
    rows.push_back(padding + i);
  }
  if (count > 0) {
    sequences.push_back({.query_begin = padding,
                         .query_count = count,
                         .first_position = position_,
                         .absorbed_from = absorbed_from,
                         .blocks = blocks_,
                         .block_positions = {},
                         .key_count = position_ + count});
  }
  position_ += count;

  const int64_t vocab = model_.config().vocab;
  std::vector<float> logits(static_cast<size_t>(count * vocab));
  const size_t bytes = logits.size() * sizeof(float);
  BT_CHECK(bytes <= logits_.bytes());
  arena_.Reset();
  const int64_t hidden = model_.config().hidden;
  taps_.assign(tap_layers_.size(), std::vector<float>(ids.size() * static_cast<size_t>(hidden)));
  std::vector<TensorView> taps;
  for (std::vector<float>& tap : taps_) {
    taps.emplace_back(tap.data(), DType::kF32,
                      std::initializer_list<int64_t>{std::ssize(ids), hidden});
  }
  model_.Forward({.tokens = ids,
                  .positions = positions,
                  .slots = slots,
                  .sequences = sequences,
                  .logits_rows = rows,
                  .override_rows = {},
                  .embedding_overrides = {},
                  .tap_layers = tap_layers_,
                  .taps = taps,
                  .group_rows = group_rows_},
                 cache_, TensorView(logits_.data(), DType::kF32, {count, vocab}), arena_);
  BT_CHECK(model_.ops().memory->CopyOut(logits.data(), logits_.data(), bytes).ok());
  return logits;
}

}  // namespace baltoro::test
