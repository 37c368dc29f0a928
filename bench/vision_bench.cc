// Pictures through an encoder of Kimi K2.5's shape with dummy weights, on the CPU: a block, the
// projector and what a whole encoder of 27 blocks comes to, beside the operations that they must
// do at the peak of register-only products.
//
//   vision_bench [--layers=N] [--threads=N] [--only=TEXT]
//
// N blocks are run, 3 by default: all are alike. BALTORO_CPU chooses the instruction set, as it
// does for the server.

#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "ceilings.h"
#include "ops/cpu/isa.h"
#include "vision/vision_encoder.h"
#include "weights/dummy_source.h"

namespace baltoro::bench {
namespace {

constexpr int32_t kLayers = 27;  // of the model

struct Options {
  int32_t layers = 3;
  int threads = 0;
  std::string only;
};

VisionConfig Shape(int32_t layers) {
  VisionConfig config = VisionConfig::Released();
  config.layers = layers;
  return config;
}

// Operations, a multiplication and an addition counted as two.
struct Flops {
  double embed = 0, products = 0, attention = 0, projector = 0;  // the two in the middle: a block

  Flops(const VisionConfig& c, std::span<const PictureGrid> grids) {
    for (const PictureGrid& grid : grids) {
      const auto n = static_cast<double>(grid.patches());
      const auto hidden = static_cast<double>(c.hidden), merged = static_cast<double>(c.merged());
      embed += 2 * n * hidden * static_cast<double>(c.pixels());
      products += 2 * n * hidden * (4 * hidden + 2 * static_cast<double>(c.intermediate));
      attention += 4 * n * n * hidden;
      projector += 2 * static_cast<double>(c.tokens(grid)) * merged *
                   (merged + static_cast<double>(c.text_hidden));
    }
  }
  double Block() const { return products + attention; }
  double Whole() const { return embed + kLayers * Block() + projector; }
};

class VisionBench {
 public:
  explicit VisionBench(const Options& options)
      : options_(options), pool_(options.threads), config_(Shape(options.layers)) {}

  int Run() {
    peak_ = MeasureProductGflops(pool_) * 1e9;
    const std::vector<std::pair<std::string, std::vector<PictureGrid>>> cases = {
        {"64 pictures of 112 x 112", std::vector<PictureGrid>(64, {1, 8, 8})},
        {"64 pictures of 224 x 224", std::vector<PictureGrid>(64, {1, 16, 16})},
        {"4 frames of 1196 x 672", {{4, 48, 86}}},
        {"1 picture of 1792 x 1792", {{1, 128, 128}}}};
    DummySource source(1);
    auto made = VisionEncoder::Create(config_, source, CpuOps(DType::kBf16), &pool_, 16512);
    if (!made.ok()) {
      fmt::print(stderr, "{}\n", made.status().message());
      return 1;
    }
    const VisionBytes bytes =
        VisionEncoder::PlanBytes(Shape(kLayers), CpuOps(DType::kBf16), 16384, pool_.threads());
    fmt::print("{} threads, {}: products {:.0f} GFLOP/s; {} of {} blocks are run\n",
               pool_.threads(), NameOf(cpu::ActiveIsa()), peak_ / 1e9, options_.layers, kLayers);
    fmt::print("memory for 16,384 patches: weights {:.2f}, batch {:.2f}, scratch {:.2f} GB\n\n",
               static_cast<double>(bytes.weights) / 1e9, static_cast<double>(bytes.batch) / 1e9,
               static_cast<double>(bytes.scratch) / 1e9);
    fmt::print("{:<26} {:>7} {:>6} {:>9} {:>6} {:>9} {:>6} {:>9} {:>9} {:>6}\n", "pictures",
               "patches", "tokens", "block ms", "%peak", "proj. ms", "%peak", "all s", "floor s",
               "%peak");
    for (const auto& [name, grids] : cases) {
      if (name.find(options_.only) != std::string::npos) Measure(*made.value(), name, grids);
    }
    return 0;
  }

 private:
  void Measure(VisionEncoder& encoder,
               const std::string& name,
               const std::vector<PictureGrid>& grids) {
    int64_t patches = 0, tokens = 0;
    for (const PictureGrid& grid : grids) {
      patches += grid.patches();
      tokens += config_.tokens(grid);
    }
    std::vector<uint8_t> pixels(static_cast<size_t>(patches * config_.pixels()));
    for (size_t i = 0; i < pixels.size(); ++i)
      pixels[i] = static_cast<uint8_t>(i * 2654435761u >> 24);
    std::vector<Picture> pictures;
    size_t at = 0;
    for (const PictureGrid& grid : grids) {
      const auto bytes = static_cast<size_t>(grid.patches() * config_.pixels());
      pictures.push_back({.grid = grid, .pixels = std::span(pixels).subspan(at, bytes)});
      at += bytes;
    }
    std::vector<float> rows(static_cast<size_t>(tokens * config_.text_hidden));
    const TensorView out(rows.data(), DType::kF32, {tokens, config_.text_hidden});

    // The first run takes what scratch there is to take.
    std::vector<double> seconds;
    for (int round = 0; round < 2; ++round) {
      seconds.clear();
      VisionBatch batch = encoder.Begin(pictures, out).value();
      while (!batch.done()) {
        const double start = Now();
        batch.Advance({.pool = &pool_, .scratch = &scratch_}, 1);
        seconds.push_back(Now() - start);
      }
      if (patches > 8192) break;  // minutes: its first block, which brings it, is left out below
    }
    const double projector = seconds.back();
    const double first = seconds.front();
    std::vector<double> blocks(seconds.begin() + 1, seconds.end() - 1);
    std::sort(blocks.begin(), blocks.end());
    const double block = blocks[blocks.size() / 2];
    const double all = std::max(0.0, first - block) + kLayers * block + projector;
    const Flops flops(config_, grids);
    const auto share = [this](double work, double time) { return 100 * work / peak_ / time; };
    fmt::print(
        "{:<26} {:>7} {:>6} {:>9.1f} {:>5.0f}% {:>9.1f} {:>5.0f}% {:>9.2f} {:>9.2f} {:>5.0f}%\n",
        name, patches, tokens, block * 1e3, share(flops.Block(), block), projector * 1e3,
        share(flops.projector, projector), all, flops.Whole() / peak_, share(flops.Whole(), all));
  }

  const Options options_;
  ThreadPool pool_;
  const VisionConfig config_;
  Arena scratch_;
  double peak_ = 0;
};

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    const auto number = [&] { return std::atoi(arg.substr(arg.find('=') + 1).data()); };
    if (arg.starts_with("--layers=")) {
      options.layers = number();
    } else if (arg.starts_with("--threads=")) {
      options.threads = number();
    } else if (arg.starts_with("--only=")) {
      options.only = arg.substr(7);
    } else {
      fmt::print(stderr, "unknown: {}\nvision_bench [--layers=N] [--threads=N] [--only=TEXT]\n",
                 arg);
      return 2;
    }
  }
  if (options.layers < 2) {
    fmt::print(stderr, "--layers must be 2 or more: the first block comes with the embedding\n");
    return 2;
  }
  UseIsaOfEnvironment();
  return VisionBench(options).Run();
}

}  // namespace
}  // namespace baltoro::bench

int main(int argc, char** argv) {
  return baltoro::bench::Main(argc, argv);
}
