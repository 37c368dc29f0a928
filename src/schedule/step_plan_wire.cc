#include "schedule/step_plan_wire.h"

#include <algorithm>
#include <utility>

#include "request/wire.h"
#include "schedule/draft_stats.h"

namespace baltoro {

namespace {

// The least that one of them takes.
constexpr size_t kAdmittedBytes = 80;
constexpr size_t kPlannedBytes = 33;
constexpr size_t kEncodeBytes = 28;
constexpr size_t kResultBytes = 27;

// Slots and blocks are numbers of 32 bits.
template <typename Id>
void PutIds(WireWriter& writer, const std::vector<Id>& ids) {
  writer.Put(static_cast<uint32_t>(ids.size()));
  for (const Id id : ids) writer.Put(id);
}

template <typename Id>
std::vector<Id> GetIds(WireReader& reader) {
  std::vector<Id> ids(reader.GetCount(sizeof(Id)));
  for (Id& id : ids) id = reader.Get<Id>();
  return ids;
}

void Encode(WireWriter& writer, const AdmittedSequence& admitted) {
  writer.Put(admitted.slot);
  writer.Put(admitted.request);
  Encode(writer, admitted.sampling);
  writer.PutArray<TokenId>(admitted.prompt);
  writer.PutArray<TokenId>(admitted.output);
  writer.PutArray<TokenId>(admitted.banned_until_min);
  writer.Put(admitted.min_tokens);
  writer.Put(admitted.constrained);
}

AdmittedSequence DecodeAdmitted(WireReader& reader) {
  AdmittedSequence admitted;
  admitted.slot = reader.Get<SlotId>();
  admitted.request = reader.Get<RequestId>();
  admitted.sampling = DecodeSampling(reader);
  admitted.prompt = reader.GetArray<TokenId>();
  admitted.output = reader.GetArray<TokenId>();
  admitted.banned_until_min = reader.GetArray<TokenId>();
  admitted.min_tokens = reader.Get<int32_t>();
  admitted.constrained = reader.GetBool();
  return admitted;
}

void Encode(WireWriter& writer, const PlannedSequence& planned) {
  writer.Put(planned.slot);
  writer.Put(planned.first_position);
  writer.Put(planned.token_begin);
  writer.Put(planned.token_count);
  writer.Put(planned.block_begin);
  writer.Put(planned.block_count);
  writer.Put(planned.sampled_rows);
  writer.Put(planned.prompt_logprobs);
  writer.Put(static_cast<uint32_t>(planned.pictures.size()));
  for (const PictureRows& rows : planned.pictures) {
    writer.Put(rows.row);
    writer.Put(rows.count);
    writer.Put(rows.from);
  }
}

void Encode(WireWriter& writer, const PlannedEncode& encode) {
  writer.Put(static_cast<uint32_t>(encode.pictures.size()));
  for (const EncodedPicture& picture : encode.pictures) {
    writer.Put(picture.frames);
    writer.Put(picture.rows);
    writer.Put(picture.columns);
    writer.PutBytes(picture.pixels.str());
    writer.Put(picture.place);
    writer.Put(picture.rank);
  }
  writer.Put(encode.layers);
  writer.Put(encode.patches);
  writer.Put(encode.pairs);
}

PlannedEncode DecodePlannedEncode(WireReader& reader) {
  PlannedEncode encode;
  constexpr size_t kPictureBytes = 5 * sizeof(int32_t) + sizeof(uint32_t);
  encode.pictures.resize(reader.GetCount(kPictureBytes));
  for (EncodedPicture& picture : encode.pictures) {
    picture.frames = reader.Get<int32_t>();
    picture.rows = reader.Get<int32_t>();
    picture.columns = reader.Get<int32_t>();
    picture.pixels = reader.GetBytes();
    picture.place = reader.Get<int32_t>();
    picture.rank = reader.Get<int32_t>();
  }
  encode.layers = reader.Get<int32_t>();
  encode.patches = reader.Get<int64_t>();
  encode.pairs = reader.Get<double>();
  return encode;
}

PlannedSequence DecodePlanned(WireReader& reader) {
  PlannedSequence planned;
  planned.slot = reader.Get<SlotId>();
  planned.first_position = reader.Get<int32_t>();
  planned.token_begin = reader.Get<int32_t>();
  planned.token_count = reader.Get<int32_t>();
  planned.block_begin = reader.Get<int32_t>();
  planned.block_count = reader.Get<int32_t>();
  planned.sampled_rows = reader.Get<int32_t>();
  planned.prompt_logprobs = reader.GetBool();
  planned.pictures.resize(reader.GetCount(sizeof(PictureRows)));
  for (PictureRows& rows : planned.pictures) {
    rows.row = reader.Get<int32_t>();
    rows.count = reader.Get<int32_t>();
    rows.from = reader.Get<int32_t>();
  }
  return planned;
}

// Whether [begin, begin + count) lies within [0, size).
bool Within(int32_t begin, int32_t count, size_t size) {
  return begin >= 0 && count >= 0 && int64_t{begin} + count <= static_cast<int64_t>(size);
}

template <typename Id>
bool AllBelow(const std::vector<Id>& ids, int64_t first, int64_t end) {
  return std::ranges::all_of(ids, [&](Id id) {
    return static_cast<int64_t>(id) >= first && static_cast<int64_t>(id) < end;
  });
}

bool IsValid(const AdmittedSequence& admitted, const StepPlanLimits& limits) {
  const SamplingParams& sampling = admitted.sampling;
  return !admitted.prompt.empty() && AllBelow(std::vector{admitted.slot}, 0, limits.max_num_seqs) &&
         AllBelow(admitted.prompt, 0, limits.vocab) && AllBelow(admitted.output, 0, limits.vocab) &&
         AllBelow(admitted.banned_until_min, 0, limits.vocab) &&
         AllBelow(sampling.allowed_token_ids, 0, limits.vocab) &&
         std::ranges::all_of(sampling.logit_bias, [&](const auto& bias) {
           return bias.first >= 0 && bias.first < limits.vocab;
         });
}

bool IsValid(const PlannedSequence& planned, const StepPlan& plan, const StepPlanLimits& limits) {
  const int64_t capacity = int64_t{limits.num_blocks} * kBlockTokens;
  return AllBelow(std::vector{planned.slot}, 0, limits.max_num_seqs) && planned.token_count >= 1 &&
         planned.first_position >= 0 &&
         int64_t{planned.first_position} + planned.token_count <= capacity &&
         Within(planned.token_begin, planned.token_count, plan.tokens.size()) &&
         Within(planned.block_begin, planned.block_count, plan.new_blocks.size()) &&
         planned.sampled_rows >= 0 && planned.sampled_rows <= planned.token_count &&
         std::ranges::all_of(planned.pictures, [&](const PictureRows& rows) {
           return Within(rows.row, rows.count, static_cast<size_t>(planned.token_count)) &&
                  Within(rows.from, rows.count, static_cast<size_t>(limits.picture_rows));
         });
}

// What the encoder itself refuses is not asked here: what its pictures may be is its own affair.
bool IsValid(const PlannedEncode& encode, const StepPlanLimits& limits) {
  return encode.layers >= 1 &&
         std::ranges::all_of(encode.pictures, [&](const EncodedPicture& picture) {
           return picture.place >= 0 && picture.place <= limits.picture_rows && picture.rank >= 0;
         });
}

Status Check(const StepPlan& plan, const StepPlanLimits& limits) {
  const int64_t blocks = limits.num_blocks;
  if (!AllBelow(plan.cleared, 0, blocks) || !AllBelow(plan.new_blocks, 0, blocks)) {
    return InvalidArgument("step plan: a block that is not there");
  }
  if (!AllBelow(plan.retired, 0, limits.max_num_seqs)) {
    return InvalidArgument("step plan: a retired slot that is not there");
  }
  if (plan.drafts_wanted < 0 || plan.drafts_wanted > kDraftsMax) {
    return InvalidArgument("step plan: a number of drafts out of range");
  }
  if (!AllBelow(plan.tokens, kSampledToken, limits.vocab)) {
    return InvalidArgument("step plan: a token outside of the vocabulary");
  }
  if (!std::ranges::all_of(plan.group_rows, [](int64_t rows) { return rows >= 0; })) {
    return InvalidArgument("step plan: a number of rows below 0");
  }
  if (plan.group_sequences < 0 || plan.group_sequences > limits.max_num_seqs ||
      plan.group_sequence_rows < 0 || plan.group_sequence_rows > 1 + kDraftsMax) {
    return InvalidArgument("step plan: sequences of a group out of range");
  }
  for (const AdmittedSequence& admitted : plan.admitted) {
    if (!IsValid(admitted, limits)) {
      return InvalidArgument("step plan: an admitted sequence with a value out of range");
    }
  }
  for (const PlannedEncode& encode : plan.encodes) {
    if (!IsValid(encode, limits)) {
      return InvalidArgument("step plan: layers of an encoder with a value out of range");
    }
  }
  for (const PlannedSequence& planned : plan.sequences) {
    if (!IsValid(planned, plan, limits)) {
      return InvalidArgument("step plan: a planned sequence with a value out of range");
    }
  }
  return {};
}

}  // namespace

std::string SerialisePlan(const StepPlan& plan) {
  WireWriter writer;
  writer.Put(plan.step);
  PutIds(writer, plan.cleared);
  PutIds(writer, plan.retired);
  writer.Put(static_cast<uint32_t>(plan.admitted.size()));
  for (const AdmittedSequence& admitted : plan.admitted) Encode(writer, admitted);
  writer.Put(static_cast<uint32_t>(plan.encodes.size()));
  for (const PlannedEncode& encode : plan.encodes) Encode(writer, encode);
  writer.Put(static_cast<uint32_t>(plan.sequences.size()));
  for (const PlannedSequence& planned : plan.sequences) Encode(writer, planned);
  writer.PutArray<TokenId>(plan.tokens);
  PutIds(writer, plan.new_blocks);
  writer.Put(plan.drafts_wanted);
  writer.PutArray<int64_t>(plan.group_rows);
  writer.Put(plan.group_sequences);
  writer.Put(plan.group_sequence_rows);
  return writer.Take();
}

Result<StepPlan> ParsePlan(std::string_view bytes, const StepPlanLimits& limits) {
  WireReader reader(bytes);
  StepPlan plan;
  plan.step = reader.Get<uint64_t>();
  plan.cleared = GetIds<BlockId>(reader);
  plan.retired = GetIds<SlotId>(reader);
  plan.admitted.resize(reader.GetCount(kAdmittedBytes));
  for (AdmittedSequence& admitted : plan.admitted) admitted = DecodeAdmitted(reader);
  plan.encodes.resize(reader.GetCount(kEncodeBytes));
  for (PlannedEncode& encode : plan.encodes) encode = DecodePlannedEncode(reader);
  plan.sequences.resize(reader.GetCount(kPlannedBytes));
  for (PlannedSequence& planned : plan.sequences) planned = DecodePlanned(reader);
  plan.tokens = reader.GetArray<TokenId>();
  plan.new_blocks = GetIds<BlockId>(reader);
  plan.drafts_wanted = reader.Get<int32_t>();
  plan.group_rows = reader.GetArray<int64_t>();
  plan.group_sequences = reader.Get<int32_t>();
  plan.group_sequence_rows = reader.Get<int32_t>();
  BT_RETURN_IF_ERROR(reader.Finish("step plan"));
  BT_RETURN_IF_ERROR(Check(plan, limits));
  return plan;
}

std::string SerialiseResult(const StepResult& result) {
  WireWriter writer;
  writer.Put(result.step);
  writer.Put(static_cast<uint32_t>(result.sequences.size()));
  for (const SequenceResult& one : result.sequences) {
    writer.Put(one.slot);
    writer.PutArray<TokenId>(one.tokens);
    writer.PutArray<TokenId>(one.drafts);
    Encode(writer, one.logprobs);
    Encode(writer, one.prompt_logprobs);
    writer.Put(one.ended);
    writer.Put(one.failed);
    writer.PutBytes(one.error);
    writer.Put(static_cast<uint8_t>(one.error_code));
  }
  return writer.Take();
}

Result<StepResult> ParseResult(std::string_view bytes) {
  WireReader reader(bytes);
  StepResult result;
  result.step = reader.Get<uint64_t>();
  result.sequences.resize(reader.GetCount(kResultBytes));
  for (SequenceResult& one : result.sequences) {
    one.slot = reader.Get<SlotId>();
    one.tokens = reader.GetArray<TokenId>();
    one.drafts = reader.GetArray<TokenId>();
    one.logprobs = DecodeLogprobs(reader);
    one.prompt_logprobs = DecodeLogprobs(reader);
    one.ended = reader.GetBool();
    one.failed = reader.GetBool();
    one.error = reader.GetBytes();
    one.error_code = static_cast<Code>(reader.GetEnum(static_cast<uint8_t>(Code::kInternal)));
  }
  BT_RETURN_IF_ERROR(reader.Finish("step result"));
  return result;
}

}  // namespace baltoro
