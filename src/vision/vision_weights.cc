#include "vision/vision_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"

namespace baltoro {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kPieceRows = 256;  // read and packed at once; a multiple of 32

// A tensor and where it goes: a packed matrix, or f32.
struct Place {
  std::string name;
  std::vector<int64_t> shape;
  PackedMatrix* matrix = nullptr;
  TensorView* plain = nullptr;
  int64_t offset = 0, bytes = 0;  // in the one buffer
  SourceTensor tensor = {};

  int64_t rows() const { return shape.size() > 1 ? shape[0] : 1; }
  int64_t width() const {
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    return count / rows();
  }
};

// Lays out everything that a configuration needs.
class Layout {
 public:
  Layout(const VisionConfig& config, const OpsTable& ops, VisionWeights& weights)
      : ops_(ops), form_(PlainForm(ops.act)) {
    const int64_t hidden = config.hidden, merged = config.merged();
    const std::string patch = "vision_tower.patch_embed.";
    Matrix(patch + "proj", {hidden, 3, config.patch, config.patch}, weights.patches);
    Plain(patch + "pos_emb.weight", {config.table_rows, config.table_columns, hidden},
          weights.positions);
    weights.blocks.resize(static_cast<size_t>(config.layers));
    for (int32_t i = 0; i < config.layers; ++i) {
      const std::string name = fmt::format("vision_tower.encoder.blocks.{}.", i);
      VisionBlockWeights& block = weights.blocks[static_cast<size_t>(i)];
      Norm(name + "norm0", hidden, config.norm_eps, block.attention_norm);
      Matrix(name + "wqkv", {3 * hidden, hidden}, block.qkv);
      Matrix(name + "wo", {hidden, hidden}, block.o);
      Norm(name + "norm1", hidden, config.norm_eps, block.mlp_norm);
      Matrix(name + "mlp.fc0", {config.intermediate, hidden}, block.up);
      Matrix(name + "mlp.fc1", {hidden, config.intermediate}, block.down);
    }
    Norm("vision_tower.encoder.final_layernorm", hidden, config.norm_eps, weights.norm);
    Norm("mm_projector.pre_norm", hidden, config.projector_eps, weights.merge_norm);
    Matrix("mm_projector.proj.0", {merged, merged}, weights.first);
    Matrix("mm_projector.proj.2", {config.text_hidden, merged}, weights.second);
  }

  int64_t bytes() const { return bytes_; }
  std::vector<Place>& places() { return places_; }

 private:
  void Add(Place place) {
    place.offset = bytes_;
    bytes_ += (place.bytes + kAlignment - 1) / kAlignment * kAlignment;
    places_.push_back(std::move(place));
  }
  void Plain(const std::string& name, std::vector<int64_t> shape, TensorView& to) {
    Place place{.name = name, .shape = std::move(shape), .plain = &to};
    place.bytes = place.rows() * place.width() * int64_t{sizeof(float)};
    Add(std::move(place));
  }
  void Matrix(const std::string& module, std::vector<int64_t> shape, BiasedMatrix& to) {
    const int64_t n = shape[0];
    Place place{.name = module + ".weight", .shape = std::move(shape), .matrix = &to.matrix};
    place.bytes = ops_.packed_bytes(form_, n, place.width());
    to.matrix = {
        .form = form_, .n = n, .k = place.width(), .count = 1, .stride_bytes = place.bytes};
    Add(std::move(place));
    Plain(module + ".bias", {n}, to.bias);
  }
  void Norm(const std::string& module, int64_t width, double eps, LayerNormWeights& to) {
    Plain(module + ".weight", {width}, to.weight);
    Plain(module + ".bias", {width}, to.bias);
    to.eps = static_cast<float>(eps);
  }

  const OpsTable& ops_;
  const WeightForm form_;
  std::vector<Place> places_;
  int64_t bytes_ = 0;
};

Status FindTensor(WeightSource& source, Place& place) {
  const auto refuse = [&](const std::string& why) {
    return InvalidArgument(fmt::format("{}: tensor {} {}", source.description(), place.name, why));
  };
  auto tensor = source.Find(place.name, place.shape);
  if (!tensor) return refuse("is missing; without it this checkpoint cannot read pictures");
  if (tensor->shape != place.shape) {
    return refuse(fmt::format("has shape [{}]; config.json makes it [{}]",
                              fmt::join(tensor->shape, ", "), fmt::join(place.shape, ", ")));
  }
  if (tensor->dtype != DType::kBf16 && tensor->dtype != DType::kF32) {
    return refuse(fmt::format("is {}; it may be BF16 or F32", NameOf(tensor->dtype)));
  }
  place.tensor = std::move(*tensor);
  return {};
}

void Widen(const TensorView& from, float* to) {
  const int64_t count = from.num_elements();
  if (from.dtype == DType::kF32) {
    std::copy_n(from.as<const float>(), count, to);
    return;
  }
  for (int64_t i = 0; i < count; ++i) to[i] = ToFloat(from.as<const Bf16>()[i]);
}

// Reads one tensor and lays it out in host memory at `to`.
Status FillHost(const WeightSource& source, const OpsTable& ops, const Place& place, char* to) {
  const int64_t width = place.width();
  const DType type = place.tensor.dtype;
  std::vector<char> piece(
      static_cast<size_t>(std::min(kPieceRows, place.rows()) * width * SizeOf(type)));
  for (int64_t row = 0; row < place.rows(); row += kPieceRows) {
    const TensorView rows(piece.data(), type, {std::min(kPieceRows, place.rows() - row), width});
    BT_RETURN_IF_ERROR(source.Read(place.tensor, row, rows));
    if (place.matrix != nullptr) {
      ops.pack_rows(place.matrix->form, to, place.rows(), width, row, RowsOf(rows));
    } else {
      Widen(rows, reinterpret_cast<float*>(to) + row * width);
    }
  }
  return {};
}

Status Fill(const WeightSource& source, const OpsTable& ops, const Place& place, char* target) {
  if (ops.memory->kind() == DeviceKind::kCpu) return FillHost(source, ops, place, target);
  BT_ASSIGN_OR_RETURN(Buffer host, Buffer::Create(static_cast<size_t>(place.bytes), place.name));
  BT_RETURN_IF_ERROR(FillHost(source, ops, place, static_cast<char*>(host.data())));
  return ops.memory->CopyInBeside(target, host.data(), host.bytes());
}

TensorView ViewOf(void* data, const std::vector<int64_t>& shape) {
  if (shape.size() == 1) return TensorView(data, DType::kF32, {shape[0]});
  BT_CHECK(shape.size() == 3);
  return TensorView(data, DType::kF32, {shape[0], shape[1], shape[2]});
}

}  // namespace

int64_t VisionWeightBytes(const VisionConfig& config, const OpsTable& ops) {
  VisionWeights none;
  return Layout(config, ops, none).bytes();
}

Result<VisionWeights> LoadVisionWeights(const VisionConfig& config,
                                        WeightSource& source,
                                        const OpsTable& ops,
                                        ThreadPool* pool) {
  VisionWeights weights;
  Layout layout(config, ops, weights);
  std::vector<Place>& places = layout.places();
  for (Place& place : places) BT_RETURN_IF_ERROR(FindTensor(source, place));
  BT_ASSIGN_OR_RETURN(weights.memory,
                      Buffer::Create(static_cast<size_t>(layout.bytes()),
                                     "the weights of the picture encoder", *ops.memory));
  char* memory = static_cast<char*>(weights.memory.data());
  std::vector<Status> filled(places.size());
  const auto fill = [&](int64_t i, int) {
    const Place& place = places[static_cast<size_t>(i)];
    char* target = memory + place.offset;
    filled[static_cast<size_t>(i)] = Fill(source, ops, place, target);
    if (place.matrix != nullptr) {
      place.matrix->data = target;
    } else {
      *place.plain = ViewOf(target, place.shape);
    }
  };
  if (pool != nullptr) {
    pool->ParallelFor(std::ssize(places), fill);
  } else {
    for (int64_t i = 0; i < std::ssize(places); ++i) fill(i, 0);
  }
  for (const Status& status : filled) BT_RETURN_IF_ERROR(status);
  return weights;
}

}  // namespace baltoro
