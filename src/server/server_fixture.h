#pragma once

// For this room's tests: an engine that plays what a test wrote, and a server with the pocket
// model's tokenizer and template in front of it, reached over real sockets.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "net/http_client.h"
#include "server/server.h"

namespace baltoro::test {

inline constexpr const char* kPocketDir = "pocket/model";
inline constexpr int64_t kTestModelLength = 4096;
inline constexpr int64_t kTestVocabulary = 2304;

template <typename Condition>
bool Eventually(Condition condition, double seconds = 5) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// Each running request gets its next event in each step; one whose script is over waits for Abort.
class FakeEngine final : public Engine {
 public:
  using Script = std::function<std::vector<TokenEvent>(const Request&)>;

  FakeEngine(EventSink sink, Script script);

  Status Submit(Request request) override;
  void Abort(RequestId id) override;
  EngineStats stats() const override {
    const std::lock_guard lock(mutex_);
    return stats_;
  }
  const EngineInfo& info() const override { return info_; }
  EngineHealth health() const override {
    const std::lock_guard lock(mutex_);
    return health_;
  }

  void Profile(const ProfileAsk& ask, const ProfileDone& done) override {
    done({}, ask.start ? Json() : Json{{"file", ask.dir + "/f"}});
  }

  // From the `after`th request on, Submit answers with `status`.
  void Refuse(Status status, size_t after = 0) {
    const std::lock_guard lock(mutex_);
    refusal_ = std::move(status);
    refuse_after_ = after;
  }
  void set_healthy(bool healthy) {
    set_health(
        {.trouble = healthy ? EngineTrouble::kNone : EngineTrouble::kEnded, .next_start = {}});
  }
  void set_health(const EngineHealth& health) {
    const std::lock_guard lock(mutex_);
    health_ = health;
  }
  void set_picture_tokens_max(int32_t tokens) {
    info_.picture_tokens_max = tokens;
    info_.picture_frames_max = 4;
  }
  void set_stats(const EngineStats& stats) {
    const std::lock_guard lock(mutex_);
    stats_ = stats;
  }
  // No events from now on, or again.
  void Hold(bool hold) {
    const std::lock_guard lock(mutex_);
    hold_ = hold;
    wake_.notify_all();
  }
  std::vector<Request> submitted() const {
    const std::lock_guard lock(mutex_);
    return submitted_;
  }
  size_t aborts() const {
    const std::lock_guard lock(mutex_);
    return aborts_;
  }
  size_t running() const {
    const std::lock_guard lock(mutex_);
    return running_.size();
  }

 private:
  using Running = std::pair<RequestId, std::vector<TokenEvent>>;

  void Run(const std::stop_token& stop);
  bool AnyEvent() const;

  const EventSink sink_;
  const Script script_;
  EngineInfo info_;
  mutable std::mutex mutex_;
  EngineHealth health_;
  std::condition_variable_any wake_;
  std::vector<Running> running_;
  std::vector<Request> submitted_;
  Status refusal_;
  size_t refuse_after_ = 0;
  size_t aborts_ = 0;
  bool hold_ = false;
  EngineStats stats_;
  std::jthread thread_;  // last: it uses all of the above
};

// One event for each group of tokens; the last one carries the end.
std::vector<TokenEvent> Play(const std::vector<std::vector<TokenId>>& steps, FinishReason finish);

// Each token alone.
std::vector<TokenEvent> PlayOneByOne(const std::vector<TokenId>& tokens, FinishReason finish);

// The answer to one request, streamed or not.
struct Answer {
  int status = 0;
  HttpHeaders headers;
  std::string body;                 // of an answer that was no stream
  std::vector<std::string> events;  // the data of each server-sent event

  std::string_view Header(std::string_view name) const { return FindHeader(headers, name); }
  Json json() const;
  Json error() const;
  // All events but [DONE], which must come last.
  std::vector<Json> chunks() const;
};

class ServerFixture : public ::testing::Test {
 protected:
  static ServerConfig DefaultConfig();
  // And those that are there only on demand.
  static ServerConfig WithAllRoutes() {
    ServerConfig config = DefaultConfig();
    config.tokenizer_info = {{"tokenizer_class", "T"}};
    config.dev_mode = true;
    config.profile_dir = "/nowhere";
    config.given_flags = {{"seed", 3}};
    config.environment = {{"VLLM_LOGGING_LEVEL", "INFO"}};
    return config;
  }

  void StartServer(ServerConfig config = DefaultConfig(), bool with_text = true);
  void Start(FakeEngine::Script script,
             ServerConfig config = DefaultConfig(),
             bool with_text = true);
  ~ServerFixture() override;

  HttpClient Client() const;
  Answer Send(const HttpClientRequest& request) const;
  Answer Get(const std::string& target, HttpHeaders headers = {}) const;
  Answer Post(const std::string& target, const Json& body, HttpHeaders headers = {}) const;
  Answer Chat(Json extra = Json::object()) const;
  Answer Complete(Json extra = Json::object()) const;

  std::vector<TokenId> Ids(const std::string& text) const;
  // A model that says `text`, token by token, and ends.
  FakeEngine::Script Says(const std::string& text) const;

  std::string template_source_;  // empty: the pocket model's
  std::unique_ptr<Server> server_;
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<Tokenizer> tokenizer_;  // the same as the server's
};

}  // namespace baltoro::test
