#include "model/layer_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <initializer_list>
#include <utility>

#include "base/log.h"
#include "model/weight_fills.h"

namespace baltoro {
namespace {

// Deals out places in one allocation; with a null base it only counts.
class Carver {
 public:
  Carver(const OpsTable& ops, void* base) : ops_(ops), base_(static_cast<char*>(base)) {}

  PackedMatrix Matrix(int64_t n, int64_t k, int64_t count = 1) {
    PackedMatrix matrix{.form = PlainForm(ops_.act), .n = n, .k = k, .count = count};
    matrix.stride_bytes = Aligned(ops_.packed_bytes(matrix.form, n, k));
    matrix.data = Take(matrix.stride_bytes * count);
    return matrix;
  }
  TensorView Rows(DType type, int64_t rows, int64_t width) {
    return TensorView(Take(rows * width * SizeOf(type)), type, {rows, width});
  }
  TensorView Vector(int64_t width) {
    return TensorView(Take(width * SizeOf(DType::kF32)), DType::kF32, {width});
  }
  int64_t bytes() const { return bytes_; }

 private:
  static int64_t Aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }
  void* Take(int64_t bytes) {
    const int64_t at = bytes_;
    bytes_ += Aligned(bytes);
    return base_ == nullptr ? nullptr : base_ + at;
  }

  const OpsTable& ops_;
  char* base_;
  int64_t bytes_ = 0;
};

MlpWeights CarveMlp(const K2Config& config, int64_t intermediate, Carver& carver) {
  return {.gate_up = carver.Matrix(2 * intermediate, config.hidden),
          .down = carver.Matrix(config.hidden, intermediate)};
}

LayerWeights CarveLayer(const K2Config& config, int32_t index, Carver& carver) {
  LayerWeights layer;
  const int64_t h = config.heads;
  layer.attention_norm = carver.Vector(config.hidden);
  layer.mlp_norm = carver.Vector(config.hidden);
  layer.kv_norm = carver.Vector(config.kv_lora);
  layer.qkv_a = carver.Matrix(config.q_lora + config.cache_width(), config.hidden);
  if (config.q_lora > 0) layer.q_norm = carver.Vector(config.q_lora);
  layer.q = carver.Matrix(h * config.head_dim(), config.q_lora > 0 ? config.q_lora : config.hidden);
  layer.kv_b = carver.Matrix(h * (config.nope + config.value), config.kv_lora);
  layer.uk_t = carver.Matrix(config.kv_lora, config.nope, h);
  layer.o = carver.Matrix(config.hidden, h * config.value);
  if (!config.is_moe(index)) {
    layer.mlp = CarveMlp(config, config.intermediate, carver);
    return layer;
  }
  const int64_t inter = config.moe_intermediate;
  if (config.shared_experts > 0) {
    layer.mlp = CarveMlp(config, inter * config.shared_experts, carver);
  }
  layer.router = carver.Matrix(config.experts, config.hidden);
  if (config.router_has_bias) layer.router_bias = carver.Vector(config.experts);
  layer.experts_gate_up = carver.Matrix(2 * inter, config.hidden, config.experts);
  layer.experts_down = carver.Matrix(config.hidden, inter, config.experts);
  return layer;
}

void CarveEnds(const K2Config& config, const OpsTable& ops, Carver& carver, ModelWeights& weights) {
  weights.embedding = carver.Rows(ops.act, config.vocab, config.hidden);
  weights.final_norm = carver.Vector(config.hidden);
  weights.lm_head = carver.Matrix(config.vocab, config.hidden);
}

// Finds the tensors of a model in a source and lists what each place is filled with. The first
// thing amiss is remembered; what follows it does nothing.
class FillPlanner {
 public:
  FillPlanner(const K2Config& config, WeightSource& source) : config_(config), source_(source) {}

  void AddEnds(ModelWeights& weights) {
    AddRows(weights.embedding, "model.embed_tokens.weight");
    AddVector(weights.final_norm, "model.norm.weight");
    const char* head = config_.tied_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
    AddMatrix(weights.lm_head, {{head, config_.vocab}});
  }

  void AddLayer(int32_t index, LayerWeights& layer) {
    const std::string prefix = fmt::format("model.layers.{}.", index);
    AddVector(layer.attention_norm, prefix + "input_layernorm.weight");
    AddVector(layer.mlp_norm, prefix + "post_attention_layernorm.weight");
    AddAttention(prefix + "self_attn.", layer);
    const std::string mlp = prefix + "mlp.";
    if (!config_.is_moe(index)) {
      AddMlp(layer.mlp, mlp, config_.intermediate);
      return;
    }
    if (config_.shared_experts > 0) {
      AddMlp(layer.mlp, mlp + "shared_experts.", config_.moe_intermediate * config_.shared_experts);
    }
    AddMatrix(layer.router, {{mlp + "gate.weight", config_.experts}});
    AddRouterBias(layer, mlp + "gate.e_score_correction_bias");
    for (int32_t e = 0; e < config_.experts; ++e) {
      AddMlp({layer.experts_gate_up.at(e), layer.experts_down.at(e)},
             fmt::format("{}experts.{}.", mlp, e), config_.moe_intermediate);
    }
  }

  const Status& status() const { return status_; }
  const std::vector<WeightFill>& fills() const { return fills_; }
  int missing_biases() const { return missing_biases_; }

 private:
  struct Named {
    std::string name;
    int64_t rows;
  };

  void AddAttention(const std::string& prefix, LayerWeights& layer) {
    const Named kv_a{prefix + "kv_a_proj_with_mqa.weight", config_.cache_width()};
    if (config_.q_lora > 0) {
      AddMatrix(layer.qkv_a, {{prefix + "q_a_proj.weight", config_.q_lora}, kv_a});
      AddVector(layer.q_norm, prefix + "q_a_layernorm.weight");
      AddMatrix(layer.q, {{prefix + "q_b_proj.weight", layer.q.n}});
    } else {
      AddMatrix(layer.qkv_a, {kv_a});
      AddMatrix(layer.q, {{prefix + "q_proj.weight", layer.q.n}});
    }
    AddVector(layer.kv_norm, prefix + "kv_a_layernorm.weight");
    AddMatrix(layer.kv_b, {{prefix + "kv_b_proj.weight", layer.kv_b.n}});
    AddTransposedKeys(layer.uk_t, prefix + "kv_b_proj.weight");
    AddMatrix(layer.o, {{prefix + "o_proj.weight", config_.hidden}});
  }

  void AddMlp(const MlpWeights& mlp, const std::string& prefix, int64_t intermediate) {
    AddMatrix(mlp.gate_up, {{prefix + "gate_proj.weight", intermediate},
                            {prefix + "up_proj.weight", intermediate}});
    AddMatrix(mlp.down, {{prefix + "down_proj.weight", config_.hidden}});
  }

  // The key rows of each head of kv_b, transposed.
  void AddTransposedKeys(const PackedMatrix& uk_t, const std::string& kv_b) {
    const int64_t head_rows = config_.nope + config_.value;
    const auto tensor = Expect(kv_b, {config_.heads * head_rows, config_.kv_lora});
    if (!tensor) return;
    for (int64_t head = 0; head < config_.heads; ++head) {
      fills_.push_back({.kind = WeightFill::Kind::kPackTransposed,
                        .matrix = uk_t.at(head),
                        .rows = {},
                        .parts = {{*tensor, head * head_rows, config_.nope}}});
    }
  }

  // A checkpoint without the bias is served without it (and then scores a group by its best
  // expert), as other engines do.
  void AddRouterBias(LayerWeights& layer, const std::string& name) {
    if (!layer.router_bias) return;
    if (!source_.Find(name, {config_.experts})) {
      layer.router_bias = {};
      ++missing_biases_;
      return;
    }
    AddVector(layer.router_bias, name);
  }

  void AddMatrix(const PackedMatrix& matrix, std::initializer_list<Named> parts) {
    WeightFill fill{.kind = WeightFill::Kind::kPack, .matrix = matrix, .rows = {}, .parts = {}};
    for (const Named& part : parts) {
      auto tensor = Expect(part.name, {part.rows, matrix.k});
      if (!tensor) return;
      fill.parts.push_back({std::move(*tensor), 0, part.rows});
    }
    fills_.push_back(std::move(fill));
  }
  void AddRows(const TensorView& rows, const std::string& name) {
    auto tensor = Expect(name, {rows.dim(0), rows.dim(1)});
    if (!tensor) return;
    fills_.push_back({.kind = WeightFill::Kind::kRows,
                      .matrix = {},
                      .rows = rows,
                      .parts = {{std::move(*tensor), 0, rows.dim(0)}}});
  }
  void AddVector(const TensorView& vector, const std::string& name) {
    auto tensor = Expect(name, {vector.dim(0)});
    if (!tensor) return;
    fills_.push_back({.kind = WeightFill::Kind::kRows,
                      .matrix = {},
                      .rows = TensorView(vector.data, vector.dtype, {1, vector.dim(0)}),
                      .parts = {{std::move(*tensor), 0, 1}}});
  }

  std::optional<SourceTensor> Expect(const std::string& name, std::vector<int64_t> shape) {
    if (!status_.ok()) return std::nullopt;
    auto tensor = source_.Find(name, shape);
    if (!tensor) {
      Fail(name, "is missing");
      return std::nullopt;
    }
    if (tensor->shape != shape) {
      Fail(name, fmt::format("has shape [{}]; config.json makes it [{}]",
                             fmt::join(tensor->shape, ", "), fmt::join(shape, ", ")));
      return std::nullopt;
    }
    if (tensor->dtype != DType::kBf16 && tensor->dtype != DType::kF32) {
      Fail(name, fmt::format("is {}; only BF16 and F32 are available yet", NameOf(tensor->dtype)));
      return std::nullopt;
    }
    return tensor;
  }
  void Fail(const std::string& name, const std::string& why) {
    if (!status_.ok()) return;
    status_ = InvalidArgument(fmt::format("{}: tensor {} {}", source_.description(), name, why));
  }

  const K2Config& config_;
  WeightSource& source_;
  std::vector<WeightFill> fills_;
  Status status_;
  int missing_biases_ = 0;
};

// Bytes of the embedding and head, then of each layer.
std::vector<int64_t> PartBytes(const K2Config& config, const OpsTable& ops) {
  std::vector<int64_t> bytes;
  ModelWeights ignored;
  Carver ends(ops, nullptr);
  CarveEnds(config, ops, ends, ignored);
  bytes.push_back(ends.bytes());
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    Carver carver(ops, nullptr);
    CarveLayer(config, layer, carver);
    bytes.push_back(carver.bytes());
  }
  return bytes;
}

Result<ModelWeights> AllocateWeights(const K2Config& config, const OpsTable& ops) {
  ModelWeights weights;
  const std::vector<int64_t> parts = PartBytes(config, ops);
  for (const int64_t bytes : parts) weights.bytes += bytes;
  const auto available = static_cast<int64_t>(AvailableHostMemory());
  if (weights.bytes > available) {
    constexpr double kGib = 1 << 30;
    return Status(Code::kResourceExhausted,
                  fmt::format("the weights need {:.2f} GiB of memory, {:.2f} GiB are available",
                              static_cast<double>(weights.bytes) / kGib,
                              static_cast<double>(available) / kGib));
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string what = i == 0 ? std::string("the embedding and output weights")
                                    : fmt::format("the weights of layer {}", i - 1);
    BT_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Create(static_cast<size_t>(parts[i]), what));
    weights.memory.push_back(std::move(buffer));
  }
  Carver ends(ops, weights.memory[0].data());
  CarveEnds(config, ops, ends, weights);
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    Carver carver(ops, weights.memory[layer + 1].data());
    weights.layers.push_back(CarveLayer(config, layer, carver));
  }
  return weights;
}

}  // namespace

int64_t WeightBytes(const K2Config& config, const OpsTable& ops) {
  int64_t total = 0;
  for (const int64_t bytes : PartBytes(config, ops)) total += bytes;
  return total;
}

Result<ModelWeights> LoadWeights(const K2Config& config,
                                 WeightSource& source,
                                 const OpsTable& ops,
                                 int threads,
                                 const LoadProgress& progress) {
  BT_ASSIGN_OR_RETURN(ModelWeights weights, AllocateWeights(config, ops));
  FillPlanner planner(config, source);
  planner.AddEnds(weights);
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    planner.AddLayer(layer, weights.layers[layer]);
  }
  BT_RETURN_IF_ERROR(planner.status());
  if (planner.missing_biases() > 0) {
    BT_LOG(Warning,
           "{}: e_score_correction_bias is missing in {} layers; experts are chosen without it",
           source.description(), planner.missing_biases());
  }
  BT_RETURN_IF_ERROR(RunFills(planner.fills(), source, ops, threads, progress));
  return weights;
}

}  // namespace baltoro
