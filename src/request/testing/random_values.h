#pragma once

// Requests and events of random numbers, for tests of wire forms.

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "request/request.h"

namespace baltoro::test {

class RandomValues {
 public:
  explicit RandomValues(uint64_t seed) : random_(seed) {}

  template <typename T>
  T Number() {
    return static_cast<T>(random_());
  }
  float Float() { return static_cast<float>(static_cast<int32_t>(random_())) / 1000.0f; }
  std::string Bytes() {
    std::string bytes(random_() % 40, 0);
    for (char& c : bytes) c = Number<char>();
    return bytes;
  }
  std::vector<TokenId> Ids() {
    std::vector<TokenId> ids(random_() % 20);
    for (TokenId& id : ids) id = Number<TokenId>();
    return ids;
  }
  std::vector<TokenLogprobs> Logprobs() {
    std::vector<TokenLogprobs> rows(random_() % 4);
    for (TokenLogprobs& row : rows) {
      row.resize(random_() % 3);
      for (TokenLogprob& one : row) one = {Number<TokenId>(), Float(), Number<int32_t>()};
    }
    return rows;
  }
  SamplingParams Sampling() {
    return {.temperature = Float(),
            .top_p = Float(),
            .min_p = Float(),
            .top_k = Number<int32_t>(),
            .presence_penalty = Float(),
            .frequency_penalty = Float(),
            .repetition_penalty = Float(),
            .seed = random_(),
            .logprobs = Number<int32_t>(),
            .prompt_logprobs = Number<int32_t>(),
            .logit_bias = {{Number<TokenId>(), Float()}},
            .allowed_token_ids = Ids()};
  }
  Request AnyRequest() {
    Request request;
    request.id = RequestId{random_()};
    request.prompt = Ids();
    request.pictures.resize(random_() % 3);
    for (RequestPicture& picture : request.pictures) {
      picture = {.begin = Number<int32_t>(),
                 .count = Number<int32_t>(),
                 .frames = Number<int32_t>(),
                 .rows = Number<int32_t>(),
                 .columns = Number<int32_t>(),
                 .hash = {Number<uint8_t>(), Number<uint8_t>()},
                 .pixels = Bytes()};
    }
    request.sampling = Sampling();
    request.stop = {.max_tokens = Number<int32_t>(),
                    .min_tokens = Number<int32_t>(),
                    .ignore_eos = random_() % 2 == 0,
                    .eos_ids = Ids(),
                    .stop_ids = Ids()};
    request.priority = Number<int32_t>();
    request.owner = random_();
    request.cache_salt = Bytes();
    request.constraint = Bytes();
    return request;
  }
  TokenEvent AnyEvent() {
    TokenEvent event;
    event.request = RequestId{random_()};
    event.started = random_() % 2 == 0;
    event.tokens = Ids();
    event.logprobs = Logprobs();
    event.prompt_logprobs = Logprobs();
    event.finish =
        static_cast<FinishReason>(random_() % (static_cast<uint64_t>(FinishReason::kLost) + 1));
    if (random_() % 2 == 0) event.stop_token = Number<TokenId>();
    event.cached_tokens = Number<int32_t>();
    event.error = Bytes();
    event.error_code = static_cast<Code>(random_() % (static_cast<uint64_t>(Code::kInternal) + 1));
    return event;
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace baltoro::test
