#pragma once

// The flags of one subcommand, and how a spelling on a command line finds its row.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "flags/flag.h"

namespace baltoro {

struct FlagMatch {
  const FlagSpec* spec = nullptr;
  bool negated = false;  // found as --no-x
  std::string spelling;  // in full, with dashes
};

class FlagTable {
 public:
  // The groups' rows must outlive the table. Two rows with one spelling are a bug of ours.
  FlagTable(std::string command, std::string usage, std::vector<FlagGroup> groups);

  // `option` with its dashes, underscores already turned: an exact spelling, or the beginning of
  // exactly one. Flags that upstream lacks (ours, removed ones) never make ambiguous what is unique
  // there. The error says what was meant, where that can be guessed.
  Result<FlagMatch> Find(std::string_view option) const;

  // Whether `option` is a spelling, or the beginning of at least one.
  bool Knows(std::string_view option) const;

  const FlagSpec* Get(std::string_view name) const;  // nullptr when there is none

  const std::string& command() const { return command_; }  // "baltoro serve"
  const std::string& usage() const { return usage_; }      // "[MODEL] [options]"
  const std::vector<FlagGroup>& groups() const { return groups_; }

 private:
  struct Spelling {
    const FlagSpec* spec;
    bool negated;
    bool upstream;  // vLLM has it today
  };
  void Add(std::string spelling, Spelling meaning);
  std::string NearMiss(std::string_view option) const;

  std::string command_;
  std::string usage_;
  std::vector<FlagGroup> groups_;
  std::map<std::string, Spelling, std::less<>> spellings_;
};

// The parts of `text` between separators; none of an empty text.
std::vector<std::string_view> SplitText(std::string_view text, char separator);

}  // namespace baltoro
