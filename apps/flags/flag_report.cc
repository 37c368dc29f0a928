#include "flags/flag_report.h"

#include <fmt/format.h>

#include <string_view>

namespace baltoro {
namespace {

std::string_view NameOf(FlagFate fate) {
  switch (fate) {
    case FlagFate::kInForce:
      return "in force";
    case FlagFate::kTakenAs:
      return "changed";
    case FlagFate::kNoEffect:
      return "no effect";
    case FlagFate::kRefused:
      return "refused";
  }
  return "";
}

// What `line` says of `flag`; empty where it is about another.
std::string_view About(std::string_view line, std::string_view flag) {
  // A line names the flag as it was given, or without its value.
  for (const std::string_view name :
       {flag.substr(0, flag.find(" (--")), flag.substr(0, flag.find(' '))}) {
    if (!line.starts_with(name)) continue;
    const std::string_view rest = line.substr(name.size());
    if (rest.starts_with(' ')) return rest.substr(1);
    if (rest.starts_with(": ")) return rest.substr(2);
  }
  return "";
}

FlagEntry Entry(const std::string& flag,
                const std::vector<std::string>& notices,
                const std::vector<std::string>& refusals) {
  for (const std::string& line : refusals) {
    const std::string_view why = About(line, flag);
    if (!why.empty()) return {flag, FlagFate::kRefused, std::string(why)};
  }
  for (const std::string& line : notices) {
    const std::string_view why = About(line, flag);
    if (why.empty()) continue;
    const bool idle = why.find("has no effect") != why.npos || why.starts_with("is ignored");
    return {flag, idle ? FlagFate::kNoEffect : FlagFate::kTakenAs, std::string(why)};
  }
  return {flag, FlagFate::kInForce};
}

}  // namespace

std::vector<FlagEntry> ReportFlags(const std::vector<std::string>& given,
                                   const std::vector<std::string>& notices,
                                   const std::vector<std::string>& refusals) {
  std::vector<FlagEntry> entries;
  entries.reserve(given.size());
  for (const std::string& flag : given) entries.push_back(Entry(flag, notices, refusals));
  return entries;
}

std::string FlagReportText(const std::vector<FlagEntry>& entries) {
  std::string text;
  for (const FlagEntry& entry : entries) {
    text += fmt::format("  {:<9}  {}{}{}\n", NameOf(entry.fate), entry.flag,
                        entry.why.empty() ? "" : " ", entry.why);
  }
  return text;
}

Json FlagReportJson(const std::vector<FlagEntry>& entries) {
  Json out = Json::array();
  for (const FlagEntry& entry : entries) {
    out.push_back({{"flag", entry.flag}, {"state", NameOf(entry.fate)}});
    if (!entry.why.empty()) out.back()["why"] = entry.why;
  }
  return out;
}

std::string FlagsInForce(const std::vector<FlagEntry>& entries) {
  std::string text;
  for (const FlagEntry& entry : entries) {
    if (entry.fate != FlagFate::kInForce && entry.fate != FlagFate::kTakenAs) continue;
    text += (text.empty() ? "" : ", ") + entry.flag;
  }
  return text.empty() ? "none" : text;
}

}  // namespace baltoro
