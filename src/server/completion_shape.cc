#include "server/completion_shape.h"

#include <fmt/format.h>

#include <iterator>

#include "base/json.h"

namespace baltoro {
namespace {

class CompletionShape final : public ResponseShape {
 public:
  CompletionShape(const Tokenizer& tokenizer, CompletionShapeOptions options)
      : tokenizer_(tokenizer), options_(std::move(options)) {
    identity_ = R"({"id":)";
    AppendJsonString(identity_, options_.id);
    identity_ +=
        fmt::format(R"(,"object":"text_completion","created":{},"model":)", options_.created);
    AppendJsonString(identity_, options_.model);
    identity_ += R"(,"choices":[)";
  }

  void Begin(const ChoiceState& choice, const Usage* usage, std::string& out) override {
    if (!options_.echo) return;
    Chunk(choice, tokenizer_.Decode(choice.prompt, false), nullptr, usage, out);
  }

  void Delta(const ChoiceState& choice,
             const ChoiceDelta& delta,
             const Usage* usage,
             std::string& out) override {
    std::string text;
    for (const OutputEvent& event : delta.events) text += event.text;
    Chunk(choice, text, &delta, usage, out);
  }

  void End(const ChoiceState& choice, const Usage* usage, std::string& out) override {
    out += "data: ";
    out += identity_;
    fmt::format_to(std::back_inserter(out),
                   R"({{"index":{},"text":"","logprobs":null,"finish_reason":)", choice.index);
    AppendJsonString(out, choice.end.finish_reason);
    out += R"(,"stop_reason":)";
    AppendStopReason(out, choice.end);
    Close(usage, out);
  }

  void UsageChunk(const Usage& usage, std::string& out) override {
    out += "data: ";
    out += identity_;
    out += R"(],"usage":)";
    AppendUsage(out, usage);
    out += "}\n\n";
  }

  std::string Whole(const std::vector<ChoiceState>& choices, const Usage& usage) override {
    std::string out = identity_;
    for (size_t i = 0; i < choices.size(); ++i) {
      if (i > 0) out.push_back(',');
      AppendChoice(choices[i], out);
    }
    out += R"(],"service_tier":null,"system_fingerprint":null,"usage":)";
    AppendUsage(out, usage);
    out += R"(,"kv_transfer_params":null})";
    return out;
  }

 private:
  void Chunk(const ChoiceState& choice,
             std::string_view text,
             const ChoiceDelta* delta,
             const Usage* usage,
             std::string& out) const {
    out += "data: ";
    out += identity_;
    fmt::format_to(std::back_inserter(out), R"({{"index":{},"text":)", choice.index);
    AppendJsonString(out, text);
    out += R"(,"logprobs":)";
    if (options_.logprobs && delta != nullptr && !delta->logprobs.empty()) {
      AppendLogprobs(out, {}, delta->logprobs);
    } else {
      out += "null";
    }
    out += R"(,"finish_reason":null,"stop_reason":null)";
    if (options_.return_token_ids && delta != nullptr) {
      out += R"(,"token_ids":)";
      AppendTokenIds(out, delta->tokens);
    }
    Close(usage, out);
  }

  static void Close(const Usage* usage, std::string& out) {
    out += "}]";
    if (usage != nullptr) {
      out += R"(,"usage":)";
      AppendUsage(out, *usage);
    }
    out += "}\n\n";
  }

  // The older, columnar form. `prompt` rows come first; the first of them has no probability.
  void AppendLogprobs(std::string& out,
                      const std::vector<std::pair<TokenId, const TokenLogprobs*>>& prompt,
                      const std::vector<TokenLogprobs>& rows) const {
    std::string tokens, values, tops, offsets;
    size_t offset = 0;
    const auto add = [&](TokenId id, const TokenLogprobs* row) {
      const char* comma = tokens.empty() ? "" : ",";
      for (std::string* column : {&tokens, &values, &tops, &offsets}) *column += comma;
      const std::string text = TokenText(tokenizer_, id);
      AppendJsonString(tokens, text);
      offsets += std::to_string(offset);
      offset += text.size();
      if (row == nullptr || row->empty()) {
        values += "null";
        tops += "null";
        return;
      }
      AppendLogprob(values, row->front().logprob);
      tops.push_back('{');
      for (size_t j = 0; j < row->size(); ++j) {
        if (j > 0 && (*row)[j].id == row->front().id) continue;
        if (j > 0) tops.push_back(',');
        AppendJsonString(tops, TokenText(tokenizer_, (*row)[j].id));
        tops.push_back(':');
        AppendLogprob(tops, (*row)[j].logprob);
      }
      tops.push_back('}');
    };
    for (const auto& [id, row] : prompt) add(id, row);
    for (const TokenLogprobs& row : rows) {
      if (!row.empty()) add(row.front().id, &row);
    }
    fmt::format_to(
        std::back_inserter(out),
        R"({{"text_offset":[{}],"token_logprobs":[{}],"tokens":[{}],"top_logprobs":[{}]}})",
        offsets, values, tokens, tops);
  }

  void AppendChoice(const ChoiceState& choice, std::string& out) const {
    std::string text = options_.echo ? tokenizer_.Decode(choice.prompt, false) : "";
    for (const OutputEvent& event : choice.events) text += event.text;
    fmt::format_to(std::back_inserter(out), R"({{"index":{},"text":)", choice.index);
    AppendJsonString(out, text);
    out += R"(,"logprobs":)";
    if (options_.logprobs) {
      std::vector<std::pair<TokenId, const TokenLogprobs*>> prompt;
      for (size_t i = 0; options_.echo && i < choice.prompt.size(); ++i) {
        const bool known = i < choice.prompt_logprobs.size();
        prompt.emplace_back(choice.prompt[i], known ? &choice.prompt_logprobs[i] : nullptr);
      }
      AppendLogprobs(out, prompt, choice.logprobs);
    } else {
      out += "null";
    }
    out += R"(,"finish_reason":)";
    AppendJsonString(out, choice.end.finish_reason);
    out += R"(,"stop_reason":)";
    AppendStopReason(out, choice.end);
    out += R"(,"token_ids":)";
    if (options_.return_token_ids) {
      AppendTokenIds(out, choice.tokens);
    } else {
      out += "null";
    }
    out += R"(,"prompt_logprobs":)";
    if (choice.prompt_logprobs.empty()) {
      out += "null";
    } else {
      AppendPromptLogprobs(out, tokenizer_, choice.prompt_logprobs);
    }
    out += R"(,"prompt_token_ids":)";
    if (options_.return_token_ids) {
      AppendTokenIds(out, choice.prompt);
    } else {
      out += "null";
    }
    out.push_back('}');
  }

  const Tokenizer& tokenizer_;
  CompletionShapeOptions options_;
  std::string identity_;
};

}  // namespace

std::unique_ptr<ResponseShape> MakeCompletionShape(const Tokenizer& tokenizer,
                                                   CompletionShapeOptions options) {
  return std::make_unique<CompletionShape>(tokenizer, std::move(options));
}

}  // namespace baltoro
