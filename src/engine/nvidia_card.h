#pragma once

// What shows that a machine has an NVIDIA card where CUDA cannot say so: no module, no driver, or
// one that does not start.

#include <string>

#include "base/status.h"

namespace baltoro {

struct CardFacts {
  std::string device_file;  // "/dev/nvidia0": a card that the driver gives to this process
  std::string pci;          // "0000:1b:00.0": one that lies on the bus
  bool unwanted = false;    // CUDA_VISIBLE_DEVICES is there and names none
};

// `root` is "/", but for tests; `visible` is CUDA_VISIBLE_DEVICES, null where it is not set.
CardFacts LookForCard(const std::string& root, const char* visible);

// Whether --device auto may take the CPU, though no GPU can be used for the reason `why`: where
// there is no card, or none is wanted. Else kUnavailable, with the reason and what to do: who has a
// card and starts a server means the card. A card on the bus without a device file counts, in a
// container too, which was then started without it.
Status CheckCpuIsMeant(const CardFacts& card, const Status& why);

}  // namespace baltoro
