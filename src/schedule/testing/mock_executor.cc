#include "schedule/testing/mock_executor.h"

#include <algorithm>

namespace baltoro::test {

namespace {

constexpr uint64_t kPoison = ~uint64_t{0};

uint64_t Mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9;
  x ^= x >> 27;
  x *= 0x94d049bb133111eb;
  return x ^ x >> 31;
}

}  // namespace

uint64_t ChainStart(uint64_t seed) {
  return Mix(seed + 0x1234567);
}

uint64_t PictureValue(const PictureName& name, int32_t row) {
  uint64_t value = static_cast<uint64_t>(row) + 77;
  for (const uint8_t byte : name) value = Mix(value * 31 + byte);
  return value | 1;  // none is 0
}

uint64_t ChainPicture(uint64_t chain, uint64_t value) {
  return Mix(chain * 37 + value);
}

uint64_t ChainNext(uint64_t chain, TokenId token) {
  return Mix(chain * 31 + static_cast<uint64_t>(token) + 1);
}

TokenId OracleToken(uint64_t chain,
                    int32_t output_index,
                    int32_t min_tokens,
                    const std::vector<TokenId>& banned) {
  for (uint64_t attempt = 0;; ++attempt) {
    const auto token = static_cast<TokenId>(Mix(chain + attempt) % kVocab);
    if (output_index >= min_tokens || std::ranges::count(banned, token) == 0) return token;
  }
}

MockExecutor::MockExecutor(int32_t num_blocks,
                           int32_t max_num_seqs,
                           const FixedForms& fixed,
                           uint64_t seed)
    : kv_(static_cast<size_t>(num_blocks) * kBlockTokens),
      slots_(max_num_seqs),
      fixed_(fixed),
      random_(seed) {}

StepResult MockExecutor::Run(const StepPlan& plan) {
  Apply(plan);
  for (const PlannedEncode& encode : plan.encodes) Encode(encode);
  StepResult result;
  result.step = plan.step;
  for (const PlannedSequence& planned : plan.sequences) {
    SequenceResult& one = result.sequences.emplace_back();
    one.slot = planned.slot;
    RunSequence(plan, planned, one);
  }
  return result;
}

bool MockExecutor::IsPoisoned(BlockId block) const {
  const auto begin = kv_.begin() + static_cast<int64_t>(block) * kBlockTokens;
  return std::count(begin, begin + kBlockTokens, kPoison) > 0;
}

std::vector<BlockId> MockExecutor::WrittenBlocks(const StepPlan& plan) const {
  std::vector<BlockId> written;
  for (const PlannedSequence& planned : plan.sequences) {
    const Slot& slot = slots_[static_cast<size_t>(planned.slot)];
    if (!slot.live) continue;
    const int32_t last = planned.first_position + planned.token_count - 1;
    for (int32_t b = planned.first_position / kBlockTokens; b <= last / kBlockTokens; ++b) {
      if (b < static_cast<int32_t>(slot.blocks.size())) written.push_back(slot.blocks[b]);
    }
  }
  return written;
}

void MockExecutor::Apply(const StepPlan& plan) {
  for (const BlockId block : plan.cleared) {
    std::fill_n(kv_.begin() + static_cast<int64_t>(block) * kBlockTokens, kBlockTokens, 0);
  }
  for (const SlotId id : plan.retired) {
    Slot& slot = slots_[static_cast<size_t>(id)];
    if (!slot.live) Violate("a slot is retired that nobody has");
    slot = {};
  }
  for (const AdmittedSequence& admitted : plan.admitted) {
    Slot& slot = slots_[static_cast<size_t>(admitted.slot)];
    if (slot.live) Violate("a slot is given away before it was retired");
    slot = {};
    slot.live = true;
    slot.admitted = admitted;
    slot.pictures = expected_[admitted.request];
    if (admitted.prompt[0] >= kEndBase) {
      slot.end_at = admitted.prompt[0] - kEndBase;
      if (!admitted.constrained) Violate("a constraint was lost");
    } else if (admitted.prompt[0] >= kFailBase) {
      slot.fail_at = admitted.prompt[0] - kFailBase;
    }
    for (const TokenId token : admitted.prompt) Append(slot, token);
    for (const TokenId token : admitted.output) Append(slot, token);
  }
}

void MockExecutor::RunSequence(const StepPlan& plan,
                               const PlannedSequence& planned,
                               SequenceResult& result) {
  Slot& slot = slots_[static_cast<size_t>(planned.slot)];
  if (!slot.live) return Violate("a sequence is planned in a slot that nobody has");
  const auto new_blocks = plan.new_blocks_of(planned);
  slot.blocks.insert(slot.blocks.end(), new_blocks.begin(), new_blocks.end());
  const int32_t first = planned.first_position;
  const int32_t end = first + planned.token_count;
  if (end > static_cast<int32_t>(slot.blocks.size()) * kBlockTokens) {
    return Violate("a position is planned that no block holds");
  }
  bool poisoned = slot.failed || !ReadBefore(slot, first);
  if (!violation_.empty()) return;
  if (slot.failed) {
    // Planned before the scheduler knew: there is no token to go on from.
    for (int32_t p = first; p < end; ++p) Kv(slot, p) = kPoison;
    result.failed = true;
    return;
  }

  CheckForm(slot, planned);

  const auto tokens = plan.tokens_of(planned);
  const int32_t drafts = std::max(planned.sampled_rows - 1, 0);
  const int32_t prompt_count = static_cast<int32_t>(slot.admitted.prompt.size());
  const auto known = static_cast<int32_t>(slot.tokens.size());
  uint64_t chain = first > 0 ? slot.chain[first - 1] : ChainStart(slot.admitted.sampling.seed);
  std::vector<uint64_t> chains;
  for (int32_t i = 0; i < planned.token_count; ++i) {
    const int32_t position = first + i;
    const bool draft = i >= planned.token_count - drafts;
    if (!draft && position >= known) return Violate("a token is computed that is not known");
    if (!draft && tokens[i] != kSampledToken && tokens[i] != slot.tokens[position]) {
      return Violate("a query token is not the sequence's");
    }
    chain = ChainNext(chain, draft ? tokens[i] : slot.tokens[position]);
    if (const uint64_t value = ValueAt(slot, position); value != 0) {
      const auto rows = std::ranges::find_if(planned.pictures, [i](const PictureRows& one) {
        return one.row <= i && i < one.row + one.count;
      });
      if (rows == planned.pictures.end())
        return Violate("a picture is computed as its placeholder");
      const auto from = static_cast<size_t>(rows->from + i - rows->row);
      if (picture_memory_.at(from) != value) return Violate("a picture is read that is not there");
      chain = ChainPicture(chain, value);
    }
    chains.push_back(chain);
    if (planned.prompt_logprobs && position + 1 < prompt_count) {
      result.prompt_logprobs.push_back(
          {{slot.admitted.prompt[position + 1], static_cast<float>(position + 1), 1}});
    }
  }
  if (planned.sampled_rows > 0 && end - drafts != known) {
    return Violate("a row is sampled that is not the last known token's");
  }

  const int32_t output_before = known - prompt_count;
  if (planned.sampled_rows > 0 && slot.fail_at == output_before) poisoned = true;
  for (int32_t i = 0; i < planned.token_count; ++i) {
    Kv(slot, first + i) = poisoned ? kPoison : chains[i] ^ FormOf(slot, first + i);
  }
  result.failed = slot.failed = poisoned;
  if (poisoned || planned.sampled_rows == 0) return;
  for (int32_t row = 0; row < planned.sampled_rows; ++row) {
    if (slot.fail_at == output_before + row) break;  // its turn comes with the next step
    if (slot.end_at == output_before + row) {
      if (row == 0) result.ended = slot.failed = true;
      break;
    }
    const int32_t i = planned.token_count - planned.sampled_rows + row;
    const TokenId token = OracleToken(chains[i], output_before + row, slot.admitted.min_tokens,
                                      slot.admitted.banned_until_min);
    result.tokens.push_back(token);
    Append(slot, token);
    if (row + 1 < planned.sampled_rows && tokens[i + 1] != token) break;
  }
  uint64_t guess = slot.chain.back();
  for (int32_t count = static_cast<int32_t>(random_() % (plan.drafts_wanted + 1)); count > 0;
       --count) {
    const bool right = random_() % 4 != 0;
    result.drafts.push_back(right ? OracleToken(guess, 1 << 30, 0, {}) : 0);
    guess = ChainNext(guess, result.drafts.back());
  }
}

uint64_t MockExecutor::FormOf(const Slot& slot, int32_t position) const {
  const auto prompt_count = static_cast<int32_t>(slot.admitted.prompt.size());
  if (fixed_.prompt_chunk == 0) return 0;
  if (position >= prompt_count) return 1;
  const bool scored = slot.admitted.sampling.prompt_logprobs >= 0;
  const int32_t chunk =
      scored ? std::min(fixed_.prompt_chunk, fixed_.prompt_logprob_rows_max) : fixed_.prompt_chunk;
  const int32_t begin = position / chunk * chunk;
  const int32_t end = std::min(begin + chunk, prompt_count);
  return Mix(static_cast<uint64_t>(begin) << 32 | static_cast<uint64_t>(end));
}

void MockExecutor::CheckForm(const Slot& slot, const PlannedSequence& planned) {
  if (fixed_.prompt_chunk == 0) return;
  const auto prompt_count = static_cast<int32_t>(slot.admitted.prompt.size());
  const int32_t first = planned.first_position, last = first + planned.token_count - 1;
  if (first >= prompt_count) {
    if (planned.token_count > fixed_.decode_rows) Violate("an entry has too many sampled tokens");
    return;
  }
  const bool whole = (first == 0 || FormOf(slot, first - 1) != FormOf(slot, first)) &&
                     (last + 1 == prompt_count || FormOf(slot, last + 1) != FormOf(slot, last)) &&
                     FormOf(slot, first) == FormOf(slot, last);
  if (!whole) Violate("a chunk is not the request's own");
}

// False if something that the step reads came from a failed one.
bool MockExecutor::ReadBefore(const Slot& slot, int32_t first_position) {
  if (first_position > static_cast<int32_t>(slot.tokens.size())) {
    Violate("positions are claimed to be computed whose tokens are not known");
    return true;
  }
  const bool may_fail = slot.fail_at >= 0;
  for (int32_t p = 0; p < first_position; ++p) {
    const uint64_t value =
        kv_[static_cast<size_t>(slot.blocks[p / kBlockTokens]) * kBlockTokens + p % kBlockTokens];
    if (value == (slot.chain[p] ^ FormOf(slot, p))) continue;
    if (value != kPoison) Violate("a block does not hold what it is claimed to hold");
    if (!may_fail) Violate("a request reads what a failed one wrote");
    return false;
  }
  return true;
}

uint64_t& MockExecutor::Kv(const Slot& slot, int32_t position) {
  return kv_[static_cast<size_t>(slot.blocks[position / kBlockTokens]) * kBlockTokens +
             position % kBlockTokens];
}

void MockExecutor::Encode(const PlannedEncode& encode) {
  if (!encode.pictures.empty()) {
    batch_ = encode;
    batch_.layers = 0;
  }
  if (batch_.pictures.empty()) return Violate("layers are computed of no picture");
  batch_.layers += encode.layers;
  if (batch_.layers > picture_layers_) return Violate("more layers are computed than there are");
  const bool done = batch_.layers == picture_layers_;
  for (const EncodedPicture& picture : batch_.pictures) {
    auto at = static_cast<size_t>(picture.place);
    if (picture.rank < 0 || picture.rank >= picture_ranks_) {
      return Violate("a rank encodes that is not there");
    }
    PictureName name{};
    std::ranges::copy(picture.pixels.str(), name.begin());
    for (int32_t row = 0; row < picture.rows * picture.columns / 4; ++row) {
      if (at >= picture_memory_.size()) return Violate("a picture has no place");
      picture_memory_[at++] = done ? PictureValue(name, row) : kPoison;
    }
  }
}

uint64_t MockExecutor::ValueAt(const Slot& slot, int32_t position) {
  for (const RequestPicture& picture : slot.pictures) {
    const int32_t row = position - picture.begin;
    if (row >= 0 && row < picture.count) return PictureValue(picture.hash, row);
  }
  return 0;
}

void MockExecutor::Append(Slot& slot, TokenId token) {
  uint64_t chain = ChainNext(
      slot.chain.empty() ? ChainStart(slot.admitted.sampling.seed) : slot.chain.back(), token);
  const uint64_t value = ValueAt(slot, static_cast<int32_t>(slot.tokens.size()));
  if (value != 0) chain = ChainPicture(chain, value);
  slot.chain.push_back(chain);
  slot.tokens.push_back(token);
}

void MockExecutor::Violate(const std::string& what) {
  if (violation_.empty()) violation_ = what;
}

}  // namespace baltoro::test
