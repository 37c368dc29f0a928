#pragma once

// Facts in, lines out: nothing here looks at the machine.

#include <string>
#include <vector>

#include "base/json.h"
#include "doctor/facts.h"

namespace baltoro {

enum class DoctorVerdict { kOk, kWarning, kBroken };

struct DoctorLine {
  std::string name;  // "driver"
  DoctorVerdict verdict = DoctorVerdict::kOk;
  std::string text = {};
  std::string remedy = {};  // empty for kOk
};

std::vector<DoctorLine> JudgeCards(const CardFactsOfNode& facts);
std::vector<DoctorLine> JudgeHost(const HostFacts& facts, size_t cards);
std::vector<DoctorLine> JudgeNet(const NetFacts& facts);
std::vector<DoctorLine> JudgeModel(const ModelFacts& facts);
std::vector<DoctorLine> Judge(const NodeFacts& facts);

DoctorVerdict WorstOf(const std::vector<DoctorLine>& lines);
const char* NameOf(DoctorVerdict verdict);  // "ok", "warning", "broken"

// A line each, its remedy under it, and a last line that counts.
std::string DoctorText(const std::vector<DoctorLine>& lines);
Json DoctorJson(const std::vector<DoctorLine>& lines);

}  // namespace baltoro
