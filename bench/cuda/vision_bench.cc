// A picture encoder of Kimi K2.5's shape with random weights: a block with its parts, embedding,
// projector, and what an encoder of 27 blocks comes to.
//
//   cuda_vision_bench [PART OF A NAME OF PICTURES]
//
// "floor" is the FLOPs over the rate that a large product reaches, or of attention, if they take
// longer, its exponentials over 16 for each multiprocessor and clock.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "card.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/device_info.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/vision/picture_attention.h"
#include "ops/cuda/vision/picture_product.h"
#include "ops/cuda/vision/vision.h"

namespace baltoro::bench {
namespace {

constexpr double kMatrixRate = 790e12;  // bf16 FLOP/s that a large product reaches on these cards
constexpr double kExponentials = 132 * 16 * 1.755e9;  // a second
constexpr int kRuns = 5, kLayers = 27;
constexpr int64_t kHidden = 1152, kHeads = 16, kBetween = 4304, kPixels = 588, kText = 7168;
constexpr int64_t kMerged = 4 * kHidden, kSide = 512;

void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

class VisionBench {
 public:
  explicit VisionBench(cuda::RankState& rank) : rank_(rank), stream_(rank.stream()) {
    std::printf("%-28s %-12s %10s %10s %8s %8s\n", "pictures", "what", "us", "floor us", "TFLOP/s",
                "of floor");
    qkv_ = Matrix(3 * kHidden, kHidden);
    o_ = Matrix(kHidden, kHidden);
    up_ = Matrix(kBetween, kHidden);
    down_ = Matrix(kHidden, kBetween);
    projection_ = Matrix(kHidden, kPixels);
    first_ = Matrix(kMerged, kMerged);
    second_ = Matrix(kText, kMerged);
    norm_ = {.weight = Floats({kHidden}), .bias = Floats({kHidden}), .eps = 1e-5f};
    angles_ = Floats({kSide, kHidden / kHeads / 4});
    positions_ = Floats({64, 64, kHidden});
    times_ = Floats({4, kHidden});
  }

  void Run(const std::string& name, const std::vector<PictureGrid>& grids) {
    name_ = name;
    int64_t patches = 0;
    double pairs = 0;
    for (const PictureGrid& grid : grids) {
      patches += grid.patches();
      pairs += static_cast<double>(grid.patches()) * static_cast<double>(grid.patches());
    }
    Arena own(CudaMemory());
    const TensorView x(Random(own, patches * kHidden * 4), DType::kF32, {patches, kHidden});
    const TensorView pixels(Random(own, patches * kPixels), DType::kU8, {patches, kPixels});
    const TensorView out(Random(own, patches * kText), DType::kF32, {patches / 4, kText});
    const auto n = static_cast<double>(patches);
    const double attention = 4 * pairs * kHidden;
    const double products = 2 * n * kHidden * (4 * kHidden + 2 * kBetween);
    const double attention_floor =
        std::max(attention / kMatrixRate, pairs * kHeads / kExponentials);

    const double embed = Time("embed", 2 * n * kHidden * kPixels, 0, [&](const OpContext& ctx) {
      cuda::CudaVisionOps().embed(ctx, {.x = x,
                                        .pixels = pixels,
                                        .scale = {1 / 127.5f, 1 / 127.5f, 1 / 127.5f},
                                        .shift = {-1, -1, -1},
                                        .projection = projection_,
                                        .positions = positions_,
                                        .times = times_,
                                        .grids = grids});
    });
    const double block = Time("block", products + attention,
                              products / kMatrixRate + attention_floor, [&](const OpContext& ctx) {
                                cuda::CudaVisionOps().block(ctx, {.x = x,
                                                                  .attention_norm = norm_,
                                                                  .mlp_norm = norm_,
                                                                  .qkv = qkv_,
                                                                  .o = o_,
                                                                  .up = up_,
                                                                  .down = down_,
                                                                  .cos = angles_,
                                                                  .sin = angles_,
                                                                  .grids = grids,
                                                                  .heads = kHeads});
                              });
    Parts(own, patches, attention, attention_floor, grids);
    const double projector_flops = 2 * n / 4 * kMerged * (kMerged + kText);
    const double projector = Time("projector", projector_flops, 0, [&](const OpContext& ctx) {
      cuda::CudaVisionOps().project(ctx, {.out = out,
                                          .x = x,
                                          .norm = norm_,
                                          .merge_norm = norm_,
                                          .first = first_,
                                          .second = second_,
                                          .grids = grids});
    });
    const double all = embed + kLayers * block + projector;
    Print("27 blocks", all,
          2 * n * kHidden * kPixels + kLayers * (products + attention) + projector_flops,
          kLayers * (products / kMatrixRate + attention_floor) + projector_flops / kMatrixRate);
  }

 private:
  // Attention alone, and each kind of product.
  void Parts(Arena& own,
             int64_t patches,
             double attention,
             double floor,
             const std::vector<PictureGrid>& grids) {
    const auto rows = [&](int64_t count, int64_t width) {
      void* const data = own.Allocate(static_cast<size_t>(count * width) * 2);
      Must(FillBf16(data, static_cast<size_t>(count * width), 9, BfloatData::kNormal, stream_));
      return TensorView(data, DType::kBf16, {count, width});
    };
    const TensorView narrow = rows(patches, kHidden), qk = rows(patches, 2 * kHidden);
    const TensorView values = rows(kHidden, patches);
    Time("attention", attention, floor, [&](const OpContext& ctx) {
      cuda::PictureAttention(ctx, {.out = narrow,
                                   .qk = qk,
                                   .values = values,
                                   .tiles = cuda::UploadTiles(ctx, grids),
                                   .heads = kHeads});
    });
    const int64_t some = std::min<int64_t>(patches, 65536);
    const TensorView middle = rows(some, kBetween);
    const TensorView sums(Random(own, some * kHidden * 4), DType::kF32, {some, kHidden});
    void* const places = own.Allocate(static_cast<size_t>(some) * 4);
    Must(CudaMemory().Clear(places, static_cast<size_t>(some) * 4));
    const TensorView x = narrow.rows(0, some), qk_weights = ViewOf(qkv_).rows(0, 2 * kHidden);
    Product("q, k, turned", {.out = qk.rows(0, some),
                             .x = x,
                             .w = qk_weights,
                             .bias = qkv_.bias.rows(0, 2 * kHidden),
                             .end = cuda::ProductEnd::kRotate,
                             .rotation = {.places = static_cast<const uint32_t*>(places),
                                          .cos = angles_.as<const float>(),
                                          .sin = angles_.as<const float>(),
                                          .head = kHidden / kHeads}});
    Product("values", {.out = TensorView(values.data, DType::kBf16, {kHidden, some}),
                       .x = ViewOf(qkv_).rows(2 * kHidden, kHidden),
                       .w = x,
                       .bias = qkv_.bias.rows(2 * kHidden, kHidden),
                       .end = cuda::ProductEnd::kTurned});
    Product("o, added",
            {.out = sums, .x = x, .w = ViewOf(o_), .bias = o_.bias, .end = cuda::ProductEnd::kAdd});
    Product("up, GELU", {.out = middle,
                         .x = x,
                         .w = ViewOf(up_),
                         .bias = up_.bias,
                         .end = cuda::ProductEnd::kGeluTanh});
    Product("down, added", {.out = sums,
                            .x = middle,
                            .w = ViewOf(down_),
                            .bias = down_.bias,
                            .end = cuda::ProductEnd::kAdd});
  }

  void Product(const char* what, const cuda::PictureProductArgs& args) {
    const auto m = static_cast<double>(args.x.dim(0)), n = static_cast<double>(args.w.dim(0));
    Time(what, 2 * m * n * static_cast<double>(args.x.dim(1)), 0,
         [&](const OpContext& ctx) { cuda::PictureProduct(ctx, args); });
  }

  double Time(const char* what,
              double flops,
              double floor,
              const std::function<void(const OpContext&)>& run) {
    Arena scratch(CudaMemory()), staging(PinnedMemory());
    const OpContext ctx = {.scratch = &scratch, .staging = &staging, .rank = &rank_};
    const auto record = [&] {
      scratch.Reset();
      staging.Reset();
      run(ctx);
      return Status();
    };
    Must(record());  // scratch is taken outside of the recording
    Must(cuda::Wait(ctx));
    const Result<double> seconds = MedianSeconds(stream_, 1, kRuns, record);
    Must(seconds.status());
    Print(what, seconds.value(), flops, floor > 0 ? floor : flops / kMatrixRate);
    return seconds.value();
  }

  void Print(const char* what, double seconds, double flops, double floor) const {
    std::printf("%-28s %-12s %10.1f %10.1f %8.0f %7.1f%%\n", name_.c_str(), what, seconds * 1e6,
                floor * 1e6, flops / seconds / 1e12, 100 * floor / seconds);
    std::fflush(stdout);
  }

  // Normal bf16, which are normal f32 too, nearly, and any bytes: with zeros the card would draw
  // less power, and be faster.
  void* Random(Arena& arena, int64_t bytes) {
    void* const data = arena.Allocate(static_cast<size_t>(bytes));
    Must(FillBf16(data, static_cast<size_t>(bytes) / 2, 5, BfloatData::kNormal, stream_));
    return data;
  }
  TensorView Floats(std::initializer_list<int64_t> shape) {
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    return TensorView(Random(weights_, count * 4), DType::kF32, shape);
  }
  BiasedMatrix Matrix(int64_t n, int64_t k) {
    void* const data = weights_.Allocate(static_cast<size_t>(n * k) * 2);
    Must(FillBf16(data, static_cast<size_t>(n * k), 3, BfloatData::kSmall, stream_));
    return {.matrix = {.data = data, .n = n, .k = k}, .bias = Floats({n})};
  }
  static TensorView ViewOf(const BiasedMatrix& m) {
    return {const_cast<void*>(m.matrix.data), DType::kBf16, {m.matrix.n, m.matrix.k}};
  }

  cuda::RankState& rank_;
  const Stream& stream_;
  Arena weights_{CudaMemory()};
  BiasedMatrix qkv_, o_, up_, down_, projection_, first_, second_;
  LayerNormWeights norm_;
  TensorView angles_, positions_, times_;
  std::string name_;
};

}  // namespace
}  // namespace baltoro::bench

int main(int argc, char** argv) {
  using baltoro::PictureGrid;
  if (baltoro::UsableDeviceCount() == 0) {
    std::printf("no GPU that this build can use\n");
    return 77;
  }
  const std::string wanted = argc > 1 ? argv[1] : "";
  auto rank = baltoro::cuda::RankState::Create();
  baltoro::bench::Must(rank.status());
  baltoro::bench::VisionBench bench(*rank.value());
  const auto run = [&](const std::string& name, const std::vector<PictureGrid>& grids) {
    if (name.find(wanted) != name.npos) bench.Run(name, grids);
  };
  run("8 of 1792 x 1792", std::vector<PictureGrid>(8, {1, 128, 128}));
  run("1 of 1792 x 1792", {{1, 128, 128}});
  run("64 of 224 x 224", std::vector<PictureGrid>(64, {1, 16, 16}));
  std::vector<PictureGrid> mixed;
  for (int i = 0; i < 64; ++i) mixed.push_back({1, 8 + 2 * (i % 9), 8 + 2 * (i % 7)});
  run("64 mixed small ones", mixed);
  return 0;
}
