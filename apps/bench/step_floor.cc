#include "bench/step_floor.h"

namespace baltoro {
namespace {

struct Counter {
  const OpsTable& ops;
  int64_t bytes = 0, parameters = 0;

  void Add(const PlannedMatrix& planned) {
    if (planned.parts.empty()) return;
    const PackedMatrix& m = planned.matrix;
    bytes += m.count * ops.packed_bytes(m.form, m.n, m.k);
    parameters += m.count * m.n * m.k;
  }
};

double HeadsOf(const K2Config& config, const RankShare& share) {
  return static_cast<double>(share.group_heads(config).size());
}

int64_t MoeLayers(const K2Config& config) {
  return config.experts > 0 ? config.layers - config.dense_layers : 0;
}

}  // namespace

WeightNeeds NeedsOf(const WeightPlan& plan, const OpsTable& ops) {
  WeightNeeds needs;
  Counter head{ops}, fixed{ops}, experts{ops}, projection{ops};
  head.Add(plan.lm_head);
  projection.Add(plan.fc);
  int64_t banks = 0, expert_count = 1;
  int64_t second_forms = 0;  // of kv_b's key rows: one form of attention reads either of the two
  for (const PlannedLayer& layer : plan.layers) {
    for (const PlannedMatrix* m : {&layer.qkv_a, &layer.kv_a, &layer.q, &layer.kv_b, &layer.o,
                                   &layer.router, &layer.mlp.gate_up, &layer.mlp.down}) {
      fixed.Add(*m);
    }
    second_forms +=
        layer.uk_t.matrix.count *
        ops.packed_bytes(layer.uk_t.matrix.form, layer.uk_t.matrix.n, layer.uk_t.matrix.k);
    if (layer.experts.down.parts.empty()) continue;
    ++banks;
    expert_count = layer.experts.down.matrix.count;
    experts.Add(layer.experts.gate_up);
    experts.Add(layer.experts.down);
  }
  needs.head_bytes = head.bytes;
  needs.head_parameters = head.parameters;
  needs.projection_bytes = projection.bytes;
  needs.projection_parameters = projection.parameters;
  needs.fixed_bytes = fixed.bytes + head.bytes + projection.bytes;
  needs.fixed_parameters = fixed.parameters + head.parameters + projection.parameters;
  if (banks > 0) {
    needs.expert_bytes = experts.bytes / banks / expert_count;
    needs.expert_parameters = experts.parameters / banks / expert_count;
  }
  const PlannedRows& embedding = plan.embedding;
  needs.all_bytes = needs.fixed_bytes + second_forms + experts.bytes +
                    embedding.rows * embedding.width * SizeOf(embedding.dtype);
  return needs;
}

StepNeeds DecodeNeeds(const K2Config& config,
                      const RankShare& share,
                      const WeightNeeds& weights,
                      KvForm kv,
                      int64_t batch,
                      int64_t rows,
                      int64_t context,
                      const RoutedWork& routed) {
  const auto tokens = static_cast<double>(batch * rows);
  // Read once for all rows of a sequence.
  const auto keys = static_cast<double>(batch * context) / share.layout.decode_context;
  const auto moe = static_cast<double>(MoeLayers(config));
  const double key_bytes =
      static_cast<double>(config.layers * KvTokenBytes(kv, config.kv_lora, config.rope_dim));
  const double key_flops = 2.0 * config.layers * HeadsOf(config, share) *
                           static_cast<double>(2 * config.kv_lora + config.rope_dim);
  const double expert_rows = moe * routed.choices;
  return {.bytes = static_cast<double>(weights.fixed_bytes) +
                   moe * routed.distinct * static_cast<double>(weights.expert_bytes) +
                   keys * key_bytes,
          .flops = 2 * tokens * static_cast<double>(weights.fixed_parameters) +
                   2 * expert_rows * static_cast<double>(weights.expert_parameters) +
                   keys * static_cast<double>(rows) * key_flops};
}

StepNeeds PrefillNeeds(const K2Config& config,
                       const RankShare& share,
                       const WeightNeeds& weights,
                       KvForm kv,
                       int64_t tokens,
                       const RoutedWork& routed) {
  const auto count = static_cast<double>(tokens);
  const double pairs = count * (count + 1) / 2 / share.layout.decode_context;
  const auto moe = static_cast<double>(MoeLayers(config));
  const double pair_flops = 2.0 * config.layers * HeadsOf(config, share) *
                            static_cast<double>(config.head_dim() + config.value);
  const auto fixed = static_cast<double>(weights.fixed_parameters - weights.head_parameters);
  const double key_bytes =
      static_cast<double>(config.layers * KvTokenBytes(kv, config.kv_lora, config.rope_dim));
  return {.bytes = static_cast<double>(weights.fixed_bytes) +
                   moe * routed.distinct * static_cast<double>(weights.expert_bytes) +
                   count * key_bytes / share.layout.decode_context,
          .flops = 2 * count * fixed + 2 * static_cast<double>(weights.head_parameters) +
                   2 * moe * routed.choices * static_cast<double>(weights.expert_parameters) +
                   pairs * pair_flops};
}

}  // namespace baltoro
