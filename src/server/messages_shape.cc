#include "server/messages_shape.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/append.h"
#include "base/json.h"
#include "server/messages_request.h"
#include "server/sha256.h"

namespace baltoro {
namespace {

// Thinking blocks carry a signature that clients send back. Nothing here depends on it; that of a
// text is always the same, so that streamed and whole answers are.
std::string SignatureOf(std::string_view text) {
  std::string out;
  for (const unsigned char byte : Sha256(text)) AppendFormatted(out, "{:02x}", byte);
  return out;
}

void OpenEvent(std::string_view name, std::string& out) {
  AppendFormatted(out, "event: {}\ndata: {{\"type\":\"{}\"", name, name);
}

void AppendMessagesUsage(const Usage& usage, std::string& out) {
  // What came out of the cache is not counted as input a second time.
  AppendFormatted(out,
                  R"({{"input_tokens":{},"cache_creation_input_tokens":0,)"
                  R"("cache_read_input_tokens":{},"output_tokens":{}}})",
                  usage.prompt_tokens - usage.cached_tokens, usage.cached_tokens,
                  usage.completion_tokens);
}

// The arguments of a call as the object that `input` must be. A call that was cut short has no
// such object; what there is of it comes under the key that Anthropic's documentation names.
std::string InputObject(const std::string& arguments) {
  if (arguments.empty()) return "{}";
  const Result<Json> parsed = ParseJson(arguments);
  if (parsed.ok() && parsed.value().is_object()) return arguments;
  std::string out = R"({"INVALID_JSON":)";
  AppendJsonString(out, arguments);
  out.push_back('}');
  return out;
}

struct Block {
  OutputEventKind kind = OutputEventKind::kContent;  // kToolCallArguments for a call
  std::string text;                                  // of a call: its arguments
  std::string id, name;                              // of a call
};

bool IsCall(OutputEventKind kind) {
  return kind == OutputEventKind::kToolCallBegin || kind == OutputEventKind::kToolCallArguments ||
         kind == OutputEventKind::kToolCallEnd;
}

class MessagesShape final : public ResponseShape {
 public:
  explicit MessagesShape(MessagesShapeOptions options) : options_(std::move(options)) {}

  void Begin(const ChoiceState& /*choice*/, const Usage* usage, std::string& out) override {
    OpenEvent("message_start", out);
    out += R"(,"message":)";
    AppendHead(out);
    out += R"([],"stop_reason":null,"stop_sequence":null,"usage":)";
    Usage start = usage != nullptr ? *usage : Usage();
    start.completion_tokens = 0;
    AppendMessagesUsage(start, out);
    out += "}}\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\n";
  }

  void Delta(const ChoiceState& /*choice*/,
             const ChoiceDelta& delta,
             const Usage* /*usage*/,
             std::string& out) override {
    for (const OutputEvent& event : delta.events) {
      if (Hidden(event) || event.kind == OutputEventKind::kToolCallEnd) continue;
      if (event.kind == OutputEventKind::kToolCallBegin || !block_ || block_->kind != event.kind) {
        CloseBlock(out);
        OpenBlock(event, out);
      }
      if (event.kind == OutputEventKind::kToolCallBegin || event.text.empty()) continue;
      AppendDelta(event, out);
    }
  }

  void End(const ChoiceState& choice, const Usage* /*usage*/, std::string& out) override {
    CloseBlock(out);
    end_ = choice.end;
  }

  void CloseStream(const Usage& usage, bool /*include_usage*/, std::string& out) override {
    OpenEvent("message_delta", out);
    out += R"(,"delta":{)";
    AppendStop(end_, out);
    out += R"(},"usage":)";
    AppendMessagesUsage(usage, out);
    out += "}\n\n";
    OpenEvent("message_stop", out);
    out += "}\n\n";
  }

  void FailStream(const ApiError& error, std::string& out) override {
    out += "event: error\ndata: " + MessagesErrorBody(error) + "\n\n";
  }

  std::string Whole(const std::vector<ChoiceState>& choices, const Usage& usage) override {
    const ChoiceState& choice = choices.front();
    const std::vector<Block> blocks = Blocks(choice.events);
    std::string out;
    AppendHead(out);
    out.push_back('[');
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (i > 0) out.push_back(',');
      AppendBlock(blocks[i], out);
    }
    out += "],";
    AppendStop(choice.end, out);
    out += R"(,"usage":)";
    AppendMessagesUsage(usage, out);
    out.push_back('}');
    return out;
  }

 private:
  bool Hidden(const OutputEvent& event) const {
    if (event.kind == OutputEventKind::kReasoning) return !options_.show_thinking;
    return IsCall(event.kind) && !options_.parallel_tool_calls && event.call_index > 0;
  }

  // Up to the content's value.
  void AppendHead(std::string& out) const {
    out += R"({"id":)";
    AppendJsonString(out, options_.id);
    out += R"(,"type":"message","role":"assistant","model":)";
    AppendJsonString(out, options_.model);
    out += R"(,"content":)";
  }

  void AppendStop(const ChoiceEnd& end, std::string& out) const {
    out += R"("stop_reason":)";
    if (end.finish_reason == "length") {
      out += R"("max_tokens","stop_sequence":null)";
    } else if (end.stop_string) {
      out += R"("stop_sequence","stop_sequence":)";
      AppendJsonString(out, *end.stop_string);
    } else {
      out += called_ ? R"("tool_use","stop_sequence":null)" : R"("end_turn","stop_sequence":null)";
    }
  }

  void OpenBlock(const OutputEvent& event, std::string& out) {
    block_ = Block{.kind = event.kind, .text = {}, .id = {}, .name = {}};
    if (IsCall(event.kind)) {
      block_->kind = OutputEventKind::kToolCallArguments;
      block_->id = ToolUseId(event.text);
      block_->name = event.name;
      called_ = true;
    }
    OpenEvent("content_block_start", out);
    AppendFormatted(out, R"(,"index":{},"content_block":)", index_);
    AppendBlock(*block_, out, /*begun=*/true);
    out += "}\n\n";
  }

  void AppendDelta(const OutputEvent& event, std::string& out) {
    if (block_->kind == OutputEventKind::kReasoning) block_->text += event.text;  // to sign it
    OpenEvent("content_block_delta", out);
    AppendFormatted(out, R"(,"index":{},"delta":{{"type":)", index_);
    switch (block_->kind) {
      case OutputEventKind::kReasoning:
        out += R"("thinking_delta","thinking":)";
        break;
      case OutputEventKind::kContent:
        out += R"("text_delta","text":)";
        break;
      case OutputEventKind::kToolCallBegin:
      case OutputEventKind::kToolCallArguments:
      case OutputEventKind::kToolCallEnd:
        out += R"("input_json_delta","partial_json":)";
        break;
    }
    AppendJsonString(out, event.text);
    out += "}}\n\n";
  }

  void CloseBlock(std::string& out) {
    if (!block_) return;
    if (block_->kind == OutputEventKind::kReasoning) {
      OpenEvent("content_block_delta", out);
      AppendFormatted(out, R"(,"index":{},"delta":{{"type":"signature_delta","signature":"{}"}}}})",
                      index_, SignatureOf(block_->text));
      out += "\n\n";
    }
    OpenEvent("content_block_stop", out);
    AppendFormatted(out, R"(,"index":{}}})", index_);
    out += "\n\n";
    block_.reset();
    ++index_;
  }

  // One that has only `begun` has no signature and no input yet.
  static void AppendBlock(const Block& block, std::string& out, bool begun = false) {
    switch (block.kind) {
      case OutputEventKind::kReasoning:
        out += R"({"type":"thinking","thinking":)";
        AppendJsonString(out, block.text);
        out += R"(,"signature":")" + (begun ? "" : SignatureOf(block.text)) + R"("})";
        return;
      case OutputEventKind::kContent:
        out += R"({"type":"text","text":)";
        AppendJsonString(out, block.text);
        out.push_back('}');
        return;
      case OutputEventKind::kToolCallBegin:
      case OutputEventKind::kToolCallArguments:
      case OutputEventKind::kToolCallEnd:
        out += R"({"type":"tool_use","id":)";
        AppendJsonString(out, block.id);
        out += R"(,"name":)";
        AppendJsonString(out, block.name);
        out += R"(,"input":)" + InputObject(block.text) + "}";
        return;
    }
  }

  std::vector<Block> Blocks(const std::vector<OutputEvent>& events) {
    std::vector<Block> blocks;
    for (const OutputEvent& event : events) {
      if (Hidden(event) || event.kind == OutputEventKind::kToolCallEnd) continue;
      if (event.kind == OutputEventKind::kToolCallBegin) {
        called_ = true;
        blocks.push_back({.kind = OutputEventKind::kToolCallArguments,
                          .text = {},
                          .id = ToolUseId(event.text),
                          .name = event.name});
        continue;
      }
      if (blocks.empty() || blocks.back().kind != event.kind) {
        blocks.push_back({.kind = event.kind, .text = {}, .id = {}, .name = {}});
      }
      blocks.back().text += event.text;
    }
    return blocks;
  }

  const MessagesShapeOptions options_;
  std::optional<Block> block_;  // open in the stream
  int index_ = 0;               // its place
  bool called_ = false;         // a call was shown
  ChoiceEnd end_;
};

std::string_view ErrorType(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
    case 529:
      return "overloaded_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

std::unique_ptr<ResponseShape> MakeMessagesShape(MessagesShapeOptions options) {
  return std::make_unique<MessagesShape>(std::move(options));
}

std::string MessagesErrorBody(const ApiError& error) {
  std::string out =
      fmt::format(R"({{"type":"error","error":{{"type":"{}","message":)", ErrorType(error.status));
  AppendJsonString(out, MessagesFieldNames(error).message);
  // By this code Anthropic's clients know that they can send the whole conversation instead.
  if (error.param == kThreadField) {
    out += R"(,"details":{"error_code":"thread_unsupported_request"})";
  }
  out += "}}";
  return out;
}

std::string ToolUseId(std::string_view call_id) {
  std::string out(call_id);
  for (char& c : out) {
    const bool plain =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-';
    if (!plain) c = '_';
  }
  return out;
}

}  // namespace baltoro
