#include "bench/serve/answer.h"

#include <algorithm>

#include "base/json_scanner.h"

namespace baltoro {
namespace {

// One chunk, read from left to right without a tree: there may be a hundred thousand a second.
struct Chunk {
  JsonScanner scan;
  Answer& answer;
  std::string &key, &piece;
  bool choices = false, usage = false, finished = false;

  bool Text(std::string& to) {
    if (scan.Peek() != '"') return scan.Skip();
    if (!scan.String(piece)) return false;
    to += piece;
    return true;
  }
  bool Natural(int64_t& to) {
    constexpr int64_t kMost = int64_t{1} << 40;  // tokens; sums of as many stay numbers
    int64_t value = 0;
    if (!scan.Natural(value)) return scan.Skip();
    to = std::min(value, kMost);
    return true;
  }

  bool Function(StreamedCall& call) {
    if (scan.Peek() != '{') return scan.Skip();
    scan.BeginObject();
    while (scan.NextKey(key)) {
      key == "name" ? Text(call.name) : key == "arguments" ? Text(call.arguments) : scan.Skip();
    }
    return scan.ok();
  }
  bool Calls() {
    constexpr int64_t kMost = 128;
    if (scan.Peek() != '[') return scan.Skip();
    scan.BeginArray();
    while (scan.NextElement()) {
      if (scan.Peek() != '{') {
        scan.Skip();
        continue;
      }
      StreamedCall part;
      int64_t index = 0;
      scan.BeginObject();
      while (scan.NextKey(key)) {
        key == "index" ? Natural(index) : key == "function" ? Function(part) : scan.Skip();
      }
      if (index >= kMost) continue;
      const auto at = static_cast<size_t>(index);
      if (at >= answer.calls.size()) answer.calls.resize(at + 1);
      answer.calls[at].name += part.name;
      answer.calls[at].arguments += part.arguments;
    }
    return scan.ok();
  }
  bool Finish() {
    finished = scan.Peek() == '"';
    return finished ? scan.String(answer.finish_reason) : scan.Skip();
  }
  bool Delta() {
    if (scan.Peek() != '{') return scan.Skip();
    bool thought = false;  // servers write the same under both names
    scan.BeginObject();
    while (scan.NextKey(key)) {
      if (key == "content") {
        Text(answer.text);
      } else if (!thought && (key == "reasoning" || key == "reasoning_content")) {
        thought = scan.Peek() == '"';
        Text(answer.thinking);
      } else if (key == "tool_calls") {
        Calls();
      } else {
        scan.Skip();
      }
    }
    return scan.ok();
  }
  bool Choices() {
    if (scan.Peek() != '[') return scan.Skip();
    scan.BeginArray();
    while (scan.NextElement()) {
      if (choices || scan.Peek() != '{') {  // the first alone
        scan.Skip();
        continue;
      }
      choices = true;
      scan.BeginObject();
      while (scan.NextKey(key)) {
        if (key == "finish_reason") {
          Finish();
        } else {
          key == "delta" ? Delta() : key == "text" ? Text(answer.text) : scan.Skip();
        }
      }
    }
    return scan.ok();
  }
  bool Usage() {
    if (scan.Peek() != '{') return scan.Skip();
    usage = true;
    scan.BeginObject();
    while (scan.NextKey(key)) {
      if (key == "prompt_tokens") {
        Natural(answer.prompt_tokens);
      } else if (key == "completion_tokens") {
        Natural(answer.output_tokens);
      } else {
        scan.Skip();
      }
    }
    return scan.ok();
  }
  bool Error() {
    if (scan.Peek() == 'n') return scan.Skip();
    answer.error = "the server sent an error";
    if (scan.Peek() != '{') return scan.Skip();
    scan.BeginObject();
    while (scan.NextKey(key)) {
      if (key == "message" && scan.Peek() == '"') {
        scan.String(answer.error);
      } else {
        scan.Skip();
      }
    }
    return scan.ok();
  }
  bool Read() {
    scan.BeginObject();
    while (scan.NextKey(key)) {
      if (key == "choices") {
        Choices();
      } else if (key == "usage") {
        Usage();
      } else if (key == "error") {
        Error();
      } else {
        scan.Skip();
      }
    }
    return scan.End();
  }
};

}  // namespace

void AnswerReader::Feed(std::string_view bytes, Seconds at) {
  constexpr size_t kEventBytesMax = size_t{16} << 20;
  if (unfinished_ > kEventBytesMax) return;
  unfinished_ += bytes.size();
  events_.Feed(bytes, [&](const SseEvent& event) {
    unfinished_ = 0;
    if (event.data == "[DONE]") {
      finished_ = true;
    } else {
      ReadChunk(event.data, at);
    }
    return true;
  });
  if (unfinished_ > kEventBytesMax) {
    answer_->error = "an event of the stream is longer than 16 MiB";
    events_ = {};
  }
}

void AnswerReader::ReadChunk(std::string_view text, Seconds at) {
  Chunk chunk{.scan = JsonScanner(text), .answer = *answer_, .key = key_, .piece = piece_};
  if (!chunk.Read()) {
    answer_->error = "a chunk is not JSON: " + std::string(text.substr(0, 100));
    return;
  }
  finished_ = finished_ || chunk.finished;
  if (chunk.choices) {
    if (last_ == 0) {
      answer_->ttft = at - answer_->start;
    } else {
      answer_->itls.push_back(std::max(at - last_, 0.0));  // stamps may go back with the clock
    }
    last_ = at;
  }
  if (chunk.choices || (chat_ && chunk.usage)) answer_->latency = at - answer_->start;
}

void AnswerReader::End(std::string error) {
  if (!error.empty()) {
    answer_->error = std::move(error);
  } else if (answer_->error.empty() && last_ == 0) {
    answer_->error = "the answer has no chunk with choices";
  } else if (answer_->error.empty() && !finished_) {
    answer_->error = "the stream ended without a finish_reason and without [DONE]";
  }
  answer_->success = answer_->error.empty();
}

}  // namespace baltoro
