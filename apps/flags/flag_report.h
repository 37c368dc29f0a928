#pragma once

// What becomes of every flag that was given: one entry each, made of the lines that the program
// prints about flags, so that the two cannot differ.

#include <string>
#include <vector>

#include "base/json.h"

namespace baltoro {

enum class FlagFate {
  kInForce,   // no line speaks of it
  kTakenAs,   // in force, but not as it was given
  kNoEffect,  // changes nothing here, or was removed from vLLM
  kRefused,   // stops the start
};

struct FlagEntry {
  std::string flag;  // as given: "--max-num-seqs 8"
  FlagFate fate = FlagFate::kInForce;
  std::string why = {};  // the line about it, without its name; empty where it is in force
};

// `given`, `notices` and `refusals` as in Availability (flags/availability.h), each line beginning
// with the flag that it is about.
std::vector<FlagEntry> ReportFlags(const std::vector<std::string>& given,
                                   const std::vector<std::string>& notices,
                                   const std::vector<std::string>& refusals);

// "  in force   --max-num-seqs 8", a line for each.
std::string FlagReportText(const std::vector<FlagEntry>& entries);
// [{"flag": "--max-num-seqs 8", "state": "in force"}, ...], with "why" where there is one.
Json FlagReportJson(const std::vector<FlagEntry>& entries);
// For the log: "--max-num-seqs 8, --seed 1"; "none" where no flag is in force.
std::string FlagsInForce(const std::vector<FlagEntry>& entries);

}  // namespace baltoro
