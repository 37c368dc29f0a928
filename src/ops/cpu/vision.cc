// A picture encoder from the products of the CPU. What is computed row by row goes through in
// chunks of rows, so that beside queries, keys and values nothing grows with the batch.

#include "ops/vision.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <vector>

#include "ops/check_vision.h"
#include "ops/cpu/element_types.h"
#include "ops/cpu/picture_attention.h"
#include "ops/cpu/row_product.h"

namespace baltoro::cpu {
namespace {

constexpr int64_t kRows = 2048;  // of one chunk

// Independent partial sums, whose order is a property of the width alone (norm.cc).
constexpr int64_t kLanes = 16;

template <typename Term>
float Sum(int64_t width, const Term& term) {
  float lanes[kLanes] = {};
  int64_t d = 0;
  for (; d + kLanes <= width; d += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(d + lane);
  }
  for (int64_t lane = 0; d < width; ++d, ++lane) lanes[lane] += term(d);
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

// out may be x.
template <typename Out>
void LayerNormRow(Out* out, const float* x, int64_t width, const LayerNormWeights& norm) {
  const float mean = Sum(width, [x](int64_t d) { return x[d]; }) / static_cast<float>(width);
  const float squares = Sum(width, [x, mean](int64_t d) { return (x[d] - mean) * (x[d] - mean); });
  const float scale = 1.0f / std::sqrt(squares / static_cast<float>(width) + norm.eps);
  const auto* weight = norm.weight.as<const float>();
  const auto* bias = norm.bias.as<const float>();
  for (int64_t d = 0; d < width; ++d) Narrow((x[d] - mean) * scale * weight[d] + bias[d], out[d]);
}

float GeluErf(float x) {
  return 0.5f * x * (1 + std::erf(x / std::numbers::sqrt2_v<float>));
}

// Where the patches of a batch lie in their pictures.
class PatchPlaces {
 public:
  struct Place {
    const PictureGrid* grid;
    int64_t frame, row, column;
  };

  explicit PatchPlaces(std::span<const PictureGrid> grids) : grids_(grids) {
    for (const PictureGrid& grid : grids) ends_.push_back(count() + grid.patches());
  }
  int64_t count() const { return ends_.empty() ? 0 : ends_.back(); }
  Place at(int64_t patch) const {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), patch);
    const PictureGrid& grid = grids_[end - ends_.begin()];
    const int64_t i = patch - (*end - grid.patches());
    const int64_t frame = int64_t{grid.rows} * grid.columns;
    return {&grid, i / frame, i % frame / grid.columns, i % grid.columns};
  }

 private:
  std::span<const PictureGrid> grids_;
  std::vector<int64_t> ends_;
};

// Rows of activations, a chunk of them, in scratch.
TensorView Rows(const OpContext& ctx, DType act, int64_t rows, int64_t width) {
  return TensorView(
      ctx.scratch->AllocateArray<char>(static_cast<size_t>(rows * width * SizeOf(act))), act,
      {rows, width});
}

RowSource SourceOf(const TensorView& rows) {
  return {.data = rows.data, .dtype = rows.dtype, .stride = rows.stride[0]};
}

const float* BiasAt(const BiasedMatrix& m, int64_t column) {
  return m.bias.as<const float>() + column;
}

// Calls body(first, count) for the chunks of `total` rows.
template <typename Body>
void ForChunks(int64_t total, const Body& body) {
  for (int64_t first = 0; first < total; first += kRows)
    body(first, std::min(kRows, total - first));
}

// ---- patches ----

// The four entries of one side of the table that a place is read from, and their weights.
struct Taps {
  std::array<int64_t, 4> at;
  std::array<float, 4> weight;

  Taps(int64_t i, int64_t of, int64_t side) {
    const double a = -0.75;
    const double place =
        (static_cast<double>(i) + 0.5) * static_cast<double>(side) / static_cast<double>(of) - 0.5;
    const double floor = std::floor(place);
    for (int tap = 0; tap < 4; ++tap) {
      const double d = std::abs(place - floor + 1 - tap);
      const double w =
          d <= 1 ? ((a + 2) * d - (a + 3)) * d * d + 1 : ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
      at[tap] = std::clamp<int64_t>(static_cast<int64_t>(floor) - 1 + tap, 0, side - 1);
      weight[tap] = static_cast<float>(w);
    }
  }
};

// Adds columns [begin, begin + count) of what the position of a patch gives.
void AddPosition(const Kernels& kernels,
                 const EmbedPatchesArgs& args,
                 const PatchPlaces::Place& place,
                 int64_t begin,
                 int64_t count,
                 float* values) {
  const TensorView& table = args.positions;
  const Taps rows(place.row, place.grid->rows, table.dim(0));
  const Taps columns(place.column, place.grid->columns, table.dim(1));
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      const float weight = rows.weight[i] * columns.weight[j];
      if (weight == 0) continue;
      const int64_t entry = rows.at[i] * table.dim(1) + columns.at[j];
      kernels.add_scaled(values, weight, table.as<const float>() + entry * table.dim(2) + begin,
                         count);
    }
  }
  if (place.grid->frames > 1) {
    kernels.add_scaled(values, 1, args.times.row<const float>(place.frame) + begin, count);
  }
}

void EmbedPatches(const OpContext& ctx, const EmbedPatchesArgs& args, DType act) {
  CheckEmbedPatches(args);
  const PatchPlaces places(args.grids);
  const int64_t total = places.count(), width = args.pixels.dim(1);
  if (total == 0) return;
  const int64_t chunk = std::min(kRows, total);
  const TensorView rows = Rows(ctx, act, chunk, width);
  const RowProduct product(ctx, act, args.projection.matrix, chunk);
  ForChunks(total, [&](int64_t first, int64_t count) {
    WithElement(act, [&](auto element) {
      ForRows(ctx, count, width, [&](int64_t i) {
        const auto* from = static_cast<const uint8_t*>(args.pixels.data) + (first + i) * width;
        auto* to = rows.row<decltype(element)>(i);
        for (int64_t p = 0; p < width; ++p) {
          const int64_t channel = p / (width / 3);
          Narrow(static_cast<float>(from[p]) * args.scale[channel] + args.shift[channel], to[p]);
        }
      });
    });
    product.Run(SourceOf(rows), count,
                [&](int64_t i, int64_t begin, int64_t columns, float* values) {
                  const Kernels& kernels = product.kernels();
                  kernels.add_scaled(values, 1, BiasAt(args.projection, begin), columns);
                  AddPosition(kernels, args, places.at(first + i), begin, columns, values);
                  std::copy_n(values, columns, args.x.row<float>(first + i) + begin);
                });
  });
}

// ---- blocks ----

void NormRows(const OpContext& ctx,
              const TensorView& out,
              const TensorView& x,
              const LayerNormWeights& norm) {
  WithElement(out.dtype, [&](auto element) {
    ForRows(ctx, x.dim(0), x.dim(1), [&](int64_t i) {
      LayerNormRow(out.row<decltype(element)>(i), x.row<const float>(i), x.dim(1), norm);
    });
  });
}

// Rotates the pairs among columns [begin, begin + count) of queries and keys.
void Rotate(const VisionBlockArgs& args,
            const PatchPlaces::Place& place,
            int64_t begin,
            int64_t count,
            float* values) {
  const int64_t size = VisionHeadSize(args), width = args.heads * size;
  const float* cos[] = {args.cos.row<const float>(place.column),
                        args.cos.row<const float>(place.row)};
  const float* sin[] = {args.sin.row<const float>(place.column),
                        args.sin.row<const float>(place.row)};
  int64_t pair = begin % size / 2;
  for (int64_t i = 0; i < std::min(count, 2 * width - begin); i += 2) {
    const float c = cos[pair % 2][pair / 2], s = sin[pair % 2][pair / 2];
    const float a = values[i], b = values[i + 1];
    values[i] = a * c - b * s;
    values[i + 1] = a * s + b * c;
    if (++pair == size / 2) pair = 0;
  }
}

void Clear(const TensorView& x) {
  std::fill_n(x.as<float>(), x.num_elements(), 0.0f);
}

// x += rows * W^T + bias, for the rows of a chunk.
void AddProduct(const RowProduct& product,
                const TensorView& x,
                const TensorView& rows,
                const BiasedMatrix& m) {
  product.Run(SourceOf(rows), x.dim(0),
              [&](int64_t i, int64_t begin, int64_t count, float* values) {
                float* to = x.row<float>(i) + begin;
                product.kernels().add_scaled(values, 1, BiasAt(m, begin), count);
                product.kernels().add_scaled(to, 1, values, count);
              });
}

// Columns of the result in the activation type.
void StoreColumns(const Kernels& kernels,
                  const TensorView& out,
                  int64_t row,
                  int64_t begin,
                  const float* values,
                  int64_t count) {
  char* to = static_cast<char*>(out.data) + (row * out.stride[0] + begin) * SizeOf(out.dtype);
  StoreRow(kernels, to, out.dtype, values, count);
}

// What the heads of all patches attend to, in the first columns of what is returned. `normed` has
// room for a chunk of rows.
TensorView Attended(const OpContext& ctx,
                    const VisionBlockArgs& args,
                    DType act,
                    const TensorView& normed) {
  const PatchPlaces places(args.grids);
  const int64_t total = places.count();
  const TensorView qkv = Rows(ctx, act, total, args.qkv.matrix.n);
  const RowProduct product(ctx, act, args.qkv.matrix, normed.dim(0));
  ForChunks(total, [&](int64_t first, int64_t count) {
    NormRows(ctx, normed, args.x.rows(first, count), args.attention_norm);
    product.Run(SourceOf(normed), count,
                [&](int64_t i, int64_t begin, int64_t columns, float* values) {
                  product.kernels().add_scaled(values, 1, BiasAt(args.qkv, begin), columns);
                  Rotate(args, places.at(first + i), begin, columns, values);
                  StoreColumns(product.kernels(), qkv, first + i, begin, values, columns);
                });
  });
  PictureAttention(ctx, qkv, args.grids, args.heads);
  return qkv;
}

// The half behind attention, a chunk of rows at a time.
class Mlp {
 public:
  Mlp(const OpContext& ctx, const VisionBlockArgs& args, DType act, const TensorView& normed)
      : ctx_(ctx),
        args_(args),
        normed_(normed),
        middle_(Rows(ctx, act, normed.dim(0), args.up.matrix.n)),
        up_(ctx, act, args.up.matrix, normed.dim(0)),
        down_(ctx, act, args.down.matrix, normed.dim(0)) {}

  void Run(const TensorView& x) const {
    NormRows(ctx_, normed_, x, args_.mlp_norm);
    up_.Run(SourceOf(normed_), x.dim(0),
            [&](int64_t i, int64_t begin, int64_t columns, float* values) {
              up_.kernels().add_scaled(values, 1, BiasAt(args_.up, begin), columns);
              up_.kernels().gelu_tanh(values, values, columns);
              StoreColumns(up_.kernels(), middle_, i, begin, values, columns);
            });
    if (args_.replaces) Clear(x);
    AddProduct(down_, x, middle_, args_.down);
  }

 private:
  const OpContext& ctx_;
  const VisionBlockArgs& args_;
  const TensorView normed_, middle_;
  const RowProduct up_, down_;
};

void VisionBlock(const OpContext& ctx, const VisionBlockArgs& args, DType act) {
  CheckVisionBlock(args);
  BT_CHECK(!args.replaces);
  const int64_t total = args.x.dim(0);
  if (total == 0) return;
  const int64_t chunk = std::min(kRows, total);
  const TensorView normed = Rows(ctx, act, chunk, args.x.dim(1));
  const TensorView qkv = Attended(ctx, args, act, normed);
  const RowProduct o(ctx, act, args.o.matrix, chunk);
  const Mlp mlp(ctx, args, act, normed);
  ForChunks(total, [&](int64_t first, int64_t count) {
    const TensorView x = args.x.rows(first, count);
    AddProduct(o, x, qkv.rows(first, count).columns(0, args.o.matrix.k), args.o);
    mlp.Run(x);
  });
}

void AttentionPart(const OpContext& ctx, const VisionBlockArgs& args, DType act) {
  CheckVisionBlock(args);
  const int64_t total = args.x.dim(0);
  if (total == 0) return;
  const int64_t chunk = std::min(kRows, total);
  const TensorView normed = Rows(ctx, act, chunk, args.x.dim(1));
  const TensorView qkv = Attended(ctx, args, act, normed);
  if (args.replaces) Clear(args.x);
  const RowProduct o(ctx, act, args.o.matrix, chunk);
  ForChunks(total, [&](int64_t first, int64_t count) {
    AddProduct(o, args.x.rows(first, count), qkv.rows(first, count).columns(0, args.o.matrix.k),
               args.o);
  });
}

void MlpPart(const OpContext& ctx, const VisionBlockArgs& args, DType act) {
  CheckVisionBlock(args);
  const int64_t total = args.x.dim(0);
  if (total == 0) return;
  const TensorView normed = Rows(ctx, act, std::min(kRows, total), args.x.dim(1));
  const Mlp mlp(ctx, args, act, normed);
  ForChunks(total, [&](int64_t first, int64_t count) { mlp.Run(args.x.rows(first, count)); });
}

// ---- projector ----

// What one token is made of: merge_rows x merge_columns vectors, means over the frames of a
// picture.
template <typename Out>
void MergeToken(const ProjectPicturesArgs& args,
                const PictureGrid& grid,
                int64_t first_patch,
                int64_t row,
                int64_t column,
                Out* out) {
  const int64_t hidden = args.x.dim(1);
  std::vector<float> sum(static_cast<size_t>(hidden)), normed(sum.size());
  for (int64_t r = row; r < row + args.merge_rows; ++r) {
    for (int64_t c = column; c < column + args.merge_columns; ++c, out += hidden) {
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (int64_t f = 0; f < grid.frames; ++f) {
        const int64_t patch = first_patch + (f * grid.rows + r) * grid.columns + c;
        LayerNormRow(normed.data(), args.x.row<const float>(patch), hidden, args.norm);
        for (int64_t d = 0; d < hidden; ++d) sum[d] += normed[d];
      }
      const auto frames = static_cast<float>(grid.frames);
      for (float& value : sum) value /= frames;
      LayerNormRow(out, sum.data(), hidden, args.merge_norm);
    }
  }
}

void ProjectPictures(const OpContext& ctx, const ProjectPicturesArgs& args, DType act) {
  CheckProjectPictures(args);
  const int64_t total = args.out.dim(0);
  if (total == 0) return;
  const int64_t chunk = std::min(kRows, total);
  const TensorView merged = Rows(ctx, act, chunk, args.first.matrix.k);
  const TensorView middle = Rows(ctx, act, chunk, args.first.matrix.n);
  const RowProduct in(ctx, act, args.first.matrix, chunk), out(ctx, act, args.second.matrix, chunk);
  std::vector<PictureGrid> tokens;  // the grids of tokens: what is merged has one frame
  for (const PictureGrid& grid : args.grids) {
    tokens.push_back({.frames = 1,
                      .rows = grid.rows / args.merge_rows,
                      .columns = grid.columns / args.merge_columns});
  }
  std::vector<int64_t> first_patches = {0};
  for (const PictureGrid& grid : args.grids) {
    first_patches.push_back(first_patches.back() + grid.patches());
  }
  const PatchPlaces places(tokens);
  ForChunks(total, [&](int64_t first, int64_t count) {
    WithElement(act, [&](auto element) {
      ForRows(ctx, count, merged.dim(1), [&](int64_t i) {
        const PatchPlaces::Place place = places.at(first + i);
        const int64_t picture = place.grid - tokens.data();
        MergeToken(args, args.grids[picture], first_patches[picture], place.row * args.merge_rows,
                   place.column * args.merge_columns, merged.row<decltype(element)>(i));
      });
    });
    in.Run(SourceOf(merged), count, [&](int64_t i, int64_t begin, int64_t columns, float* values) {
      in.kernels().add_scaled(values, 1, BiasAt(args.first, begin), columns);
      for (int64_t c = 0; c < columns; ++c) values[c] = GeluErf(values[c]);
      StoreColumns(in.kernels(), middle, i, begin, values, columns);
    });
    out.Run(SourceOf(middle), count, [&](int64_t i, int64_t begin, int64_t columns, float* values) {
      out.kernels().add_scaled(values, 1, BiasAt(args.second, begin), columns);
      std::copy_n(values, columns, args.out.row<float>(first + i) + begin);
    });
  });
}

// ---- scratch ----

int64_t ScratchBytes(DType act, const VisionWidths& w, int64_t patches, int threads) {
  constexpr int64_t kAlignment = 256;  // of an arena
  const auto rows = [act](int64_t count, int64_t width) {
    return RoundUp(count * width * SizeOf(act), kAlignment);
  };
  const int64_t chunk = std::min(kRows, patches);
  const auto product = [&](int64_t count, int64_t n, int64_t k) {
    const PackedMatrix like = {.form = PlainForm(act), .n = n, .k = k};
    return RowProduct::ScratchBytes(act, like, count, threads) + 2 * kAlignment;
  };
  const int64_t embed = rows(chunk, w.pixels) + product(chunk, w.hidden, w.pixels);
  const int64_t block =
      rows(patches, 3 * w.hidden) + rows(chunk, w.hidden) + product(chunk, 3 * w.hidden, w.hidden) +
      RoundUp(PictureAttentionScratch(act, w.hidden / w.heads, threads), kAlignment) +
      rows(chunk, w.intermediate) + product(chunk, w.hidden, w.hidden) +
      product(chunk, w.intermediate, w.hidden) + product(chunk, w.hidden, w.intermediate);
  const int64_t tokens = std::min(kRows, CeilDiv(patches * w.hidden, w.merged));
  const int64_t project = rows(tokens, w.merged) + rows(tokens, w.projector) +
                          product(tokens, w.projector, w.merged) +
                          product(tokens, w.text_hidden, w.projector);
  return std::max({embed, block, project});
}

template <DType kAct>
constexpr VisionOps kVisionOps = {
    .embed = [](const OpContext& ctx,
                const EmbedPatchesArgs& args) { EmbedPatches(ctx, args, kAct); },
    .block = [](const OpContext& ctx,
                const VisionBlockArgs& args) { VisionBlock(ctx, args, kAct); },
    .project = [](const OpContext& ctx,
                  const ProjectPicturesArgs& args) { ProjectPictures(ctx, args, kAct); },
    .attention_part = [](const OpContext& ctx,
                         const VisionBlockArgs& args) { AttentionPart(ctx, args, kAct); },
    .mlp_part = [](const OpContext& ctx, const VisionBlockArgs& args) { MlpPart(ctx, args, kAct); },
    .scratch_bytes = [](const VisionWidths& widths,
                        int64_t patches,
                        int threads) { return ScratchBytes(kAct, widths, patches, threads); }};

}  // namespace
}  // namespace baltoro::cpu

namespace baltoro {

const VisionOps& CpuVisionOps(DType act) {
  BT_CHECK(act == DType::kBf16 || act == DType::kF32);
  return act == DType::kBf16 ? cpu::kVisionOps<DType::kBf16> : cpu::kVisionOps<DType::kF32>;
}

}  // namespace baltoro
