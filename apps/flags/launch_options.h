#pragma once

// `baltoro launch`: the command line.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "flags/ending.h"
#include "flags/flag_table.h"

namespace baltoro {

struct LaunchCommand {
  int32_t ranks = 1;         // of all nodes
  int32_t first = 0;         // the first one of this node
  int32_t here = 1;          // that this node starts
  int32_t devices = 1;       // of each
  int32_t first_device = 0;  // of this node's first rank
  std::string address = {};  // of the head node
  int32_t rpc_port = 12345;
  int32_t first_port = 9000;            // of this node's first server; the others follow
  std::string template_file = {};       // a shell script; empty: `serve` is what is started
  std::vector<std::string> serve = {};  // its arguments, where there is no template
  std::string log_dir = {};             // empty: standard error
};

FlagTable LaunchFlags();

// `args` are what follows the subcommand. Whether the template is there is not asked.
Outcome<LaunchCommand> ParseLaunch(std::span<const std::string> args);

// What the template of `rank`, counted from 0 on this node, is given: its devices, its port, the
// number of ranks, its own number, the head's address and port, and tensor ranks.
std::vector<std::string> TemplateArguments(const LaunchCommand& command,
                                           int32_t rank,
                                           const std::string& devices);

// The arguments of the program for a server without a template, from "serve" on.
std::vector<std::string> ServeArguments(const LaunchCommand& command, int32_t rank);

}  // namespace baltoro
