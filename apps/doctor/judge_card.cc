#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "doctor/judge.h"
#include "engine/nvidia_driver.h"

namespace baltoro {
namespace {

constexpr double kGib = 1024.0 * 1024 * 1024;
// What cards read from their own memory with our kernels, GB/s (docs/measured/cuda-step.md); others
// are not known.
struct KnownRate {
  std::string_view name;  // a part of the card's
  double read_gb_per_s;
};
constexpr KnownRate kKnownRates[] = {{"H200", 4600}, {"H100 80GB HBM3", 3100}};
// Sums of 1 and 64 rows over so many GPUs with NVLink, us (docs/measured/cuda-collectives.md).
struct KnownSum {
  int gpus;
  std::array<double, 2> us;
};
constexpr KnownSum kKnownSums[] = {{2, {2.3, 7.5}}, {4, {2.9, 7.5}}};
constexpr double kSlowRead = 0.9, kSlowSum = 1.5;  // against what is known

int MajorOf(const std::string& version) {
  int major = -1;
  std::from_chars(version.data(), version.data() + version.size(), major);
  return major;
}

DoctorLine JudgeDriver(const CardFactsOfNode& facts) {
  DoctorLine line{.name = "driver"};
  const bool has_card = !facts.device_file.empty() || !facts.pci.empty() || !facts.cards.empty();
  if (facts.kernel_driver.empty()) {
    line.text = "no NVIDIA driver; the CPU will compute";
    if (!has_card || facts.unwanted) return line;
    line.verdict = DoctorVerdict::kBroken;
    line.text = fmt::format("there is an NVIDIA card ({}), but its driver does not answer{}",
                            facts.device_file.empty() ? "PCI " + facts.pci : facts.device_file,
                            facts.driver_problem.empty() ? "" : ": " + facts.driver_problem);
    line.remedy =
        "load the driver (nvidia-smi shows the same), start the container with the card (docker "
        "run "
        "--gpus all), or give serve --device cpu";
    return line;
  }
  if (const std::optional<DriverFault> fault = JudgeCudaVersion(facts.cuda_version)) {
    line.verdict = DoctorVerdict::kBroken;
    line.text = fmt::format("NVIDIA {}: {}", facts.kernel_driver, fault->what);
    line.remedy = fault->remedy;
    return line;
  }
  line.text =
      fmt::format("NVIDIA {}, CUDA {}", facts.kernel_driver, CudaVersionText(facts.cuda_version));
  if (MajorOf(facts.kernel_driver) < kDriverWanted) {
    line.text += ", by the forward-compatibility package";
  }
  return line;
}

DoctorLine JudgeLibrary(const char* name,
                        const LibraryReport& library,
                        DoctorVerdict without,
                        const std::string& what,
                        const std::string& remedy) {
  DoctorLine line{.name = name, .text = fmt::format("{} {}", library.name, library.version)};
  if (!library.version.empty()) return line;
  line.verdict = without;
  line.text = fmt::format("{} is not found ({}); {}", library.name, library.reason, what);
  line.remedy = remedy;
  return line;
}

std::string Held(const CardReport& card) {
  std::vector<std::string> who;
  for (const CardProcess& process : card.processes) {
    who.push_back(fmt::format(
        "{} (pid {}){}", process.name.empty() ? "a process" : process.name, process.pid,
        process.bytes < 0 ? ""
                          : fmt::format(" {:.1f} GiB", static_cast<double>(process.bytes) / kGib)));
  }
  if (who.empty()) return "somebody who cannot be seen from here";
  return fmt::format("{}", fmt::join(who, ", "));
}

DoctorLine JudgeCard(size_t index, const CardReport& card, bool alone) {
  DoctorLine line{.name = fmt::format("GPU {}", index)};
  line.text = fmt::format("{}, {:.1f} GiB, {:.1f} GiB in use", card.name,
                          static_cast<double>(card.memory_bytes) / kGib,
                          static_cast<double>(card.used_bytes) / kGib);
  const auto say = [&](DoctorVerdict verdict, std::string_view what, std::string_view remedy) {
    line.text += fmt::format("; {}", what);
    line.remedy += fmt::format("{}{}", line.remedy.empty() ? "" : "; ", remedy);
    line.verdict = std::max(line.verdict, verdict);
  };
  if (card.major != 9 || card.minor != 0) {
    say(DoctorVerdict::kBroken,
        fmt::format("its compute capability is {}.{}, the kernels are for 9.0", card.major,
                    card.minor),
        "take an H100, H200, H800 or H20, or serve --device cpu");
  }
  if (card.prohibited) {
    say(DoctorVerdict::kBroken, "its compute mode is prohibited", "nvidia-smi -c DEFAULT");
  }
  if (card.mig) {
    say(DoctorVerdict::kWarning, "it is divided (MIG), and an engine gets one instance",
        "nvidia-smi -mig 0 gives the whole card");
  }
  if (card.uncorrected_errors > 0) {
    say(DoctorVerdict::kWarning,
        fmt::format("{} uncorrected errors of its memory", card.uncorrected_errors),
        "reset or replace the card");
  }
  const bool held = card.used_bytes > kCardBytesOfNobody || !card.processes.empty();
  if (held) {
    say(DoctorVerdict::kWarning, "held by " + Held(card),
        "end them, choose another card by CUDA_VISIBLE_DEVICES, or lower --gpu-memory-utilization");
  }
  if (card.fabric == 1 || card.fabric == 2) {
    // A card that was given to a virtual machine alone may say so for ever, and compute.
    say(alone ? DoctorVerdict::kWarning : DoctorVerdict::kBroken, "its NVLink fabric is not ready",
        "start nvidia-fabricmanager, of the driver's version");
  }
  if (card.links > 0 && card.links_up < card.links) {
    say(DoctorVerdict::kWarning, fmt::format("{} of {} NVLinks are up", card.links_up, card.links),
        "nvidia-smi nvlink -s names them; the driver's log (dmesg) says why");
  }
  return line;
}

DoctorLine JudgePeers(const CardFactsOfNode& facts) {
  DoctorLine line{.name = "peer access"};
  std::vector<std::string> apart;
  size_t pair = 0, linked = 0;
  for (size_t i = 0; i < facts.cards.size(); ++i) {
    linked += facts.cards[i].links_up > 0 ? 1 : 0;
    for (size_t j = i + 1; j < facts.cards.size(); ++j, ++pair) {
      if (pair >= facts.peers.size() || !facts.peers[pair])
        apart.push_back(fmt::format("{}-{}", i, j));
    }
  }
  if (apart.empty() && linked == facts.cards.size()) {
    line.text =
        fmt::format("all {} GPUs read each other's memory, with NVLink", facts.cards.size());
    return line;
  }
  line.verdict = DoctorVerdict::kWarning;
  if (apart.empty()) {
    line.text = "all GPUs read each other's memory, over PCIe alone";
    line.remedy = "tensor ranks exchange twice a layer: cards with NVLink, or -pp instead of -tp";
    return line;
  }
  constexpr size_t kShown = 8;
  const size_t all = apart.size();
  if (all > kShown) apart.resize(kShown);
  line.text = fmt::format("{} pairs of GPUs do not read each other's memory ({}{}): NCCL is needed",
                          all, fmt::join(apart, ", "), all > kShown ? ", ..." : "");
  line.remedy =
      "in a virtual machine or container, give all cards of a node together; switch ACS off in the "
      "firmware; or -pp instead of -tp";
  return line;
}

DoctorLine JudgeReads(const CardFactsOfNode& facts) {
  DoctorLine line{.name = "GPU memory"};
  const std::vector<double>& rates = facts.rates.read_gb_per_s;
  if (rates.empty()) {
    line.text = facts.rates.problem;
    return line;
  }
  const auto [least, most] = std::ranges::minmax(rates);
  line.text = rates.size() == 1
                  ? fmt::format("reads {:.0f} GB/s", least)
                  : fmt::format("{} GPUs read {:.0f} to {:.0f} GB/s", rates.size(), least, most);
  for (const KnownRate& known : kKnownRates) {
    if (facts.cards.front().name.find(known.name) == std::string::npos) continue;
    line.text += fmt::format(", such a card {:.0f}", known.read_gb_per_s);
    if (least >= kSlowRead * known.read_gb_per_s) break;
    line.verdict = DoctorVerdict::kWarning;
    line.remedy =
        "nvidia-smi -q -d CLOCK,PERFORMANCE,POWER says what holds it back (heat, a power cap, "
        "locked clocks); nvidia-smi -rmc unlocks the memory's clock";
  }
  return line;
}

DoctorLine JudgeSums(const CardFactsOfNode& facts) {
  const size_t gpus = facts.rates.read_gb_per_s.size();
  const std::array<double, 2>& us = facts.rates.sum_us;
  DoctorLine line{.name = "sums of GPUs"};
  if (us[0] < 0 || us[1] < 0) {
    line.verdict = DoctorVerdict::kBroken;
    line.text = fmt::format("{} GPUs cannot add up what they have: {}", gpus, facts.rates.problem);
    line.remedy = "what peer access, NCCL and the cards' lines above say; dmesg names a bad link";
    return line;
  }
  line.text = fmt::format("{} GPUs add up 1 row of 7168 in {:.1f} us, {} rows in {:.1f} us", gpus,
                          us[0], CardRates::kRows[1], us[1]);
  for (const KnownSum& known : kKnownSums) {
    if (known.gpus != static_cast<int>(gpus)) continue;
    line.text += fmt::format("; with NVLink {:.1f} and {:.1f}", known.us[0], known.us[1]);
    if (us[0] <= kSlowSum * known.us[0] && us[1] <= kSlowSum * known.us[1]) break;
    line.verdict = DoctorVerdict::kWarning;
    line.remedy =
        "a step has two sums a layer: nvidia-smi nvlink -s for the links, nvidia-smi topo -m for "
        "the way between cards; or -pp instead of -tp";
  }
  return line;
}

}  // namespace

std::vector<DoctorLine> JudgeCards(const CardFactsOfNode& facts) {
  std::vector<DoctorLine> lines = {JudgeDriver(facts)};
  if (facts.kernel_driver.empty()) return lines;
  if (facts.cards.empty() || facts.unwanted) {
    lines.push_back(
        {.name = "GPU",
         .verdict = facts.unwanted ? DoctorVerdict::kOk : DoctorVerdict::kBroken,
         .text = facts.unwanted ? "CUDA_VISIBLE_DEVICES names none; the CPU will compute"
                                : "the driver shows no card" + (facts.driver_problem.empty()
                                                                    ? std::string()
                                                                    : ": " + facts.driver_problem),
         .remedy = facts.unwanted ? "" : "nvidia-smi -L; start the container with the card"});
    return lines;
  }
  for (size_t i = 0; i < facts.cards.size(); ++i) {
    lines.push_back(JudgeCard(i, facts.cards[i], facts.cards.size() == 1));
  }
  if (facts.cards.size() > 1) lines.push_back(JudgePeers(facts));
  DoctorLine module{.name = "CUDA module", .text = "of this version"};
  if (!facts.module_problem.empty()) {
    module.verdict = DoctorVerdict::kBroken;
    module.text = facts.module_problem;
    module.remedy =
        "build it where nvcc is (ninja baltoro_cuda_module), or name it in BALTORO_CUDA_MODULE";
  }
  lines.push_back(module);
  lines.push_back(JudgeLibrary("cuBLASLt", facts.cublas, DoctorVerdict::kBroken,
                               "the CUDA module needs it",
                               "install the CUDA 13.0 runtime libraries (libcublas-13-0), or put "
                               "their folder into LD_LIBRARY_PATH"));
  bool apart = false;
  for (const bool peer : facts.peers) apart = apart || !peer;
  lines.push_back(JudgeLibrary(
      "NCCL", facts.nccl, apart ? DoctorVerdict::kBroken : DoctorVerdict::kOk,
      apart ? "GPUs that do not reach each other need it" : "it is needed over nodes alone",
      apart ? "install libnccl2, or name the file in BALTORO_NCCL" : ""));
  if (!facts.rates.read_gb_per_s.empty() || !facts.rates.problem.empty()) {
    lines.push_back(JudgeReads(facts));
  }
  if (facts.rates.read_gb_per_s.size() > 1) lines.push_back(JudgeSums(facts));
  return lines;
}

}  // namespace baltoro
