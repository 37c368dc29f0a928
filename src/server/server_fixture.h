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

  FakeEngine(EventSink sink, Script script) : sink_(std::move(sink)), script_(std::move(script)) {
    info_.model_type = "fake";
    info_.max_model_len = kTestModelLength;
    info_.vocab_size = kTestVocabulary;
    info_.num_blocks = 64;
    info_.kv_cache_tokens = 4096;
    thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
  }

  Status Submit(Request request) override {
    const std::lock_guard lock(mutex_);
    if (!refusal_.ok() && submitted_.size() >= refuse_after_) return refusal_;
    std::vector<TokenEvent> events = script_(request);
    for (TokenEvent& event : events) event.request = request.id;
    running_.emplace_back(request.id, std::move(events));
    submitted_.push_back(std::move(request));
    wake_.notify_all();
    return {};
  }
  void Abort(RequestId id) override {
    const std::lock_guard lock(mutex_);
    ++aborts_;
    for (auto& [running, events] : running_) {
      if (running != id) continue;
      TokenEvent last;
      last.request = id;
      last.finish = FinishReason::kAbort;
      events = {last};
    }
    wake_.notify_all();
  }
  EngineStats stats() const override {
    const std::lock_guard lock(mutex_);
    return stats_;
  }
  const EngineInfo& info() const override { return info_; }
  EngineHealth health() const override {
    const std::lock_guard lock(mutex_);
    return health_;
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

  void Run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, stop, [this] { return !hold_ && AnyEvent(); });
      if (stop.stop_requested()) return;
      std::vector<TokenEvent> step;
      for (auto& [id, events] : running_) {
        if (events.empty()) continue;
        step.push_back(std::move(events.front()));
        events.erase(events.begin());
        if (step.back().finish != FinishReason::kNone) id = RequestId{0};
      }
      std::erase_if(running_, [](const Running& one) { return one.first == RequestId{0}; });
      lock.unlock();
      sink_(std::move(step));
      lock.lock();
    }
  }
  bool AnyEvent() const {
    for (const auto& [id, events] : running_) {
      if (!events.empty()) return true;
    }
    return false;
  }

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
inline std::vector<TokenEvent> Play(const std::vector<std::vector<TokenId>>& steps,
                                    FinishReason finish) {
  std::vector<TokenEvent> events;
  for (const auto& tokens : steps) {
    TokenEvent event;
    event.tokens = tokens;
    events.push_back(std::move(event));
  }
  if (events.empty()) events.emplace_back();
  events.back().finish = finish;
  return events;
}

// Each token alone.
inline std::vector<TokenEvent> PlayOneByOne(const std::vector<TokenId>& tokens,
                                            FinishReason finish) {
  std::vector<std::vector<TokenId>> steps;
  for (const TokenId token : tokens) steps.push_back({token});
  return Play(steps, finish);
}

// The answer to one request, streamed or not.
struct Answer {
  int status = 0;
  HttpHeaders headers;
  std::string body;                 // of an answer that was no stream
  std::vector<std::string> events;  // the data of each server-sent event

  std::string_view Header(std::string_view name) const { return FindHeader(headers, name); }
  Json json() const {
    Result<Json> parsed = ParseJson(body);
    EXPECT_TRUE(parsed.ok()) << parsed.status().message() << ": " << body;
    return parsed.ok() ? std::move(parsed).value() : Json();
  }
  Json error() const { return json().value("error", Json::object()); }
  // All events but [DONE], which must come last.
  std::vector<Json> chunks() const {
    std::vector<Json> out;
    for (const std::string& event : events) {
      if (event == "[DONE]") continue;
      Result<Json> parsed = ParseJson(event);
      EXPECT_TRUE(parsed.ok()) << parsed.status().message() << ": " << event;
      if (parsed.ok()) out.push_back(std::move(parsed).value());
    }
    EXPECT_EQ(events.empty() ? "no event" : events.back(), "[DONE]");
    return out;
  }
};

class ServerFixture : public ::testing::Test {
 protected:
  static ServerConfig DefaultConfig() {
    ServerConfig config;
    config.http.port = 0;
    config.model_names = {"pocket", "also-pocket"};
    config.version = "1.2.3";
    config.eos_ids = {2050};  // <|im_end|>
    return config;
  }

  void StartServer(ServerConfig config = DefaultConfig(), bool with_text = true) {
    std::unique_ptr<Tokenizer> tokenizer;
    std::unique_ptr<ChatTemplate> chat_template;
    if (with_text) {
      auto loaded = Tokenizer::Load(kPocketDir);
      ASSERT_TRUE(loaded.ok()) << loaded.status().message();
      tokenizer = std::move(loaded).value();
      auto parsed = template_source_.empty() ? ChatTemplate::LoadFromDir(kPocketDir)
                                             : ChatTemplate::Parse(template_source_, "template");
      ASSERT_TRUE(parsed.ok()) << parsed.status().message();
      chat_template = std::move(parsed).value();
    }
    auto server = Server::Listen(std::move(config), std::move(tokenizer), std::move(chat_template));
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(server).value();
    auto own = Tokenizer::Load(kPocketDir);
    ASSERT_TRUE(own.ok());
    tokenizer_ = std::move(own).value();
  }

  void Start(FakeEngine::Script script,
             ServerConfig config = DefaultConfig(),
             bool with_text = true) {
    ASSERT_NO_FATAL_FAILURE(StartServer(std::move(config), with_text));
    engine_ = std::make_unique<FakeEngine>(server_->sink(), std::move(script));
    server_->SetEngine(engine_.get());
  }

  ~ServerFixture() override {
    if (server_ != nullptr) server_->SetEngine(nullptr);
    engine_.reset();
  }

  HttpClient Client() const { return HttpClient({.port = server_->port(), .idle_timeout = 20}); }

  Answer Send(const HttpClientRequest& request) const {
    HttpClient client = Client();
    Answer answer;
    Result<HttpResponse> response = client.Stream(request, [&](const SseEvent& event) {
      answer.events.push_back(event.data);
      return true;
    });
    EXPECT_TRUE(response.ok()) << response.status().message();
    if (!response.ok()) return answer;
    answer.status = response.value().status;
    answer.headers = response.value().headers;
    answer.body = response.value().body;
    return answer;
  }
  Answer Get(const std::string& target, HttpHeaders headers = {}) const {
    return Send({.method = "GET", .target = target, .headers = std::move(headers)});
  }
  Answer Post(const std::string& target, const Json& body, HttpHeaders headers = {}) const {
    return Send(
        {.method = "POST", .target = target, .headers = std::move(headers), .body = body.dump()});
  }
  Answer Chat(Json extra = Json::object()) const {
    if (!extra.contains("messages")) {
      extra["messages"] = {{{"role", "user"}, {"content", "Hello!"}}};
    }
    return Post("/v1/chat/completions", extra);
  }
  Answer Complete(Json extra = Json::object()) const {
    if (!extra.contains("prompt")) extra["prompt"] = "Hello";
    return Post("/v1/completions", extra);
  }

  std::vector<TokenId> Ids(const std::string& text) const {
    return tokenizer_->EncodeWithSpecials(text);
  }
  // A model that says `text`, token by token, and ends.
  FakeEngine::Script Says(const std::string& text) const {
    return [this, text](const Request&) {
      std::vector<TokenId> ids = Ids(text + "<|im_end|>");
      return PlayOneByOne(ids, FinishReason::kStop);
    };
  }

  std::string template_source_;  // empty: the pocket model's
  std::unique_ptr<Server> server_;
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<Tokenizer> tokenizer_;  // the same as the server's
};

}  // namespace baltoro::test
