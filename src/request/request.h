#pragma once

// The nouns of one request, as plain structs that cross process borders (wire.h). From here on
// there is no text: prompts are token ids, stop strings are matched by the door, which then
// cancels.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "request/shared_bytes.h"

namespace baltoro {

using TokenId = int32_t;

// Made by the server, never by a client; unique for the life of the door.
enum class RequestId : uint64_t {};

struct SamplingParams {
  float temperature = 1.0f;  // below 1e-5: greedy
  float top_p = 1.0f;        // (0, 1]
  float min_p = 0.0f;        // [0, 1]
  int32_t top_k = 0;         // 0: off
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float repetition_penalty =
      1.0f;               // over prompt and output, as in vLLM; the two above count output only
  uint64_t seed = 0;      // token i of the output is drawn with (seed, i) alone
  int32_t logprobs = -1;  // top tokens reported beside the chosen one; -1: none at all
  int32_t prompt_logprobs = -1;  // the same for each prompt token
  std::vector<std::pair<TokenId, float>> logit_bias;
  std::vector<TokenId> allowed_token_ids;  // empty: all

  bool greedy() const { return temperature < 1e-5f; }
  bool operator==(const SamplingParams&) const = default;
};

struct StopRules {
  int32_t max_tokens = 16;  // output tokens, >= 1
  int32_t min_tokens =
      0;  // below this nothing but the length limit stops; end and stop tokens are not sampled
  bool ignore_eos = false;
  std::vector<TokenId> eos_ids;   // ends with kStop and no stop token reported
  std::vector<TokenId> stop_ids;  // ends with kStop and the id reported

  bool operator==(const StopRules&) const = default;
};

// A picture in a prompt. The model reads what an encoder makes of it in place of `count` tokens,
// which are the placeholder's.
struct RequestPicture {
  int32_t begin = 0, count = 0;               // in Request::prompt
  int32_t frames = 1, rows = 0, columns = 0;  // its grid, in patches
  std::array<uint8_t, 16> hash = {};  // of all that the encoder sees; no client can choose it
  SharedBytes pixels;  // u8 [frames * rows * columns, 3, patch, patch], frame by frame, row by row

  bool operator==(const RequestPicture&) const = default;
};

struct Request {
  RequestId id{};
  std::vector<TokenId> prompt;           // at least one
  std::vector<RequestPicture> pictures;  // in the order of the prompt; none overlaps another
  SamplingParams sampling;
  StopRules stop;
  int32_t priority = 0;    // lower runs first under the priority policy
  uint64_t owner = 0;      // owners share an engine equally
  std::string cache_salt;  // requests share cached prefixes only under equal salts
  SharedBytes constraint;  // serialised token constraint; empty: none
  int32_t replica = -1;    // that alone may have it; below 0: any

  bool operator==(const Request&) const = default;
};

// kError: TokenEvent::error says why, error_code who must act. kLost: nothing is wrong with the
// request, the engine is gone; it can be sent again.
enum class FinishReason : uint8_t { kNone, kStop, kLength, kAbort, kError, kLost };

struct TokenLogprob {
  TokenId id = 0;
  float logprob =
      0;  // natural log, of the raw distribution (before temperature, penalties and masks)
  int32_t rank = 0;  // 1 is the most likely
  bool operator==(const TokenLogprob&) const = default;
};

// First the token itself, then the top ones in falling order. Empty for the first prompt token.
using TokenLogprobs = std::vector<TokenLogprob>;

// What the engine says of one request after one step. The last event of a request has a finish
// reason other than kNone; exactly one such event comes, whatever happens.
struct TokenEvent {
  RequestId request{};
  int32_t replica = 0;   // that the request is with
  bool started = false;  // it left the queue for the first time; comes once, before any token, in
                         // an event without tokens
  std::vector<TokenId> tokens;                 // 0..k new output tokens
  std::vector<TokenLogprobs> logprobs;         // one per token when asked for
  std::vector<TokenLogprobs> prompt_logprobs;  // once, with the first event, when asked for
  FinishReason finish = FinishReason::kNone;
  std::optional<TokenId> stop_token;  // the stop_ids entry that ended it
  int32_t cached_tokens = 0;          // prompt tokens found in the prefix cache at first admission
  std::string error;                  // with kError and kLost: a sentence for the client
  Code error_code = Code::kOk;        // with them: of what kind, as a Status would say

  // Makes it the last event of a request that cannot go on.
  void Fail(const Status& why) {
    finish = why.code() == Code::kUnavailable ? FinishReason::kLost : FinishReason::kError;
    error = why.message();
    error_code = why.code();
  }

  bool operator==(const TokenEvent&) const = default;
};

// Limits what may be sampled next. Used by one thread at a time, which is not always the same one.
// What it throws ends its request alone.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Clears the bits of tokens that may not come next in `mask`, one bit a token, [ceil(vocab/32)]
  // words, all set before. With drafts: the mask after the first `drafted` tokens were accepted,
  // each of which is allowed where it stands. No bit is left where nothing may follow: the request
  // ends with kStop.
  virtual void FillMask(std::span<const TokenId> drafted, std::span<uint32_t> mask) = 0;
  // The token was chosen. False if it was not allowed; the request then ends with kError.
  virtual bool Accept(TokenId token) = 0;
  // Takes back the last `tokens` accepted ones.
  virtual void Rollback(int tokens) = 0;
  // Why the request cannot go on, as a sentence for the client; OK while it can. kInvalidArgument
  // where the constraint itself is at fault. Asked after FillMask and after a refused Accept; the
  // request then ends with kError.
  virtual Status error() const { return {}; }
};

// Makes the constraint of a request out of Request::constraint.
class ConstraintFactory {
 public:
  virtual ~ConstraintFactory() = default;
  // Any thread, never the engine's; may take milliseconds, or as long as a vocabulary takes to
  // load. An error ends the request with its message and code. The constraint knows nothing sampled
  // yet.
  virtual Result<std::unique_ptr<TokenConstraint>> Make(const Request& request) = 0;
};

// How an engine gets its factory, once it knows its model: called once, before weights are read,
// with the folder of its tokenizer and the width of its logits. Must not block. Null: no
// constraints.
using ConstraintFactoryMaker = std::function<std::shared_ptr<ConstraintFactory>(
    const std::string& tokenizer_dir, int32_t vocab_size)>;

}  // namespace baltoro
