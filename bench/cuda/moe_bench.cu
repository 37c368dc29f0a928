// Times the INT4 expert bank in the shape of one tensor-parallel rank, beside the bytes and
// operations that it must move and the card's measured read bandwidth.
//
//   moe_bench [--intermediate 256] [--hidden 7168] [--layers 4] [--tokens 1,4,16]
//             [--way chosen|streaming|grouped|grouped_sum] [--routing uniform|zipf] [--once 1]
//
// Routing is drawn anew for every bank of every replay, uniform and Zipf (exponent 1, experts
// shuffled a bank); `layers` different sets of weights take turns, so the L2 holds none.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <string>

#include "ops/cuda/experts/bank_test_support.cuh"
#include "ops/cuda/experts/streaming/int4_digits.h"

namespace baltoro::cuda::moe_test {
namespace {

constexpr int kExperts = 384, kTopK = 8;

__global__ void FillTiles(uint32_t* words, int64_t count, uint32_t seed) {
  for (int64_t i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) {
    uint32_t z = static_cast<uint32_t>(i) * 2654435761u + seed;
    z = (z ^ (z >> 15)) * 0x85ebca6bu;
    z = (z ^ (z >> 13)) * 0xc2b2ae35u;
    z ^= z >> 16;
    // Scales, the last 32 of a tile's 288 words: two of about 0.0024 times 2^122.
    words[i] = i % 288 < 256 ? z : 0x781f781fu ^ (z & 0x003f003fu);
  }
}

__global__ void FillRows(__nv_bfloat16* x, int64_t count) {
  const int64_t i = blockIdx.x * 256 + threadIdx.x;
  if (i < count) {
    uint32_t z = static_cast<uint32_t>(i) * 2654435761u;
    z ^= z >> 16;
    x[i] = __float2bfloat16_rn(static_cast<float>(z & 0xffff) / 32768.0f - 1.0f);
  }
}

__global__ void ReadAll(const uint4* from, int64_t count, uint32_t* sink) {
  uint32_t sum = 0;
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (; i + 7 * step < count; i += 8 * step) {
    uint4 v[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] = __ldcs(from + i + k * step);
#pragma unroll
    for (int k = 0; k < 8; ++k) sum ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  if (sum == 0x12345u) *sink = sum;
}

struct Options {
  int intermediate = 256, hidden = 7168, layers = 4;
  std::vector<int> tokens = {1, 4, 16, 32, 64, 128, 256};
  Way way = Way::kChosen;
  bool uniform = true, zipf = true;
  bool once = false;  // three plain launches, for a profiler
};

enum Part { kRoute = 1, kGateUp = 2, kDown = 4, kCombine = 8, kAll = 15 };

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        gate_up_bytes_(Int4PackedBytes(2 * options.intermediate, options.hidden)),
        down_bytes_(Int4PackedBytes(options.hidden, options.intermediate)),
        gate_up_(options.layers * kExperts * gate_up_bytes_),
        down_(options.layers * kExperts * down_bytes_) {
    Must(cudaStreamCreate(&stream_), "stream");
    FillTiles<<<2048, 256>>>(reinterpret_cast<uint32_t*>(gate_up_.get()), gate_up_.bytes() / 4, 1);
    FillTiles<<<2048, 256>>>(reinterpret_cast<uint32_t*>(down_.get()), down_.bytes() / 4, 2);
    Must(cudaDeviceSynchronize(), "fill");
    cudaDeviceProp device;
    Must(cudaGetDeviceProperties(&device, 0), "properties");
    Memory<uint32_t> sink(1);
    const int64_t count = std::min<int64_t>(gate_up_.bytes(), 4ll << 30) / 16;
    std::vector<double> times;
    for (int i = 0; i < 30; ++i) {
      times.push_back(Milliseconds([&] {
        ReadAll<<<device.multiProcessorCount * 8, 256, 0, stream_>>>(
            reinterpret_cast<const uint4*>(gate_up_.get()), count, sink.get());
      }));
    }
    std::sort(times.begin(), times.end());
    bandwidth_ = static_cast<double>(count) * 16 / (times[times.size() / 2] * 1e-3);
    std::printf("%s, read bandwidth %.2f TB/s, H %d I %d experts %d of %d\n", device.name,
                bandwidth_ / 1e12, options.hidden, options.intermediate, kTopK, kExperts);
  }
  ~Bench() { cudaStreamDestroy(stream_); }

  void Row(int tokens, bool zipf) {
    const int banks = tokens > 512 ? 8 : 24;
    Draw(tokens, zipf, banks);
    const MoeShape shape = {kExperts, options_.hidden, options_.intermediate, kTopK, tokens};
    auto bytes = MoeWorkspaceBytes(shape);
    Must(bytes.status(), "workspace");
    Memory<char> workspace(bytes.value());
    Memory<__nv_bfloat16> x(static_cast<size_t>(tokens) * options_.hidden);
    Memory<float> out(static_cast<size_t>(tokens) * options_.hidden);
    FillRows<<<(tokens * options_.hidden + 255) / 256, 256>>>(
        x.get(), static_cast<int64_t>(tokens) * options_.hidden);
    out.Fill(0);
    const Memory<int32_t> ids(ids_);
    const Memory<float> weights(std::vector<float>(ids_.size(), 0.125f));
    MoeInt4Args args;
    args.x = x.get();
    args.x_stride = args.out_stride = options_.hidden;
    args.experts = kExperts;
    args.tokens = tokens;
    args.out = out.get();
    args.workspace = workspace.get();
    args.workspace_bytes = bytes.value();
    const ExpertsPlan plan = PlanOf(QuestionOf(shape, tokens), options_.way);
    const auto bank = [&](int i, int parts) {
      args.ids = ids.get() + static_cast<size_t>(i) * tokens * kTopK;
      args.weights = weights.get() + static_cast<size_t>(i) * tokens * kTopK;
      args.gate_up = gate_up_.get() + i % options_.layers * kExperts * gate_up_bytes_;
      args.down = down_.get() + i % options_.layers * kExperts * down_bytes_;
      if (parts == kAll) {
        Must(LaunchMoeInt4(shape, args, plan, {stream_, &order_}), "bank");
      } else {
        Must(LaunchMoeParts(shape, args, plan, parts, {stream_, &order_}), "parts");
      }
    };
    if (options_.once) {
      for (int i = 0; i < 3; ++i) bank(i, kAll);
      Must(cudaStreamSynchronize(stream_), "bank");
      return;
    }
    const double all = Time(banks, [&](int i) { bank(i, kAll); });
    // The products alone: with everything before them, less the time of what is before them.
    const double route = Time(banks, [&](int i) { bank(i, kRoute); });
    const double first = Time(banks, [&](int i) { bank(i, kRoute | kGateUp); });
    const double second = Time(banks, [&](int i) { bank(i, kRoute | kGateUp | kDown); });
    const double needed = distinct_ * (gate_up_bytes_ + down_bytes_);
    const double floor_us = needed / bandwidth_ * 1e6;
    const double tflops =
        6.0 * tokens * kTopK * options_.hidden * options_.intermediate / all / 1e6;
    std::printf("%5d %-7s %6.1f %7.1f | %8.1f %8.1f %5.1f%% %7.1f | %6.1f %8.1f %8.1f %8.1f\n",
                tokens, zipf ? "zipf" : "uniform", distinct_, needed / 1e6, floor_us, all,
                100 * floor_us / all, tflops, route, first - route, second - first, all - second);
    std::fflush(stdout);
  }

 private:
  // Ids of `banks` banks of `tokens` tokens, and the mean number of distinct experts of a bank.
  void Draw(int tokens, bool zipf, int banks) {
    ids_.clear();
    double distinct = 0;
    for (int b = 0; b < banks; ++b) {
      std::vector<int> name(kExperts);
      std::iota(name.begin(), name.end(), 0);
      for (int i = kExperts - 1; i > 0; --i) std::swap(name[i], name[random_.Next() % (i + 1)]);
      std::vector<double> rising;
      double sum = 0;
      for (int i = 0; i < kExperts; ++i) rising.push_back(sum += zipf ? 1.0 / (i + 1) : 1.0);
      std::set<int> seen;
      for (int t = 0; t < tokens; ++t) {
        std::set<int> mine;
        while (mine.size() < kTopK) {
          const double u = random_.Uniform() * sum;
          mine.insert(name[std::lower_bound(rising.begin(), rising.end(), u) - rising.begin()]);
        }
        for (const int id : mine) {
          ids_.push_back(id);
          seen.insert(id);
        }
      }
      distinct += static_cast<double>(seen.size()) / banks;
    }
    distinct_ = distinct;
  }

  template <typename Work>
  double Milliseconds(Work work) {
    cudaEvent_t begin, end;
    Must(cudaEventCreate(&begin), "event");
    Must(cudaEventCreate(&end), "event");
    Must(cudaEventRecord(begin, stream_), "record");
    work();
    Must(cudaEventRecord(end, stream_), "record");
    Must(cudaEventSynchronize(end), "work");
    float ms = 0;
    Must(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return ms;
  }

  // Microseconds of one bank: the median of 31 replays of a graph of `banks` banks.
  template <typename Launch>
  double Time(int banks, Launch launch) {
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    Must(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < banks; ++i) launch(i);
    Must(cudaStreamEndCapture(stream_, &graph), "end of capture");
    Must(cudaGraphInstantiate(&ready, graph, 0), "instantiate");
    std::vector<double> times;
    for (int i = 0; i < 36; ++i) {
      const double ms = Milliseconds([&] { Must(cudaGraphLaunch(ready, stream_), "graph"); });
      if (i >= 5) times.push_back(ms);
    }
    cudaGraphExecDestroy(ready);
    cudaGraphDestroy(graph);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2] * 1e3 / banks;
  }

  static Status LaunchMoeParts(const MoeShape& shape,
                               MoeInt4Args args,
                               const ExpertsPlan& plan,
                               int parts,
                               const LaunchStream& stream) {
    const MoeWorkspace space = CutMoeWorkspace(shape, args.workspace);
    // One after the other, as the bank does.
    for (int32_t i = 0; i < plan.parts; ++i) {
      const ExpertsSum& part = i + 1 < plan.parts ? plan.part : plan.last_part;
      args.tokens = part.tokens;
      if (parts & kRoute) {
        BT_RETURN_IF_ERROR(LaunchMoeSort(shape, args, space, plan, part, stream));
      }
      if (parts & kGateUp) {
        BT_RETURN_IF_ERROR(
            LaunchMoeGroupedGateUp(shape, args, space, plan, part.tile_rows, stream));
      }
      if (parts & kDown) BT_RETURN_IF_ERROR(LaunchMoeDownSum(shape, args, space, part, stream));
      args.x += args.tokens * args.x_stride;
      args.out += args.tokens * args.out_stride;
      args.ids += args.tokens * kTopK;
      args.weights += args.tokens * kTopK;
    }
    if (plan.parts > 0) return Status();
    const bool grouped = plan.kernel == ExpertsKernel::kInt4Grouped;
    const bool digits = plan.kernel == ExpertsKernel::kInt4Digits;
    if (parts & kRoute && plan.sort.blocks > 0) {
      BT_RETURN_IF_ERROR(LaunchMoeSort(shape, args, space, plan, stream));
    }
    if (parts & kGateUp && grouped) {
      BT_RETURN_IF_ERROR(LaunchMoeGroupedGateUp(shape, args, space, plan, plan.tile_rows, stream));
    } else if (parts & kGateUp) {
      const auto gate_up = digits ? LaunchMoeDigitsGateUp : LaunchMoeStreamGateUp;
      BT_RETURN_IF_ERROR(gate_up(shape, args, space, plan, stream));
    }
    if (parts & kDown) {
      const auto down = grouped  ? LaunchMoeGroupedDown
                        : digits ? LaunchMoeDigitsDown
                                 : LaunchMoeStreamDown;
      BT_RETURN_IF_ERROR(down(shape, args, space, plan, stream));
    }
    if (parts & kCombine) BT_RETURN_IF_ERROR(LaunchMoeCombine(shape, args, space, stream));
    return Status();
  }

  Options options_;
  int64_t gate_up_bytes_, down_bytes_;
  Memory<char> gate_up_, down_;
  cudaStream_t stream_ = nullptr;
  LaunchOrder order_;
  double bandwidth_ = 0, distinct_ = 0;
  std::vector<int32_t> ids_;
  Random random_ = {7};
};

int Run(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--intermediate") options.intermediate = std::stoi(value);
    if (name == "--hidden") options.hidden = std::stoi(value);
    if (name == "--layers") options.layers = std::stoi(value);
    if (name == "--routing") {
      options.uniform = value != "zipf";
      options.zipf = value != "uniform";
    }
    if (name == "--once") options.once = value == "1";
    if (name == "--way") {
      options.way = value == "grouped"       ? Way::kGrouped
                    : value == "grouped_sum" ? Way::kGroupedSum
                    : value == "streaming"   ? Way::kStreaming
                                             : Way::kChosen;
    }
    if (name == "--tokens") {
      options.tokens.clear();
      for (size_t at = 0; at < value.size(); at = value.find(',', at) + 1) {
        options.tokens.push_back(std::stoi(value.substr(at)));
        if (value.find(',', at) == std::string::npos) break;
      }
    }
  }
  Bench bench(options);
  std::printf(
      "                       MB |  floor us      us  floor  TFLOP/s |  route   gate/up     down   "
      "combine\n");
  for (const bool zipf : {false, true}) {
    if (zipf ? !options.zipf : !options.uniform) continue;
    for (const int tokens : options.tokens) bench.Row(tokens, zipf);
  }
  return 0;
}

}  // namespace
}  // namespace baltoro::cuda::moe_test

int main(int argc, char** argv) {
  return baltoro::cuda::moe_test::Run(argc, argv);
}
