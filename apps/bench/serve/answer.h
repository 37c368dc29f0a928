#pragma once

// What one request of a benchmark came to, and how its stream is read.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "net/sse.h"

namespace baltoro {

// A tool call as its pieces made it.
struct StreamedCall {
  std::string name = {}, arguments = {};
};

struct Answer {
  Seconds start = 0;              // when it was sent
  Seconds ttft = 0, latency = 0;  // from there to the first and to the last chunk
  std::vector<double> itls = {};  // seconds between chunks
  int64_t prompt_tokens = 0;      // the data set's count, then the server's
  int64_t output_tokens = 0;      // the server's count; 0: it gave none
  std::string text = {};          // without thinking
  std::string thinking = {};
  std::vector<StreamedCall> calls = {};  // by their index; at most 128
  std::string finish_reason = {};
  bool success = false;
  std::string error = {};  // where it is not
};

// Reads the stream of one answer. A chunk counts for times if it has choices, whatever is in them.
// Of a chat the last chunk, with the usage, counts for the latency as well.
class AnswerReader {
 public:
  AnswerReader(Answer* answer, bool chat) : answer_(answer), chat_(chat) {}

  // `at` is when the bytes were read.
  void Feed(std::string_view bytes, Seconds at);
  // The connection's end: `error` is empty if the answer was whole.
  void End(std::string error);

 private:
  void ReadChunk(std::string_view chunk, Seconds at);

  Answer* answer_;
  bool chat_;
  SseParser events_;
  Seconds last_ = 0;  // the chunk before
  bool finished_ = false;
  size_t unfinished_ = 0;  // bytes since the last event
  std::string key_, piece_;
};

}  // namespace baltoro
