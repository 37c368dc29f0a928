#include "model/layer_weights.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "base/log.h"

namespace baltoro {
namespace {

constexpr double kGib = 1 << 30;

// Deals out places in one allocation and lists what each is filled with; with a null base it only
// counts.
class Placer {
 public:
  Placer(const OpsTable& ops, void* base) : ops_(ops), base_(static_cast<char*>(base)) {}

  PackedMatrix Place(const PlannedMatrix& planned) {
    PackedMatrix matrix = planned.matrix;
    if (planned.parts.empty()) return matrix;
    matrix.stride_bytes = Aligned(ops_.packed_bytes(matrix.form, matrix.n, matrix.k));
    const int64_t bytes = matrix.stride_bytes * matrix.count;
    matrix.data = Take(bytes);
    by_form_[matrix.form] += bytes;
    if (base_ == nullptr) return matrix;
    const auto kind =
        planned.transposed ? WeightFill::Kind::kPackTransposed : WeightFill::Kind::kPack;
    for (int64_t i = 0; i < matrix.count; ++i) {
      fills_.push_back(
          {.kind = kind, .matrix = matrix.at(i), .rows = {}, .parts = planned.parts[i]});
    }
    return matrix;
  }
  MlpWeights Place(const PlannedMlp& planned) {
    return {.gate_up = Place(planned.gate_up), .down = Place(planned.down)};
  }
  TensorView Rows(const PlannedRows& planned) {
    if (planned.rows == 0) return {};
    const int64_t bytes = planned.rows * planned.width * SizeOf(planned.dtype);
    const TensorView rows(Take(bytes), planned.dtype, {planned.rows, planned.width});
    by_form_[PlainForm(planned.dtype)] += bytes;
    if (base_ != nullptr) {
      fills_.push_back({.kind = WeightFill::Kind::kRows,
                        .matrix = {},
                        .rows = rows,
                        .parts = {{planned.tensor, 0, planned.rows}}});
    }
    return rows;
  }
  TensorView Vector(const PlannedRows& planned) {
    const TensorView rows = Rows(planned);
    if (planned.rows == 0) return {};
    return TensorView(rows.data, rows.dtype, {planned.width});
  }

  int64_t bytes() const { return bytes_; }
  std::vector<WeightFill>& fills() { return fills_; }
  const std::map<WeightForm, int64_t>& by_form() const { return by_form_; }

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
  std::vector<WeightFill> fills_;
  std::map<WeightForm, int64_t> by_form_;
};

LayerWeights PlaceLayer(const PlannedLayer& plan, Placer& placer) {
  LayerWeights layer;
  layer.attention_norm = placer.Vector(plan.attention_norm);
  layer.mlp_norm = placer.Vector(plan.mlp_norm);
  layer.kv_norm = placer.Vector(plan.kv_norm);
  layer.qkv_a = placer.Place(plan.qkv_a);
  layer.kv_a = placer.Place(plan.kv_a);
  layer.q_norm = placer.Vector(plan.q_norm);
  layer.q = placer.Place(plan.q);
  layer.kv_b = placer.Place(plan.kv_b);
  layer.uk_t = placer.Place(plan.uk_t);
  layer.o = placer.Place(plan.o);
  layer.mlp = placer.Place(plan.mlp);
  layer.router = placer.Place(plan.router);
  layer.router_bias = placer.Vector(plan.router_bias);
  const MlpWeights experts = placer.Place(plan.experts);
  layer.experts_gate_up = experts.gate_up;
  layer.experts_down = experts.down;
  return layer;
}

void PlaceEnds(const WeightPlan& plan, Placer& placer, ModelWeights& weights) {
  weights.embedding = placer.Rows(plan.embedding);
  weights.final_norm = placer.Vector(plan.final_norm);
  weights.lm_head = placer.Place(plan.lm_head);
}

// Bytes of the embedding and head, then of each layer.
std::vector<int64_t> PartBytes(const WeightPlan& plan, const OpsTable& ops) {
  std::vector<int64_t> bytes;
  ModelWeights ignored;
  Placer ends(ops, nullptr);
  PlaceEnds(plan, ends, ignored);
  bytes.push_back(ends.bytes());
  for (const PlannedLayer& layer : plan.layers) {
    Placer placer(ops, nullptr);
    PlaceLayer(layer, placer);
    bytes.push_back(placer.bytes());
  }
  return bytes;
}

Status Allocate(const std::vector<int64_t>& parts, ModelWeights& weights) {
  for (const int64_t bytes : parts) weights.bytes += bytes;
  const auto available = static_cast<int64_t>(AvailableHostMemory());
  if (weights.bytes > available) {
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
  return {};
}

void LogPlan(const WeightPlan& plan,
             const std::string& source,
             const std::map<WeightForm, int64_t>& by_form) {
  if (plan.missing_biases > 0) {
    BT_LOG(Warning,
           "{}: e_score_correction_bias is missing in {} layers; experts are chosen without it",
           source, plan.missing_biases);
  }
  for (const std::string& note : plan.notes) BT_LOG(Warning, "{}: {}", source, note);
  std::string forms;
  for (const auto& [form, bytes] : by_form) {
    forms += fmt::format("{}{} {:.3f} GiB", forms.empty() ? "" : ", ", WeightFormName(form),
                         static_cast<double>(bytes) / kGib);
  }
  BT_LOG(Info, "Weights in memory: {}", forms);
}

}  // namespace

int64_t WeightBytes(const WeightPlan& plan, const OpsTable& ops) {
  int64_t total = 0;
  for (const int64_t bytes : PartBytes(plan, ops)) total += bytes;
  return total;
}

Result<ModelWeights> LoadWeights(const WeightPlan& plan,
                                 const WeightSource& source,
                                 const OpsTable& ops,
                                 int threads,
                                 const LoadProgress& progress) {
  ModelWeights weights;
  BT_RETURN_IF_ERROR(Allocate(PartBytes(plan, ops), weights));
  std::vector<WeightFill> fills;
  std::map<WeightForm, int64_t> by_form;
  const auto collect = [&](Placer& placer) {
    for (WeightFill& fill : placer.fills()) fills.push_back(std::move(fill));
    for (const auto& [form, bytes] : placer.by_form()) by_form[form] += bytes;
  };
  Placer ends(ops, weights.memory[0].data());
  PlaceEnds(plan, ends, weights);
  collect(ends);
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    Placer placer(ops, weights.memory[i + 1].data());
    weights.layers.push_back(PlaceLayer(plan.layers[i], placer));
    collect(placer);
  }
  LogPlan(plan, source.description(), by_form);
  BT_RETURN_IF_ERROR(RunFills(fills, source, ops, threads, progress));
  return weights;
}

}  // namespace baltoro
