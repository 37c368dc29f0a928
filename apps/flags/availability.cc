#include "flags/availability.h"

#include <fmt/format.h>

#include "flags/value.h"

namespace baltoro {
namespace {

bool AsksForNothing(const FlagSpec& spec, const Json& value) {
  if (value == Json(false)) return spec.initial != "true";
  const std::string text = ValueText(value);
  return text == spec.initial || IsOneOf(spec.available, text);
}

std::string NoEffect(std::string_view flag, std::string_view reason) {
  return fmt::format("{} has no effect here: {}", flag, reason);
}

std::string NotYet(std::string_view flag, std::string_view reason) {
  return fmt::format("{} is not available yet in this version: {}", flag, reason);
}

// "--tensor-parallel-size 8"; JSON is too long to repeat.
std::string AsGiven(const FlagUse& use) {
  std::string text = "--" + std::string(use.spec->name);
  if (use.value == Json(false)) return "--no-" + std::string(use.spec->name);
  if (use.spec->secret) return text;
  if (use.value.is_boolean() || use.value.is_object() || use.value.is_array()) return text;
  return text + " " + ValueText(use.value);
}

}  // namespace

Availability Judge(const FlagTable& table, const ParsedFlags& flags) {
  Availability result;
  for (const FlagGroup& group : table.groups()) {
    for (const FlagSpec& spec : group.flags) {
      const auto found = flags.uses.find(spec.name);
      if (found == flags.uses.end()) continue;
      const FlagUse& use = found->second;
      const std::string name = "--" + std::string(spec.name);
      if (use.spelling.starts_with("--") && use.spelling != name &&
          use.spelling != "--no-" + std::string(spec.name)) {
        result.notices.push_back(fmt::format("{} is taken as {}", use.spelling, name));
      }
      if (spec.idle != nullptr) {
        result.open.push_back({&spec, AsGiven(use), !AsksForNothing(spec, use.value)});
        continue;
      }
      switch (spec.state) {
        case FlagState::kWorks:
          if (spec.available.empty() || AsksForNothing(spec, use.value)) break;
          [[fallthrough]];
        case FlagState::kNotYet:
          if (AsksForNothing(spec, use.value)) break;
          result.refusals.push_back(NotYet(AsGiven(use), spec.reason));
          break;
        case FlagState::kNoEffectHere:
          result.notices.push_back(NoEffect(AsGiven(use), spec.reason));
          break;
        case FlagState::kRemovedUpstream:
          result.notices.push_back(fmt::format("{} is ignored, as it was removed from vLLM: {}",
                                               AsGiven(use), spec.reason));
          break;
        case FlagState::kRefused:
          result.refusals.push_back(
              fmt::format("{} cannot be served: {}", AsGiven(use), spec.reason));
          break;
      }
    }
  }
  return result;
}

Availability JudgeRun(const std::vector<OpenFlag>& open, const RunFacts& facts) {
  Availability result;
  for (const OpenFlag& flag : open) {
    const FlagSpec& spec = *flag.spec;
    if (spec.idle->holds(facts)) {
      result.notices.push_back(NoEffect(flag.text, spec.idle_reason));
    } else if (flag.asks && spec.state == FlagState::kNotYet) {
      result.refusals.push_back(NotYet(flag.text, spec.reason));
    }
  }
  return result;
}

}  // namespace baltoro
