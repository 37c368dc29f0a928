#include "server/server_fixture.h"

namespace baltoro::test {

FakeEngine::FakeEngine(EventSink sink, Script script)
    : sink_(std::move(sink)), script_(std::move(script)) {
  info_.model_type = "fake";
  info_.max_model_len = kTestModelLength;
  info_.vocab_size = kTestVocabulary;
  info_.num_blocks = 64;
  info_.kv_cache_tokens = 4096;
  thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
}

Status FakeEngine::Submit(Request request) {
  const std::lock_guard lock(mutex_);
  if (!refusal_.ok() && submitted_.size() >= refuse_after_) return refusal_;
  std::vector<TokenEvent> events = script_(request);
  for (TokenEvent& event : events) event.request = request.id;
  running_.emplace_back(request.id, std::move(events));
  submitted_.push_back(std::move(request));
  wake_.notify_all();
  return {};
}

void FakeEngine::Abort(RequestId id) {
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

void FakeEngine::Run(const std::stop_token& stop) {
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

bool FakeEngine::AnyEvent() const {
  for (const auto& [id, events] : running_) {
    if (!events.empty()) return true;
  }
  return false;
}

std::vector<TokenEvent> Play(const std::vector<std::vector<TokenId>>& steps, FinishReason finish) {
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

std::vector<TokenEvent> PlayOneByOne(const std::vector<TokenId>& tokens, FinishReason finish) {
  std::vector<std::vector<TokenId>> steps;
  for (const TokenId token : tokens) steps.push_back({token});
  return Play(steps, finish);
}

Json Answer::json() const {
  Result<Json> parsed = ParseJson(body);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message() << ": " << body;
  return parsed.ok() ? std::move(parsed).value() : Json();
}

Json Answer::error() const {
  return json().value("error", Json::object());
}

std::vector<Json> Answer::chunks() const {
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

ServerConfig ServerFixture::DefaultConfig() {
  ServerConfig config;
  config.http.port = 0;
  config.model_names = {"pocket", "also-pocket"};
  config.version = "1.2.3";
  config.eos_ids = {2050};  // <|im_end|>
  return config;
}

void ServerFixture::StartServer(ServerConfig config, bool with_text) {
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

void ServerFixture::Start(FakeEngine::Script script, ServerConfig config, bool with_text) {
  ASSERT_NO_FATAL_FAILURE(StartServer(std::move(config), with_text));
  engine_ = std::make_unique<FakeEngine>(server_->sink(), std::move(script));
  server_->SetEngine(engine_.get());
}

ServerFixture::~ServerFixture() {
  if (server_ != nullptr) server_->SetEngine(nullptr);
  engine_.reset();
}

HttpClient ServerFixture::Client() const {
  return HttpClient({.port = server_->port(), .idle_timeout = 20});
}

Answer ServerFixture::Send(const HttpClientRequest& request) const {
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

Answer ServerFixture::Get(const std::string& target, HttpHeaders headers) const {
  return Send({.method = "GET", .target = target, .headers = std::move(headers)});
}

Answer ServerFixture::Post(const std::string& target, const Json& body, HttpHeaders headers) const {
  return Send(
      {.method = "POST", .target = target, .headers = std::move(headers), .body = body.dump()});
}

Answer ServerFixture::Chat(Json extra) const {
  if (!extra.contains("messages")) {
    extra["messages"] = {{{"role", "user"}, {"content", "Hello!"}}};
  }
  return Post("/v1/chat/completions", extra);
}

Answer ServerFixture::Complete(Json extra) const {
  if (!extra.contains("prompt")) extra["prompt"] = "Hello";
  return Post("/v1/completions", extra);
}

std::vector<TokenId> ServerFixture::Ids(const std::string& text) const {
  return tokenizer_->EncodeWithSpecials(text);
}

FakeEngine::Script ServerFixture::Says(const std::string& text) const {
  return [this, text](const Request&) {
    std::vector<TokenId> ids = Ids(text + "<|im_end|>");
    return PlayOneByOne(ids, FinishReason::kStop);
  };
}

}  // namespace baltoro::test
