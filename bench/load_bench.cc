// Loading a sharded checkpoint, packing included, beside a plain sequential read of the same files
// past the page cache: both cold, in turns, because disks of virtual machines change their mind.
//
//   load_bench [--dir=DIR] [--gb=N] [--form=int4|bf16] [--rounds=N] [--hot] [--ranks=N]
//
// The checkpoint has the shapes of Kimi K2 in one dense layer and one of as many experts as fill
// the size. It is written below DIR (of a real disk) and removed at the end. --hot adds a load
// from the page cache, --ranks loads the shares of N tensor ranks at once, cold, and counts what
// each and the disk read.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string_view>
#include <thread>

#include "ceilings.h"
#include "disk/read_queue.h"
#include "model/k2_model.h"
#include "model/layer_weights.h"
#include "model/weight_slice.h"
#include "plan/model_description.h"
#include "weights/checkpoint_source.h"
#include "weights/checkpoint_writer.h"

namespace baltoro::bench {
namespace {

constexpr int64_t kShardBytes = int64_t{2} << 30;
constexpr uint64_t kReadBytes = uint64_t{4} << 20;
constexpr int kReadsUnderWay = 16;

struct Options {
  std::string dir = "/var/tmp";
  double gb = 12;
  bool int4 = true;
  int rounds = 3;
  bool hot = false;
  int ranks = 0;  // also loads what each of so many tensor ranks holds
};

// The folder of the checkpoint, gone with this.
class Folder {
 public:
  explicit Folder(std::string path) : path_(std::move(path)) {}
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

K2Config Shape(const Options& options) {
  K2Config c = DescribeModel("Kimi-K2-Thinking").value().config;
  c.layers = 2;
  c.router_has_bias = true;
  c.positions_max = 4096;
  c.vocab = 20480;
  const double expert = 3.0 * 7168 * 2048 * (options.int4 ? 0.5625 : 2);
  c.experts = std::max(8, static_cast<int32_t>((options.gb * 1e9 - 1.9e9) / expert));
  c.router.experts = c.experts;
  return c;
}

// Names, types and shapes in the order of the public files: by name.
std::vector<OutputTensor> TensorsOf(const K2Config& c, bool int4) {
  std::vector<OutputTensor> out;
  const auto plain = [&](std::string name, std::vector<int64_t> shape) {
    out.push_back({std::move(name), DType::kBf16, std::move(shape)});
  };
  const auto mlp = [&](const std::string& prefix, int64_t width, bool packed) {
    for (const auto& [name, rows, columns] :
         {std::tuple{"down_proj", c.hidden, width}, std::tuple{"gate_proj", width, c.hidden},
          std::tuple{"up_proj", width, c.hidden}}) {
      if (!packed) {
        plain(fmt::format("{}{}.weight", prefix, name), {rows, columns});
        continue;
      }
      const std::string base = fmt::format("{}{}.weight_", prefix, name);
      out.push_back({base + "packed", DType::kI32, {rows, columns / 8}});
      out.push_back({base + "scale", DType::kBf16, {rows, columns / 32}});
      out.push_back({base + "shape", DType::kI32, {2}});
    }
  };
  plain("lm_head.weight", {c.vocab, c.hidden});
  plain("model.embed_tokens.weight", {c.vocab, c.hidden});
  for (int32_t i = 0; i < c.layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i), mixer = layer + "self_attn.";
    plain(layer + "input_layernorm.weight", {c.hidden});
    if (!c.is_moe(i)) {
      mlp(layer + "mlp.", c.intermediate, false);
    } else {
      for (int32_t e = 0; e < c.experts; ++e) {
        mlp(fmt::format("{}mlp.experts.{}.", layer, e), c.moe_intermediate, int4);
      }
      out.push_back({layer + "mlp.gate.e_score_correction_bias", DType::kF32, {c.experts}});
      plain(layer + "mlp.gate.weight", {c.experts, c.hidden});
      mlp(layer + "mlp.shared_experts.", c.moe_intermediate * c.shared_experts, false);
    }
    plain(layer + "post_attention_layernorm.weight", {c.hidden});
    plain(mixer + "kv_a_layernorm.weight", {c.kv_lora});
    plain(mixer + "kv_a_proj_with_mqa.weight", {c.cache_width(), c.hidden});
    plain(mixer + "kv_b_proj.weight", {c.heads * (c.nope + c.value), c.kv_lora});
    plain(mixer + "o_proj.weight", {c.hidden, c.heads * c.value});
    plain(mixer + "q_a_layernorm.weight", {c.q_lora});
    plain(mixer + "q_a_proj.weight", {c.q_lora, c.hidden});
    plain(mixer + "q_b_proj.weight", {c.heads * c.head_dim(), c.q_lora});
  }
  plain("model.norm.weight", {c.hidden});
  return out;
}

// Random bytes; as numbers they are finite in every type, and small.
std::vector<uint32_t> RandomWords(size_t count) {
  std::mt19937 random(1);
  std::vector<uint32_t> out(count);
  for (uint32_t& word : out) word = static_cast<uint32_t>(random()) & 0xBF7FBF7F;
  return out;
}

Status WriteCheckpoint(const std::string& dir, const K2Config& config, bool int4) {
  const std::vector<OutputTensor> tensors = TensorsOf(config, int4);
  BT_ASSIGN_OR_RETURN(CheckpointWriter writer,
                      CheckpointWriter::Create(dir, "model", tensors, kShardBytes));
  const std::vector<uint32_t> words = RandomWords(size_t{5} << 20);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const OutputTensor& tensor = tensors[i];
    int64_t bytes = SizeOf(tensor.dtype);
    for (const int64_t dim : tensor.shape) bytes *= dim;
    if (tensor.name.ends_with("weight_shape")) {
      const OutputTensor& packed = tensors[i - 2];
      const int32_t shape[2] = {static_cast<int32_t>(packed.shape[0]),
                                static_cast<int32_t>(packed.shape[1] * 8)};
      BT_RETURN_IF_ERROR(writer.Write(i, 0, shape, sizeof(shape)));
      continue;
    }
    const auto most = static_cast<int64_t>(words.size() * sizeof(words[0]));
    for (int64_t at = 0; at < bytes; at += most) {
      BT_RETURN_IF_ERROR(
          writer.Write(i, at, words.data(), static_cast<size_t>(std::min(most, bytes - at))));
    }
  }
  return writer.Finish();
}

std::vector<std::string> ShardsOf(const std::string& dir) {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    if (entry.path().extension() == ".safetensors") out.push_back(entry.path().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

void DropFromCache(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    const int fd = open(path.c_str(), O_RDONLY);
    fdatasync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
  }
}

// Reads files one after the other past the page cache, several reads under way.
class DirectReader {
 public:
  DirectReader()
      : queue_(MakeUringQueue(kReadsUnderWay)),
        memory_(static_cast<char*>(std::aligned_alloc(4096, kReadsUnderWay * kReadBytes)),
                &std::free) {
    if (queue_ == nullptr) queue_ = MakeThreadQueue(kReadsUnderWay);
    for (uint64_t i = 0; i < kReadsUnderWay; ++i) free_slots_.push_back(i);
  }
  ~DirectReader() {
    queue_.reset();  // waits for what is under way
    for (const int fd : fds_) close(fd);
  }
  DirectReader(const DirectReader&) = delete;
  DirectReader& operator=(const DirectReader&) = delete;

  Status Read(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_DIRECT);
    if (fd < 0) return Status(Code::kUnavailable, path + ": no direct reads here");
    fds_.push_back(fd);
    const uint64_t end = std::filesystem::file_size(path);
    for (uint64_t at = 0; at < end; at += kReadBytes) {
      if (free_slots_.empty()) BT_RETURN_IF_ERROR(Collect());
      const uint64_t slot = free_slots_.back();
      free_slots_.pop_back();
      slots_[slot] = {.fd = fd, .offset = at, .end = std::min(end, at + kReadBytes)};
      Submit(slot);
    }
    return {};
  }
  Status Finish() {
    while (free_slots_.size() < kReadsUnderWay) BT_RETURN_IF_ERROR(Collect());
    return {};
  }

 private:
  struct Slot {
    int fd = -1;
    uint64_t offset = 0, end = 0;  // of what is still to be read
  };

  void Submit(uint64_t slot) {
    queue_->Submit({.fd = slots_[slot].fd,
                    .offset = slots_[slot].offset,
                    .out = memory_.get() + slot * kReadBytes,
                    .bytes = kReadBytes,
                    .tag = slot});
  }
  // The rest of a read that brought less than was asked for is read as well.
  Status Collect() {
    const ReadResult result = queue_->Wait();
    Slot& slot = slots_[result.tag];
    if (result.bytes > 0) slot.offset += static_cast<uint64_t>(result.bytes);
    const bool whole = slot.offset >= slot.end;
    if (result.bytes <= 0 || (!whole && slot.offset % 4096 != 0)) {
      return Status(Code::kUnavailable, fmt::format("a direct read gave {}", result.bytes));
    }
    if (whole) {
      free_slots_.push_back(result.tag);
    } else {
      Submit(result.tag);
    }
    return {};
  }

  std::unique_ptr<ReadQueue> queue_;
  std::unique_ptr<char, decltype(&std::free)> memory_;
  std::vector<uint64_t> free_slots_;
  Slot slots_[kReadsUnderWay];
  std::vector<int> fds_;
};

// Seconds to read all files.
Result<double> ReadDirectly(const std::vector<std::string>& paths) {
  DirectReader reader;
  const double start = Now();
  for (const std::string& path : paths) BT_RETURN_IF_ERROR(reader.Read(path));
  BT_RETURN_IF_ERROR(reader.Finish());
  return Now() - start;
}

Result<double> Load(const std::string& dir, const K2Config& config, int64_t& model_bytes) {
  const double start = Now();
  ThreadPool pool(0);
  BT_ASSIGN_OR_RETURN(const auto source, CheckpointSource::Open(dir));
  BT_ASSIGN_OR_RETURN(const auto model,
                      K2Model::Load(config, *source, CpuOps(DType::kBf16), &pool, {}));
  model_bytes = model->weight_bytes();
  return Now() - start;
}

// Bytes that this process has had the disk read.
int64_t DiskBytes() {
  std::ifstream io("/proc/self/io");
  for (std::string name; io >> name;) {
    int64_t value = 0;
    io >> value;
    if (name == "read_bytes:") return value;
  }
  return 0;
}

struct SliceCount {
  double alone = 0, shared = 0, kept = 0;  // GB
};

// One tensor rank of `ranks`.
Result<SliceCount> LoadSlice(const std::string& dir,
                             const K2Config& config,
                             const RankShare& share) {
  const OpsTable& ops = CpuOps(DType::kBf16);
  BT_ASSIGN_OR_RETURN(const auto source, CheckpointSource::Open(dir));
  BT_ASSIGN_OR_RETURN(WeightPlan whole, PlanWeights(config, *source, ops, {}));
  BT_ASSIGN_OR_RETURN(const WeightPlan plan, SliceWeights(config, std::move(whole), share));
  const int64_t before = source->files()->bytes_read();
  BT_ASSIGN_OR_RETURN(const ModelWeights weights, LoadWeights(plan, *source, ops, 1, {}));
  const int64_t read = source->files()->bytes_read() - before;
  const int64_t shared = source->files()->bytes_shared();
  return SliceCount{.alone = static_cast<double>(read - shared) / 1e9,
                    .shared = static_cast<double>(shared) / 1e9,
                    .kept = static_cast<double>(weights.bytes) / 1e9};
}

// What `ranks` tensor ranks of one machine read, all at the same time and cold: each its rows
// alone, and together, through the page cache, the columns that are narrower than a sector.
Status LoadSlices(const std::string& dir,
                  const K2Config& config,
                  const std::vector<std::string>& shards,
                  int ranks,
                  bool whole_experts) {
  DropFromCache(shards);
  const int64_t before = DiskBytes();
  const double start = Now();
  std::vector<std::optional<Result<SliceCount>>> counts(static_cast<size_t>(ranks));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      RankShare share;
      share.layout.tensor = ranks;
      share.layout.whole_experts = whole_experts;
      share.place.tensor = rank;
      counts[static_cast<size_t>(rank)] = LoadSlice(dir, config, share);
    });
  }
  threads.clear();  // waits
  const double seconds = Now() - start;
  SliceCount all;
  for (const auto& count : counts) {
    BT_RETURN_IF_ERROR(count->status());
    all.alone += count->value().alone;
    all.kept += count->value().kept;
    all.shared += count->value().shared;
  }
  const double n = ranks;
  fmt::print(
      "{} ranks at once, {}: each reads {:.3f} GB alone and {:.3f} GB with the others, keeps "
      "{:.3f} "
      "GB; the disk read {:.3f} GB, {:.2f} s\n",
      ranks, whole_experts ? "whole experts" : "slices of experts", all.alone / n, all.shared / n,
      all.kept / n, static_cast<double>(DiskBytes() - before) / 1e9, seconds);
  return {};
}

rusage Usage() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage;
}

double PeakGb() {
  return static_cast<double>(Usage().ru_maxrss) * 1024 / 1e9;
}

// Seconds of processors that this program has used.
double ProcessorSeconds() {
  const rusage usage = Usage();
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Status Run(const Options& options) {
  const Folder folder(fmt::format("{}/baltoro-load-bench-{}", options.dir, getpid()));
  const std::string& dir = folder.path();
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) return Status(Code::kUnavailable, dir + ": " + error.message());
  const K2Config config = Shape(options);
  BT_RETURN_IF_ERROR(WriteCheckpoint(dir, config, options.int4));
  const std::vector<std::string> shards = ShardsOf(dir);
  int64_t bytes = 0, model_bytes = 0;
  for (const std::string& path : shards) {
    bytes += static_cast<int64_t>(std::filesystem::file_size(path));
  }
  const double gb = static_cast<double>(bytes) / 1e9;
  fmt::print("{:.2f} GB in {} files, {}, {} experts\n", gb, shards.size(),
             options.int4 ? "INT4 groups" : "BF16", config.experts);
  std::vector<double> reads, loads;
  for (int round = 0; round < options.rounds; ++round) {
    DropFromCache(shards);
    BT_ASSIGN_OR_RETURN(const double read, ReadDirectly(shards));
    reads.push_back(read);
    DropFromCache(shards);
    const double used = ProcessorSeconds();
    BT_ASSIGN_OR_RETURN(const double load, Load(dir, config, model_bytes));
    loads.push_back(load);
    fmt::print(
        "direct read {:.2f} s, {:.2f} GB/s; load {:.2f} s, {:.2f} GB/s ({:.2f} s of processors): "
        "{:.0f} %\n",
        reads.back(), gb / reads.back(), loads.back(), gb / loads.back(), ProcessorSeconds() - used,
        100 * reads.back() / loads.back());
    std::fflush(stdout);
  }
  fmt::print("memory at most {:.2f} GB, the model {:.2f} GB\n", PeakGb(),
             static_cast<double>(model_bytes) / 1e9);
  const auto median = [](std::vector<double> seconds) {
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  };
  fmt::print("median: direct read {:.2f} GB/s, load {:.2f} GB/s: {:.0f} %\n", gb / median(reads),
             gb / median(loads), 100 * median(reads) / median(loads));
  for (const bool whole_experts : {false, true}) {
    if (options.ranks == 0) break;
    BT_RETURN_IF_ERROR(LoadSlices(dir, config, shards, options.ranks, whole_experts));
  }
  if (options.hot) {
    for (const std::string& path : shards) {
      std::vector<char> buffer(kReadBytes);
      const int fd = open(path.c_str(), O_RDONLY);
      while (read(fd, buffer.data(), buffer.size()) > 0) {
      }
      close(fd);
    }
    BT_ASSIGN_OR_RETURN(const double seconds, Load(dir, config, model_bytes));
    fmt::print("from the page cache: load {:.2f} s, {:.2f} GB/s\n", seconds, gb / seconds);
  }
  return {};
}

}  // namespace
}  // namespace baltoro::bench

int main(int argc, char** argv) {
  baltoro::bench::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg.starts_with("--dir=")) {
      options.dir = arg.substr(6);
    } else if (arg.starts_with("--gb=")) {
      options.gb = std::atof(argv[i] + 5);
    } else if (arg == "--form=bf16" || arg == "--form=int4") {
      options.int4 = arg.ends_with("int4");
    } else if (arg.starts_with("--rounds=")) {
      options.rounds = std::max(1, std::atoi(argv[i] + 9));
    } else if (arg == "--hot") {
      options.hot = true;
    } else if (arg.starts_with("--ranks=")) {
      options.ranks = std::atoi(argv[i] + 8);
    } else {
      fmt::print(stderr,
                 "load_bench [--dir=DIR] [--gb=N] [--form=int4|bf16] [--rounds=N] [--hot] "
                 "[--ranks=N]\n");
      return 2;
    }
  }
  const baltoro::Status status = baltoro::bench::Run(options);
  if (status.ok()) return 0;
  fmt::print(stderr, "load_bench: {}\n", status.message());
  return 1;
}
