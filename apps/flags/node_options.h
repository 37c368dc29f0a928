#pragma once

// Which node of a replica this process is, and where the head is: from flags, from the environment
// of a launcher that starts one process a node (torchrun's variables), or from SLURM. The first of
// these that says so decides alone.

#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "flags/ending.h"

namespace baltoro {

struct NodeOptions {
  int nodes = 1, node = 0;
  std::string master_addr = {};
  int master_port = 29501;
  std::string source = {};  // "the command line", "torchrun", "SLURM"; empty: one node
};

// Which address of this node the others come to, as a variable says.
struct NodeAddress {
  std::string variable = {};  // "GLOO_SOCKET_IFNAME"; empty: none does
  std::string value = {};     // an address, or interfaces
  enum class Kind { kAddress, kInterface, kNcclInterface } kind = Kind::kAddress;
};

// What flags said; -1 and empty: nothing.
struct NodeFlags {
  int nodes = -1, node = -1, master_port = -1;
  std::string master_addr = {};
};

// `ranks`: of the layout. kInvalidArgument names the flag or the variable. A launcher's variables
// count only where there are several ranks to deal out; `notice` then says why they do not.
Result<NodeOptions> FindNodes(const NodeFlags& flags,
                              const Environment& environment,
                              int ranks,
                              std::string& notice);

// kInvalidArgument unless each node gets as many ranks; `source` has named the nodes.
Status CheckDealtOut(int ranks, int nodes, const std::string& source);

// Of "node[01-04,07],other": node01. Empty if the list is not one.
std::string FirstHost(std::string_view hostlist);

// The same server over several nodes: one command each, of these arguments of the program (from
// "serve" on). A secret among them is left out.
std::string NodeCommands(std::span<const std::string> args, int nodes);

}  // namespace baltoro
