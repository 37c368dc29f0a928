#include "engine/plan_message.h"

#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "request/wire.h"

namespace baltoro {
namespace {

constexpr size_t kResultBytesMin = sizeof(uint32_t);
constexpr size_t kMessageBytesMin = 2 * sizeof(uint32_t);

// Behind the plans: the constraints that they bring, and which sequence has which.
void EncodeConstraints(WireWriter& writer, const PlanMessages& messages) {
  std::unordered_map<const void*, uint32_t> places;  // from 1 on
  std::vector<const SharedBytes*> all;
  for (const auto& message : messages) {
    for (const AdmittedSequence& admitted : message->plan.admitted) {
      if (admitted.constraint.empty()) continue;
      const auto next = static_cast<uint32_t>(all.size() + 1);
      if (places.emplace(admitted.constraint.identity(), next).second) {
        all.push_back(&admitted.constraint);
      }
    }
  }
  writer.Put(static_cast<uint32_t>(all.size()));
  if (all.empty()) return;
  for (const SharedBytes* bytes : all) writer.PutBytes(bytes->str());
  for (const auto& message : messages) {
    for (const AdmittedSequence& admitted : message->plan.admitted) {
      writer.Put(admitted.constraint.empty() ? 0 : places.at(admitted.constraint.identity()));
      writer.PutArray<TokenId>(admitted.constraint_ends);
    }
  }
}

Status DecodeConstraints(WireReader& reader,
                         std::span<const std::shared_ptr<PlanMessage>> messages) {
  std::vector<SharedBytes> all(reader.GetCount(sizeof(uint32_t)));
  if (all.empty()) return {};
  for (SharedBytes& bytes : all) bytes = SharedBytes(reader.GetBytes());
  for (const auto& message : messages) {
    for (AdmittedSequence& admitted : message->plan.admitted) {
      const auto place = reader.Get<uint32_t>();
      admitted.constraint_ends = reader.GetArray<TokenId>();
      if (place == 0) continue;
      if (place > all.size() || !admitted.constrained) {
        return InvalidArgument("a plan message with a constraint that is nobody's");
      }
      admitted.constraint = all[place - 1];
    }
  }
  return {};
}

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
  EncodeConstraints(writer, messages);
  return writer.Take();
}

Result<PlanMessages> ParseMessages(std::string_view bytes,
                                   const StepPlanLimits& limits,
                                   size_t replicas) {
  WireReader reader(bytes);
  const size_t count = reader.GetCount(kMessageBytesMin);
  std::vector<std::shared_ptr<PlanMessage>> messages;
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
  BT_RETURN_IF_ERROR(DecodeConstraints(reader, messages));
  BT_RETURN_IF_ERROR(reader.Finish("plan message"));
  if (messages.size() != replicas) return InvalidArgument("a plan message for other replicas");
  return PlanMessages(messages.begin(), messages.end());
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
