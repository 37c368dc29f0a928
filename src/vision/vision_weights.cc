#include "vision/vision_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"

namespace baltoro {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kPieceRows = 256;  // read and packed at once; a multiple of 32

// Rows, or columns, [begin, begin + count).
struct Run {
  int64_t begin = 0, count = 0;
};

using Runs = std::vector<Run>;

int64_t CountOf(const Runs& runs) {
  int64_t count = 0;
  for (const Run& run : runs) count += run.count;
  return count;
}

// A tensor and where it goes: a packed matrix, or f32; all of it, or some of its rows or columns. A
// vector is one row.
struct Place {
  std::string name;
  std::vector<int64_t> shape;  // as it is stored
  PackedMatrix* matrix = nullptr;
  TensorView* plain = nullptr;
  Runs rows_kept = {}, columns_kept = {};
  bool zeros = false;             // instead of what is stored
  int64_t offset = 0, bytes = 0;  // in the one buffer
  SourceTensor tensor = {};

  int64_t stored_rows() const { return shape.size() > 1 ? shape[0] : 1; }
  int64_t stored_width() const {
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    return count / stored_rows();
  }
  int64_t rows() const { return CountOf(rows_kept); }
  int64_t width() const { return CountOf(columns_kept); }
};

// What a rank has of the heads' rows, and of the columns of an MLP.
struct Shares {
  Runs qkv;
  Run heads, columns;
  bool first = true;

  Shares(const VisionConfig& config, const VisionPart& part) : first(part.rank == 0) {
    BT_CHECK(part.ranks > 0 && config.heads % part.ranks == 0);
    const int64_t hidden = config.hidden, own = hidden / part.ranks;
    heads = {.begin = part.rank * own, .count = own};
    for (int64_t which = 0; which < 3; ++which) {
      qkv.push_back({.begin = which * hidden + heads.begin, .count = own});
    }
    // Sizes differ by at most one, the larger first.
    const int64_t each = config.intermediate / part.ranks, rest = config.intermediate % part.ranks;
    columns = {.begin = part.rank * each + std::min<int64_t>(part.rank, rest),
               .count = each + (part.rank < rest ? 1 : 0)};
  }
};

// Lays out everything that a configuration needs.
class Layout {
 public:
  Layout(const VisionConfig& config,
         const OpsTable& ops,
         const VisionPart& part,
         VisionWeights& weights)
      : ops_(ops), form_(PlainForm(ops.act)) {
    const int64_t hidden = config.hidden, merged = config.merged();
    const Shares shares(config, part);
    const std::string patch = "vision_tower.patch_embed.";
    Matrix(patch + "proj", {hidden, 3, config.patch, config.patch}, weights.patches);
    Plain(patch + "pos_emb.weight", {config.table_rows, config.table_columns, hidden},
          weights.positions);
    weights.blocks.resize(static_cast<size_t>(config.layers));
    for (int32_t i = 0; i < config.layers; ++i) {
      const std::string name = fmt::format("vision_tower.encoder.blocks.{}.", i);
      VisionBlockWeights& block = weights.blocks[static_cast<size_t>(i)];
      Norm(name + "norm0", hidden, config.norm_eps, block.attention_norm);
      Rows(name + "wqkv", {3 * hidden, hidden}, shares.qkv, block.qkv);
      Columns(name + "wo", {hidden, hidden}, shares.heads, shares.first, block.o);
      Norm(name + "norm1", hidden, config.norm_eps, block.mlp_norm);
      Rows(name + "mlp.fc0", {config.intermediate, hidden}, {shares.columns}, block.up);
      Columns(name + "mlp.fc1", {hidden, config.intermediate}, shares.columns, shares.first,
              block.down);
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
    if (place.matrix != nullptr) {
      place.bytes = ops_.packed_bytes(form_, place.rows(), place.width());
      *place.matrix = {.form = form_,
                       .n = place.rows(),
                       .k = place.width(),
                       .count = 1,
                       .stride_bytes = place.bytes};
    } else {
      place.bytes = place.rows() * place.width() * int64_t{sizeof(float)};
    }
    place.offset = bytes_;
    bytes_ += (place.bytes + kAlignment - 1) / kAlignment * kAlignment;
    places_.push_back(std::move(place));
  }
  static Place Whole(const std::string& name, std::vector<int64_t> shape) {
    Place place{.name = name, .shape = std::move(shape)};
    place.rows_kept = {{.begin = 0, .count = place.stored_rows()}};
    place.columns_kept = {{.begin = 0, .count = place.stored_width()}};
    return place;
  }
  void Plain(const std::string& name, std::vector<int64_t> shape, TensorView& to) {
    Place place = Whole(name, std::move(shape));
    place.plain = &to;
    Add(std::move(place));
  }
  void Matrix(const std::string& module, std::vector<int64_t> shape, BiasedMatrix& to) {
    const int64_t n = shape[0];
    Rows(module, std::move(shape), {{.begin = 0, .count = n}}, to);
  }
  void Rows(const std::string& module,
            std::vector<int64_t> shape,
            const Runs& kept,
            BiasedMatrix& to) {
    Place bias = Whole(module + ".bias", {shape[0]});
    Place weight = Whole(module + ".weight", std::move(shape));
    weight.matrix = &to.matrix;
    bias.plain = &to.bias;
    weight.rows_kept = bias.columns_kept = kept;
    Add(std::move(weight));
    Add(std::move(bias));
  }
  void Columns(const std::string& module,
               std::vector<int64_t> shape,
               const Run& kept,
               bool biased,
               BiasedMatrix& to) {
    Place bias = Whole(module + ".bias", {shape[0]});
    Place weight = Whole(module + ".weight", std::move(shape));
    weight.matrix = &to.matrix;
    bias.plain = &to.bias;
    bias.zeros = !biased;
    weight.columns_kept = {kept};
    Add(std::move(weight));
    Add(std::move(bias));
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

// Rows [first, first + rows of `out`) of those that are kept, with the columns that are kept.
Status ReadKept(const WeightSource& source,
                const Place& place,
                int64_t first,
                const TensorView& out) {
  const int64_t stored = place.stored_width(), size = SizeOf(out.dtype);
  const bool cut = place.width() != stored;
  std::vector<char> whole;
  int64_t done = 0, at = 0;  // rows written; rows of the runs before
  for (const Run& run : place.rows_kept) {
    const int64_t begin = std::max(first + done, at),
                  end = std::min(at + run.count, first + out.dim(0));
    at += run.count;
    if (begin >= end) continue;
    const int64_t count = end - begin, row = run.begin + begin - (at - run.count);
    const TensorView to = out.rows(done, count);
    done += count;
    if (!cut) {
      BT_RETURN_IF_ERROR(source.Read(place.tensor, row, to));
      continue;
    }
    whole.resize(static_cast<size_t>(count * stored * size));
    BT_RETURN_IF_ERROR(
        source.Read(place.tensor, row, TensorView(whole.data(), out.dtype, {count, stored})));
    char* next = static_cast<char*>(to.data);
    for (int64_t i = 0; i < count; ++i) {
      for (const Run& columns : place.columns_kept) {
        const auto bytes = static_cast<size_t>(columns.count * size);
        std::memcpy(next, whole.data() + (i * stored + columns.begin) * size, bytes);
        next += bytes;
      }
    }
  }
  BT_CHECK(done == out.dim(0));
  return {};
}

// Reads one tensor and lays it out in host memory at `to`.
Status FillHost(const WeightSource& source, const OpsTable& ops, const Place& place, char* to) {
  if (place.zeros) return {};  // as memory comes
  const int64_t width = place.width();
  const DType type = place.tensor.dtype;
  std::vector<char> piece(
      static_cast<size_t>(std::min(kPieceRows, place.rows()) * width * SizeOf(type)));
  for (int64_t row = 0; row < place.rows(); row += kPieceRows) {
    const TensorView rows(piece.data(), type, {std::min(kPieceRows, place.rows() - row), width});
    BT_RETURN_IF_ERROR(ReadKept(source, place, row, rows));
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

TensorView ViewOf(void* data, const Place& place) {
  if (place.shape.size() == 1) return TensorView(data, DType::kF32, {place.width()});
  const std::vector<int64_t>& shape = place.shape;
  BT_CHECK(shape.size() == 3);
  return TensorView(data, DType::kF32, {shape[0], shape[1], shape[2]});
}

}  // namespace

int64_t VisionWeightBytes(const VisionConfig& config, const OpsTable& ops, const VisionPart& part) {
  VisionWeights none;
  return Layout(config, ops, part, none).bytes();
}

Result<VisionWeights> LoadVisionWeights(const VisionConfig& config,
                                        WeightSource& source,
                                        const OpsTable& ops,
                                        ThreadPool* pool,
                                        const VisionPart& part) {
  VisionWeights weights;
  Layout layout(config, ops, part, weights);
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
      *place.plain = ViewOf(target, place);
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
