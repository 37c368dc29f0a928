#pragma once

// `baltoro doctor`: what a node has, and what is wrong with it.

#include <span>
#include <string>

#include "flags/ending.h"
#include "flags/flag_table.h"

namespace baltoro {

struct DoctorCommand {
  std::string model;  // empty: the machine alone
  bool json = false, sums = false;
  int port = 8000, master_port = 29501, replica_port = 29550;
};

FlagTable DoctorFlags();

Outcome<DoctorCommand> ParseDoctor(std::span<const std::string> args);

}  // namespace baltoro
