#pragma once

// Server-sent events (WHATWG HTML, section 9.2): writing and reading the text/event-stream format.

#include <functional>
#include <string>
#include <string_view>

namespace baltoro {

struct SseEvent {
  std::string event;  // empty when the stream named none
  std::string data;   // lines joined by LF
  std::string id;     // the last one seen
};

// Appends "data: ...\n\n"; `data` with line breaks becomes several data lines.
void AppendSseData(std::string& out, std::string_view data);
// Likewise with "event: NAME\n" before it. `event` must hold no line break.
void AppendSseEvent(std::string& out, std::string_view event, std::string_view data);

// Takes a stream in pieces of any size and calls back once an event. Lines end in LF, CR LF or CR.
class SseParser {
 public:
  // False from the callback stops, drops what is left of the piece, and is returned.
  using OnEvent = std::function<bool(const SseEvent&)>;
  bool Feed(std::string_view bytes, const OnEvent& on_event);

 private:
  bool OnLine(std::string_view line, const OnEvent& on_event);

  std::string line_;
  bool after_cr_ = false;
  bool first_line_ = true;
  bool has_data_ = false;
  SseEvent event_;
};

}  // namespace baltoro
