#include "engine/plan_message.h"

#include "request/wire.h"

namespace baltoro {
namespace {

constexpr size_t kResultBytesMin = sizeof(uint32_t);

}  // namespace

StepResult Essence(const StepResult& result) {
  StepResult out;
  out.step = result.step;
  for (const SequenceResult& one : result.sequences) {
    if (one.tokens.empty() && !one.ended && !one.failed) continue;
    SequenceResult& kept = out.sequences.emplace_back();
    kept.slot = one.slot;
    kept.tokens = one.tokens;
    kept.ended = one.ended;
    kept.failed = one.failed;
  }
  return out;
}

std::string SerialiseMessage(const PlanMessage& message) {
  WireWriter writer;
  writer.Put(static_cast<uint32_t>(message.finished.size()));
  for (const StepResult& result : message.finished) writer.PutBytes(SerialiseResult(result));
  writer.PutBytes(SerialisePlan(message.plan));
  return writer.Take();
}

Result<PlanMessage> ParseMessage(std::string_view bytes, const StepPlanLimits& limits) {
  WireReader reader(bytes);
  PlanMessage message;
  message.finished.resize(reader.GetCount(kResultBytesMin));
  for (StepResult& result : message.finished) {
    BT_ASSIGN_OR_RETURN(result, ParseResult(reader.GetBytes()));
  }
  const std::string plan = reader.GetBytes();
  BT_RETURN_IF_ERROR(reader.Finish("plan message"));
  BT_ASSIGN_OR_RETURN(message.plan, ParsePlan(plan, limits));
  return message;
}

}  // namespace baltoro
