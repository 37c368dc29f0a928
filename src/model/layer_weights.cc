#include "model/layer_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/log.h"

namespace baltoro {
namespace {

constexpr double kGib = 1 << 30;
constexpr int64_t kAlignment = 256;  // of each matrix

// Deals out places in one allocation and lists what each is filled with. With a null base it only
// counts.
class Placer {
 public:
  Placer(const OpsTable& ops, void* base)
      : ops_(ops),
        base_(static_cast<char*>(base)),
        on_host_(ops.memory->kind() == DeviceKind::kCpu) {}

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
      const PackedMatrix one = matrix.at(i);
      Add({.kind = kind, .matrix = one, .rows = {}, .parts = planned.parts[i]},
          const_cast<void*>(one.data));
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
      Add({.kind = WeightFill::Kind::kRows,
           .matrix = {},
           .rows = rows,
           .parts = {{planned.tensor, planned.first_row, planned.rows}}},
          rows.data);
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
  static int64_t Aligned(int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  void* Take(int64_t bytes) {
    const int64_t at = bytes_;
    bytes_ += Aligned(bytes);
    return base_ == nullptr ? nullptr : base_ + at;
  }
  void Add(WeightFill fill, void* place) {
    if (!on_host_) {
      fill.matrix.data = fill.rows.data = nullptr;
      fill.target = place;
    }
    fills_.push_back(std::move(fill));
  }

  const OpsTable& ops_;
  char* const base_;
  const bool on_host_;
  int64_t bytes_ = 0;
  std::vector<WeightFill> fills_;
  std::map<WeightForm, int64_t> by_form_;
};

LayerWeights PlaceLayer(const PlannedLayer& plan, Placer& placer) {
  LayerWeights layer;
  layer.attention_norm = placer.Vector(plan.attention_norm);
  layer.beside_norm = placer.Vector(plan.beside_norm);
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
  weights.fc = placer.Place(plan.fc);
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

int64_t StagingBytes(const WeightPlan& plan, const OpsTable& ops) {
  int64_t most = 0;  // of one expert
  for (const PlannedLayer& layer : plan.layers) {
    const MlpWeights experts = Placer(ops, nullptr).Place(layer.experts);
    most = std::max(most, experts.gate_up.stride_bytes + experts.down.stride_bytes);
  }
  return most * plan.staged_experts;
}

std::string PartName(size_t part) {
  return part == 0 ? std::string("the embedding and output weights")
                   : fmt::format("the weights of layer {}", part - 1);
}

// One buffer a part.
Result<std::vector<Buffer>> Allocate(const std::vector<int64_t>& parts, const Memory& memory) {
  int64_t bytes = 0;
  for (const int64_t part : parts) bytes += part;
  const auto available = static_cast<int64_t>(memory.Available());
  if (bytes > available) {
    return Status(
        Code::kResourceExhausted,
        fmt::format("the weights need {:.2f} GiB of {}memory, {:.2f} GiB are available: a "
                    "rank holds less with --tensor-parallel-size or "
                    "--pipeline-parallel-size over more machines or GPUs",
                    static_cast<double>(bytes) / kGib,
                    memory.kind() == DeviceKind::kCuda ? "GPU " : "",
                    static_cast<double>(available) / kGib));
  }
  std::vector<Buffer> buffers;
  for (size_t i = 0; i < parts.size(); ++i) {
    BT_ASSIGN_OR_RETURN(Buffer buffer,
                        Buffer::Create(static_cast<size_t>(parts[i]), PartName(i), memory));
    buffers.push_back(std::move(buffer));
  }
  return buffers;
}

// The part whose weights each one gets: itself, or the first that is made up like it.
std::vector<size_t> Sources(const WeightPlan& plan, const std::vector<int64_t>& parts) {
  std::vector<size_t> sources(parts.size());
  std::iota(sources.begin(), sources.end(), size_t{0});
  if (!plan.alike_layers) return sources;
  using Kind = std::tuple<int64_t, WeightForm, WeightForm, int64_t>;
  std::map<Kind, size_t> first;
  for (size_t i = 1; i < parts.size(); ++i) {
    const PlannedLayer& layer = plan.layers[i - 1];
    const Kind kind{parts[i], layer.o.matrix.form, layer.experts.down.matrix.form,
                    layer.experts.down.matrix.count};
    sources[i] = first.emplace(kind, i).first->second;
  }
  return sources;
}

void LogPlan(const WeightPlan& plan,
             const std::string& source,
             const std::map<WeightForm, int64_t>& by_form,
             bool quiet) {
  if (plan.missing_biases > 0) {
    BT_LOG(Warning,
           "{}: e_score_correction_bias is missing in {} layers; experts are chosen without it",
           source, plan.missing_biases);
  }
  for (const std::string& note : plan.notes) BT_LOG(Warning, "{}: {}", source, note);
  if (quiet) return;
  std::string forms;
  for (const auto& [form, bytes] : by_form) {
    forms += fmt::format("{}{} {:.3f} GiB", forms.empty() ? "" : ", ", WeightFormName(form),
                         static_cast<double>(bytes) / kGib);
  }
  BT_LOG(Info, "Weights in memory: {}", forms);
}

}  // namespace

int64_t WeightBytes(const WeightPlan& plan, const OpsTable& ops) {
  int64_t total = StagingBytes(plan, ops);
  for (const int64_t bytes : PartBytes(plan, ops)) total += bytes;
  return total;
}

Result<ModelWeights> LoadWeights(const WeightPlan& plan,
                                 const WeightSource& source,
                                 const OpsTable& ops,
                                 int threads,
                                 const LoadProgress& progress,
                                 bool quiet) {
  ModelWeights weights;
  const Memory& memory = *ops.memory;
  const std::vector<int64_t> parts = PartBytes(plan, ops);
  const std::vector<size_t> sources = Sources(plan, parts);
  for (const int64_t bytes : parts) weights.bytes += bytes;
  BT_ASSIGN_OR_RETURN(weights.memory, Allocate(parts, memory));
  if (const int64_t staged = StagingBytes(plan, ops); staged > 0) {
    BT_ASSIGN_OR_RETURN(
        weights.staging,
        Buffer::Create(static_cast<size_t>(staged), "experts that move (--enable-eplb)", memory));
    weights.bytes += staged;
  }
  std::vector<WeightFill> fills;
  std::map<WeightForm, int64_t> by_form;
  // Places a part, and lists how it is filled unless it is a copy.
  const auto place = [&](size_t i, const auto& body) {
    Placer placer(ops, weights.memory[i].data());
    body(placer);
    for (const auto& [form, bytes] : placer.by_form()) by_form[form] += bytes;
    if (sources[i] != i) return;
    for (WeightFill& fill : placer.fills()) fills.push_back(std::move(fill));
  };
  place(0, [&](Placer& placer) { PlaceEnds(plan, placer, weights); });
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    place(i + 1,
          [&](Placer& placer) { weights.layers.push_back(PlaceLayer(plan.layers[i], placer)); });
  }
  LogPlan(plan, source.description(), by_form, quiet);
  BT_RETURN_IF_ERROR(RunFills(fills, source, ops, threads, progress, quiet));
  for (size_t i = 0; i < parts.size(); ++i) {
    if (sources[i] == i) continue;
    BT_RETURN_IF_ERROR(memory.Copy(weights.memory[i].data(), weights.memory[sources[i]].data(),
                                   static_cast<size_t>(parts[i])));
  }
  return weights;
}

}  // namespace baltoro
