// MLA decoding: time of one layer's attention (merge included, plan not: it is made once a step)
// beside its floor, over heads, batch and context. Block tables are shuffled over a cache of
// several GB, and consecutive runs use other blocks, so that nothing is left in the L2.
//
//   cuda_mla_decode_bench [HEADS BATCH CONTEXT [QUERY_TOKENS [mixed|equal [bf16|fp8
//   [CHUNK_BLOCKS [uniform|normal|small|zeros]]]]]]...
//
// Cases are separated by a comma of their own; without any, the table of docs/measured. The last
// word is the data of a bf16 cache and its queries, which decides what power a product takes.
// Ahead of the cases: `--seconds S`, each is replayed for so long, so that its clock can be read;
// `--blocks N`, only so many blocks of the cache are used (256 fit the L2).

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "card.h"
#include "device/cuda/cuda_status.h"
#include "device/cuda/device_buffer.h"
#include "device/cuda/device_info.h"
#include "device/cuda/stream.h"
#include "ops/cuda/attention/decode/mla_decode_internal.h"

namespace baltoro::bench {
namespace {

using cuda::MlaCacheType;

constexpr double kMatrixRate = 800e12;  // bf16 FLOP/s that a large product reaches on these cards
constexpr int64_t kCacheBytes = int64_t{12} << 30;
constexpr const char* kDataNames[] = {"uniform", "normal", "small", "zeros"};  // of BfloatData
constexpr double kFlushBytes = 400e6;  // read by other runs before the same blocks come again

struct Case {
  int heads;
  int batch;
  int context;
  int query_tokens = 1;
  bool mixed = false;  // lengths from context / 16 to context
  MlaCacheType type = MlaCacheType::kBf16;
  int chunk_blocks = 0;
  BfloatData data = BfloatData::kUniform;
};

#define ABORT_IF_ERROR(expr)                                                \
  do {                                                                      \
    const ::baltoro::Status bt_status = (expr);                             \
    if (!bt_status.ok()) {                                                  \
      std::fprintf(stderr, "%s: %s\n", #expr, bt_status.message().c_str()); \
      std::exit(1);                                                         \
    }                                                                       \
  } while (false)

DeviceBuffer Allocate(size_t bytes) {
  Result<DeviceBuffer> buffer = DeviceBuffer::Create(bytes, "benchmark");
  ABORT_IF_ERROR(buffer.status());
  return std::move(buffer).value();
}

DeviceBuffer Upload(const std::vector<int32_t>& values) {
  DeviceBuffer buffer = Allocate(values.size() * 4);
  ABORT_IF_ERROR(CudaStatus(
      cudaMemcpy(buffer.data(), values.data(), buffer.bytes(), cudaMemcpyHostToDevice), "copy"));
  return buffer;
}

// On the host, of nine turns.
template <typename Turn>
double LeastSeconds(const Turn& turn) {
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 9; ++i) {
    const auto start = std::chrono::steady_clock::now();
    turn();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    least = std::min(least, taken.count());
  }
  return least;
}

class Bench {
 public:
  Bench(const Stream& stream, double least_seconds, int64_t most_blocks)
      : stream_(stream),
        least_seconds_(least_seconds),
        most_blocks_(most_blocks),
        cache_(Allocate(kCacheBytes)) {
    Result<DeviceInfo> info = CurrentDeviceInfo();
    ABORT_IF_ERROR(info.status());
    info_ = info.value();
    ABORT_IF_ERROR(FillBf16(cache_.data(), kCacheBytes / 2, 1, BfloatData::kUniform, stream));
    ABORT_IF_ERROR(stream.Synchronize());
    Result<double> bandwidth = ReadBandwidth(cache_.data(), size_t{4} << 30, stream);
    ABORT_IF_ERROR(bandwidth.status());
    bandwidth_ = bandwidth.value();
    std::printf("%s, %d multiprocessors, read bandwidth %.0f GB/s\n", info_.name.c_str(),
                info_.multiprocessors, bandwidth_ / 1e9);
    std::printf("%5s %5s %7s %2s %5s %5s %6s %7s | %9s %8s %7s %9s %7s | plan us\n", "heads",
                "batch", "context", "q", "cache", "mixed", "chunks", "data", "us", "GB/s",
                "of read", "TFLOP/s", "of floor");
  }

  void Run(const Case& c) {
    if (c.type != filled_with_ || c.data != filled_data_) {
      ABORT_IF_ERROR(c.type == MlaCacheType::kFp8E4m3
                         ? FillRandomE4m3(cache_.data(), kCacheBytes, 1, stream_)
                         : FillBf16(cache_.data(), kCacheBytes / 2, 1, c.data, stream_));
      filled_with_ = c.type;
      filled_data_ = c.data;
    }
    const int element = c.type == MlaCacheType::kBf16 ? 2 : 1;
    std::mt19937 random(7);
    std::vector<int32_t> counts, firsts, begin = {0};
    int64_t keys = 0, blocks = 0, seen = 0;
    for (int s = 0; s < c.batch; ++s) {
      int length = c.context;
      if (c.mixed) length = c.context / 16 + static_cast<int>(random() % (c.context * 15u / 16));
      counts.push_back(length);
      firsts.push_back(length - c.query_tokens);
      begin.push_back(begin.back() + c.query_tokens);
      keys += length;
      blocks += (length + 63) / 64;
      seen += int64_t{length} * c.query_tokens;
    }
    const int stride = (c.context + 63) / 64;
    const int64_t rows = int64_t{c.batch} * c.query_tokens;
    const double cache_bytes = static_cast<double>(keys) * cuda::kMlaWidth * element;
    const double bytes = cache_bytes + static_cast<double>(rows) * c.heads * (1152 + 1024);
    const double flops = 2.0 * c.heads * 1088 * static_cast<double>(seen);
    const int64_t pool = std::min(kCacheBytes / (64 * cuda::kMlaWidth * element), most_blocks_);
    const int copies = static_cast<int>(std::clamp(kFlushBytes / cache_bytes, 1.0, 40.0)) + 1;
    std::vector<int32_t> physical(pool);
    std::iota(physical.begin(), physical.end(), 0);
    std::shuffle(physical.begin(), physical.end(), random);
    std::vector<DeviceBuffer> tables;
    size_t taken = 0;
    for (int copy = 0; copy < copies; ++copy) {
      std::vector<int32_t> table(static_cast<size_t>(c.batch) * stride, 0);
      for (int s = 0; s < c.batch; ++s) {
        for (int b = 0; b * 64 < counts[s]; ++b) {
          table[static_cast<size_t>(s) * stride + b] = physical[taken++ % pool];
        }
      }
      tables.push_back(Upload(table));
    }
    const DeviceBuffer device_counts = Upload(counts), device_firsts = Upload(firsts),
                       device_begin = Upload(begin);
    const DeviceBuffer q = Allocate(rows * c.heads * 1152), out = Allocate(rows * c.heads * 1024),
                       lse = Allocate(rows * c.heads * 4);
    ABORT_IF_ERROR(FillBf16(q.data(), rows * c.heads * 576, 2, c.data, stream_));
    cuda::MlaDecodeLimits limits;
    limits.heads = c.heads;
    limits.sequences = c.batch;
    limits.max_query_tokens = c.query_tokens;
    limits.multiprocessors = info_.multiprocessors;
    limits.cache_type = c.type;
    limits.chunk_blocks = c.chunk_blocks;
    limits.max_total_blocks = blocks;
    Result<size_t> workspace_bytes = cuda::MlaDecodeWorkspaceBytes(limits);
    ABORT_IF_ERROR(workspace_bytes.status());
    const DeviceBuffer workspace = Allocate(workspace_bytes.value());
    cuda::MlaDecodeArgs args;
    args.out = out.data();
    args.lse = lse.as<float>();
    args.q = q.data();
    args.rows = rows;
    args.cache = cache_.data();
    args.num_blocks = pool;
    args.scale = 0.07f;
    args.sequences.query_begin = device_begin.as<int32_t>();
    args.sequences.key_count = device_counts.as<int32_t>();
    args.sequences.first_position = device_firsts.as<int32_t>();
    args.sequences.table_stride = stride;
    Result<size_t> plan_bytes = cuda::MlaDecodePlanBytes(limits);
    ABORT_IF_ERROR(plan_bytes.status());
    std::vector<char> image(plan_bytes.value());
    const double plan_seconds = LeastSeconds([&] {
      ABORT_IF_ERROR(cuda::PlanMlaDecodeOnHost(limits, begin.data(), counts.data(), image.data()));
    });
    ABORT_IF_ERROR(CudaStatus(
        cudaMemcpy(workspace.data(), image.data(), image.size(), cudaMemcpyHostToDevice), "copy"));
    const cuda::DecodePlan decode = cuda::ChooseDecode(limits);
    const cuda::MergePlan merge = cuda::ChooseMergeAlone(limits, decode);
    const auto all = [&] {
      for (const DeviceBuffer& table : tables) {
        args.sequences.block_table = table.as<int32_t>();
        BT_ASSIGN_OR_RETURN(
            const cuda::MlaKernelArgs pieces,
            cuda::MlaDecodePieces(decode, limits, args, workspace.data(), launches_));
        BT_RETURN_IF_ERROR(cuda::LaunchMlaMerge(merge, pieces, launches_));
      }
      return Status();
    };
    Result<double> seconds = MedianSeconds(stream_, copies, 31, all);
    ABORT_IF_ERROR(seconds.status());
    const double short_time = seconds.value();
    const double runs = least_seconds_ / (seconds.value() * copies);
    if (runs > 31) {
      seconds = MedianSeconds(stream_, copies, static_cast<int>(runs), all);
      ABORT_IF_ERROR(seconds.status());
    }
    const double t = seconds.value();
    const double floor = std::max(bytes / bandwidth_, flops / kMatrixRate);
    std::printf("%5d %5d %7d %2d %5s %5s %6d %7s | %9.1f %8.0f %6.1f%% %9.0f %6.1f%% | %.1f",
                c.heads, c.batch, c.context, c.query_tokens, element == 2 ? "bf16" : "fp8",
                c.mixed ? "mixed" : "equal", c.chunk_blocks, kDataNames[static_cast<int>(c.data)],
                t * 1e6, bytes / t / 1e9, 100 * bytes / t / bandwidth_, flops / t / 1e12,
                100 * floor / t, plan_seconds * 1e6);
    if (runs > 31) std::printf(" | first 31 runs: %.1f us", short_time * 1e6);
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  const Stream& stream_;
  cuda::LaunchOrder order_;
  const cuda::LaunchStream launches_{stream_.get(), &order_};
  const double least_seconds_;
  const int64_t most_blocks_;
  DeviceBuffer cache_;
  DeviceInfo info_;
  double bandwidth_ = 0;
  MlaCacheType filled_with_ = MlaCacheType::kBf16;
  BfloatData filled_data_ = BfloatData::kUniform;
};

// From the arguments; `,` begins the next case.
std::vector<Case> CasesOf(int argc, char** argv) {
  std::vector<Case> cases;
  std::vector<std::string> words;
  for (int i = 1; i <= argc; ++i) {
    if (i < argc && std::string(argv[i]) != ",") {
      words.push_back(argv[i]);
      continue;
    }
    if (words.size() < 3) continue;
    Case c{std::stoi(words[0]), std::stoi(words[1]), std::stoi(words[2])};
    if (words.size() > 3) c.query_tokens = std::stoi(words[3]);
    if (words.size() > 4) c.mixed = words[4] == "mixed";
    if (words.size() > 5 && words[5] == "fp8") c.type = MlaCacheType::kFp8E4m3;
    if (words.size() > 6) c.chunk_blocks = std::stoi(words[6]);
    for (int d = 0; words.size() > 7 && d < static_cast<int>(std::size(kDataNames)); ++d) {
      if (words[7] == kDataNames[d]) c.data = static_cast<BfloatData>(d);
    }
    cases.push_back(c);
    words.clear();
  }
  return cases;
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const int heads : {64, 128}) {
    for (const int context : {4096, 8192, 16384, 32768}) cases.push_back({heads, 128, context});
  }
  for (const int context : {1024, 4096, 32768}) {
    for (const int batch : {1, 4, 16, 64, 256}) cases.push_back({8, batch, context});
  }
  for (const int batch : {1, 16}) {
    for (const int context : {1024, 4096, 32768}) cases.push_back({64, batch, context});
  }
  for (const int heads : {8, 64, 128}) cases.push_back({heads, 128, 16384, 1, true});
  for (const int batch : {32, 128}) cases.push_back({64, batch, 8192, 4});
  for (const int heads : {8, 64}) {
    cases.push_back({heads, 128, 8192, 1, false, MlaCacheType::kBf16, 32});
  }
  for (const int context : {8192, 32768}) {
    for (const int heads : {8, 64, 128}) {
      cases.push_back({heads, 128, context, 1, false, MlaCacheType::kFp8E4m3});
    }
  }
  cases.push_back({8, 16, 32768, 1, false, MlaCacheType::kFp8E4m3});
  return cases;
}

}  // namespace
}  // namespace baltoro::bench

int main(int argc, char** argv) {
  using baltoro::bench::Case;
  if (baltoro::UsableDeviceCount() == 0) {
    std::printf("no GPU that this build can use\n");
    return 77;
  }
  baltoro::Result<baltoro::Stream> stream = baltoro::Stream::Create();
  ABORT_IF_ERROR(stream.status());
  double least_seconds = 0;
  int64_t most_blocks = INT64_MAX;
  for (; argc > 2 && argv[1][0] == '-'; argc -= 2, argv += 2) {
    if (std::strcmp(argv[1], "--seconds") == 0) least_seconds = std::stod(argv[2]);
    if (std::strcmp(argv[1], "--blocks") == 0) most_blocks = std::stoll(argv[2]);
  }
  baltoro::bench::Bench bench(stream.value(), least_seconds, most_blocks);
  std::vector<Case> cases = baltoro::bench::CasesOf(argc, argv);
  if (cases.empty()) cases = baltoro::bench::AllCases();
  for (const Case& c : cases) bench.Run(c);
  return 0;
}
