#pragma once

// `baltoro pull`: the command line.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "flags/ending.h"
#include "flags/flag_table.h"
#include "flags/hub_places.h"

namespace baltoro {

struct PullLayout {
  bool given = false;  // some flag of it; without, all files are wanted
  int tensor = 1, pipeline = 1;
  bool whole_experts = false, experts_in_turn = false;
  bool balanced_experts = false;  // --enable-eplb
  int redundant_experts = 0;
  int nodes = 1, node = 0;
};

struct PullCommand {
  std::string repo = {};                // "org/name"
  std::vector<std::string> files = {};  // only these; empty: all that the patterns leave
  std::vector<std::string> include = {}, exclude = {};
  std::string revision = {};  // empty: "main", of ModelScope "master"
  bool modelscope = false;
  std::string token = {};      // of the flag; empty: the environment's, else the token file's
  std::string local_dir = {};  // empty: into the cache
  std::string cache_dir = {};  // of the flag; empty: the environment's
  HubPlaces places = {};
  int max_workers = 8;
  int64_t part_bytes = int64_t{256} << 20;
  int retries = 8;
  double retry_wait_s = 1;
  int stall_s = 60;
  bool force = false, dry_run = false, quiet = false;
  PullLayout layout = {};
  std::vector<std::string> notices = {};
};

FlagTable PullFlags();

Outcome<PullCommand> ParsePull(std::span<const std::string> args, const Environment& environment);

}  // namespace baltoro
