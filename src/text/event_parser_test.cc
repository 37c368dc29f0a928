#include "text/event_parser.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <utility>

#include "base/file.h"
#include "base/utf8.h"
#include "support/support.h"

namespace baltoro {
namespace {

constexpr EventParserOptions kThinking{.starts_in_reasoning = true};
constexpr EventParserOptions kInstant{};

class EventParserTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string dir = test::KimiTokenizerDir();
    if (FileExists("pocket/model/tiktoken.model")) dir = "pocket/model";
    if (dir.empty()) GTEST_SKIP() << "no tokenizer at hand";
    auto loaded = Tokenizer::Load(dir);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    tokenizer_ = std::move(loaded).value();
  }

  TokenId Id(std::string_view name) const {
    const auto id = tokenizer_->SpecialId(name);
    EXPECT_TRUE(id.has_value()) << name;
    return id.value_or(0);
  }

  // Marks written short: [S section ]S, (C call ,A arguments )C end, <think> and </think> as they
  // are.
  std::vector<TokenId> Ids(std::string text) const {
    static const std::pair<std::string, std::string> kShort[] = {
        {"[S", "<|tool_calls_section_begin|>"},
        {"]S", "<|tool_calls_section_end|>"},
        {"(C", "<|tool_call_begin|>"},
        {",A", "<|tool_call_argument_begin|>"},
        {")C", "<|tool_call_end|>"},
        {"$E", "<|im_end|>"}};
    for (const auto& [from, to] : kShort) {
      for (size_t at = text.find(from); at != std::string::npos;
           at = text.find(from, at + to.size())) {
        text.replace(at, from.size(), to);
      }
    }
    return tokenizer_->EncodeWithSpecials(text);
  }

  std::vector<OutputEvent> Events(const std::vector<TokenId>& ids,
                                  const EventParserOptions& options) const {
    EventParser parser(*tokenizer_, options);
    std::vector<OutputEvent> out;
    for (const TokenId id : ids) parser.Push(id, out);
    parser.Finish(out);
    return out;
  }

  static std::string Shown(const std::vector<OutputEvent>& events) {
    std::string shown;
    for (const OutputEvent& event : events) {
      const std::string index = std::to_string(event.call_index);
      switch (event.kind) {
        case OutputEventKind::kReasoning:
          shown += "R<" + event.text + ">";
          break;
        case OutputEventKind::kContent:
          shown += "C<" + event.text + ">";
          break;
        case OutputEventKind::kToolCallBegin:
          shown += "B" + index + "<" + event.text + "=" + event.name + ">";
          break;
        case OutputEventKind::kToolCallArguments:
          shown += "A" + index + "<" + event.text + ">";
          break;
        case OutputEventKind::kToolCallEnd:
          shown += "E" + index;
          break;
      }
    }
    return shown;
  }

  std::string Parse(const std::string& text, const EventParserOptions& options) const {
    return Shown(Events(Ids(text), options));
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(EventParserTest, ReasoningEndsAtItsMark) {
  EXPECT_EQ(Parse("I think</think>Hello", kThinking), "R<I think>C<Hello>");
  EXPECT_EQ(Parse("<think>I think</think>Hello$E", kThinking), "R<I think>C<Hello>");
  EXPECT_EQ(Parse(" \n<think>I<think>", kThinking), "R< \nI<think>>");
  EXPECT_EQ(Parse("no end", kThinking), "R<no end>");
  EXPECT_EQ(Parse("</think></think>x", kThinking), "C<</think>x>");
}

TEST_F(EventParserTest, WithoutThinkingNothingIsReasoning) {
  EXPECT_EQ(Parse("a</think>b<think>c", kInstant), "C<a</think>b<think>c>");
  EXPECT_EQ(Parse("a</think>b", {.reasoning = false, .starts_in_reasoning = true}),
            "C<a</think>b>");
}

TEST_F(EventParserTest, CallsAreReadFromTheirSection) {
  EXPECT_EQ(Parse("Let me see.[S(Cfunctions.get_weather:0,A{\"city\": \"Oslo\"})C"
                  "(Cfunctions.add:1,A{})C]S",
                  kInstant),
            "C<Let me see.>B0<functions.get_weather:0=get_weather>A0<{\"city\": \"Oslo\"}>E0"
            "B1<functions.add:1=add>A1<{}>E1");
}

TEST_F(EventParserTest, ASectionInsideReasoningEndsIt) {
  EXPECT_EQ(Parse("hm[S(Cf:0,A{})C]S", kThinking), "R<hm>B0<f:0=f>A0<{}>E0");
  EXPECT_EQ(Parse("hm(Cf:0,A{})C more", kThinking), "R<hm>B0<f:0=f>A0<{}>E0C< more>");
}

TEST_F(EventParserTest, NamesMayHoldDotsDashesColonsAndLackThePrefix) {
  EXPECT_EQ(Parse("[S(Csearch:2,A{})C(Cfunctions.a.b-c:10,A{})C(Cfunctions.x:y:3,A1)C]S", kInstant),
            "B0<search:2=search>A0<{}>E0B1<functions.a.b-c:10=a.b-c>A1<{}>E1"
            "B2<functions.x:y:3=x:y>A2<1>E2");
}

TEST_F(EventParserTest, CallsWithoutAnIndexAreDropped) {
  EXPECT_EQ(
      Parse("a[S(Cfunctions.f,A{\"x\": 1})C(C:1,A{})C(C,A{})C(Cf:,A{})C(Cg:0,A{})C]Sb", kInstant),
      "C<a>B0<g:0=g>A0<{}>E0C<b>");
}

TEST_F(EventParserTest, SpaceAndNoiseAroundMarksAreDropped) {
  EXPECT_EQ(Parse("[S\n noise (C \n f:0 \n,A\n {\"a\": 1} \n)C , ]S\nafter", kInstant),
            "B0<f:0=f>A0<{\"a\": 1}>E0C<\nafter>");
  EXPECT_EQ(Parse("[S]S", kInstant), "");
  EXPECT_EQ(Parse("a]S b)C c,A d", kInstant), "C<a b c d>");
}

TEST_F(EventParserTest, CutOffCallsGiveWhatIsThere) {
  EXPECT_EQ(Parse("[S(Cf:0,A{\"a\": \"b ", kInstant), "B0<f:0=f>A0<{\"a\": \"b >");
  EXPECT_EQ(Parse("[S(Cf:0,A", kInstant), "B0<f:0=f>");
  EXPECT_EQ(Parse("x[S(Cfunctions.f", kInstant), "C<x>");
}

TEST_F(EventParserTest, AMissingEndMarkIsTheNextMark) {
  EXPECT_EQ(Parse("[S(Cf:0,A{} (Cg:1,A[]]Sz", kInstant), "B0<f:0=f>A0<{}>E0B1<g:1=g>A1<[]>E1C<z>");
  EXPECT_EQ(Parse("[S(Ch:0(Cf:0,A{})C]S", kInstant), "B0<f:0=f>A0<{}>E0");
  EXPECT_EQ(Parse("[S(Cf:0,A1[S(Cg:1,A2)C]S", kInstant), "B0<f:0=f>A0<1>E0B1<g:1=g>A1<2>E1");
}

TEST_F(EventParserTest, MarksOfASectionMayBeSpelledInTheSingular) {
  const std::string begin = "<|tool_call_section_begin|>";
  const std::string end = "<|tool_call_section_end|>";
  EXPECT_EQ(Parse("a" + begin + "(Cf:0,A{})C" + end + "b", kInstant), "C<a>B0<f:0=f>A0<{}>E0C<b>");
  EXPECT_EQ(Parse("hm" + begin + " \n(Cf:0,A{})C noise (Cg:1,A1)C " + end, kThinking),
            "R<hm>B0<f:0=f>A0<{}>E0B1<g:1=g>A1<1>E1");
  EXPECT_EQ(Parse("[S(Cf:0,A{})C" + end + "b]S", kInstant), "B0<f:0=f>A0<{}>E0C<b>");
  // Elsewhere they are words that a model may well say.
  EXPECT_EQ(Parse("It is " + begin + " that opens" + end, kInstant),
            "C<It is " + begin + " that opens" + end + ">");
  EXPECT_EQ(Parse(begin, kInstant), "C<" + begin + ">");
  EXPECT_EQ(Parse("<<|tool_call_s</think>" + begin + begin + "(Cf:0,A{})C", kThinking),
            "R<<<|tool_call_s>C<" + begin + ">B0<f:0=f>A0<{}>E0");
}

TEST_F(EventParserTest, CallsCanBeNumberedByTheServer) {
  const EventParserOptions counted{.first_call_index = 7};
  EXPECT_EQ(Parse("[S(Cfunctions.a.b:0,A{})C(Cg:9,A1)C]S", counted),
            "B0<functions.a.b:7=a.b>A0<{}>E0B1<functions.g:8=g>A1<1>E1");
}

TEST_F(EventParserTest, WithoutToolsTheirMarksAreText) {
  const EventParserOptions raw{.tools = false, .starts_in_reasoning = true};
  EXPECT_EQ(Parse("a[S(Cf:0", raw), "R<a>C<<|tool_calls_section_begin|><|tool_call_begin|>f:0>");
}

TEST_F(EventParserTest, ControlTokensShowOnlyOnRequestAndNeverInArguments) {
  const EventParserOptions shown{.skip_special_tokens = false};
  EXPECT_EQ(Parse("a$E", kInstant), "C<a>");
  EXPECT_EQ(Parse("a$E[S(Cf:$E0,A{$E})C]S$E", shown),
            "C<a<|im_end|>>B0<f:0=f>A0<{}>E0C<<|im_end|>>");
}

TEST_F(EventParserTest, CharactersAreWholeAndBordersFlush) {
  std::vector<TokenId> bytes;  // the four bytes of an emoji, a token each
  for (TokenId id = 0; id < tokenizer_->vocab_size() && bytes.size() < 4; ++id) {
    if (tokenizer_->TokenBytes(id) ==
        std::string_view("\xF0\x9F\x98\x80").substr(bytes.size(), 1)) {
      bytes.push_back(id);
      id = -1;
    }
  }
  ASSERT_EQ(bytes.size(), 4u);
  EventParser parser(*tokenizer_, kThinking);
  std::vector<OutputEvent> out;
  for (int i = 0; i < 3; ++i) parser.Push(bytes[static_cast<size_t>(i)], out);
  EXPECT_TRUE(out.empty());
  parser.Push(bytes[3], out);
  EXPECT_EQ(Shown(out), "R<😀>");
  parser.Push(bytes[0], out);
  parser.Push(Id("</think>"), out);
  parser.Push(bytes[0], out);
  parser.Finish(out);
  EXPECT_EQ(Shown(out), "R<😀\uFFFD>C<\uFFFD>");
}

// What a slow reader makes of the whole stream: first the end of reasoning, then sections and calls
// by looking ahead, each text decoded at once.
class SlowReader {
 public:
  SlowReader(const Tokenizer& tokenizer, const std::vector<TokenId>& ids)
      : tokenizer_(tokenizer), ids_(ids) {}

  std::vector<OutputEvent> Read(bool thinking) {
    size_t at = 0;
    bool open = false;  // a section's beginning was spelled
    if (thinking) {
      const size_t end = Next(0, {"</think>", kSection, kCall});
      size_t begin = 0;
      while (begin < end &&
             (Is(begin, kSectionEnd) || Is(begin, kCallEnd) || Is(begin, kArgument) ||
              tokenizer_.IsControl(ids_[begin]) || Blank(begin))) {
        ++begin;
      }
      std::vector<TokenId> text(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(end));
      if (begin < end && Is(begin, "<think>"))
        text.erase(text.begin() + static_cast<std::ptrdiff_t>(begin));
      Add(OutputEventKind::kReasoning, WithoutSpelledBegin(Text(text), end, open));
      at = end < ids_.size() && Is(end, "</think>") ? end + 1 : end;
    }
    while (at < ids_.size()) {
      const size_t end = Next(at, {kSection, kCall});
      Add(OutputEventKind::kContent, WithoutSpelledBegin(Text(at, end), end, open));
      at = end;
      if (at < ids_.size() && Is(at, kCall)) at = Call(at);
      const bool section = at < ids_.size() && Is(at, kSection);
      const bool opened = std::exchange(open, false);
      if (!section && !opened) continue;
      size_t noise = at;  // its first token
      while (at < ids_.size() && !Is(at, kSectionEnd)) {
        if (Is(at, kCall)) {
          noise = at = Call(at);
        } else if (Is(at, kSection)) {
          noise = ++at;
        } else if (++at; Text(noise, at).ends_with(kSpelledEnd)) {
          break;
        }
      }
      if (at < ids_.size() && Is(at, kSectionEnd)) ++at;
    }
    return events_;
  }

 private:
  static constexpr std::string_view kSection = "<|tool_calls_section_begin|>";
  static constexpr std::string_view kSectionEnd = "<|tool_calls_section_end|>";
  static constexpr std::string_view kCall = "<|tool_call_begin|>";
  static constexpr std::string_view kArgument = "<|tool_call_argument_begin|>";
  static constexpr std::string_view kCallEnd = "<|tool_call_end|>";

  static constexpr std::string_view kSpelledBegin = "<|tool_call_section_begin|>";
  static constexpr std::string_view kSpelledEnd = "<|tool_call_section_end|>";

  // The text in front of the token at `end`, which may be a call.
  std::string WithoutSpelledBegin(std::string text, size_t end, bool& open) const {
    if (end >= ids_.size() || !Is(end, kCall)) return text;
    const size_t last = text.find_last_not_of(" \t\r\n") + 1;
    if (!std::string_view(text).substr(0, last).ends_with(kSpelledBegin)) return text;
    if (text.size() - last > 32) return text;
    open = true;
    return text.substr(0, last - kSpelledBegin.size());
  }

  bool Is(size_t at, std::string_view name) const { return ids_[at] == tokenizer_.SpecialId(name); }
  bool Blank(size_t at) const {
    return tokenizer_.TokenBytes(ids_[at]).find_first_not_of(" \t\r\n") == std::string_view::npos;
  }

  size_t Next(size_t at, std::initializer_list<std::string_view> names) const {
    for (; at < ids_.size(); ++at) {
      for (const std::string_view name : names) {
        if (Is(at, name)) return at;
      }
    }
    return at;
  }

  std::string Text(const std::vector<TokenId>& ids) const {
    std::vector<TokenId> kept;
    for (const TokenId id : ids) {
      bool mark = false;
      for (const auto name : {kSection, kSectionEnd, kCall, kArgument, kCallEnd}) {
        mark |= id == tokenizer_.SpecialId(name);
      }
      if (!mark) kept.push_back(id);
    }
    return tokenizer_.Decode(kept, /*skip_special=*/true);
  }
  std::string Text(size_t begin, size_t end) const {
    return Text({ids_.begin() + static_cast<std::ptrdiff_t>(begin),
                 ids_.begin() + static_cast<std::ptrdiff_t>(end)});
  }

  void Add(OutputEventKind kind, std::string text) {
    if (text.empty()) return;
    if (!events_.empty() && events_.back().kind == kind) {
      events_.back().text += text;
    } else {
      events_.push_back({kind, std::move(text), {}, -1});
    }
  }

  // Reads the call at `at`; returns where reading goes on.
  size_t Call(size_t at) {
    const size_t border = Next(at + 1, {kSection, kSectionEnd, kCall, kCallEnd});
    const bool closed = border < ids_.size();
    const size_t after = closed && Is(border, kCallEnd) ? border + 1 : border;
    const size_t middle = Next(at + 1, {kArgument});
    if (middle >= border) return after;
    std::string id;
    for (size_t i = at + 1; i < middle; ++i) {
      if (!tokenizer_.IsControl(ids_[i])) id += tokenizer_.TokenBytes(ids_[i]);
    }
    id = Utf8Sanitize(Trim(id, true));
    const size_t colon = id.rfind(':');
    if (colon == std::string::npos || colon + 1 == id.size()) return after;
    for (size_t i = colon + 1; i < id.size(); ++i) {
      if (id[i] < '0' || id[i] > '9') return after;
    }
    std::string name = id.substr(0, colon);
    if (name.rfind("functions.", 0) == 0) name = name.substr(10);
    if (name.empty()) return after;
    events_.push_back({OutputEventKind::kToolCallBegin, id, name, calls_});
    const std::string arguments = Trim(Text(middle + 1, border), closed);
    if (!arguments.empty()) {
      events_.push_back({OutputEventKind::kToolCallArguments, arguments, {}, calls_});
    }
    if (closed) events_.push_back({OutputEventKind::kToolCallEnd, {}, {}, calls_});
    ++calls_;
    return after;
  }

  static std::string Trim(const std::string& text, bool right) {
    const size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == std::string::npos) return {};
    return text.substr(begin, right ? text.find_last_not_of(" \t\r\n") + 1 - begin : text.npos);
  }

  const Tokenizer& tokenizer_;
  const std::vector<TokenId>& ids_;
  std::vector<OutputEvent> events_;
  int calls_ = 0;
};

TEST_F(EventParserTest, AnyStreamInAnyPiecesReadsAsTheWhole) {
  std::vector<TokenId> pool;
  for (const char* name :
       {"<think>", "</think>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
        "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|im_end|>"}) {
    for (int i = 0; i < 3; ++i) pool.push_back(Id(name));
  }
  for (const TokenId id : tokenizer_->Encode("functions.f:0 \n {\"a\": 日😀} f:1 x : 12 -")) {
    pool.push_back(id);
  }
  for (TokenId id = 0; id < 256; ++id) {  // single bytes, most of them parts of characters
    if (static_cast<unsigned char>(tokenizer_->TokenBytes(id)[0]) >= 0x80 && id % 8 == 0) {
      pool.push_back(id);
    }
  }
  pool.push_back(-1);
  pool.push_back(tokenizer_->vocab_size());
  // Whole calls are rare among random tokens.
  std::vector<std::vector<TokenId>> chunks;
  for (const char* text :
       {"(Cfunctions.f:0,A", "(C a.b-c:12 ,A\n{} )C", "[S(Cf:1,A[1, 2]", "]S",
        "<|tool_call_section_begin|>", "<|tool_call_section_end|>",
        "<|tool_call_section_begin|>(Cf:1,A{})C", "<|tool_call_section_begin|> \n(Cf:1,A"}) {
    chunks.push_back(Ids(text));
  }
  std::mt19937 random(11);
  int calls = 0;
  const char* const wanted = std::getenv("BALTORO_LONG");
  const int rounds = wanted != nullptr && *wanted == '1' ? 1'000'000 : 50'000;
  for (int round = 0; round < rounds; ++round) {
    std::vector<TokenId> ids;
    for (size_t pieces = random() % 40; pieces > 0; --pieces) {
      if (random() % 4 != 0) {
        ids.push_back(pool[random() % pool.size()]);
      } else {
        const std::vector<TokenId>& chunk = chunks[random() % chunks.size()];
        ids.insert(ids.end(), chunk.begin(), chunk.end());
      }
    }
    const EventParserOptions& options = round % 2 == 0 ? kThinking : kInstant;
    EventParser parser(*tokenizer_, options);
    std::vector<OutputEvent> joined;
    for (size_t at = 0; at < ids.size();) {  // events handed out after every few tokens
      std::vector<OutputEvent> some;
      for (size_t n = 1 + random() % 8; n > 0 && at < ids.size(); --n) parser.Push(ids[at++], some);
      if (at == ids.size()) parser.Finish(some);
      for (OutputEvent& event : some) {
        ASSERT_TRUE(IsValidUtf8(event.text));
        const bool more = !joined.empty() && joined.back().kind == event.kind &&
                          event.kind != OutputEventKind::kToolCallBegin &&
                          event.kind != OutputEventKind::kToolCallEnd;
        if (more) {
          ASSERT_EQ(joined.back().call_index, event.call_index);
          joined.back().text += event.text;
        } else {
          joined.push_back(std::move(event));
        }
      }
    }
    SlowReader reader(*tokenizer_, ids);
    const auto want = reader.Read(options.starts_in_reasoning);
    ASSERT_EQ(Shown(joined), Shown(want)) << round << ": " << tokenizer_->Decode(ids, false);
    calls += parser.saw_tool_call();
    ASSERT_EQ(parser.saw_tool_call(), std::any_of(want.begin(), want.end(), [](const auto& event) {
                return event.kind == OutputEventKind::kToolCallBegin;
              }));
  }
  EXPECT_GT(calls, rounds / 2);
}

}  // namespace
}  // namespace baltoro
