#include "engine/nvidia_card.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace baltoro {
namespace {

namespace fs = std::filesystem;

std::string FirstWord(const fs::path& file) {
  const Result<std::string> text = ReadFile(file.string());
  if (!text.ok()) return "";
  return text.value().substr(0, text.value().find_first_of(" \n"));
}

std::vector<fs::path> Entries(const fs::path& dir) {
  std::vector<fs::path> out;
  std::error_code error;
  for (fs::directory_iterator at(dir, error), end; !error && at != end; at.increment(error)) {
    out.push_back(at->path());
  }
  std::ranges::sort(out);
  return out;
}

// nvidia0, nvidia1, ...; nvidiactl and nvidia-uvm are there without a card too.
bool IsCardFile(const std::string& name) {
  constexpr std::string_view kPrefix = "nvidia";
  return name.size() > kPrefix.size() && name.starts_with(kPrefix) &&
         name.find_first_not_of("0123456789", kPrefix.size()) == std::string::npos;
}

// A display or 3D controller of NVIDIA, not the sound or the USB of one.
bool IsCardOnBus(const fs::path& device) {
  return FirstWord(device / "vendor") == "0x10de" &&
         FirstWord(device / "class").starts_with("0x03");
}

}  // namespace

CardFacts LookForCard(const std::string& root, const char* visible) {
  CardFacts facts;
  if (visible != nullptr) {
    const std::string_view named = visible;
    facts.unwanted = named.empty() || named.starts_with('-') || named == "NoDevFiles";
  }
  for (const fs::path& file : Entries(fs::path(root) / "dev")) {
    if (!IsCardFile(file.filename().string())) continue;
    facts.device_file = "/dev/" + file.filename().string();
    break;
  }
  for (const fs::path& device : Entries(fs::path(root) / "sys/bus/pci/devices")) {
    if (!IsCardOnBus(device)) continue;
    facts.pci = device.filename().string();
    break;
  }
  return facts;
}

Status CheckCpuIsMeant(const CardFacts& card, const Status& why) {
  if (card.unwanted || (card.device_file.empty() && card.pci.empty())) return {};
  std::string text;
  if (!card.device_file.empty()) {
    text = fmt::format("this machine has an NVIDIA card ({}) that cannot be used: {}",
                       card.device_file, why.message());
  } else {
    text = fmt::format(
        "this machine has an NVIDIA card (PCI {}), but no /dev/nvidia0: load its driver, or start "
        "this container with the card (docker run --gpus all). What was tried: {}",
        card.pci, why.message());
  }
  return Status(Code::kUnavailable, fmt::format("--device auto: {}. To compute on the CPU "
                                                "nevertheless, give --device cpu",
                                                text));
}

}  // namespace baltoro
