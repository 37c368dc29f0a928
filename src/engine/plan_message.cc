#include "engine/plan_message.h"

#include <utility>

#include "request/wire.h"

namespace baltoro {
namespace {

constexpr size_t kResultBytesMin = sizeof(uint32_t);
constexpr size_t kMessageBytesMin = 2 * sizeof(uint32_t);

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

std::string SerialiseMessages(const PlanMessages& messages) {
  WireWriter writer;
  writer.Put(static_cast<uint32_t>(messages.size()));
  for (const std::shared_ptr<const PlanMessage>& message : messages) {
    writer.Put(static_cast<uint32_t>(message->finished.size()));
    for (const StepResult& result : message->finished) writer.PutBytes(SerialiseResult(result));
    writer.PutBytes(SerialisePlan(message->plan));
  }
  return writer.Take();
}

Result<PlanMessages> ParseMessages(std::string_view bytes,
                                   const StepPlanLimits& limits,
                                   size_t replicas) {
  WireReader reader(bytes);
  const size_t count = reader.GetCount(kMessageBytesMin);
  PlanMessages messages;
  for (size_t i = 0; i < count && reader.ok(); ++i) {
    auto message = std::make_shared<PlanMessage>();
    message->finished.resize(reader.GetCount(kResultBytesMin));
    for (StepResult& result : message->finished) {
      BT_ASSIGN_OR_RETURN(result, ParseResult(reader.GetBytes()));
    }
    const std::string plan = reader.GetBytes();
    if (!reader.ok()) break;
    BT_ASSIGN_OR_RETURN(message->plan, ParsePlan(plan, limits));
    messages.push_back(std::move(message));
  }
  BT_RETURN_IF_ERROR(reader.Finish("plan message"));
  if (messages.size() != replicas) return InvalidArgument("a plan message for other replicas");
  return messages;
}

std::string SerialiseResults(const std::vector<ReplicaResult>& results) {
  WireWriter writer;
  writer.Put(static_cast<uint32_t>(results.size()));
  for (const ReplicaResult& one : results) {
    writer.Put(one.replica);
    writer.PutBytes(SerialiseResult(one.result));
  }
  return writer.Take();
}

Result<std::vector<ReplicaResult>> ParseResults(std::string_view bytes) {
  WireReader reader(bytes);
  std::vector<ReplicaResult> results(reader.GetCount(kMessageBytesMin));
  for (ReplicaResult& one : results) {
    one.replica = reader.Get<int32_t>();
    const std::string result = reader.GetBytes();
    if (!reader.ok()) break;
    BT_ASSIGN_OR_RETURN(one.result, ParseResult(result));
  }
  BT_RETURN_IF_ERROR(reader.Finish("results of a node"));
  return results;
}

}  // namespace baltoro
