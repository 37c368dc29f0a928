#include "net/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "base/append.h"
#include "base/check.h"
#include "net/connection.h"
#include "net/io_thread.h"

namespace baltoro {
namespace {

// A value from outside must not be able to end its line.
void AppendHeader(std::string& out, std::string_view name, std::string_view value) {
  const auto append = [&out](std::string_view text) {
    for (const char c : text) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
  };
  append(name);
  out += ": ";
  append(value);
  out += "\r\n";
}

std::string StartHead(int status, const HttpHeaders& headers, bool keep_alive, bool http10) {
  std::string out;
  out.reserve(256);
  AppendFormatted(out, "HTTP/1.1 {} {}\r\n", status, HttpReason(status));
  AppendHeader(out, "date", HttpDate(std::time(nullptr)));
  for (const auto& [name, value] : headers) AppendHeader(out, name, value);
  if (!keep_alive) {
    out += "connection: close\r\n";
  } else if (http10) {
    out += "connection: keep-alive\r\n";
  }
  return out;
}

}  // namespace

HttpHeaders RefusalHeaders(int status) {
  if (status != 503) return {};
  return {{"retry-after", "1"}};
}

std::string SerializeResponse(const HttpResponse& response, const AnswerFraming& framing) {
  std::string out =
      StartHead(response.status, response.headers, framing.keep_alive, framing.http10);
  const bool may_have_body =
      response.status >= 200 && response.status != 204 && response.status != 304;
  if (may_have_body) {
    if (!response.content_type.empty()) AppendHeader(out, "content-type", response.content_type);
    AppendFormatted(out, "content-length: {}\r\n", response.body.size());
  }
  out += "\r\n";
  if (may_have_body && !framing.head) out += response.body;
  return out;
}

Exchange::Exchange(IoThread* io, Connection* connection, AnswerFraming framing, std::string path)
    : io_(io),
      io_index_(io->index()),
      connection_(connection),
      client_(connection->client()),
      framing_(framing),
      path_(std::move(path)),
      stream_buffer_bytes_(io->options().stream_buffer_bytes),
      unsent_max_(stream_buffer_bytes_) {}

void Exchange::Queue() {
  if (queued_) return;
  io_->MarkDirty(shared_from_this());
  queued_ = true;
}

void Exchange::HoldAnyway(size_t bytes) {
  held_ += bytes;
  io_->answers().Add(client_, bytes);
}

void Exchange::LetGo(size_t bytes) {
  held_ -= bytes;
  io_->answers().Take(client_, bytes);
}

bool Exchange::Hold(size_t bytes) {
  const HttpServerOptions& options = io_->options();
  HoldAnyway(bytes);
  const bool one = held_ <= std::max(options.answer_bytes, unsent_max_);
  if (held_ <= options.held_answer_free ||
      (one && io_->answers().Fits(client_, options.held_answer_bytes))) {
    return true;
  }
  LetGo(bytes);
  return false;
}

void Exchange::Release(size_t bytes) {
  const std::lock_guard lock(mutex_);
  LetGo(std::min(bytes, held_));  // of what is sent some may not be this answer's
}

bool Exchange::Reserve(size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (gone_ || framing_.head) return true;
  if (!Hold(bytes)) return false;
  reserved_ += bytes;
  return true;
}

void Exchange::Send(HttpResponse response) {
  const std::lock_guard lock(mutex_);
  if (refused_) return;
  BT_CHECK(phase_ == Phase::kOpen);
  if (gone_) {
    phase_ = Phase::kEnded;
    return;
  }
  const size_t bytes = framing_.head ? 0 : response.body.size();
  if (bytes > reserved_ && !Hold(bytes - reserved_)) {
    response = {.status = 503,
                .headers = {{"retry-after", "1"}},
                .body = io_->ErrorBody(503, "too many bytes of answers wait to be read", path_),
                .close = true};
  } else {
    reserved_ = std::max(reserved_, bytes);
  }
  Answer(response);
}

// With mutex_ held and not gone. What wants memory comes first: where there is none the answer is
// still open, and whoever drops it says so.
void Exchange::Answer(const HttpResponse& response) {
  AnswerFraming framing = framing_;
  framing.keep_alive = framing_.keep_alive && !response.close && !io_->draining();
  std::string answer = SerializeResponse(response, framing);
  Queue();
  phase_ = Phase::kEnded;
  close_after_ = !framing.keep_alive;
  inbox_ = std::move(answer);
  // What is held is now what lies here, head and all.
  LetGo(std::exchange(reserved_, 0));
  HoldAnyway(inbox_.size());
}

void Exchange::Refuse(int status, std::string_view reason) {
  std::function<void()> on_gone;
  {
    const std::lock_guard lock(mutex_);
    if (gone_ || phase_ != Phase::kOpen) return;
    Answer({.status = status,
            .headers = RefusalHeaders(status),
            .body = io_->ErrorBody(status, reason, path_),
            .close = true});
    refused_ = true;
    gone_ = true;
    on_gone = std::exchange(on_gone_, nullptr);
  }
  if (on_gone) on_gone();
}

void Exchange::StartStream(int status, const HttpHeaders& headers) {
  const std::lock_guard lock(mutex_);
  if (refused_) return;
  BT_CHECK(phase_ == Phase::kOpen);
  phase_ = Phase::kStreaming;
  if (gone_) return;
  close_after_ = !framing_.keep_alive || framing_.http10 || io_->draining();
  inbox_ = StartHead(status, headers, !close_after_, framing_.http10);
  if (FindHeader(headers, "content-type").empty()) {
    inbox_ += "content-type: text/event-stream; charset=utf-8\r\n";
  }
  if (FindHeader(headers, "cache-control").empty()) inbox_ += "cache-control: no-cache\r\n";
  if (!framing_.http10) inbox_ += "transfer-encoding: chunked\r\n";
  inbox_ += "\r\n";
  HoldAnyway(inbox_.size());
  Queue();
}

void Exchange::AppendChunk(std::string_view bytes) {
  if (framing_.http10) {
    inbox_ += bytes;
    return;
  }
  AppendFormatted(inbox_, "{:x}\r\n", bytes.size());
  inbox_ += bytes;
  inbox_ += "\r\n";
}

bool Exchange::Write(std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  if (refused_) return false;
  BT_CHECK(phase_ == Phase::kStreaming);
  if (gone_) return false;
  if (bytes.empty() || framing_.head) return true;  // an empty chunk would end the stream
  const size_t waiting = inbox_.size() + unsent_.load(std::memory_order_relaxed);
  // One large write says nothing about the client; that it stays behind afterwards does.
  if (waiting <= stream_buffer_bytes_ && bytes.size() > stream_buffer_bytes_) {
    unsent_max_ = std::max(unsent_max_, waiting + bytes.size() + stream_buffer_bytes_);
  }
  if (waiting + bytes.size() > unsent_max_ || !Hold(bytes.size())) {
    aborted_ = true;
    Queue();
    gone_ = true;
    return false;
  }
  const size_t before = inbox_.size();
  AppendChunk(bytes);
  HoldAnyway(inbox_.size() - before - bytes.size());
  Queue();
  return true;
}

void Exchange::End() {
  const std::lock_guard lock(mutex_);
  if (refused_) return;
  BT_CHECK(phase_ == Phase::kStreaming);
  phase_ = Phase::kEnded;
  if (gone_) return;
  if (!framing_.head && !framing_.http10) {
    constexpr std::string_view kLastChunk = "0\r\n\r\n";
    inbox_ += kLastChunk;
    HoldAnyway(kLastChunk.size());
  }
  Queue();
}

void Exchange::Abort() {
  const std::lock_guard lock(mutex_);
  if (refused_) return;
  BT_CHECK(phase_ != Phase::kEnded);
  phase_ = Phase::kEnded;
  if (gone_) return;
  aborted_ = true;
  Queue();
  gone_ = true;
}

void Exchange::Drop() {
  Phase phase;
  std::string body;
  {
    const std::lock_guard lock(mutex_);
    phase = phase_;
    if (phase == Phase::kOpen && !gone_) {
      body = io_->ErrorBody(500, "the request got no answer", path_);
    }
  }
  if (phase == Phase::kOpen) {
    Send({.status = 500, .body = std::move(body)});
  } else if (phase == Phase::kStreaming) {
    Abort();
  }
}

void Exchange::OnGone(std::function<void()> on_gone) {
  {
    const std::lock_guard lock(mutex_);
    if (!gone_) {
      if (phase_ != Phase::kEnded) on_gone_ = std::move(on_gone);
      return;
    }
  }
  on_gone();
}

bool Exchange::TakeOutput(std::string& out) {
  const std::lock_guard lock(mutex_);
  queued_ = false;
  if (aborted_) return false;
  if (out.empty()) {
    out.swap(inbox_);
  } else {
    out += inbox_;
    inbox_.clear();
  }
  unsent_.store(out.size(), std::memory_order_relaxed);
  return true;
}

bool Exchange::ended() const {
  const std::lock_guard lock(mutex_);
  return phase_ == Phase::kEnded;
}

bool Exchange::finished() const {
  const std::lock_guard lock(mutex_);
  return phase_ == Phase::kEnded && inbox_.empty() && !aborted_;
}

bool Exchange::close_after() const {
  const std::lock_guard lock(mutex_);
  return close_after_;
}

void Exchange::Detach() {
  const std::lock_guard lock(mutex_);
  connection_ = nullptr;
  on_gone_ = nullptr;
  LetGo(held_);
}

void Exchange::MarkGone() {
  std::function<void()> on_gone;
  {
    const std::lock_guard lock(mutex_);
    gone_ = true;
    connection_ = nullptr;
    inbox_ = std::string();
    LetGo(held_);
    if (phase_ != Phase::kEnded) on_gone = std::move(on_gone_);
    on_gone_ = nullptr;
  }
  if (on_gone) on_gone();
}

}  // namespace baltoro
