#include "server/refused_fields.h"

#include <utility>

namespace baltoro {
namespace {

constexpr std::pair<std::string_view, const char*> kRefused[] = {
    {"audio", "answers are text; no audio is made here"},
    {"documents", "are not handed to the chat template; write them into a message"},
    {"kv_transfer_params", "no KV cache is taken from or given to another server"},
    {"logits_processors", "is not available yet in this version"},
    {"logprob_token_ids", "is not available; top_logprobs is"},
    {"prompt_embeds", "is not available yet in this version"},
    {"repetition_detection", "is not available yet in this version"},
    {"use_beam_search", "beam search is not supported"},
    {"vllm_xargs", "no extension here reads it"},
    {"web_search_options", "this server searches nothing; offer a tool that does"},
};

bool AsksForNothing(const Json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  if (value.is_boolean()) return !value.get<bool>();
  return (value.is_object() || value.is_array()) && value.empty();
}

}  // namespace

void RefuseField(FieldReader& reader, std::string_view name, const char* why) {
  const Json* value = reader.Find(name);
  if (value != nullptr && !AsksForNothing(*value)) reader.Fail(name, why);
}

void RefuseFields(FieldReader& reader) {
  for (const auto& [name, why] : kRefused) RefuseField(reader, name, why);
  const Json* modalities = reader.Find("modalities");
  if (modalities != nullptr && !AsksForNothing(*modalities) &&
      *modalities != Json::array({"text"})) {
    reader.Fail("modalities", "answers are text: only [\"text\"] can be asked for");
  }
}

}  // namespace baltoro
