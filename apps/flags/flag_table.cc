#include "flags/flag_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "flags/near_word.h"

namespace baltoro {
std::vector<std::string_view> SplitText(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  if (text.empty()) return parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

FlagTable::FlagTable(std::string command, std::string usage, std::vector<FlagGroup> groups)
    : command_(std::move(command)), usage_(std::move(usage)), groups_(std::move(groups)) {
  for (const FlagGroup& group : groups_) {
    for (const FlagSpec& spec : group.flags) {
      const bool gone =
          spec.state == FlagState::kRemovedUpstream || spec.state == FlagState::kMoved;
      const bool upstream = group.name != kOwnGroup && !gone;
      const std::string name(spec.name);
      Add("--" + name, {.spec = &spec, .negated = false, .upstream = upstream});
      if (spec.kind == ValueKind::kBool) {
        Add("--no-" + name, {.spec = &spec, .negated = true, .upstream = upstream});
      }
      for (std::string_view alias : SplitText(spec.aliases, ' ')) {
        Add(std::string(alias), {.spec = &spec, .negated = false, .upstream = upstream});
      }
    }
  }
}

void FlagTable::Add(std::string spelling, Spelling meaning) {
  const bool is_new = spellings_.emplace(std::move(spelling), meaning).second;
  BT_CHECK(is_new);
}

const FlagSpec* FlagTable::Get(std::string_view name) const {
  const auto found = spellings_.find("--" + std::string(name));
  return found == spellings_.end() || found->second.negated ? nullptr : found->second.spec;
}

bool FlagTable::Knows(std::string_view option) const {
  // A bare "-" or "--" begins everything and names nothing.
  if (option.find_first_not_of('-') == std::string_view::npos) return false;
  const auto at = spellings_.lower_bound(option);
  return at != spellings_.end() && at->first.starts_with(option);
}

Result<FlagMatch> FlagTable::Find(std::string_view option) const {
  auto as_match = [](const auto& entry) {
    return FlagMatch{entry.second.spec, entry.second.negated, entry.first};
  };
  if (const auto exact = spellings_.find(option); exact != spellings_.end()) {
    return as_match(*exact);
  }
  std::vector<FlagMatch> upstream, others;
  if (Knows(option)) {
    for (auto at = spellings_.lower_bound(option);
         at != spellings_.end() && at->first.starts_with(option); ++at) {
      std::vector<FlagMatch>& list = at->second.upstream ? upstream : others;
      const bool same = std::any_of(list.begin(), list.end(), [&](const FlagMatch& match) {
        return match.spec == at->second.spec && match.negated == at->second.negated;
      });
      if (!same) list.push_back(as_match(*at));
    }
  }
  const std::vector<FlagMatch>& candidates = upstream.empty() ? others : upstream;
  if (candidates.size() == 1) return candidates.front();
  if (candidates.empty()) {
    const std::string guess = NearMiss(option);
    return InvalidArgument("unrecognized arguments: " + std::string(option) +
                           (guess.empty() ? "" : " (did you mean " + guess + "?)"));
  }
  std::string message = "ambiguous option: " + std::string(option) + " could match ";
  for (size_t i = 0; i < candidates.size(); ++i) {
    message += (i == 0 ? "" : ", ") + candidates[i].spelling;
  }
  return InvalidArgument(message);
}

std::string FlagTable::NearMiss(std::string_view option) const {
  const bool is_long = option.starts_with("--");
  std::vector<std::string_view> words;
  for (const auto& [spelling, meaning] : spellings_) {
    if (spelling.starts_with("--") == is_long) words.push_back(spelling);
  }
  return NearWord(option, words);
}

}  // namespace baltoro
