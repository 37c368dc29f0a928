#include "server/reply.h"

#include <chrono>
#include <iterator>
#include <utility>

namespace baltoro {
namespace {

constexpr int kClientClosedRequest = 499;  // for the count only: nobody is there to read it

}  // namespace

Reply::Reply(Responder responder, HttpHeaders headers, std::optional<ReplyCount> count)
    : responder_(std::move(responder)), headers_(std::move(headers)), count_(count) {}

Reply::Reply(Reply&& other) noexcept
    : responder_(std::move(other.responder_)),
      headers_(std::move(other.headers_)),
      count_(std::exchange(other.count_, std::nullopt)),
      error_form_(other.error_form_),
      errors_(other.errors_),
      client_(std::move(other.client_)),
      status_(other.status_),
      response_bytes_(other.response_bytes_) {}

Reply::~Reply() {
  if (!count_) return;
  // A Responder dropped unanswered answers 500.
  if (status_ == 0) status_ = responder_.client_gone() ? kClientClosedRequest : 500;
  Count();
}

void Reply::Send(HttpResponse response) {
  // Whoever is told why there is no answer must be able to hear it.
  if (response.status < 400 && !responder_.Reserve(response.body.size())) {
    if (count_) count_->metrics->CountRejected(Rejection::kAnswersFull);
    return Refuse(UnavailableError("Too many bytes of answers wait for their clients to read."));
  }
  status_ = response.status;
  response_bytes_ = response.body.size();
  response.headers.insert(response.headers.end(), std::make_move_iterator(headers_.begin()),
                          std::make_move_iterator(headers_.end()));
  // Counted first: who has read the answer finds it in the metrics.
  Count();
  responder_.Send(std::move(response));
}

void Reply::StartStream() {
  status_ = 200;
  responder_.StartStream(200, headers_);
}

bool Reply::Write(std::string_view bytes) {
  response_bytes_ += bytes.size();
  return responder_.Write(bytes);
}

void Reply::End() {
  Count();
  responder_.End();
}

void Reply::SendJson(std::string body) {
  Send({.status = 200, .headers = {}, .body = std::move(body)});
}

void Reply::Refuse(const ApiError& error) {
  Refuse(error, error_form_(error));
}

void Reply::Refuse(const ApiError& error, std::string body) {
  Note(error, /*streamed=*/false);
  HttpResponse response{.status = error.status, .headers = {}, .body = std::move(body)};
  if (error.status == 429 || error.status == 503) response.headers.emplace_back("retry-after", "1");
  // What cannot serve now should not be the one to be asked again.
  response.close = error.status == 503;
  Send(std::move(response));
}

void Reply::Note(const ApiError& error, bool streamed) {
  if (errors_ == nullptr || !count_ || error.status == kClientClosedRequest) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  errors_->Add({.client = client_,
                .unix_seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count(),
                .method = count_->method,
                .route = count_->route,
                .streamed = streamed,
                .error = error});
}

void Reply::Count() {
  if (!count_) return;
  count_->metrics->ObserveHttp({.route = count_->route,
                                .method = count_->method,
                                .status = status_,
                                .seconds = count_->clock->Now() - count_->start,
                                .request_bytes = count_->request_bytes,
                                .response_bytes = response_bytes_});
  count_.reset();
}

}  // namespace baltoro
