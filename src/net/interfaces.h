#pragma once

// The network interfaces of this machine, and which one a variable of a launcher means.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace baltoro {

// One address of an interface that is up.
struct InterfaceAddress {
  std::string name;     // "eth0"
  std::string address;  // "10.0.0.2", "fd00::2"
  bool six = false;     // of IPv6; those of one link alone (fe80::) are left out
  bool loopback = false;
  bool running = false;  // a cable is in, as far as the driver can tell
};

// In the order of the system. Empty where it does not say.
std::vector<InterfaceAddress> InterfaceAddresses();

// How a variable spells interfaces.
enum class InterfaceNames {
  kWhole,   // "eth0,eth1": whole names, of which the first that is there counts
  kPrefix,  // NCCL's: beginnings of names; "=eth0" is a whole one, "^docker,lo" all but these
};

// The address of the interface that `wish` names; of IPv6 where `six`, or where it has no other.
// kInvalidArgument with the names of `there`.
Result<InterfaceAddress> ChooseInterface(std::string_view wish,
                                         InterfaceNames names,
                                         bool six,
                                         std::span<const InterfaceAddress> there);

// kInvalidArgument, with what there is, unless an interface of `there` has this address.
Status CheckOwnAddress(std::string_view address, std::span<const InterfaceAddress> there);

}  // namespace baltoro
