#include "doctor/judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace baltoro {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kGib = int64_t{1} << 30;

// A node on which nothing is wrong; each test plants one thing.
NodeFacts Healthy() {
  NodeFacts facts;
  facts.card.device_file = "/dev/nvidia0";
  facts.card.kernel_driver = "580.65.06";
  facts.card.cuda_version = 13000;
  for (int i = 0; i < 2; ++i) {
    facts.card.cards.push_back({.name = "NVIDIA H200",
                                .major = 9,
                                .minor = 0,
                                .memory_bytes = 141 * kGib,
                                .used_bytes = kGib / 2,
                                .processes = {},
                                .uncorrected_errors = 0,
                                .links = 18,
                                .links_up = 18,
                                .fabric = 3});
  }
  facts.card.peers = {true};
  facts.card.cublas = {.name = "libcublasLt.so.13", .version = "13.1.0", .reason = ""};
  facts.card.rates = {.read_gb_per_s = {4610, 4590}, .sum_us = {2.4, 7.4}, .problem = ""};
  facts.card.nccl = {.name = "libnccl.so.2", .version = "2.27.3", .reason = ""};
  facts.host = {.cpu = "Xeon",
                .isa = "amx",
                .cpu_use = {.threads = 96, .cores = 96, .cpus = 192},
                .memory_bytes = 2048 * kGib,
                .available_bytes = 2000 * kGib,
                .memlock_bytes = INT64_MAX,
                .shm_bytes = 1024 * kGib,
                .shm_free_bytes = 1024 * kGib,
                .files_soft = 65536,
                .files_hard = 1048576,
                .huge_pages = "always",
                .read_gb_per_s = 400,
                .clock_known = true,
                .clock_synced = true,
                .clock_error_s = 0.01};
  facts.net.ports = {{.port = 8000, .use = "clients", .flag = "--port"},
                     {.port = 29501, .use = "nodes that meet", .flag = "--master-port"},
                     {.port = 29550, .use = "replicas", .flag = "--data-parallel-rpc-port"}};
  facts.net.interfaces = {{.name = "eth0",
                           .addresses = {"10.0.0.1"},
                           .loopback = false,
                           .up = true,
                           .megabits = 100000}};
  facts.net.rdma = {"mlx5_0 ACTIVE 400 Gb/sec"};
  facts.net.first_free_port = 32768;
  facts.net.last_free_port = 60999;
  facts.model.asked = facts.model.dir = "/models/k2";
  facts.model.files = 64;
  facts.model.bytes = 595'000'000'000;
  facts.model.disk_gb_per_s = 6;
  facts.model.disk_bytes = 4'000'000'000;
  facts.model.sums_asked = true;
  facts.model.sums_right = 70;
  return facts;
}

DoctorLine LineOf(const NodeFacts& facts, const std::string& name) {
  const std::vector<DoctorLine> lines = Judge(facts);
  const auto found =
      std::ranges::find_if(lines, [&](const DoctorLine& line) { return line.name == name; });
  return found == lines.end() ? DoctorLine{.name = "no such line"} : *found;
}

// The line of this name has this verdict, text and remedy; all others are as on a healthy node.
void Expect(const NodeFacts& facts,
            const std::string& name,
            DoctorVerdict verdict,
            const std::string& text,
            const std::string& remedy) {
  const DoctorLine line = LineOf(facts, name);
  EXPECT_EQ(line.verdict, verdict) << name << ": " << line.text;
  EXPECT_THAT(line.text, HasSubstr(text));
  EXPECT_THAT(line.remedy, HasSubstr(remedy));
  for (const DoctorLine& other : Judge(facts)) {
    if (other.name != name) {
      EXPECT_EQ(other.verdict, DoctorVerdict::kOk) << other.name << ": " << other.text;
    }
    EXPECT_EQ(other.verdict == DoctorVerdict::kOk, other.remedy.empty()) << other.name;
  }
}

TEST(DoctorTest, AHealthyNodeHasNothingToMend) {
  const std::vector<DoctorLine> lines = Judge(Healthy());
  EXPECT_EQ(WorstOf(lines), DoctorVerdict::kOk);
  EXPECT_THAT(DoctorText(lines), HasSubstr("Nothing is wrong."));
  for (const DoctorLine& line : lines) EXPECT_EQ(line.remedy, "") << line.name;
}

TEST(DoctorTest, WithoutADriverTheCpuComputes) {
  NodeFacts facts = Healthy();
  facts.card = {};
  Expect(facts, "driver", DoctorVerdict::kOk, "no NVIDIA driver; the CPU will compute", "");
  facts.card.pci = "0000:1b:00.0";
  facts.card.driver_problem = "Driver/library version mismatch";
  Expect(facts, "driver", DoctorVerdict::kBroken, "PCI 0000:1b:00.0", "docker run --gpus all");
  Expect(facts, "driver", DoctorVerdict::kBroken, "version mismatch", "--device cpu");
  facts.card.unwanted = true;
  Expect(facts, "driver", DoctorVerdict::kOk, "the CPU will compute", "");
}

TEST(DoctorTest, AnOldDriverIsNamedWithTheForwardCompatibilityPackage) {
  NodeFacts facts = Healthy();
  facts.card.kernel_driver = "550.54.15";
  facts.card.cuda_version = 12040;
  Expect(facts, "driver", DoctorVerdict::kBroken,
         "NVIDIA 550.54.15: the NVIDIA driver has CUDA 12.4, and CUDA 13.0 is needed",
         "cuda-compat-13-0");
  facts.card.cuda_version = 13000;
  Expect(facts, "driver", DoctorVerdict::kOk, "by the forward-compatibility package", "");
}

TEST(DoctorTest, CardsThatCannotBeUsedAreBroken) {
  NodeFacts facts = Healthy();
  facts.card.cards[1].major = 8;
  Expect(facts, "GPU 1", DoctorVerdict::kBroken, "compute capability is 8.0", "H100");
  facts = Healthy();
  facts.card.cards[0].prohibited = true;
  Expect(facts, "GPU 0", DoctorVerdict::kBroken, "prohibited", "nvidia-smi -c DEFAULT");
  facts = Healthy();
  facts.card.cards[0].fabric = 2;
  Expect(facts, "GPU 0", DoctorVerdict::kBroken, "fabric", "nvidia-fabricmanager");
  facts.card.cards.pop_back();
  facts.card.peers.clear();
  Expect(facts, "GPU 0", DoctorVerdict::kWarning, "fabric", "nvidia-fabricmanager");
  facts = Healthy();
  facts.card.cards.clear();
  facts.card.driver_problem = "Unknown Error";
  EXPECT_EQ(LineOf(facts, "GPU").verdict, DoctorVerdict::kBroken);
  EXPECT_THAT(LineOf(facts, "GPU").text, HasSubstr("no card: Unknown Error"));
  facts = Healthy();
  facts.card.unwanted = true;
  facts.card.module_problem = "not there";
  Expect(facts, "GPU", DoctorVerdict::kOk, "CUDA_VISIBLE_DEVICES names none", "");
}

TEST(DoctorTest, WhoHoldsACardIsNamed) {
  NodeFacts facts = Healthy();
  facts.card.cards[0].used_bytes = 80 * kGib;
  facts.card.cards[0].processes = {{.pid = 4711, .name = "python3", .bytes = 79 * kGib}};
  Expect(facts, "GPU 0", DoctorVerdict::kWarning, "held by python3 (pid 4711) 79.0 GiB",
         "CUDA_VISIBLE_DEVICES");
  facts.card.cards[0].processes.clear();
  Expect(facts, "GPU 0", DoctorVerdict::kWarning, "who cannot be seen from here", "end them");
  facts = Healthy();
  facts.card.cards[0].mig = true;
  Expect(facts, "GPU 0", DoctorVerdict::kWarning, "MIG", "nvidia-smi -mig 0");
  facts = Healthy();
  facts.card.cards[0].uncorrected_errors = 3;
  Expect(facts, "GPU 0", DoctorVerdict::kWarning, "3 uncorrected errors", "replace");
  facts = Healthy();
  facts.card.cards[1].links_up = 12;
  Expect(facts, "GPU 1", DoctorVerdict::kWarning, "12 of 18 NVLinks", "nvlink -s");
}

TEST(DoctorTest, CardsThatDoNotReachEachOtherNeedNccl) {
  NodeFacts facts = Healthy();
  facts.card.peers = {false};
  Expect(facts, "peer access", DoctorVerdict::kWarning,
         "1 pairs of GPUs do not read each other's memory (0-1)", "-pp");
  facts.card.nccl = {.name = "libnccl.so.2", .version = "", .reason = "not there"};
  EXPECT_EQ(LineOf(facts, "NCCL").verdict, DoctorVerdict::kBroken);
  facts.card.peers = {true};
  Expect(facts, "NCCL", DoctorVerdict::kOk, "over nodes alone", "");
  for (CardReport& card : facts.card.cards) card.links = card.links_up = -1;
  Expect(facts, "peer access", DoctorVerdict::kWarning, "over PCIe alone", "-pp instead of -tp");
}

TEST(DoctorTest, SlowCardsAndSlowSumsAreTold) {
  NodeFacts facts = Healthy();
  facts.card.rates.read_gb_per_s[1] = 3900;
  Expect(facts, "GPU memory", DoctorVerdict::kWarning,
         "2 GPUs read 3900 to 4610 GB/s, such a card 4600", "-q -d CLOCK");
  facts = Healthy();
  facts.card.rates.sum_us = {2.4, 40};
  Expect(facts, "sums of GPUs", DoctorVerdict::kWarning,
         "1 row of 7168 in 2.4 us, 64 rows in 40.0 us; with NVLink 2.3 and 7.5", "topo -m");
  facts.card.rates.sum_us = {-1, -1};
  facts.card.rates.problem = "GPU 1: no way";
  Expect(facts, "sums of GPUs", DoctorVerdict::kBroken, "cannot add up what they have: GPU 1",
         "peer access");
  facts = Healthy();
  facts.card.rates = {};
  EXPECT_EQ(LineOf(facts, "GPU memory").name, "no such line");
  facts.card.rates.problem = "not measured: a GPU is held";
  Expect(facts, "GPU memory", DoctorVerdict::kOk, "a GPU is held", "");
}

TEST(DoctorTest, WhatTheModuleNeedsIsNamed) {
  NodeFacts facts = Healthy();
  facts.card.module_problem = "there is no libbaltoro_cuda.so";
  Expect(facts, "CUDA module", DoctorVerdict::kBroken, "there is no libbaltoro_cuda.so", "nvcc");
  facts = Healthy();
  facts.card.cublas.version.clear();
  facts.card.cublas.reason = "cannot open shared object file";
  Expect(facts, "cuBLASLt", DoctorVerdict::kBroken, "cannot open shared object file",
         "LD_LIBRARY_PATH");
}

TEST(DoctorTest, LimitsOfTheHost) {
  NodeFacts facts = Healthy();
  facts.host.isa.clear();
  Expect(facts, "CPU", DoctorVerdict::kBroken, "without AVX2", "host-passthrough");
  facts = Healthy();
  Expect(facts, "CPU", DoctorVerdict::kOk, "Xeon: amx, 96 threads on 96 cores", "");
  facts.host.cpu_use.quota = 4;
  Expect(facts, "CPU", DoctorVerdict::kWarning, "pays for 4 of 192 CPUs", "limits.cpu");
  facts = Healthy();
  facts.host.cpu_use.memory = {.nodes = {0, 1}, .problem = "mbind: Operation not permitted"};
  Expect(facts, "CPU", DoctorVerdict::kOk, "not interleaved", "");  // GPUs compute here
  const DoctorLine line = JudgeHost(facts.host, /*cards=*/0).front();
  EXPECT_EQ(line.verdict, DoctorVerdict::kWarning);
  EXPECT_THAT(line.remedy, HasSubstr("SYS_NICE"));
  facts = Healthy();
  facts.host.available_bytes = kGib;
  facts.host.group_limit_bytes = kGib;
  Expect(facts, "memory", DoctorVerdict::kWarning, "the control group allows 1.0 GiB",
         "raise the limit");
  facts = Healthy();
  facts.host.read_gb_per_s = 1.5;
  Expect(facts, "memory rate", DoctorVerdict::kWarning, "1.5 GB/s", "other programs");
  facts = Healthy();
  facts.host.memlock_bytes = 65536;
  Expect(facts, "memlock", DoctorVerdict::kWarning, "64 KiB", "ulimit -l unlimited");
  facts = Healthy();
  facts.host.shm_bytes = facts.host.shm_free_bytes = int64_t{64} << 20;
  Expect(facts, "shared memory", DoctorVerdict::kWarning, "64 MiB", "--shm-size");
  facts.host.shm_bytes = -1;
  Expect(facts, "shared memory", DoctorVerdict::kWarning, "no /dev/shm", "tmpfs");
  facts = Healthy();
  facts.host.files_soft = 1024;
  Expect(facts, "open files", DoctorVerdict::kWarning, "1024", "ulimit -n 65536");
  facts = Healthy();
  facts.host.huge_pages = "never";
  Expect(facts, "huge pages", DoctorVerdict::kWarning, "never", "madvise");
  facts = Healthy();
  facts.host.clock_synced = false;
  Expect(facts, "clock", DoctorVerdict::kWarning, "not synchronised", "chrony");
  facts.host.clock_known = false;
  Expect(facts, "clock", DoctorVerdict::kOk, "cannot be seen", "");
}

TEST(DoctorTest, PortsAndInterfaces) {
  NodeFacts facts = Healthy();
  facts.net.ports[0].problem = "Address already in use";
  Expect(facts, "port 8000", DoctorVerdict::kWarning, "Address already in use", "--port");
  facts = Healthy();
  facts.net.ports[1].problem = "Address already in use";
  Expect(facts, "port 29501", DoctorVerdict::kWarning, "nodes that meet", "--master-port");
  facts = Healthy();
  facts.net.ports[2].problem = "Address already in use";
  Expect(facts, "port 29550", DoctorVerdict::kWarning, "replicas", "--data-parallel-rpc-port");
  facts = Healthy();
  facts.net.last_free_port = facts.net.first_free_port + 9;
  Expect(facts, "ports of ranks", DoctorVerdict::kWarning, "32768 to 32777", "ip_local_port_range");
  facts = Healthy();
  facts.net.interfaces[0].up = false;
  Expect(facts, "network", DoctorVerdict::kWarning, "no interface but loopback", "this machine");
  facts = Healthy();
  facts.net.rdma = {"mlx5_0 DOWN 40 Gb/sec"};
  Expect(facts, "RDMA", DoctorVerdict::kWarning, "DOWN", "cables");
}

TEST(DoctorTest, TheModelsFiles) {
  NodeFacts facts = Healthy();
  facts.model.missing = "org/name: no directory of this name";
  Expect(facts, "model", DoctorVerdict::kBroken, "no directory of this name", "baltoro pull");
  facts = Healthy();
  facts.model.problems.assign(10, "model-1.safetensors: cut short");
  Expect(facts, "weights", DoctorVerdict::kBroken, "and 2 more", "baltoro pull");
  facts = Healthy();
  facts.model.elsewhere = 31;
  Expect(facts, "weights", DoctorVerdict::kOk, "of 31 of them the header alone", "");
  facts = Healthy();
  facts.model.config_problem = "config.json: no such file";
  Expect(facts, "config.json", DoctorVerdict::kBroken, "no such file", "baltoro pull");
  facts = Healthy();
  facts.model.sums_wrong = {{.file = "a.safetensors", .wanted = "aa", .found = "bb"}};
  Expect(facts, "sums", DoctorVerdict::kBroken,
         "1 of 71 files differ: a.safetensors has the sum bb", "remove them");
  facts = Healthy();
  facts.model.sums_unknown = 3;
  Expect(facts, "sums", DoctorVerdict::kWarning, "of 3 no download left a sum", "--local-dir");
  facts = Healthy();
  facts.model.disk_gb_per_s = 0.5;
  Expect(facts, "disk", DoctorVerdict::kWarning, "all weights in 1190 s", "NVMe");
  facts.model.disk_gb_per_s = -1;
  facts.model.disk_problem = "/m/a: it cannot be read";
  Expect(facts, "disk", DoctorVerdict::kOk, "not measured: /m/a: it cannot be read", "");
  facts.model.asked.clear();
  EXPECT_EQ(LineOf(facts, "disk").name, "no such line");
}

TEST(DoctorTest, TextAndJsonSayTheSame) {
  NodeFacts facts = Healthy();
  facts.host.files_soft = 1024;
  facts.card.cublas.version.clear();
  const std::vector<DoctorLine> lines = Judge(facts);
  const Json json = DoctorJson(lines);
  const std::string text = DoctorText(lines);

  EXPECT_EQ(json["verdict"], "broken");
  ASSERT_EQ(json["checks"].size(), lines.size());
  for (const Json& check : json["checks"]) {
    EXPECT_THAT(text, HasSubstr(check["text"].get<std::string>()));
    EXPECT_THAT(text, HasSubstr(check.value("remedy", "")));
  }
  EXPECT_THAT(text, HasSubstr("1 broken, 1 warning."));
}

}  // namespace
}  // namespace baltoro
