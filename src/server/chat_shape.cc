#include "server/chat_shape.h"

#include <fmt/format.h>

#include <utility>

#include "base/append.h"
#include "base/json.h"

namespace baltoro {
namespace {

class ChatShape final : public ResponseShape {
 public:
  ChatShape(const Tokenizer& tokenizer, ChatShapeOptions options)
      : tokenizer_(tokenizer), options_(std::move(options)) {
    head_ = R"(data: {"id":)";
    AppendJsonString(head_, options_.id);
    head_ +=
        fmt::format(R"(,"object":"chat.completion.chunk","created":{},"model":)", options_.created);
    AppendJsonString(head_, options_.model);
    head_ += R"(,"choices":[)";
  }

  void Begin(const ChoiceState& choice, const Usage* usage, std::string& out) override {
    Open(choice, out);
    out += R"("role":"assistant","content":""},"logprobs":null,"finish_reason":null}])";
    if (options_.return_token_ids && choice.prompt != nullptr) {
      out += R"(,"prompt_token_ids":)";
      AppendTokenIds(out, *choice.prompt);
    }
    CloseObject(usage, out);
    if (options_.echo.empty()) return;
    Open(choice, out);
    out += R"("content":)";
    AppendJsonString(out, options_.echo);
    out += R"(},"logprobs":null,"finish_reason":null)";
    Close(usage, out);
  }

  void Delta(const ChoiceState& choice,
             const ChoiceDelta& delta,
             const Usage* usage,
             std::string& out) override {
    // Chunks of one step differ in kind; token data goes with the first of them.
    bool wrote = false;
    const auto finish = [&] {
      out += R"(},"logprobs":)";
      if (!wrote && options_.logprobs && !delta.logprobs.empty()) {
        AppendLogprobs(out, delta.logprobs);
      } else {
        out += "null";
      }
      out += R"(,"finish_reason":null)";
      if (!wrote && options_.return_token_ids) {
        out += R"(,"token_ids":)";
        AppendTokenIds(out, delta.tokens);
      }
      Close(usage, out);
      wrote = true;
    };
    for (const OutputEvent& event : delta.events) {
      if (Hidden(event)) continue;
      Open(choice, out);
      AppendDelta(event, out);
      finish();
    }
    const bool data = options_.return_token_ids || (options_.logprobs && !delta.logprobs.empty());
    if (!wrote && data) {  // tokens without text yet: half a character, a marker
      Open(choice, out);
      out += R"("content":"")";
      finish();
    }
  }

  void End(const ChoiceState& choice, const Usage* usage, std::string& out) override {
    Open(choice, out);
    out += R"(},"logprobs":null,"finish_reason":)";
    AppendJsonString(out, choice.end.finish_reason);
    out += R"(,"stop_reason":)";
    AppendStopReason(out, choice.end);
    Close(usage, out);
  }

  void CloseStream(const Usage& usage, bool include_usage, std::string& out) override {
    if (include_usage) {
      out += head_;
      out += R"(],"usage":)";
      AppendUsage(out, usage);
      out += "}\n\n";
    }
    out += "data: [DONE]\n\n";
  }

  std::string Whole(const std::vector<ChoiceState>& choices, const Usage& usage) override {
    std::string out = R"({"id":)";
    AppendJsonString(out, options_.id);
    out += fmt::format(R"(,"object":"chat.completion","created":{},"model":)", options_.created);
    AppendJsonString(out, options_.model);
    out += R"(,"choices":[)";
    for (size_t i = 0; i < choices.size(); ++i) {
      if (i > 0) out.push_back(',');
      AppendChoice(choices[i], out);
    }
    out += R"(],"service_tier":null,"system_fingerprint":null,"usage":)";
    AppendUsage(out, usage);
    out += R"(,"prompt_logprobs":)";
    if (choices.front().prompt_logprobs == nullptr) {
      out += "null";
    } else {
      AppendPromptLogprobs(out, tokenizer_, *choices.front().prompt_logprobs);
    }
    out += R"(,"prompt_token_ids":)";
    if (options_.return_token_ids && choices.front().prompt != nullptr) {
      AppendTokenIds(out, *choices.front().prompt);
    } else {
      out += "null";
    }
    out += R"(,"kv_transfer_params":null})";
    return out;
  }

 private:
  bool Hidden(const OutputEvent& event) const {
    switch (event.kind) {
      case OutputEventKind::kReasoning:
        return !options_.include_reasoning;
      case OutputEventKind::kContent:
        return false;
      case OutputEventKind::kToolCallEnd:
        return true;
      case OutputEventKind::kToolCallBegin:
      case OutputEventKind::kToolCallArguments:
        return !options_.parallel_tool_calls && event.call_index > 0;
    }
    return false;
  }

  void Open(const ChoiceState& choice, std::string& out) const {
    out += head_;
    out += R"({"index":)";
    out += std::to_string(choice.index);
    out += R"(,"delta":{)";
  }

  static void Close(const Usage* usage, std::string& out) {
    out += "}]";
    CloseObject(usage, out);
  }

  static void CloseObject(const Usage* usage, std::string& out) {
    if (usage != nullptr) {
      out += R"(,"usage":)";
      AppendUsage(out, *usage);
    }
    out += "}\n\n";
  }

  // Both names of the reasoning field: clients of different ages read one or the other.
  static void AppendReasoning(const std::string& text, std::string& out) {
    out += R"("reasoning":)";
    AppendJsonString(out, text);
    out += R"(,"reasoning_content":)";
    AppendJsonString(out, text);
  }

  static void AppendDelta(const OutputEvent& event, std::string& out) {
    switch (event.kind) {
      case OutputEventKind::kReasoning:
        return AppendReasoning(event.text, out);
      case OutputEventKind::kContent:
        out += R"("content":)";
        return AppendJsonString(out, event.text);
      case OutputEventKind::kToolCallBegin:
        AppendFormatted(out, R"("tool_calls":[{{"index":{},"id":)", event.call_index);
        AppendJsonString(out, event.text);
        out += R"(,"type":"function","function":{"name":)";
        AppendJsonString(out, event.name);
        out += R"(,"arguments":""}}])";
        return;
      case OutputEventKind::kToolCallArguments:
        AppendFormatted(out, R"("tool_calls":[{{"index":{},"function":{{"arguments":)",
                        event.call_index);
        AppendJsonString(out, event.text);
        out += "}}]";
        return;
      case OutputEventKind::kToolCallEnd:
        return;
    }
  }

  void AppendOne(const TokenLogprob& one, std::string& out) const {
    out += R"("token":)";
    AppendJsonString(out, TokenName(tokenizer_, one.id, options_.token_names_as_ids));
    out += R"(,"logprob":)";
    AppendLogprob(out, one.logprob);
    out += R"(,"bytes":[)";
    const std::string_view bytes = tokenizer_.TokenBytes(one.id);
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (i > 0) out.push_back(',');
      out += std::to_string(static_cast<unsigned char>(bytes[i]));
    }
    out.push_back(']');
  }

  void AppendLogprobs(std::string& out, const std::vector<TokenLogprobs>& rows) const {
    out += R"({"content":[)";
    bool first = true;
    for (const TokenLogprobs& row : rows) {
      if (row.empty()) continue;
      out += std::exchange(first, false) ? "{" : ",{";
      AppendOne(row[0], out);
      out += R"(,"top_logprobs":[)";
      for (size_t j = 1; j < row.size(); ++j) {
        out += j > 1 ? ",{" : "{";
        AppendOne(row[j], out);
        out.push_back('}');
      }
      out += "]}";
    }
    out += "]}";
  }

  void AppendChoice(const ChoiceState& choice, std::string& out) const {
    struct Call {
      std::string id, name, arguments;
    };
    std::string reasoning;
    std::string content = options_.echo;
    std::vector<Call> calls;
    for (const OutputEvent& event : choice.events) {
      if (Hidden(event)) continue;
      switch (event.kind) {
        case OutputEventKind::kReasoning:
          reasoning += event.text;
          break;
        case OutputEventKind::kContent:
          content += event.text;
          break;
        case OutputEventKind::kToolCallBegin:
          calls.push_back({event.text, event.name, ""});
          break;
        case OutputEventKind::kToolCallArguments:
          if (!calls.empty()) calls.back().arguments += event.text;
          break;
        case OutputEventKind::kToolCallEnd:
          break;
      }
    }
    AppendFormatted(out, R"({{"index":{},"message":{{"role":"assistant","content":)", choice.index);
    if (content.empty() && (!calls.empty() || !reasoning.empty())) {
      out += "null";
    } else {
      AppendJsonString(out, content);
    }
    out += R"(,"refusal":null,"annotations":null,"audio":null,"function_call":null,"tool_calls":[)";
    for (size_t i = 0; i < calls.size(); ++i) {
      out += i > 0 ? R"(,{"id":)" : R"({"id":)";
      AppendJsonString(out, calls[i].id);
      out += R"(,"type":"function","function":{"name":)";
      AppendJsonString(out, calls[i].name);
      out += R"(,"arguments":)";
      AppendJsonString(out, calls[i].arguments);
      out += "}}";
    }
    out += "],";
    if (reasoning.empty()) {
      out += R"("reasoning":null,"reasoning_content":null)";
    } else {
      AppendReasoning(reasoning, out);
    }
    out += R"(},"logprobs":)";
    if (options_.logprobs) {
      AppendLogprobs(out, choice.logprobs);
    } else {
      out += "null";
    }
    AppendChoiceEnd(out, choice, options_.return_token_ids);
    out.push_back('}');
  }

  const Tokenizer& tokenizer_;
  ChatShapeOptions options_;
  std::string head_;
};

}  // namespace

std::unique_ptr<ResponseShape> MakeChatShape(const Tokenizer& tokenizer, ChatShapeOptions options) {
  return std::make_unique<ChatShape>(tokenizer, std::move(options));
}

}  // namespace baltoro
