#include "flags/availability.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "flags/value.h"

namespace baltoro {
namespace {

std::string Spaced(std::string_view bars) {
  return fmt::format("{}", fmt::join(SplitText(bars, '|'), ", "));
}

bool AsksForNothing(const FlagSpec& spec, const Json& value) {
  if (value == Json(false)) return spec.initial != "true";
  const std::string text = ValueText(value);
  return text == spec.initial || IsOneOf(spec.available, text);
}

std::string NoEffect(std::string_view flag, std::string_view reason) {
  return fmt::format("{} has no effect here: {}", flag, reason);
}

// What to do without the feature; a reason with a semicolon has said so.
std::string WayOut(const FlagSpec& spec) {
  if (!spec.instead.empty()) return fmt::format("; {}", spec.instead);
  if (spec.reason.find(';') != std::string_view::npos) return "";
  const bool plain = spec.kind == ValueKind::kBool || spec.kind == ValueKind::kSwitch;
  const std::string taken = plain ? "" : TakenValues(spec);
  return taken.empty() ? "; leave it out" : fmt::format("; leave it out, or give {}", taken);
}

std::string NotYet(std::string_view flag, const FlagSpec& spec) {
  return fmt::format("{} is not available yet in this version: {}{}", flag, spec.reason,
                     WayOut(spec));
}

// "--tensor-parallel-size 8"; JSON is too long to repeat.
std::string AsGiven(const FlagSpec& spec, const FlagUse& use) {
  std::string text = "--" + std::string(spec.name);
  if (use.value == Json(false)) return "--no-" + std::string(spec.name);
  if (spec.secret) return text;
  if (use.value.is_boolean() || use.value.is_object() || use.value.is_array()) return text;
  return text + " " + ValueText(use.value);
}

}  // namespace

std::string TakenValues(const FlagSpec& spec) {
  const bool number = spec.kind == ValueKind::kInt && !spec.initial.empty();
  const bool none = spec.initial.empty() || spec.initial == "false" || spec.initial == "{}" ||
                    (number && spec.initial.find_first_not_of("0123456789") != spec.initial.npos);
  std::string text = none ? "" : std::string(spec.initial);
  if (!spec.available.empty()) text += (text.empty() ? "" : ", ") + Spaced(spec.available);
  return text;
}

Availability Judge(const FlagTable& table, const ParsedFlags& flags) {
  Availability result;
  for (const FlagGroup& group : table.groups()) {
    for (const FlagSpec& spec : group.flags) {
      const auto found = flags.uses.find(spec.name);
      if (found == flags.uses.end()) continue;
      const FlagUse& use = found->second;
      const std::string name = "--" + std::string(spec.name);
      // Rows of the command itself are not of what is started; a model without --model is no flag.
      const bool is_given = !group.first && !use.spelling.empty();
      if (is_given) result.given.push_back(AsGiven(spec, use));
      if (use.spelling.starts_with("--") && use.spelling != name &&
          use.spelling != "--no-" + std::string(spec.name)) {
        result.notices.push_back(fmt::format("{} is taken as {}", use.spelling, name));
        if (is_given) result.given.back() += fmt::format(" ({})", use.spelling);
      }
      if (spec.idle != nullptr) {
        result.open.push_back({&spec, AsGiven(spec, use), !AsksForNothing(spec, use.value)});
        continue;
      }
      switch (spec.state) {
        case FlagState::kWorks:
          if (spec.available.empty() || AsksForNothing(spec, use.value)) break;
          [[fallthrough]];
        case FlagState::kNotYet:
          if (AsksForNothing(spec, use.value)) break;
          result.refusals.push_back(NotYet(AsGiven(spec, use), spec));
          break;
        case FlagState::kNoEffectHere:
          result.notices.push_back(NoEffect(AsGiven(spec, use), spec.reason));
          break;
        case FlagState::kRemovedUpstream:
          result.notices.push_back(fmt::format("{} is ignored, as it was removed from vLLM: {}",
                                               AsGiven(spec, use), spec.reason));
          break;
        case FlagState::kMoved:
          break;  // the parser has put it where it belongs
        case FlagState::kRefused:
          result.refusals.push_back(fmt::format("{} cannot be served: {}{}", AsGiven(spec, use),
                                                spec.reason, WayOut(spec)));
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
      result.refusals.push_back(NotYet(flag.text, spec));
    }
  }
  return result;
}

}  // namespace baltoro
