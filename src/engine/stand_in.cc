#include "engine/stand_in.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "engine/local_engine.h"
#include "engine/local_executor.h"

namespace baltoro {

namespace {

constexpr uint64_t kHashStart = 0xcbf29ce484222325;
constexpr int64_t kDefaultModelLen = 32768;
constexpr int64_t kDefaultVocab = 2304;
constexpr int64_t kDefaultBlocks = 16384;
// Of pictures, as the family's models have it: two by two patches of 14 x 14 pixels are a token.
constexpr int64_t kPatchesMax = 20480, kPatchBytes = 3 * 14 * 14;
constexpr int32_t kPictureTokensMax = kPatchesMax / 4, kPictureRows = 1 << 17, kSideMax = 512;

uint64_t Extend(uint64_t hash, TokenId token) {
  return (hash ^ static_cast<uint64_t>(token)) * 0x100000001b3;
}

TokenId TokenOf(uint64_t hash) {
  return static_cast<TokenId>((hash ^ hash >> 29) * 0xbf58476d1ce4e5b9 >> 56);
}

// Made up, but in the right form: the token, then ids beside it.
TokenLogprobs MadeUpLogprobs(TokenId token, int32_t top) {
  TokenLogprobs row = {{.id = token, .logprob = -0.5f, .rank = 1}};
  for (int32_t i = 0; i < top; ++i) {
    row.push_back(
        {.id = (token + i) % 256, .logprob = -0.5f - static_cast<float>(i), .rank = i + 1});
  }
  return row;
}

// One of the set bits that are not banned, by a number. There is one.
TokenId AllowedToken(std::span<const uint32_t> mask,
                     std::span<const TokenId> banned,
                     uint64_t number) {
  uint64_t count = 0;
  for (const uint32_t word : mask) count += static_cast<uint64_t>(std::popcount(word));
  BT_CHECK(count > 0);
  uint64_t skip = number % count;
  for (size_t i = 0;; i = (i + 1) % mask.size()) {
    const auto here = static_cast<uint64_t>(std::popcount(mask[i]));
    if (skip >= here) {
      skip -= here;
      continue;
    }
    for (int bit = 0; bit < 32; ++bit) {
      if ((mask[i] >> bit & 1) == 0 || skip-- > 0) continue;
      const auto token = static_cast<TokenId>(32 * i) + bit;
      if (std::ranges::count(banned, token) == 0) return token;
      skip = 0;  // the next one, then
    }
    skip = 0;
  }
}

}  // namespace

TokenId StandInToken(std::span<const TokenId> prompt, std::span<const TokenId> output) {
  uint64_t hash = kHashStart;
  for (const TokenId token : prompt) hash = Extend(hash, token);
  for (const TokenId token : output) hash = Extend(hash, token);
  return TokenOf(hash);
}

StandInRunner::StandInRunner(int32_t max_num_seqs,
                             double step_ms,
                             int64_t vocab,
                             std::shared_ptr<const ConstraintTable> constraints)
    : slots_(max_num_seqs), step_ms_(step_ms), mask_words_(static_cast<size_t>((vocab + 31) / 32)) {
  if (constraints == nullptr) return;
  masks_ = std::make_unique<StepMasks>(std::move(constraints), max_num_seqs, vocab, /*threads=*/1);
}

Result<StepResult> StandInRunner::Run(const StepPlan& plan) {
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::duration<double, std::milli>(step_ms_);
  if (masks_ != nullptr) masks_->Apply(plan);
  for (const AdmittedSequence& admitted : plan.admitted) {
    Slot& slot = slots_[static_cast<size_t>(admitted.slot)];
    slot = {.sampling = admitted.sampling,
            .banned = admitted.banned_until_min,
            .min_tokens = admitted.min_tokens,
            .prompt_count = static_cast<int32_t>(admitted.prompt.size()),
            .tokens = admitted.prompt,
            .hash = kHashStart,
            .constrained = admitted.constrained,
            .mask = {}};
    if (admitted.constrained && !admitted.sampling.allowed_token_ids.empty()) {
      slot.mask.resize(mask_words_);
      for (const TokenId id : admitted.sampling.allowed_token_ids) {
        slot.mask[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
      }
    }
    slot.tokens.insert(slot.tokens.end(), admitted.output.begin(), admitted.output.end());
    for (const TokenId token : slot.tokens) slot.hash = Extend(slot.hash, token);
  }
  if (masks_ != nullptr) {
    masks_->Begin(plan, 0, plan.sequences.size());
    masks_->Wait();
  }
  StepResult result;
  result.step = plan.step;
  result.sequences.reserve(plan.sequences.size());
  for (const PlannedSequence& planned : plan.sequences) {
    Slot& slot = slots_[static_cast<size_t>(planned.slot)];
    SequenceResult& one = result.sequences.emplace_back();
    one.slot = planned.slot;
    for (int32_t i = 0; planned.prompt_logprobs && i < planned.token_count; ++i) {
      const int32_t next = planned.first_position + i + 1;
      if (next >= slot.prompt_count) break;
      one.prompt_logprobs.push_back(
          MadeUpLogprobs(slot.tokens[next], slot.sampling.prompt_logprobs));
    }
    if (planned.sampled_rows == 0) continue;
    BT_CHECK(planned.sampled_rows == 1);
    const TokenId token = Next(planned.slot, one);
    if (token < 0) continue;
    one.tokens.push_back(token);
    if (slot.sampling.logprobs >= 0) {
      one.logprobs.push_back(MadeUpLogprobs(token, slot.sampling.logprobs));
    }
    slot.tokens.push_back(token);
    slot.hash = Extend(slot.hash, token);
  }
  if (step_ms_ > 0) std::this_thread::sleep_until(end);
  return result;
}

TokenId StandInRunner::Next(SlotId id, SequenceResult& one) {
  Slot& slot = slots_[static_cast<size_t>(id)];
  const auto output_count = static_cast<int32_t>(slot.tokens.size()) - slot.prompt_count;
  const auto banned = output_count < slot.min_tokens ? std::span<const TokenId>(slot.banned)
                                                     : std::span<const TokenId>();
  if (!slot.constrained) {
    TokenId token = TokenOf(slot.hash);
    while (std::ranges::count(banned, token) > 0) token = (token + 1) % 256;
    return token;
  }
  BT_CHECK(masks_ != nullptr);
  const auto end = [&](bool& how) {
    how = slot.over = true;
    one.error = masks_->error(id).message();
    one.error_code = masks_->error(id).code();
    masks_->Drop(id);
    return TokenId{-1};
  };
  if (slot.over || !masks_->error(id).ok()) return end(one.failed);
  const StepMasks::Choice choice = masks_->Choose(id, 0, slot.mask, banned);
  if (choice.mask.empty()) return end(one.ended);
  const TokenId token =
      AllowedToken(choice.mask, choice.lifts_ban ? std::span<const TokenId>() : banned,
                   slot.hash ^ slot.hash >> 29);
  if (!masks_->Accept(id, token)) return end(one.failed);
  one.ended = slot.over = choice.lifts_ban;
  return token;
}

Status CheckStandIn(const EngineConfig& config) {
  if (config.nodes > 1) return InvalidArgument("a stand-in has one node");
  if (config.data_parallel_size > 1) {
    return InvalidArgument("--enable-expert-parallel: a stand-in has no experts; leave it out");
  }
  if (config.balance.enabled) {
    return InvalidArgument("--enable-eplb: a stand-in has no experts; leave it out");
  }
  if (config.speculation.enabled()) {
    return InvalidArgument("--speculative-config: a stand-in has no drafts; leave it out");
  }
  return {};
}

Result<std::unique_ptr<Engine>> StartStandInEngine(const EngineConfig& config,
                                                   EventSink sink,
                                                   const ConstraintFactoryMaker& constraints) {
  EngineInfo info;
  info.model_type = "stand-in";
  info.kv_cache_dtype = config.kv_cache_dtype;  // there is none
  info.max_model_len = config.max_model_len > 0 ? config.max_model_len : kDefaultModelLen;
  info.vocab_size = kDefaultVocab;
  if (!config.model_dir.empty()) {
    BT_ASSIGN_OR_RETURN(const Json model, ReadJsonFile(config.model_dir + "/config.json"));
    const Json& text = model.contains("text_config") ? model["text_config"] : model;
    if (text.contains("vocab_size") && text["vocab_size"].is_number_integer()) {
      info.vocab_size = text["vocab_size"].get<int64_t>();
    }
  }
  info.num_blocks = std::max<int64_t>(kDefaultBlocks, BlocksFor(info.max_model_len) + int64_t{1});
  info.kv_cache_tokens = info.num_blocks * kBlockTokens;
  info.longest_step_seconds = config.stand_in_step_ms / 1000;
  if (!config.language_model_only && !config.deterministic) {
    info.picture_tokens_max = kPictureTokensMax;
    info.picture_rows = kPictureRows;
    info.picture_layers = 1;
    info.picture_patches_max = kPatchesMax;
    info.picture_patch_bytes = kPatchBytes;
    info.picture_merge_rows = info.picture_merge_columns = 2;
    info.picture_side_max = kSideMax;
    info.picture_frames_max = 4;
  }
  std::shared_ptr<ConstraintFactory> factory;
  std::shared_ptr<ConstraintTable> table;
  if (constraints)
    factory = constraints(TokenizerDir(config), static_cast<int32_t>(info.vocab_size));
  if (factory != nullptr) table = std::make_shared<ConstraintTable>();
  info.constraints = factory != nullptr;
  auto executor = std::make_unique<LocalExecutor>(
      std::make_unique<StandInRunner>(config.max_num_seqs, config.stand_in_step_ms, info.vocab_size,
                                      table),
      config.async_scheduling ? 2 : 1);
  std::unique_ptr<Engine> engine = std::make_unique<LocalEngine>(
      config, info, std::move(executor), std::move(sink), std::move(factory), std::move(table));
  return engine;
}

}  // namespace baltoro
