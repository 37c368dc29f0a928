// A picture encoder as model-family §8.3 and §8.4 write it: plain loops, sums in f64, whole score
// rows.

#include "ops/vision.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "ops/check_vision.h"
#include "ops/reference/element.h"
#include "ops/reference/matrix_product.h"

namespace baltoro::reference {
namespace {

using Row = std::vector<double>;

Row Product(const Row& x, const BiasedMatrix& m) {
  Row y = MatrixProduct(x, m.matrix);
  for (int64_t i = 0; i < std::ssize(y); ++i) y[i] += double{m.bias.as<float>()[i]};
  return y;
}

Row LayerNorm(const Row& x, const LayerNormWeights& norm) {
  const auto width = static_cast<double>(x.size());
  double mean = 0, squares = 0;
  for (const double v : x) mean += v / width;
  for (const double v : x) squares += (v - mean) * (v - mean) / width;
  const double scale = 1 / std::sqrt(squares + double{norm.eps});
  Row y(x.size());
  for (int64_t i = 0; i < std::ssize(x); ++i) {
    y[i] = (x[i] - mean) * scale * double{norm.weight.as<float>()[i]} +
           double{norm.bias.as<float>()[i]};
  }
  return y;
}

double GeluTanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

double GeluErf(double x) {
  return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
}

Row RowOf(const TensorView& x, int64_t row) {
  return Widen(x.data, x.dtype, row * x.stride[0], x.dim(1));
}

void AddTo(const TensorView& x, int64_t row, const Row& added) {
  for (int64_t i = 0; i < x.dim(1); ++i) Store(x, row, i, double{Load(x, row, i)} + added[i]);
}

// The weight of a table entry at `distance` from where it is read.
double Cubic(double distance) {
  const double a = -0.75;
  const double d = std::abs(distance);
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  if (d < 2) return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
  return 0;
}

// The learned table, read at patch (row, column) of a grid.
Row PositionOf(const TensorView& table, const PictureGrid& grid, int64_t row, int64_t column) {
  const int64_t height = table.dim(0), width = table.dim(1), hidden = table.dim(2);
  const auto place = [](int64_t i, int64_t side, int64_t of) {
    return (static_cast<double>(i) + 0.5) * static_cast<double>(side) / static_cast<double>(of) -
           0.5;
  };
  const double y = place(row, height, grid.rows), x = place(column, width, grid.columns);
  const auto top = static_cast<int64_t>(std::floor(y)), left = static_cast<int64_t>(std::floor(x));
  Row sum(static_cast<size_t>(hidden));
  for (int64_t i = top - 1; i <= top + 2; ++i) {
    for (int64_t j = left - 1; j <= left + 2; ++j) {
      const double weight = Cubic(y - static_cast<double>(i)) * Cubic(x - static_cast<double>(j));
      const int64_t from =
          std::clamp<int64_t>(i, 0, height - 1) * width + std::clamp<int64_t>(j, 0, width - 1);
      const float* entry = table.as<float>() + from * hidden;
      for (int64_t d = 0; d < hidden; ++d) sum[d] += weight * double{entry[d]};
    }
  }
  return sum;
}

// Calls body(patch, grid, first patch of the picture, frame, row, column) for every patch.
template <typename Body>
void ForPatches(std::span<const PictureGrid> grids, const Body& body) {
  int64_t first = 0;
  for (const PictureGrid& grid : grids) {
    int64_t patch = first;
    for (int64_t f = 0; f < grid.frames; ++f) {
      for (int64_t r = 0; r < grid.rows; ++r) {
        for (int64_t c = 0; c < grid.columns; ++c) body(patch++, grid, first, f, r, c);
      }
    }
    first = patch;
  }
}

void EmbedPatches(const OpContext&, const EmbedPatchesArgs& args) {
  CheckEmbedPatches(args);
  const int64_t count = args.pixels.dim(1);
  ForPatches(args.grids,
             [&](int64_t patch, const PictureGrid& grid, int64_t, int64_t f, int64_t r, int64_t c) {
               const auto* pixels = static_cast<const uint8_t*>(args.pixels.data) + patch * count;
               Row values;
               for (int64_t i = 0; i < count; ++i) {
                 const int64_t channel = i / (count / 3);
                 values.push_back(double{static_cast<float>(pixels[i]) * args.scale[channel] +
                                         args.shift[channel]});
               }
               Row y = Product(values, args.projection);
               const Row position = PositionOf(args.positions, grid, r, c);
               for (int64_t d = 0; d < std::ssize(y); ++d) {
                 y[d] += position[d];
                 if (grid.frames > 1) y[d] += double{Load(args.times, f, d)};
                 Store(args.x, patch, d, y[d]);
               }
             });
}

void Rotate(const VisionBlockArgs& args, Row& qkv, int64_t row, int64_t column) {
  const int64_t size = VisionHeadSize(args);
  for (int64_t at = 0; at < 2 * args.heads * size; at += 2) {
    const int64_t pair = at % size / 2;
    const int64_t coordinate = pair % 2 == 0 ? column : row;
    const double cos = double{Load(args.cos, coordinate, pair / 2)};
    const double sin = double{Load(args.sin, coordinate, pair / 2)};
    const double a = qkv[at], b = qkv[at + 1];
    qkv[at] = a * cos - b * sin;
    qkv[at + 1] = a * sin + b * cos;
  }
}

// What head `head` of one patch sees in the patches [first, first + count).
void Attend(const std::vector<Row>& qkv,
            int64_t patch,
            int64_t first,
            int64_t count,
            int64_t head,
            int64_t size,
            Row& out) {
  const int64_t width = std::ssize(qkv[0]) / 3;
  Row scores;
  for (int64_t key = first; key < first + count; ++key) {
    scores.push_back(Dot(&qkv[patch][head * size], &qkv[key][width + head * size], size) /
                     std::sqrt(static_cast<double>(size)));
  }
  const double highest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - highest);
  for (int64_t key = 0; key < count; ++key) {
    const double weight = scores[key] / sum;
    const double* value = &qkv[first + key][2 * width + head * size];
    for (int64_t d = 0; d < size; ++d) out[head * size + d] += weight * value[d];
  }
}

// Adds what a row of x becomes to it, or puts it in its place.
void Take(const VisionBlockArgs& args, int64_t row, const Row& values) {
  if (!args.replaces) return AddTo(args.x, row, values);
  for (int64_t i = 0; i < args.x.dim(1); ++i) Store(args.x, row, i, values[i]);
}

void AttentionPart(const OpContext&, const VisionBlockArgs& args) {
  CheckVisionBlock(args);
  const int64_t size = VisionHeadSize(args);
  std::vector<Row> qkv;
  ForPatches(
      args.grids, [&](int64_t patch, const PictureGrid&, int64_t, int64_t, int64_t r, int64_t c) {
        qkv.push_back(Product(LayerNorm(RowOf(args.x, patch), args.attention_norm), args.qkv));
        Rotate(args, qkv.back(), r, c);
      });
  ForPatches(args.grids,
             [&](int64_t patch, const PictureGrid& grid, int64_t first, int64_t, int64_t, int64_t) {
               Row attended(static_cast<size_t>(args.heads * size));
               for (int64_t head = 0; head < args.heads; ++head) {
                 Attend(qkv, patch, first, grid.patches(), head, size, attended);
               }
               Take(args, patch, Product(attended, args.o));
             });
}

void MlpPart(const OpContext&, const VisionBlockArgs& args) {
  CheckVisionBlock(args);
  for (int64_t patch = 0; patch < args.x.dim(0); ++patch) {
    Row middle = Product(LayerNorm(RowOf(args.x, patch), args.mlp_norm), args.up);
    for (double& v : middle) v = GeluTanh(v);
    Take(args, patch, Product(middle, args.down));
  }
}

void VisionBlock(const OpContext& context, const VisionBlockArgs& args) {
  BT_CHECK(!args.replaces);
  AttentionPart(context, args);
  MlpPart(context, args);
}

void ProjectPictures(const OpContext&, const ProjectPicturesArgs& args) {
  CheckProjectPictures(args);
  int64_t token = 0, first = 0;
  for (const PictureGrid& grid : args.grids) {
    for (int64_t r = 0; r < grid.rows; r += args.merge_rows) {
      for (int64_t c = 0; c < grid.columns; c += args.merge_columns) {
        Row merged;
        for (int64_t i = 0; i < int64_t{args.merge_rows} * args.merge_columns; ++i) {
          const int64_t at =
              first + (r + i / args.merge_columns) * grid.columns + c + i % args.merge_columns;
          Row mean(static_cast<size_t>(args.x.dim(1)));
          for (int64_t f = 0; f < grid.frames; ++f) {
            const Row y = LayerNorm(RowOf(args.x, at + f * grid.rows * grid.columns), args.norm);
            for (int64_t d = 0; d < std::ssize(y); ++d) mean[d] += y[d] / grid.frames;
          }
          const Row normed = LayerNorm(mean, args.merge_norm);
          merged.insert(merged.end(), normed.begin(), normed.end());
        }
        Row middle = Product(merged, args.first);
        for (double& v : middle) v = GeluErf(v);
        const Row out = Product(middle, args.second);
        for (int64_t d = 0; d < args.out.dim(1); ++d) Store(args.out, token, d, out[d]);
        ++token;
      }
    }
    first += grid.patches();
  }
}

}  // namespace
}  // namespace baltoro::reference

namespace baltoro {

const VisionOps& ReferenceVisionOps() {
  static const VisionOps kOps = {
      .embed = reference::EmbedPatches,
      .block = reference::VisionBlock,
      .project = reference::ProjectPictures,
      .attention_part = reference::AttentionPart,
      .mlp_part = reference::MlpPart,
      .scratch_bytes = [](const VisionWidths&, int64_t, int) { return int64_t{0}; }};
  return kOps;
}

}  // namespace baltoro
