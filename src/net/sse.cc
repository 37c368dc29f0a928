#include "net/sse.h"

#include "base/check.h"

namespace baltoro {
namespace {

// Of the first LF or CR, or the size. (find_first_of searches the set anew for each byte.)
size_t LineEnd(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size() && bytes[at] != '\n' && bytes[at] != '\r') ++at;
  return at;
}

}  // namespace

void AppendSseData(std::string& out, std::string_view data) {
  for (;;) {
    const size_t end = data.find_first_of("\r\n");
    out += "data: ";
    out += data.substr(0, end);
    out += '\n';
    if (end == std::string_view::npos) break;
    const bool crlf = data.substr(end, 2) == "\r\n";
    data.remove_prefix(end + (crlf ? 2 : 1));
  }
  out += '\n';
}

void AppendSseEvent(std::string& out, std::string_view event, std::string_view data) {
  BT_CHECK(event.find_first_of("\r\n") == std::string_view::npos);
  out += "event: ";
  out += event;
  out += '\n';
  AppendSseData(out, data);
}

bool SseParser::Feed(std::string_view bytes, const OnEvent& on_event) {
  while (!bytes.empty()) {
    if (after_cr_) {
      after_cr_ = false;
      if (bytes[0] == '\n') {
        bytes.remove_prefix(1);
        continue;
      }
    }
    const size_t end = LineEnd(bytes);
    if (end == bytes.size()) {
      line_ += bytes;
      return true;
    }
    line_ += bytes.substr(0, end);
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    const bool go_on = OnLine(line_, on_event);
    line_.clear();
    if (!go_on) return false;
  }
  return true;
}

bool SseParser::OnLine(std::string_view line, const OnEvent& on_event) {
  if (first_line_ && line.substr(0, 3) == "\xef\xbb\xbf") line.remove_prefix(3);
  first_line_ = false;
  if (line.empty()) {
    bool go_on = true;
    if (has_data_) {
      event_.data.pop_back();  // the LF after the last data line
      go_on = on_event(event_);
    }
    event_.data.clear();
    event_.event.clear();
    has_data_ = false;
    return go_on;
  }
  const size_t colon = line.find(':');
  const std::string_view field = line.substr(0, colon);
  std::string_view value = colon == std::string_view::npos ? "" : line.substr(colon + 1);
  if (!value.empty() && value[0] == ' ') value.remove_prefix(1);
  if (field == "data") {
    event_.data += value;
    event_.data += '\n';
    has_data_ = true;
  } else if (field == "event") {
    event_.event = value;
  } else if (field == "id" && value.find('\0') == std::string_view::npos) {
    event_.id = value;
  }
  return true;  // comments and unknown fields are skipped
}

}  // namespace baltoro
