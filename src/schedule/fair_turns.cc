#include "schedule/fair_turns.h"

#include <algorithm>

#include "schedule/planted_bug.h"

namespace baltoro {

FairTurns::Span FairTurns::Take(uint64_t owner, int64_t expected) {
  Owner& its = owners_[owner];
  if (its.requests++ == 0) {
    its.end += its.owes;
    its.owes = 0;
  }
  // At least one: its earlier requests stay before it.
  const int64_t length = std::max<int64_t>(1, expected + its.owes);
  its.owes -= length - expected;
  const int64_t begin = Planted(PlantedBug::kIdleOwnerSaves) ? its.end : std::max(now_, its.end);
  its.end = begin + length;
  return {.begin = begin, .end = its.end};
}

void FairTurns::Begin(const Span& span) {
  now_ = std::max(now_, span.begin);
}

void FairTurns::Leave(uint64_t owner, int64_t expected, int64_t served) {
  Owner& its = owners_[owner];
  --its.requests;
  if (!Planted(PlantedBug::kOutputIsFree)) its.owes += served - expected;
}

}  // namespace baltoro
