// Fuzzes the reader of what a model writes, over a small vocabulary made here.
//
// For any tokens: events in any pieces join to the events of the whole, every text is valid UTF-8
// and no longer than what was written, and calls begin, go on and end in order. The first byte
// chooses the options, the second how many tokens come at once; each later byte is a token.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"
#include "fuzz/byte_tokenizer.h"
#include "text/event_parser.h"

namespace {

using baltoro::EventParser;
using baltoro::EventParserOptions;
using baltoro::OutputEvent;
using baltoro::OutputEventKind;
using baltoro::TokenId;

void CheckOrder(const std::vector<OutputEvent>& events) {
  int open = -1, calls = 0;
  for (const OutputEvent& event : events) {
    BT_CHECK(baltoro::IsValidUtf8(event.text));
    switch (event.kind) {
      case OutputEventKind::kToolCallBegin:
        BT_CHECK(open == -1 && event.call_index == calls && !event.name.empty());
        open = calls++;
        break;
      case OutputEventKind::kToolCallArguments:
        BT_CHECK(open == event.call_index && !event.text.empty());
        break;
      case OutputEventKind::kToolCallEnd:
        BT_CHECK(open == event.call_index);
        open = -1;
        break;
      case OutputEventKind::kReasoning:
      case OutputEventKind::kContent:
        BT_CHECK(open == -1 && !event.text.empty());
        break;
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const baltoro::Tokenizer& tokenizer = baltoro::test::ByteTokenizer();
  if (size < 2) return 0;
  EventParserOptions options;
  options.reasoning = (data[0] & 1) == 0;
  options.tools = (data[0] & 2) == 0;
  options.starts_in_reasoning = (data[0] & 4) != 0;
  options.skip_special_tokens = (data[0] & 8) == 0;
  if ((data[0] & 16) != 0) options.first_call_index = 3;
  const size_t at_once = 1 + data[1] % 8;

  std::vector<TokenId> ids;
  size_t bytes = 0;
  for (size_t i = 2; i < size; ++i) {
    for (const TokenId id : baltoro::test::MeaningOf(data[i])) {
      ids.push_back(id);
      bytes += tokenizer.TokenBytes(id).size();
    }
  }

  EventParser whole_parser(tokenizer, options);
  std::vector<OutputEvent> whole;
  for (const TokenId id : ids) whole_parser.Push(id, whole);
  whole_parser.Finish(whole);
  CheckOrder(whole);

  EventParser parser(tokenizer, options);
  std::vector<OutputEvent> joined;
  size_t shown = 0;
  for (size_t at = 0; at <= ids.size();) {
    std::vector<OutputEvent> some;
    for (size_t n = 0; n < at_once && at < ids.size(); ++n) parser.Push(ids[at++], some);
    if (at == ids.size()) {
      parser.Finish(some);
      ++at;
    }
    for (OutputEvent& event : some) {
      if (event.kind != OutputEventKind::kToolCallBegin) shown += event.text.size();
      const bool more = !joined.empty() && joined.back().kind == event.kind &&
                        joined.back().call_index == event.call_index &&
                        event.kind != OutputEventKind::kToolCallBegin &&
                        event.kind != OutputEventKind::kToolCallEnd;
      if (more) {
        joined.back().text += event.text;
      } else {
        joined.push_back(std::move(event));
      }
    }
  }
  BT_CHECK(joined == whole);
  BT_CHECK(shown <= 3 * bytes);  // a byte that is no character becomes three
  return 0;
}
