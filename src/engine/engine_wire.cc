#include "engine/engine_wire.h"

#include <array>
#include <span>
#include <utility>
#include <vector>

namespace baltoro {

namespace {

// The fields of a struct, in one order for both directions.
template <typename Fields>
void VisitConfig(EngineConfig& c, const Fields& fields) {
  fields(c.model_dir, c.tokenizer_dir, c.load_format, c.quantization, c.online_quantization,
         c.dtype, c.device, c.enforce_eager, c.graph_sizes, c.tensor_parallel_size,
         c.pipeline_parallel_size, c.decode_context_parallel_size, c.data_parallel_size,
         c.enable_expert_parallel, c.expert_placement, c.balance.enabled,
         c.balance.redundant_experts, c.balance.window, c.balance.interval, c.balance.gradual,
         c.balance.log_interval, c.nodes, c.node_rank, c.master_addr, c.master_port,
         c.meets_as_replicas, c.host_ip, c.cluster_key, c.join_timeout, c.rejoin_timeout,
         c.max_model_len, c.allow_long_max_model_len, c.max_num_seqs, c.max_num_batched_tokens,
         c.max_queued_requests, c.kv_cache_bytes, c.kv_cache_dtype, c.kv_scale_file,
         c.calculate_kv_scales, c.enable_prefix_caching, c.priority_scheduling, c.async_scheduling,
         c.fp8_dispatch, c.balance_scheduling, c.speculation.method, c.speculation.drafts,
         c.speculation.lookup_min, c.speculation.lookup_max, c.speculation.model,
         c.speculation.draft_ranks, c.speculation.synthetic_rates, c.speculation.adaptive,
         c.target_step_ms, c.language_model_only, c.picture_cache_bytes, c.mm_encoder_tp_mode,
         c.deterministic, c.threads, c.seed, c.alike_layers, c.modelled_exchange, c.tuned_config,
         c.tuned_config_folder, c.stand_in_step_ms);
}

template <typename Fields>
void VisitInfo(EngineInfo& i, const Fields& fields) {
  fields(i.model_type, i.max_model_len, i.vocab_size, i.replicas, i.num_blocks, i.kv_cache_tokens,
         i.kv_cache_bytes, i.kv_cache_dtype, i.load_seconds, i.longest_step_seconds, i.constraints,
         i.picture_tokens_max, i.no_pictures, i.picture_rows, i.picture_layers,
         i.picture_patches_max, i.picture_patch_bytes, i.picture_merge_rows,
         i.picture_merge_columns, i.picture_side_max, i.picture_frames_max, i.picture_ranks,
         i.picture_patch_tokens, i.picture_pair_tokens, i.fixed.prompt_chunk, i.fixed.decode_rows,
         i.fixed.key_part_blocks);
}

template <typename Fields>
void VisitStats(EngineStats& s, const Fields& fields) {
  fields(s.step, s.running, s.waiting, s.kv_usage, s.prefix_queries, s.prefix_hits, s.preemptions,
         s.prompt_tokens_computed, s.generation_tokens, s.drafts.drafts, s.drafts.draft_tokens,
         s.drafts.accepted_tokens, s.drafts.accepted_at, s.drafts_wanted, s.balance.rearrangements,
         s.balance.moved_experts, s.balance.balancedness_before, s.balance.balancedness_expected,
         s.balance.balancedness, s.step_tokens_last, s.step_seconds_last, s.turn_seconds,
         s.turn_expected_seconds, s.long_turn_seconds, s.restarts, s.step_seconds,
         s.log_drops.unread, s.log_drops.limited, s.process.start_unix, s.process.cpu_seconds,
         s.process.resident_bytes, s.process.virtual_bytes, s.process.open_files,
         s.process.open_files_max);
}

struct PutField {
  WireWriter& writer;
  void One(const std::string& value) const { writer.PutBytes(value); }
  template <typename T>
  void One(const std::vector<T>& values) const {
    writer.PutArray(std::span(values));
  }
  template <typename T, size_t N>
  void One(const std::array<T, N>& values) const {
    for (const T value : values) writer.Put(value);
  }
  template <typename T>
  void One(T value) const {
    writer.Put(value);
  }
  template <typename... T>
  void operator()(const T&... values) const {
    (One(values), ...);
  }
};

struct GetField {
  WireReader& reader;
  void One(std::string& value) const { value = reader.GetBytes(); }
  template <typename T>
  void One(std::vector<T>& values) const {
    values = reader.GetArray<T>();
  }
  template <typename T, size_t N>
  void One(std::array<T, N>& values) const {
    for (T& value : values) value = reader.Get<T>();
  }
  void One(bool& value) const { value = reader.GetBool(); }
  template <typename T>
  void One(T& value) const {
    value = reader.Get<T>();
  }
  template <typename... T>
  void operator()(T&... values) const {
    (One(values), ...);
  }
};

constexpr size_t kEventBytesMin = 32, kStatsBytesMin = 64;

}  // namespace

void Encode(WireWriter& writer, const EngineConfig& config) {
  EngineConfig copy = config;
  VisitConfig(copy, PutField{writer});
}

void Encode(WireWriter& writer, const EngineInfo& info) {
  EngineInfo copy = info;
  VisitInfo(copy, PutField{writer});
}

void Encode(WireWriter& writer, const EngineStats& stats) {
  EngineStats copy = stats;
  VisitStats(copy, PutField{writer});
}

void Encode(WireWriter& writer, const std::vector<TokenEvent>& events) {
  writer.Put(static_cast<uint32_t>(events.size()));
  for (const TokenEvent& event : events) Encode(writer, event);
}

void Encode(WireWriter& writer, const Status& status) {
  writer.Put(static_cast<uint8_t>(status.code()));
  writer.PutBytes(status.message());
}

void Encode(WireWriter& writer, const ProfileAsk& ask) {
  writer.Put(ask.start);
  writer.PutBytes(ask.dir);
  writer.Put(ask.gzip);
  writer.Put(ask.until_ns);
}

EngineConfig DecodeEngineConfig(WireReader& reader) {
  EngineConfig config;
  VisitConfig(config, GetField{reader});
  return config;
}

EngineInfo DecodeEngineInfo(WireReader& reader) {
  EngineInfo info;
  VisitInfo(info, GetField{reader});
  return info;
}

void Encode(WireWriter& writer, const ToldStats& told) {
  Encode(writer, told.together);
  writer.Put(static_cast<uint32_t>(told.replicas.size()));
  for (const EngineStats& stats : told.replicas) Encode(writer, stats);
}

ToldStats DecodeToldStats(WireReader& reader) {
  ToldStats told{.together = DecodeEngineStats(reader), .replicas = {}};
  const size_t count = reader.GetCount(kStatsBytesMin);
  for (size_t i = 0; i < count && reader.ok(); ++i) {
    told.replicas.push_back(DecodeEngineStats(reader));
  }
  return told;
}

EngineStats DecodeEngineStats(WireReader& reader) {
  EngineStats stats;
  VisitStats(stats, GetField{reader});
  return stats;
}

std::vector<TokenEvent> DecodeEvents(WireReader& reader) {
  std::vector<TokenEvent> events;
  const size_t count = reader.GetCount(kEventBytesMin);
  events.reserve(count);
  for (size_t i = 0; i < count && reader.ok(); ++i) events.push_back(DecodeTokenEvent(reader));
  return events;
}

ProfileAsk DecodeProfileAsk(WireReader& reader) {
  ProfileAsk ask;
  ask.start = reader.GetBool();
  ask.dir = reader.GetBytes();
  ask.gzip = reader.GetBool();
  ask.until_ns = reader.Get<int64_t>();
  return ask;
}

Status DecodeStatus(WireReader& reader) {
  const auto code = reader.Get<uint8_t>();
  std::string message = reader.GetBytes();
  if (code > static_cast<uint8_t>(Code::kInternal)) {
    return Status(Code::kInternal, "an unknown error code");
  }
  return Status(static_cast<Code>(code), std::move(message));
}

}  // namespace baltoro
