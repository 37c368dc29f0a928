#include "server/responses_shape.h"

#include <fmt/format.h>

#include <utility>

#include "base/append.h"

namespace baltoro {
namespace {

// The API's own word for what went wrong after an answer had begun.
std::string_view CodeOf(const ApiError& error) {
  switch (error.status) {
    case 400:
      return "invalid_prompt";
    case 429:
      return "rate_limit_exceeded";
    default:
      return "server_error";
  }
}

bool IsCall(OutputEventKind kind) {
  return kind == OutputEventKind::kToolCallBegin || kind == OutputEventKind::kToolCallArguments ||
         kind == OutputEventKind::kToolCallEnd;
}

// One item of the output. Calls have the kind of their arguments.
struct Item {
  OutputEventKind kind = OutputEventKind::kContent;
  std::string id;
  std::string text;           // of a call: its arguments
  std::string call_id, name;  // of a call
  bool cut = false;           // the answer was cut inside it
};

class ResponsesShape final : public ResponseShape {
 public:
  explicit ResponsesShape(ResponsesShapeOptions options) : options_(std::move(options)) {
    Json fixed = {{"id", options_.id},
                  {"object", "response"},
                  {"created_at", options_.created},
                  {"model", options_.model}};
    fixed.update(options_.echo);
    fixed_ = fixed.dump(-1, ' ', false, Json::error_handler_t::replace);
    fixed_.pop_back();  // further fields follow
  }

  void Begin(const ChoiceState& /*choice*/, const Usage* /*usage*/, std::string& out) override {
    for (const char* name : {"response.created", "response.in_progress"}) {
      OpenEvent(name, out);
      out += R"(,"response":)";
      AppendResponse("in_progress", "null", nullptr, out);
      CloseEvent(out);
    }
  }

  void Delta(const ChoiceState& /*choice*/,
             const ChoiceDelta& delta,
             const Usage* /*usage*/,
             std::string& out) override {
    for (const OutputEvent& event : delta.events) Take(event, &out);
  }

  void End(const ChoiceState& choice, const Usage* /*usage*/, std::string& out) override {
    EndAt(choice.end, &out);
  }

  void CloseStream(const Usage& usage, bool /*include_usage*/, std::string& out) override {
    std::string response = Finished(usage);
    OpenEvent(cut_ ? "response.incomplete" : "response.completed", out);
    out += R"(,"response":)" + response;
    CloseEvent(out);
    Done(std::move(response));
  }

  void FailStream(const ApiError& error, std::string& out) override {
    OpenEvent("response.failed", out);
    out += R"(,"response":)";
    std::string why = fmt::format(R"({{"code":"{}","message":)", CodeOf(error));
    AppendJsonString(why, error.message);
    why.push_back('}');
    AppendResponse("failed", why, nullptr, out);
    CloseEvent(out);
  }

  std::string Whole(const std::vector<ChoiceState>& choices, const Usage& usage) override {
    const ChoiceState& choice = choices.front();
    for (const OutputEvent& event : choice.events) Take(event, nullptr);
    EndAt(choice.end, nullptr);
    std::string response = Finished(usage);
    Done(response);
    return response;
  }

 private:
  // `out`: where to stream; null for a whole answer.
  void Take(const OutputEvent& event, std::string* out) {
    if (event.kind == OutputEventKind::kReasoning && !options_.show_reasoning) return;
    if (IsCall(event.kind) && !options_.parallel_tool_calls && event.call_index > 0) return;
    if (event.kind == OutputEventKind::kToolCallEnd) return CloseItem(out);
    const bool begins = event.kind == OutputEventKind::kToolCallBegin;
    if (begins || !open_ || items_.back().kind != event.kind) {
      CloseItem(out);
      OpenItem(event, out);
    }
    if (begins || event.text.empty()) return;
    items_.back().text += event.text;
    if (out == nullptr) return;
    OpenEvent(DeltaName(), *out);
    AppendPlace(*out);
    *out += R"(,"delta":)";
    AppendJsonString(*out, event.text);
    if (event.kind == OutputEventKind::kContent) *out += R"(,"logprobs":[])";
    CloseEvent(*out);
  }

  const char* DeltaName() const {
    switch (items_.back().kind) {
      case OutputEventKind::kReasoning:
        return "response.reasoning_text.delta";
      case OutputEventKind::kContent:
        return "response.output_text.delta";
      case OutputEventKind::kToolCallBegin:
      case OutputEventKind::kToolCallArguments:
      case OutputEventKind::kToolCallEnd:
        break;
    }
    return "response.function_call_arguments.delta";
  }

  void OpenItem(const OutputEvent& event, std::string* out) {
    open_ = true;
    Item& item = items_.emplace_back();
    item.kind = event.kind;
    std::string_view prefix = event.kind == OutputEventKind::kReasoning ? "rs" : "msg";
    if (IsCall(event.kind)) {
      prefix = "fc";
      item.kind = OutputEventKind::kToolCallArguments;
      item.call_id = event.text;
      item.name = event.name;
    }
    item.id = fmt::format("{}_{}_{}", prefix, options_.name, items_.size() - 1);
    if (out == nullptr) return;
    OpenEvent("response.output_item.added", *out);
    AppendFormatted(*out, R"(,"output_index":{},"item":)", items_.size() - 1);
    AppendItem(item, "in_progress", *out);
    CloseEvent(*out);
    if (IsCall(item.kind)) return;
    const bool reasoning = item.kind == OutputEventKind::kReasoning;
    OpenEvent(reasoning ? "response.reasoning_part.added" : "response.content_part.added", *out);
    AppendPlace(*out);
    *out += R"(,"part":)";
    AppendPart(item, *out);
    CloseEvent(*out);
  }

  void CloseItem(std::string* out) {
    if (!std::exchange(open_, false) || out == nullptr) return;
    const Item& item = items_.back();
    if (IsCall(item.kind)) {
      OpenEvent("response.function_call_arguments.done", *out);
      AppendPlace(*out);
      *out += R"(,"name":)";
      AppendJsonString(*out, item.name);
      *out += R"(,"arguments":)";
      AppendJsonString(*out, item.text);
      CloseEvent(*out);
    } else {
      const bool reasoning = item.kind == OutputEventKind::kReasoning;
      OpenEvent(reasoning ? "response.reasoning_text.done" : "response.output_text.done", *out);
      AppendPlace(*out);
      *out += R"(,"text":)";
      AppendJsonString(*out, item.text);
      if (!reasoning) *out += R"(,"logprobs":[])";
      CloseEvent(*out);
      OpenEvent(reasoning ? "response.reasoning_part.done" : "response.content_part.done", *out);
      AppendPlace(*out);
      *out += R"(,"part":)";
      AppendPart(item, *out);
      CloseEvent(*out);
    }
    OpenEvent("response.output_item.done", *out);
    AppendFormatted(*out, R"(,"output_index":{},"item":)", items_.size() - 1);
    AppendItem(item, StatusOf(item), *out);
    CloseEvent(*out);
  }

  static const char* StatusOf(const Item& item) { return item.cut ? "incomplete" : "completed"; }

  void EndAt(const ChoiceEnd& end, std::string* out) {
    cut_ = end.finish_reason == "length";
    if (open_) items_.back().cut = cut_;
    CloseItem(out);
  }

  void OpenEvent(std::string_view name, std::string& out) {
    AppendFormatted(out, "event: {}\ndata: {{\"type\":\"{}\",\"sequence_number\":{}", name, name,
                    sequence_++);
  }
  static void CloseEvent(std::string& out) { out += "}\n\n"; }

  void AppendPlace(std::string& out) const {
    AppendFormatted(out, R"(,"item_id":"{}","output_index":{})", items_.back().id,
                    items_.size() - 1);
    if (!IsCall(items_.back().kind)) out += R"(,"content_index":0)";
  }

  static void AppendPart(const Item& item, std::string& out) {
    const bool reasoning = item.kind == OutputEventKind::kReasoning;
    out += reasoning ? R"({"type":"reasoning_text","text":)" : R"({"type":"output_text","text":)";
    AppendJsonString(out, item.text);
    out += reasoning ? "}" : R"(,"annotations":[],"logprobs":[]})";
  }

  static void AppendItem(const Item& item, std::string_view status, std::string& out) {
    AppendFormatted(out, R"({{"id":"{}","status":"{}")", item.id, status);
    // An item that has just begun has no part yet.
    const bool begun = status == "in_progress";
    if (IsCall(item.kind)) {
      out += R"(,"type":"function_call","call_id":)";
      AppendJsonString(out, item.call_id);
      out += R"(,"name":)";
      AppendJsonString(out, item.name);
      out += R"(,"arguments":)";
      AppendJsonString(out, item.text);
      out.push_back('}');
      return;
    }
    out += item.kind == OutputEventKind::kReasoning
               ? R"(,"type":"reasoning","summary":[],"encrypted_content":null,"content":[)"
               : R"(,"type":"message","role":"assistant","content":[)";
    if (!begun) AppendPart(item, out);
    out += "]}";
  }

  void AppendOutput(std::string& out) const {
    out.push_back('[');
    for (size_t i = 0; i < items_.size(); ++i) {
      if (i > 0) out.push_back(',');
      AppendItem(items_[i], StatusOf(items_[i]), out);
    }
    out.push_back(']');
  }

  void AppendResponse(std::string_view status,
                      std::string_view error,
                      const Usage* usage,
                      std::string& out) const {
    out += fixed_;
    AppendFormatted(out, R"(,"status":"{}","error":{},"incomplete_details":{})", status, error,
                    status == "incomplete" ? R"({"reason":"max_output_tokens"})" : "null");
    out += R"(,"output":)";
    AppendOutput(out);
    out += R"(,"usage":)";
    if (usage == nullptr) {
      out += "null}";
      return;
    }
    AppendFormatted(out,
                    R"({{"input_tokens":{},"input_tokens_details":{{"cached_tokens":{},)"
                    R"("cache_write_tokens":0}},"output_tokens":{},)"
                    R"("output_tokens_details":{{"reasoning_tokens":{}}},"total_tokens":{}}}}})",
                    usage->prompt_tokens, usage->cached_tokens, usage->completion_tokens,
                    usage->reasoning_tokens, usage->prompt_tokens + usage->completion_tokens);
  }

  std::string Finished(const Usage& usage) const {
    std::string out;
    AppendResponse(cut_ ? "incomplete" : "completed", "null", &usage, out);
    return out;
  }

  void Done(std::string response) const {
    if (!options_.on_done) return;
    std::string output;
    AppendOutput(output);
    options_.on_done(std::move(response), std::move(output));
  }

  const ResponsesShapeOptions options_;
  std::string fixed_;  // the response up to what changes, without the closing brace
  std::vector<Item> items_;
  bool open_ = false;  // the last item may grow
  bool cut_ = false;   // by the limit of tokens
  int64_t sequence_ = 0;
};

}  // namespace

std::unique_ptr<ResponseShape> MakeResponsesShape(ResponsesShapeOptions options) {
  return std::make_unique<ResponsesShape>(std::move(options));
}

}  // namespace baltoro
