#pragma once

// The answer to one request on its way out: a Responder with the headers that every answer carries,
// the form of a refusal, and the count of what was answered. Like Responder it has one owner at a
// time, who may be on any thread.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "net/http_server.h"
#include "server/api_error.h"
#include "server/metrics.h"
#include "server/recent_errors.h"

namespace baltoro {

// What is counted of an answer. The two names come from closed sets.
struct ReplyCount {
  Metrics* metrics = nullptr;
  const Clock* clock = nullptr;
  std::string_view route, method;
  Seconds start = 0;
  size_t request_bytes = 0;
};

class Reply {
 public:
  // No `count`: the answer is not counted.
  Reply(Responder responder, HttpHeaders headers, std::optional<ReplyCount> count);
  Reply(Reply&& other) noexcept;
  Reply& operator=(Reply&&) = delete;
  ~Reply();

  // One more header, before anything is sent; the value without control characters.
  void AddHeader(std::string name, std::string value) {
    headers_.emplace_back(std::move(name), std::move(value));
  }
  // How refusals are printed; ErrorBody unless an API has a form of its own.
  using ErrorForm = std::string (*)(const ApiError&);
  void SetErrorForm(ErrorForm form) { error_form_ = form; }
  // From here on an error of this answer is remembered for `client`, if the answer is counted.
  void RememberErrors(RecentErrors* errors, std::string client) {
    errors_ = errors;
    client_ = std::move(client);
  }

  // As Responder's.
  void Send(HttpResponse response);
  void StartStream();
  bool Write(std::string_view bytes);
  void End();
  bool client_gone() const { return responder_.client_gone(); }
  void OnClientGone(std::function<void()> on_gone) { responder_.OnClientGone(std::move(on_gone)); }
  size_t io_thread() const { return responder_.io_thread(); }

  // 200 with a JSON body.
  void SendJson(std::string body);
  void Refuse(const ApiError& error);
  void Refuse(const ApiError& error, std::string body);
  // An error that the caller tells inside a stream.
  void NoteStreamError(const ApiError& error) { Note(error, /*streamed=*/true); }

 private:
  void Count();
  void Note(const ApiError& error, bool streamed);

  Responder responder_;
  HttpHeaders headers_;
  std::optional<ReplyCount> count_;
  ErrorForm error_form_ = &ErrorBody;
  RecentErrors* errors_ = nullptr;
  std::string client_;
  int status_ = 0;  // 0: nothing was answered
  size_t response_bytes_ = 0;
};

}  // namespace baltoro
