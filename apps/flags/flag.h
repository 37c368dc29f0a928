#pragma once

// One flag of one subcommand, as a row of plain data. Parsing, --help and docs/flags.md are all
// made from these rows; nothing else in the program knows how a flag is spelled.

#include <limits>
#include <span>
#include <string_view>

namespace baltoro {

enum class ValueKind {
  kBool,         // --x and --no-x, no value
  kSwitch,       // --x, no value
  kInt,          // decimal
  kCount,        // decimal, or with a suffix: 25.6k = 25600, 1K = 1024
  kCountOrAuto,  // kCount, or "auto", which reads as -1
  kFloat,
  kString,       // one of `choices` where these are given
  kStrings,      // one or more words
  kEach,         // one word each time that it is given; all of them hold
  kInts,         // one or more integers
  kJsonObject,   // one JSON object, or dotted parts of it (--x.key value)
  kJsonStrings,  // one JSON list of strings
};

enum class FlagState {
  kWorks,            // has its effect; with `available` set, only for those values
  kNoEffectHere,     // accepted with one line that says why nothing changes
  kRemovedUpstream,  // accepted with one line of warning
  kMoved,            // vLLM has it as `part_of` now, and as that it is taken, with one line
  kNotYet,   // stops the start, unless the value asks for nothing (its default, or `available`)
  kRefused,  // stops the start: it would load somebody's Python
};

// How an engine will run, as far as remarks about flags depend on it.
struct RunFacts {
  bool gpu = false;
  int tensor = 1, pipeline = 1, nodes = 1;
  int node = 0;
  int replicas = 1;         // on all servers
  bool over_nodes = false;  // one door serves the replicas of several nodes
  bool headless = false;
  bool in_process = false;     // the engine is within the door
  bool whole_experts = false;  // --enable-expert-parallel is asked for
  bool kv_bytes = false;       // the size of the cache is asked for
  bool scaled_cache = false;   // its form has a scale a layer
};

// Where a flag changes nothing that does elsewhere.
struct Idle {
  std::string_view where;  // for --help: "where no GPU is used"
  bool (*holds)(const RunFacts& facts);
};

struct FlagSpec {
  std::string_view name = {};     // without dashes: "max-num-seqs"
  std::string_view aliases = {};  // separated by spaces, with dashes: "-tp --old-name"
  ValueKind kind = ValueKind::kString;
  std::string_view initial = {};                          // the default, as shown; empty: none
  std::string_view choices = {};                          // separated by '|'; empty: any value
  std::string_view available = {};                        // separated by '|'; see FlagState
  bool fold_case = false;                                 // the value is lower-cased first
  bool secret = false;                                    // the value must not reach the log
  double min = -std::numeric_limits<double>::infinity();  // of a number, inclusive
  double max = std::numeric_limits<double>::infinity();   // of a number, inclusive
  FlagState state = FlagState::kWorks;
  std::string_view reason = {};  // why no effect, what is missing, what replaces it; for what alone
                                 // it works
  std::string_view instead = {};  // what to do where it is refused; empty: leave it out
  std::string_view part_of = {};  // of kMoved: "eplb-config.window_size", a flag and its key
  const Idle* idle = nullptr;     // goes before the state: no effect where it holds
  std::string_view idle_reason = {};
  std::string_view help = {};  // one sentence
};

// Rows that are shown together; the names are vLLM's configuration groups, and "Baltoro" for ours.
struct FlagGroup {
  std::string_view name;
  std::string_view help;
  std::span<const FlagSpec> flags;
  bool first = false;  // the subcommand's own: --help shows them, however many flags there are
};

inline constexpr std::string_view kOwnGroup = "Baltoro";

}  // namespace baltoro
