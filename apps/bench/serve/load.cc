#include "bench/serve/load.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <deque>
#include <queue>
#include <random>

#include "client/api_client.h"
#include "net/loop_timer.h"
#include "net/stream_client.h"
#include "terminal/progress_line.h"

namespace baltoro {
namespace {

constexpr Seconds kTick = 0.1;

// The body of a request, of which only model, prompt and length are its own.
class BodyWriter {
 public:
  BodyWriter(const BenchServeCommand& command, const Dataset& data) : chat_(command.chat) {
    const char* length = chat_ ? "max_completion_tokens" : "max_tokens";
    Json fields = {{"stream", true}, {"stream_options", {{"include_usage", true}}}};
    for (const auto& [key, value] : command.body.items()) fields[key] = value;
    own_model_ = !fields.contains("model");
    if (!fields.contains(length)) length_ = fmt::format(",\"{}\":", length);
    if (!data.tools.empty() && !fields.contains("tools")) tail_ = ",\"tools\":" + data.tools;
    tail_ += "," + fields.dump().substr(1);
  }

  std::string Write(const BenchSession& session,
                    const BenchTurn& turn,
                    std::string_view model) const {
    const std::string_view text = std::string_view(session.text).substr(0, turn.text_bytes);
    std::string out;
    out.reserve(text.size() + tail_.size() + 128);
    out += chat_ ? "{\"messages\":[" : "{\"prompt\":";
    out += text;
    if (chat_) out += ']';
    if (own_model_) {
      out += ",\"model\":";
      AppendJsonString(out, model);
    }
    if (!length_.empty()) out += length_ + std::to_string(turn.output_tokens);
    return out + tail_;
  }

 private:
  bool chat_, own_model_ = true;
  std::string length_, tail_;
};

std::string WhyNot(const Result<HttpResponse>& answer) {
  if (!answer.ok()) return answer.status().message();
  if (answer.value().status == 200) return "";
  return fmt::format("{}: {}", answer.value().status, ErrorMessageOf(answer.value()));
}

class LoadRun {
 public:
  LoadRun(const BenchServeCommand& command, const Dataset& data, bool progress)
      : command_(command),
        data_(data),
        body_(command, data),
        line_(/*quiet=*/!progress),
        random_(command.data.seed),
        timer_([this] { OnTime(); }) {
    size_t requests = 0;
    for (const BenchSession& session : data.sessions) {
      first_.push_back(requests);
      requests += session.turns.size();
    }
    out_.answers.resize(requests);
    under_way_.resize(data.sessions.size());
  }

  Result<LoadOutcome> Run(const std::vector<double>& arrivals, const LoadLimits& limits) {
    BT_ASSIGN_OR_RETURN(loop_, EventLoop::Create());
    std::shared_ptr<const TlsContext> tls;
    if (command_.https) {
      BT_ASSIGN_OR_RETURN(tls, TlsContext::ForClient(command_.insecure));
    }
    BT_ASSIGN_OR_RETURN(client_,
                        StreamClient::Create(loop_.get(), {.host = command_.host,
                                                           .port = command_.port,
                                                           .tls = tls,
                                                           .idle_timeout = limits.request}));
    BT_RETURN_IF_ERROR(timer_.Join(loop_.get()));
    begun_ = loop_->Now();
    for (size_t i = 0; i < arrivals.size(); ++i) due_.push({begun_ + arrivals[i], i});
    loop_->SetTick(kTick);
    loop_->set_on_tick([this, &limits] {
      if (limits.stop != nullptr && *limits.stop) return loop_->Stop();
      client_->Expire(loop_->Now());
      Draw();
    });
    timer_.Set(begun_);
    loop_->Run();
    out_.begun = begun_;
    out_.seconds = loop_->Now() - begun_;
    Draw();
    line_.End();
    client_ = nullptr;
    for (Answer& answer : out_.answers) {
      if (!answer.success && answer.error.empty()) answer.error = "interrupted";
    }
    return std::move(out_);
  }

 private:
  // A session whose request is under way, or will be after a pause.
  class Turn final : public StreamClient::Sink {
   public:
    Turn(LoadRun* run, size_t session) : run_(run), session_(session) {}
    size_t turn = 0;
    void Begin(Answer* answer, bool chat) {
      reader_.emplace(answer, chat);
      answer->start = run_->loop_->Now();
    }
    void OnBody(std::string_view bytes, Seconds at) override { reader_->Feed(bytes, at); }
    void OnEnd(const Result<HttpResponse>& answer, Seconds) override {
      reader_->End(WhyNot(answer));
      run_->OnEnd(session_);
    }

   private:
    LoadRun* run_;
    size_t session_;
    std::optional<AnswerReader> reader_;
  };

  void OnTime() {
    const Seconds now = loop_->Now();
    while (!due_.empty() && due_.top().first <= now) {
      const size_t session = due_.top().second;
      due_.pop();
      if (under_way_[session] != nullptr) {
        Send(session);
      } else {
        waiting_.push_back(session);
      }
    }
    Admit();
    if (!due_.empty()) timer_.Set(due_.top().first);
  }

  void Admit() {
    const auto most = static_cast<size_t>(command_.load.max_concurrency);
    while (!waiting_.empty() && (most == 0 || active_ < most)) {
      const size_t session = waiting_.front();
      waiting_.pop_front();
      under_way_[session] = std::make_unique<Turn>(this, session);
      ++active_;
      Send(session);
    }
  }

  void Send(size_t index) {
    Turn& turn = *under_way_[index];
    const BenchSession& session = data_.sessions[index];
    const size_t request = first_[index] + turn.turn;
    Answer& answer = out_.answers[request];
    answer.prompt_tokens = session.turns[turn.turn].prompt_tokens;
    HttpClientRequest out{.method = "POST",
                          .target = command_.endpoint,
                          .headers = command_.headers,
                          .body = body_.Write(session, session.turns[turn.turn], Model(request))};
    out.headers.emplace_back("x-request-id", command_.data.id_prefix + std::to_string(request));
    turn.Begin(&answer, command_.chat);
    client_->Send(out, &turn);
  }

  void OnEnd(size_t index) {
    Turn& turn = *under_way_[index];
    const BenchSession& session = data_.sessions[index];
    const Answer& answer = out_.answers[first_[index] + turn.turn];
    Count(answer);
    if (++turn.turn < session.turns.size() && answer.success) {
      due_.push({loop_->Now() + session.turns[turn.turn].think, index});
      return timer_.Set(due_.top().first);
    }
    // What would have come after a failed request fails with it.
    for (; turn.turn < session.turns.size(); ++turn.turn) {
      Answer& never = out_.answers[first_[index] + turn.turn];
      never.error = "not sent: the request before it in its session failed";
      Count(never);
    }
    --active_;
    // Its sink is the caller: it goes when the call is over.
    loop_->Post([this, index] { under_way_[index] = nullptr; });
    if (ended_ == out_.answers.size()) return loop_->Stop();
    Admit();
  }

  void Count(const Answer& answer) {
    ++ended_;
    failed_ += answer.success ? 0 : 1;
    tokens_ += answer.output_tokens;
  }

  std::string_view Model(size_t request) {
    const std::vector<std::string>& loras = command_.loras;
    if (loras.empty()) return command_.served_name.empty() ? command_.model : command_.served_name;
    if (command_.loras_in_turn) return loras[request % loras.size()];
    return loras[std::uniform_int_distribution<size_t>(0, loras.size() - 1)(random_)];
  }

  void Draw() {
    if (!line_.due()) return;
    constexpr size_t kWidth = 30;
    const size_t all = out_.answers.size(), full = kWidth * ended_ / std::max<size_t>(all, 1);
    const double seconds = std::max(loop_->Now() - begun_, 1e-9);
    line_.Show(fmt::format(
        "[{}{}] {}/{} requests, {} under way, {} failed, {:.1f} req/s, {:.0f} tok/s",
        std::string(full, '#'), std::string(kWidth - full, '.'), ended_, all, active_, failed_,
        static_cast<double>(ended_) / seconds, static_cast<double>(tokens_) / seconds));
  }

  const BenchServeCommand& command_;
  const Dataset& data_;
  BodyWriter body_;
  ProgressLine line_;
  std::mt19937_64 random_;
  std::vector<size_t> first_;  // request of each session
  LoadOutcome out_;
  size_t active_ = 0, ended_ = 0, failed_ = 0;
  int64_t tokens_ = 0;
  Seconds begun_ = 0;

  using Due = std::pair<Seconds, size_t>;  // a session, to begin or to go on
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  std::deque<size_t> waiting_;  // for a place
  LoopTimer timer_;
  std::vector<std::unique_ptr<Turn>> under_way_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<StreamClient> client_;
};

}  // namespace

Result<LoadOutcome> RunLoad(const BenchServeCommand& command,
                            const Dataset& data,
                            const std::vector<double>& arrivals,
                            bool progress,
                            const LoadLimits& limits) {
  return LoadRun(command, data, progress).Run(arrivals, limits);
}

void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);  // a refusal is told where a socket is
}

}  // namespace baltoro
