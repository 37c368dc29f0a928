#pragma once

// What is asked of one server. An Asker belongs to one thread; several of the same server share a
// ServerState.

#include <atomic>
#include <string>
#include <vector>

#include "client/web.h"
#include "flags/verify_options.h"
#include "verify/prompts.h"
#include "verify/reply.h"

namespace baltoro {

// What a server offers beside answers; where something is missing, why.
struct Abilities {
  bool logprobs = false, token_ids = false, tokenize = false, echo = false;
  std::string logprobs_why = {}, token_ids_why = {}, tokenize_why = {}, echo_why = {};
};

struct ServerState {
  std::string name;  // "ours" or "theirs"
  VerifyTarget target;
  std::string model;
  Abilities can;
  std::atomic<int> silent_in_a_row = 0;  // requests to which nothing came
  std::atomic<bool> answered = false;    // to anything since it was found
};

class Asker {
 public:
  static Result<Asker> Create(ServerState* server,
                              const VerifyOptions& options,
                              const std::atomic<bool>* stop);

  // Whether the server is there, and which of its models is meant. kUnavailable where nothing
  // answers.
  Result<std::string> FindModel(const std::string& wanted);
  // Tries what the server offers, with a prompt of one word.
  Abilities Probe();

  // Fills what `heard` has for it, errors included.
  void AskTokens(const VerifyPrompt& prompt, Heard& heard);
  void AskStreamed(const VerifyPrompt& prompt, Heard& heard);
  void AskWhole(const VerifyPrompt& prompt, Heard& heard);
  void AskGiven(const GivenText& given, Heard& heard);

 private:
  Asker(ServerState* server,
        const VerifyOptions& options,
        const std::atomic<bool>* stop,
        WebClient client)
      : server_(server), options_(options), stop_(stop), client_(std::move(client)) {}

  // The status is 200, or else told in the error: kInvalidArgument for 400 to 499, kInternal for
  // others, kUnavailable where nothing came.
  Result<Json> Post(const std::string& path, const Json& body);
  // `begun` is set to when the last attempt began.
  Result<WebAnswer> Send(const std::string& path,
                         const std::string& body,
                         const WebClient::OnBody& on_body,
                         Seconds* begun = nullptr);
  bool Pause(double seconds) const;

  ServerState* server_;
  const VerifyOptions& options_;
  const std::atomic<bool>* stop_;
  WebClient client_;
};

}  // namespace baltoro
