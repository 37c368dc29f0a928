#include "model/weight_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <utility>

namespace baltoro {
namespace {

bool SameForm(const StoredMatrix& a, const StoredMatrix& b) {
  return a.form == b.form && a.input_scale == b.input_scale && a.input_offset == b.input_offset;
}

// The first thing amiss is remembered; what follows it does nothing.
class Planner {
 public:
  Planner(const K2Config& config,
          WeightSource& source,
          const OpsTable& ops,
          const WeightOptions& options)
      : config_(config), source_(source), ops_(ops), options_(options) {}

  Result<WeightPlan> Run() {
    plan_.embedding = Rows("model.embed_tokens.weight", ops_.act, config_.vocab, config_.hidden);
    plan_.final_norm = Vector("model.norm.weight", config_.hidden);
    const char* head = config_.tied_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
    plan_.lm_head = Matrix(config_.head_vocab(), config_.hidden, {{head, config_.head_vocab()}});
    if (config_.draft) {
      const int64_t width = std::ssize(config_.draft->tap_layers) * config_.hidden;
      plan_.fc = Matrix(config_.hidden, width, {{"fc.weight", config_.hidden}});
    }
    for (int32_t i = 0; i < config_.layers && status_.ok(); ++i) plan_.layers.push_back(Layer(i));
    if (!status_.ok()) return status_;
    return std::move(plan_);
  }

 private:
  struct Named {
    std::string name;
    int64_t rows;
  };
  using NamedParts = std::vector<Named>;
  // The parts of each matrix of a batch, and how each is stored.
  struct Found {
    std::vector<std::vector<MatrixPart>> parts;
    std::vector<std::vector<StoredMatrix>> stored;
  };

  PlannedLayer Layer(int32_t index) {
    const std::string prefix = fmt::format("model.layers.{}.", index);
    PlannedLayer layer;
    // The norm that a draft's layer has first is that of the embedding.
    layer.attention_norm = Vector(
        prefix + (config_.draft ? "hidden_norm.weight" : "input_layernorm.weight"), config_.hidden);
    if (config_.draft) {
      layer.beside_norm = Vector(prefix + "input_layernorm.weight", config_.hidden);
    }
    layer.mlp_norm = Vector(prefix + "post_attention_layernorm.weight", config_.hidden);
    if (config_.has_heads()) {
      AddHeads(prefix + "self_attn.", layer);
    } else {
      AddAttention(prefix + "self_attn.", layer);
    }
    const std::string mlp = prefix + "mlp.";
    if (!config_.is_moe(index)) {
      layer.mlp = Mlp({mlp}, config_.intermediate, mlp);
      return layer;
    }
    const int64_t width = config_.moe_intermediate;
    if (config_.shared_experts > 0) {
      const std::string shared = mlp + "shared_experts.";
      layer.mlp = Mlp({shared}, width * config_.shared_experts, shared);
    }
    layer.router =
        Matrix(config_.experts, config_.hidden, {{mlp + "gate.weight", config_.experts}});
    if (config_.router_has_bias) AddRouterBias(mlp + "gate.e_score_correction_bias", layer);
    std::vector<std::string> experts;
    for (int32_t e = 0; e < config_.experts; ++e) {
      experts.push_back(fmt::format("{}experts.{}.", mlp, e));
    }
    layer.experts = Mlp(experts, width, mlp + "experts.*.");
    return layer;
  }

  void AddAttention(const std::string& prefix, PlannedLayer& layer) {
    const int64_t q_rows = config_.heads * config_.head_dim();
    const int64_t width = config_.draft ? 2 * config_.hidden : config_.hidden;  // of what it reads
    const Named kv_a{prefix + "kv_a_proj_with_mqa.weight", config_.cache_width()};
    if (config_.q_lora > 0) {
      const Named q_a{prefix + "q_a_proj.weight", config_.q_lora};
      const int64_t rows = q_a.rows + kv_a.rows;
      Found both = Find(width, {{q_a, kv_a}});
      if (CanBeOne(both)) {
        layer.qkv_a = Pack(rows, width, std::move(both), prefix + "{q_a,kv_a}_proj");
      } else {
        layer.qkv_a = Matrix(q_a.rows, width, {q_a});
        layer.kv_a = Matrix(kv_a.rows, width, {kv_a});
      }
      layer.q_norm = Vector(prefix + "q_a_layernorm.weight", config_.q_lora);
      layer.q = Matrix(q_rows, config_.q_lora, {{prefix + "q_b_proj.weight", q_rows}});
    } else {
      layer.qkv_a = Matrix(kv_a.rows, width, {kv_a});
      layer.q = Matrix(q_rows, width, {{prefix + "q_proj.weight", q_rows}});
    }
    layer.kv_norm = Vector(prefix + "kv_a_layernorm.weight", config_.kv_lora);
    AddKvB(prefix + "kv_b_proj.weight", layer);
    layer.o = Matrix(config_.hidden, config_.heads * config_.value,
                     {{prefix + "o_proj.weight", config_.hidden}});
  }

  void AddHeads(const std::string& prefix, PlannedLayer& layer) {
    const int64_t queries = config_.heads * config_.draft->head_width;
    const int64_t keys = config_.draft->key_heads * config_.draft->head_width;
    layer.qkv_a = Matrix(queries + 2 * keys, 2 * config_.hidden,
                         {{prefix + "q_proj.weight", queries},
                          {prefix + "k_proj.weight", keys},
                          {prefix + "v_proj.weight", keys}});
    layer.o = Matrix(config_.hidden, queries, {{prefix + "o_proj.weight", config_.hidden}});
  }

  void AddKvB(const std::string& name, PlannedLayer& layer) {
    const int64_t head_rows = config_.nope + config_.value;
    const Found found = Find(config_.kv_lora, {{{name, config_.heads * head_rows}}});
    if (!status_.ok()) return;
    const MatrixPart& whole = found.parts[0][0];
    layer.kv_b = {.matrix = Plain(whole.rows, config_.kv_lora, 1), .parts = found.parts};
    // The key rows of each head, transposed.
    layer.uk_t.matrix = Plain(config_.kv_lora, config_.nope, config_.heads);
    layer.uk_t.transposed = true;
    for (int64_t head = 0; head < config_.heads; ++head) {
      layer.uk_t.parts.push_back({{whole.tensor, head * head_rows, config_.nope}});
    }
  }

  // A checkpoint without the bias is served without it (and then scores a group by its best
  // expert), as other engines do.
  void AddRouterBias(const std::string& name, PlannedLayer& layer) {
    if (source_.Find(name, {config_.experts})) {
      layer.router_bias = Vector(name, config_.experts);
    } else {
      ++plan_.missing_biases;
    }
  }

  // One MLP for each prefix; `all` names them together.
  PlannedMlp Mlp(const std::vector<std::string>& prefixes,
                 int64_t intermediate,
                 const std::string& all) {
    std::vector<NamedParts> gate_up, down;
    for (const std::string& prefix : prefixes) {
      gate_up.push_back(
          {{prefix + "gate_proj.weight", intermediate}, {prefix + "up_proj.weight", intermediate}});
      down.push_back({{prefix + "down_proj.weight", config_.hidden}});
    }
    return {
        .gate_up = Pack(2 * intermediate, config_.hidden, Find(config_.hidden, gate_up),
                        all + "{gate,up}_proj"),
        .down = Pack(config_.hidden, intermediate, Find(intermediate, down), all + "down_proj")};
  }

  PlannedMatrix Matrix(int64_t n, int64_t k, const NamedParts& parts) {
    return Pack(n, k, Find(k, {parts}), parts[0].name);
  }

  PackedMatrix Plain(int64_t n, int64_t k, int64_t count) const {
    return {.form = PlainForm(ops_.act), .n = n, .k = k, .count = count};
  }

  PlannedMatrix Pack(int64_t n, int64_t k, Found found, const std::string& what) {
    PlannedMatrix out;
    if (!status_.ok()) return out;
    out.matrix = Plain(n, k, std::ssize(found.parts));
    const StoredMatrix& first = found.stored[0][0];
    if (CanBeOne(found)) {
      if (!IsPlain(first.form)) out.matrix.form = first.form;
      out.matrix.input_scale = first.input_scale;
      out.matrix.input_offset = first.input_offset;
      out.matrix.quantise_input =
          first.form == WeightForm::kFp8Block && options_.quantise_fp8_inputs;
    } else {
      plan_.notes.push_back(fmt::format("{}: decoded to {}, as {}", what, NameOf(ops_.act),
                                        AreAlike(found)
                                            ? "the second part would begin inside a block of rows"
                                            : "its parts are not stored alike"));
    }
    out.parts = std::move(found.parts);
    return out;
  }

  static bool AreAlike(const Found& found) {
    for (const auto& matrix : found.stored) {
      for (const StoredMatrix& part : matrix) {
        const StoredMatrix& first = found.stored[0][0];
        if (!SameForm(part, first) && !(IsPlain(part.form) && IsPlain(first.form))) return false;
      }
    }
    return true;
  }

  // Whether the parts can be kept in one matrix without decoding them.
  static bool CanBeOne(const Found& found) {
    if (found.stored.empty()) return true;  // something is missing
    if (!AreAlike(found)) return false;
    if (IsPlain(found.stored[0][0].form)) return true;
    for (const auto& matrix : found.parts) {
      int64_t row = 0;
      for (const MatrixPart& part : matrix) {
        if (row % kPackRows != 0) return false;
        row += part.rows;
      }
    }
    return true;
  }

  Found Find(int64_t k, const std::vector<NamedParts>& matrices) {
    Found found;
    for (const NamedParts& names : matrices) {
      std::vector<MatrixPart>& parts = found.parts.emplace_back();
      std::vector<StoredMatrix>& stored = found.stored.emplace_back();
      for (const Named& part : names) {
        auto tensor = Expect(part.name, {part.rows, k});
        if (!tensor) return {};
        auto form = source_.StoredAs(*tensor);
        if (!form.ok()) {
          status_ = form.status();
          return {};
        }
        stored.push_back(form.value());
        parts.push_back({std::move(*tensor), 0, part.rows});
      }
    }
    return found;
  }

  PlannedRows Rows(const std::string& name, DType type, int64_t rows, int64_t width) {
    auto tensor = Expect(name, {rows, width});
    if (!tensor) return {};
    return {.dtype = type, .rows = rows, .width = width, .tensor = std::move(*tensor)};
  }
  PlannedRows Vector(const std::string& name, int64_t width) {
    auto tensor = Expect(name, {width});
    if (!tensor) return {};
    return {.dtype = DType::kF32, .rows = 1, .width = width, .tensor = std::move(*tensor)};
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
      Fail(name, fmt::format("is {}; it may be BF16 or F32", NameOf(tensor->dtype)));
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
  const OpsTable& ops_;
  const WeightOptions& options_;
  WeightPlan plan_;
  Status status_;
};

}  // namespace

Result<WeightPlan> PlanWeights(const K2Config& config,
                               WeightSource& source,
                               const OpsTable& ops,
                               const WeightOptions& options) {
  Result<WeightPlan> plan = Planner(config, source, ops, options).Run();
  if (plan.ok()) plan.value().alike_layers = options.alike_layers;
  return plan;
}

}  // namespace baltoro
