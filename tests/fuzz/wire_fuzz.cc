// What stands between two processes: a stream of frames, and the requests, events, plans and
// results in them, on arbitrary bytes. Never crashes, never allocates what is not there, and what
// is accepted encodes to the same bytes again.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "engine/engine_wire.h"
#include "request/wire.h"
#include "schedule/step_plan_wire.h"

namespace {

template <typename Decode>
void CheckRoundTrip(std::string_view bytes, const Decode& decode) {
  baltoro::WireReader reader(bytes);
  const auto value = decode(reader);
  if (!reader.Finish("input").ok()) return;
  baltoro::WireWriter writer;
  baltoro::Encode(writer, value);
  if (writer.Take() != bytes) std::abort();
}

void CheckPayload(std::string_view bytes) {
  CheckRoundTrip(bytes, baltoro::DecodeRequest);
  CheckRoundTrip(bytes, baltoro::DecodeTokenEvent);
  CheckRoundTrip(bytes, baltoro::DecodeEngineConfig);
  CheckRoundTrip(bytes, baltoro::DecodeEngineInfo);
  CheckRoundTrip(bytes, baltoro::DecodeEngineStats);
  const baltoro::StepPlanLimits limits = {.max_num_seqs = 8, .num_blocks = 64, .vocab = 1000};
  const auto plan = baltoro::ParsePlan(bytes, limits);
  if (plan.ok() && baltoro::SerialisePlan(plan.value()) != bytes) std::abort();
  const auto result = baltoro::ParseResult(bytes);
  if (result.ok() && baltoro::SerialiseResult(result.value()) != bytes) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  CheckPayload(input);
  baltoro::FrameParser parser;
  const size_t cut = size > 0 ? data[0] % size : 0;
  for (const std::string_view part : {input.substr(0, cut), input.substr(cut)}) {
    parser.Append(part);
    for (;;) {
      auto next = parser.Next();
      if (!next.ok()) return 0;
      if (!next.value().has_value()) break;
      CheckPayload(next.value()->payload);
    }
  }
  return 0;
}
