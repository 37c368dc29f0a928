// A picture encoder's operations against the plain loops of the reference.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "device/cuda/device_info.h"
#include "ops/cuda/rows/rows_test_support.h"
#include "ops/cuda/vision/picture_attention.h"
#include "ops/cuda/vision/vision.h"

namespace baltoro::cuda {
namespace {

using namespace rows_test;  // NOLINT

struct Dims {
  int64_t hidden, heads, intermediate, patch, projector, text;
};
constexpr Dims kDims[] = {
    {144, 2, 200, 14, 96, 64},  // the head size of the family
    {96, 4, 130, 2, 70, 33},    // heads of 24, rows that the copy engine does not take
};
constexpr Dims kFamily = {1152, 16, 4304, 14, 4608, 7168};

// Pictures of mixed sizes: the smallest, one row of tokens, the table's own size, several frames,
// and one whose attention takes several tiles of queries and goes round the ring of keys.
const std::vector<PictureGrid> kGrids = {{1, 2, 2}, {1, 2, 30},  {1, 8, 8},
                                         {3, 4, 6}, {1, 26, 22}, {4, 2, 4}};

int64_t PatchesOf(std::span<const PictureGrid> grids) {
  int64_t count = 0;
  for (const PictureGrid& grid : grids) count += grid.patches();
  return count;
}

Tensor Random(uint32_t seed, DType type, int64_t rows, int64_t width, float deviation) {
  std::mt19937_64 random(seed);
  Tensor made(type, rows, width);
  made.FillNormal(random, deviation);
  return made;
}

// [count] f32.
struct Numbers {
  Tensor rows;
  Numbers(uint32_t seed, int64_t count, float deviation)
      : rows(Random(seed, DType::kF32, 1, count, deviation)) {}
  TensorView Get(bool on_device) {
    const TensorView from = on_device ? rows.device() : rows.host();
    return TensorView(from.data, DType::kF32, {from.dim(1)});
  }
};

struct Matrix {
  Tensor weights;
  Numbers bias;
  Matrix(uint32_t seed, int64_t n, int64_t k)
      : weights(Random(seed, DType::kBf16, n, k, 1 / std::sqrt(static_cast<float>(k)))),
        bias(seed + 1, n, 0.5f) {}
  BiasedMatrix Get(bool on_device) {
    const TensorView from = on_device ? weights.device() : weights.host();
    return {.matrix = {.data = from.data,
                       .form = WeightForm::kBf16,
                       .n = from.dim(0),
                       .k = from.dim(1),
                       .stride_bytes = from.dim(0) * from.dim(1) * 2},
            .bias = bias.Get(on_device)};
  }
};

struct NormOf {
  Numbers weight, bias;
  NormOf(uint32_t seed, int64_t width) : weight(seed, width, 1), bias(seed + 1, width, 0.5f) {}
  LayerNormWeights Get(bool on_device) {
    return {.weight = weight.Get(on_device), .bias = bias.Get(on_device), .eps = 1e-5f};
  }
};

enum class Operation { kEmbed, kBlock, kProject };
constexpr std::pair<const char*, Operation> kOperations[] = {
    {"embed", Operation::kEmbed}, {"block", Operation::kBlock}, {"project", Operation::kProject}};

// A model's weights on both sides, and the residual stream of all patches.
class Model {
 public:
  Model(const Dims& dims, int64_t patches)
      : d_(dims),
        projection_(1, d_.hidden, Pixels()),
        qkv_(13, 3 * d_.hidden, d_.hidden),
        o_(15, d_.hidden, d_.hidden),
        up_(17, d_.intermediate, d_.hidden),
        down_(19, d_.hidden, d_.intermediate),
        first_(21, d_.projector, 4 * d_.hidden),
        second_(23, d_.text, d_.projector),
        positions_(Random(3, DType::kF32, 8 * 6, d_.hidden, 1)),
        times_(Random(4, DType::kF32, 4, d_.hidden, 1)),
        cos_(Random(25, DType::kF32, 32, d_.hidden / d_.heads / 4, 1)),
        sin_(Random(26, DType::kF32, 32, d_.hidden / d_.heads / 4, 1)),
        stream_(Random(31, DType::kF32, patches, d_.hidden, 1)),
        pixels_(DType::kU8, patches, Pixels()),
        attention_norm_(5, d_.hidden),
        mlp_norm_(7, d_.hidden),
        norm_(9, d_.hidden),
        merge_norm_(11, d_.hidden) {
    std::mt19937 random(41);
    for (char& byte : pixels_.bytes()) byte = static_cast<char>(random());
    pixels_.ToDevice();
  }

  int64_t Pixels() const { return 3 * d_.patch * d_.patch; }
  VisionWidths Widths() const {
    return {.hidden = d_.hidden,
            .intermediate = d_.intermediate,
            .heads = static_cast<int32_t>(d_.heads),
            .pixels = Pixels(),
            .merged = 4 * d_.hidden,
            .projector = d_.projector,
            .text_hidden = d_.text};
  }
  // Of a row of what the operation writes.
  int64_t WidthOf(Operation operation) const {
    return operation == Operation::kProject ? d_.text : d_.hidden;
  }

  // Of the pictures whose first patch is patch `first` of all: on the device, or by the reference.
  std::vector<float> Run(Operation operation,
                         Device* device,
                         int64_t first,
                         std::span<const PictureGrid> grids) {
    const bool on = device != nullptr;
    const VisionOps& ops = on ? CudaVisionOps() : ReferenceVisionOps();
    const OpContext ctx = on ? device->ctx() : OpContext();
    const int64_t patches = PatchesOf(grids);
    int64_t rows = patches;
    if (operation == Operation::kProject) {
      rows = 0;
      for (const PictureGrid& grid : grids) rows += grid.rows / 2 * (grid.columns / 2);
    }
    Tensor out(DType::kF32, rows, WidthOf(operation)), x(DType::kF32, patches, d_.hidden);
    if (patches > 0) {
      std::memcpy(x.host().data, stream_.host().row<float>(first), x.bytes().size());
    }
    x.ToDevice();
    const auto at = [on](Tensor& tensor) { return on ? tensor.device() : tensor.host(); };
    if (on) device->scratch().Reset(), device->staging().Reset();
    switch (operation) {
      case Operation::kEmbed:
        ops.embed(ctx,
                  {.x = at(x),
                   .pixels = at(pixels_).rows(first, patches),
                   .scale = {1 / 127.5f, 1 / 100.0f, 1 / 50.0f},
                   .shift = {-1, -0.75f, -2},
                   .projection = projection_.Get(on),
                   .positions = TensorView(at(positions_).data, DType::kF32, {8, 6, d_.hidden}),
                   .times = at(times_),
                   .grids = grids});
        break;
      case Operation::kBlock:
        ops.block(ctx, {.x = at(x),
                        .attention_norm = attention_norm_.Get(on),
                        .mlp_norm = mlp_norm_.Get(on),
                        .qkv = qkv_.Get(on),
                        .o = o_.Get(on),
                        .up = up_.Get(on),
                        .down = down_.Get(on),
                        .cos = at(cos_),
                        .sin = at(sin_),
                        .grids = grids,
                        .heads = static_cast<int32_t>(d_.heads)});
        break;
      case Operation::kProject:
        ops.project(ctx, {.out = at(out),
                          .x = at(x),
                          .norm = norm_.Get(on),
                          .merge_norm = merge_norm_.Get(on),
                          .first = first_.Get(on),
                          .second = second_.Get(on),
                          .grids = grids});
        break;
    }
    if (on) device->Wait();
    Tensor& written = operation == Operation::kProject ? out : x;
    const std::vector<char> bytes = on ? written.FromDevice() : written.bytes();
    std::vector<float> values(static_cast<size_t>(rows * WidthOf(operation)));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
    return values;
  }

 private:
  Dims d_;
  Matrix projection_, qkv_, o_, up_, down_, first_, second_;
  Tensor positions_, times_, cos_, sin_, stream_, pixels_;
  NormOf attention_norm_, mlp_norm_, norm_, merge_norm_;
};

// Inputs of products, and what attention reads, are rounded to 2^-9 each: of squares 1e-5 or so
// remains, of a row somewhat more.
void ExpectNear(const std::string& what,
                const std::vector<float>& got,
                const std::vector<float>& want,
                int64_t width) {
  constexpr double kAll = 1e-4, kRow = 1e-3;
  GPU_EXPECT_EQ(got.size(), want.size());
  double all = 0, all_want = 0, worst = 0;
  size_t worst_row = 0;
  for (size_t row = 0; row * static_cast<size_t>(width) < want.size(); ++row) {
    double error = 0, size = 0;
    for (size_t i = row * static_cast<size_t>(width); i < (row + 1) * static_cast<size_t>(width);
         ++i) {
      error += std::pow(double{got[i]} - double{want[i]}, 2);
      size += double{want[i]} * double{want[i]};
    }
    all += error;
    all_want += size;
    if (!(error / size <= worst)) worst = error / size, worst_row = row;
  }
  std::printf("  %-34s squares off by %.1e, of row %zu by %.1e\n", what.c_str(), all / all_want,
              worst_row, worst);
  GPU_EXPECT_LE(all / all_want, kAll);
  GPU_EXPECT_LE(worst, kRow);
}

GPU_TEST(VisionTest, OperationsAgreeWithTheReference) {
  Device device;
  for (const Dims& dims : kDims) {
    Model model(dims, PatchesOf(kGrids));
    for (const auto& [name, operation] : kOperations) {
      const auto want = model.Run(operation, nullptr, 0, kGrids);
      ExpectNear(std::string(name) + " of width " + std::to_string(dims.hidden),
                 model.Run(operation, &device, 0, kGrids), want, model.WidthOf(operation));
    }
  }
}

GPU_TEST(VisionTest, TheFamilysWidths) {
  const std::vector<PictureGrid> grids = {{1, 10, 14}, {1, 2, 4}};
  Device device;
  Model model(kFamily, PatchesOf(grids));
  for (const auto& [name, operation] : kOperations) {
    const auto want = model.Run(operation, nullptr, 0, grids);
    ExpectNear(std::string(name) + " of the family", model.Run(operation, &device, 0, grids), want,
               model.WidthOf(operation));
  }
}

// What one head of a patch sees in patches [first, first + count), of queries and keys [N, 2 H] and
// values [H, N] as they are rounded.
std::vector<float> Seen(Tensor& qk,
                        Tensor& values,
                        int64_t patch,
                        int64_t first,
                        int64_t count,
                        int64_t head,
                        int64_t width) {
  const int64_t hidden = qk.host().dim(1) / 2;
  const Bf16* const q = qk.host().row<Bf16>(patch) + head * width;
  std::vector<double> shares;
  double highest = -INFINITY, sum = 0;
  for (int64_t key = first; key < first + count; ++key) {
    const Bf16* const k = qk.host().row<Bf16>(key) + hidden + head * width;
    double score = 0;
    for (int64_t d = 0; d < width; ++d) score += double{ToFloat(q[d])} * double{ToFloat(k[d])};
    shares.push_back(score / std::sqrt(static_cast<double>(width)));
    highest = std::max(highest, shares.back());
  }
  for (double& share : shares) sum += share = std::exp(share - highest);
  std::vector<float> out;
  for (int64_t d = 0; d < width; ++d) {
    const Bf16* const v = values.host().row<Bf16>(head * width + d) + first;
    double seen = 0;
    for (int64_t key = 0; key < count; ++key) seen += shares[key] / sum * double{ToFloat(v[key])};
    out.push_back(static_cast<float>(seen));
  }
  return out;
}

// Scores so far apart that the softmax reference rises from tile to tile of keys, and pictures that
// begin anywhere and take many tiles.
GPU_TEST(VisionTest, AttentionOfSharpScores) {
  const std::vector<PictureGrid> grids = {
      {1, 3, 1}, {1, 30, 31}, {1, 1, 1}, {2, 12, 12}, {1, 7, 9}};
  constexpr int64_t kWidth = 72, kCount = 2;
  const int64_t patches = PatchesOf(grids), aligned = (patches + 7) / 8 * 8;
  Device device;
  for (const float sharp : {0.3f, 1.0f, 3.0f}) {
    Tensor qk = Random(51, DType::kBf16, patches, 2 * kCount * kWidth, 3 * sharp);
    std::mt19937_64 random(52);
    Tensor values(DType::kBf16, kCount * kWidth, patches, aligned);
    values.FillNormal(random, 1);
    Tensor out(DType::kBf16, patches, kCount * kWidth);
    out.ToDevice();
    device.scratch().Reset();
    device.staging().Reset();
    PictureAttention(device.ctx(), {.out = out.device(),
                                    .qk = qk.device(),
                                    .values = values.device(),
                                    .tiles = UploadTiles(device.ctx(), grids),
                                    .heads = kCount});
    device.Wait();
    const std::vector<char> bytes = out.FromDevice();
    std::vector<float> got, want;
    int64_t first = 0;
    for (const PictureGrid& grid : grids) {
      for (int64_t patch = first; patch < first + grid.patches(); patch += patch % 5 == 0 ? 1 : 3) {
        for (int64_t head = 0; head < kCount; ++head) {
          for (const float value : Seen(qk, values, patch, first, grid.patches(), head, kWidth)) {
            want.push_back(value);
          }
          for (int64_t d = 0; d < kWidth; ++d) {
            got.push_back(ElementOf(bytes, DType::kBf16,
                                    static_cast<size_t>((patch * kCount + head) * kWidth + d)));
          }
        }
      }
      first += grid.patches();
    }
    ExpectNear("scores times " + std::to_string(9 * sharp * sharp), got, want, kWidth);
  }
}

// The way its keys are cut depends on where it begins, modulo 8; nothing else does.
GPU_TEST(VisionTest, APictureDependsOnNoOther) {
  Device device;
  Model model(kDims[0], PatchesOf(kGrids));
  for (const auto& [name, operation] : kOperations) {
    const auto all = model.Run(operation, &device, 0, kGrids);
    int64_t first = 0, done = 0;
    for (const PictureGrid& grid : kGrids) {
      const auto alone = model.Run(operation, &device, first, std::span(&grid, 1));
      if (operation == Operation::kBlock && first % 8 != 0) {
        const std::vector<float> among(all.begin() + done, all.begin() + done + std::ssize(alone));
        ExpectNear("one alone", alone, among, model.WidthOf(operation));
      } else {
        GPU_EXPECT(std::memcmp(alone.data(), all.data() + done, alone.size() * sizeof(float)) == 0);
      }
      first += grid.patches();
      done += std::ssize(alone);
    }
    GPU_EXPECT_EQ(done, std::ssize(all));
  }
}

GPU_TEST(VisionTest, NothingOfNothing) {
  Device device;
  Model model(kDims[0], 4);
  for (const auto& [name, operation] : kOperations) {
    GPU_EXPECT(model.Run(operation, &device, 0, {}).empty());
  }
}

// For pictures of any size: what was reckoned stands for the smallest, of which there are most.
GPU_TEST(VisionTest, ScratchIsWhatWasReckoned) {
  for (const Dims& dims : kDims) {
    for (const auto& grids : {kGrids, std::vector<PictureGrid>{{1, 2, 2}}}) {
      Model model(dims, PatchesOf(grids));
      size_t most = 0;
      for (const auto& [name, operation] : kOperations) {
        Device device;
        model.Run(operation, &device, 0, grids);
        most = std::max(most, device.scratch().TakePeak());
      }
      const auto reckoned =
          static_cast<size_t>(CudaVisionOps().scratch_bytes(model.Widths(), PatchesOf(grids), 1));
      GPU_EXPECT_LE(most, reckoned);
      GPU_EXPECT_LE(static_cast<double>(reckoned), 1.25 * static_cast<double>(most) + 4096);
    }
  }
}

GPU_TEST(VisionTest, SaysWhatItDoesNotTake) {
  const auto refuses = [](int64_t hidden, int32_t heads) {
    return CudaVisionOps().refuses({.hidden = hidden, .heads = heads});
  };
  GPU_EXPECT(refuses(1152, 16).empty());
  GPU_EXPECT(refuses(1280, 16).find("heads of 80 elements") == 0);
  GPU_EXPECT(refuses(144, 12).find("heads of 12 elements") == 0);
  GPU_EXPECT(refuses(4608, 64).find("a hidden size of 4608") == 0);
}

}  // namespace
}  // namespace baltoro::cuda

int main(int argc, char** argv) {
  return ::baltoro::testing::RunGpuCases(argc, argv, ::baltoro::UsableDeviceCount());
}
