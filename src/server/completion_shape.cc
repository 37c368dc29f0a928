#include "server/completion_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/append.h"
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
    const auto index = static_cast<size_t>(choice.index);
    if (index >= streamed_.size()) streamed_.resize(index + 1);
    streamed_[index].prompt_ids_due = !options_.echo;
    if (!options_.echo) return;
    Open(choice, PromptText(choice), out);
    if (options_.logprobs) {
      AppendLogprobs(out, PromptRows(choice), {}, StreamedOf(choice).offset);
    } else {
      out += "null";
    }
    out += R"(,"finish_reason":null,"stop_reason":null)";
    AppendPromptIds(choice, out);
    Close(usage, out);
  }

  void Delta(const ChoiceState& choice,
             const ChoiceDelta& delta,
             const Usage* usage,
             std::string& out) override {
    std::string text;
    for (const OutputEvent& event : delta.events) text += event.text;
    Open(choice, text, out);
    if (options_.logprobs && !delta.logprobs.empty()) {
      AppendLogprobs(out, {}, delta.logprobs, StreamedOf(choice).offset);
    } else {
      out += "null";
    }
    out += R"(,"finish_reason":null,"stop_reason":null)";
    if (options_.return_token_ids) {
      if (std::exchange(StreamedOf(choice).prompt_ids_due, false)) AppendPromptIds(choice, out);
      out += R"(,"token_ids":)";
      AppendTokenIds(out, delta.tokens);
    }
    Close(usage, out);
  }

  void End(const ChoiceState& choice, const Usage* usage, std::string& out) override {
    out += "data: ";
    out += identity_;
    AppendFormatted(out, R"({{"index":{},"text":"","logprobs":null,"finish_reason":)",
                    choice.index);
    AppendJsonString(out, choice.end.finish_reason);
    out += R"(,"stop_reason":)";
    AppendStopReason(out, choice.end);
    Close(usage, out);
  }

  void CloseStream(const Usage& usage, bool include_usage, std::string& out) override {
    if (include_usage) {
      out += "data: ";
      out += identity_;
      out += R"(],"usage":)";
      AppendUsage(out, usage);
      out += "}\n\n";
    }
    out += "data: [DONE]\n\n";
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
  struct Streamed {
    size_t offset = 0;            // in characters, of the next token with a log-probability
    bool prompt_ids_due = false;  // with the next chunk
  };
  using PromptRow = std::pair<TokenId, const TokenLogprobs*>;  // null: no probability

  // Up to the value of "logprobs".
  void Open(const ChoiceState& choice, std::string_view text, std::string& out) const {
    out += "data: ";
    out += identity_;
    AppendFormatted(out, R"({{"index":{},"text":)", choice.index);
    AppendJsonString(out, text);
    out += R"(,"logprobs":)";
  }

  Streamed& StreamedOf(const ChoiceState& choice) {
    return streamed_[static_cast<size_t>(choice.index)];
  }

  std::string PromptText(const ChoiceState& choice) const {
    return choice.prompt == nullptr ? "" : tokenizer_.Decode(*choice.prompt, false);
  }

  void AppendPromptIds(const ChoiceState& choice, std::string& out) const {
    if (!options_.return_token_ids || choice.prompt == nullptr) return;
    out += R"(,"prompt_token_ids":)";
    AppendTokenIds(out, *choice.prompt);
  }

  static std::vector<PromptRow> PromptRows(const ChoiceState& choice) {
    std::vector<PromptRow> rows;
    if (choice.prompt == nullptr) return rows;
    for (size_t i = 0; i < choice.prompt->size(); ++i) {
      const bool known = choice.prompt_logprobs != nullptr && i < choice.prompt_logprobs->size();
      rows.emplace_back((*choice.prompt)[i], known ? &(*choice.prompt_logprobs)[i] : nullptr);
    }
    return rows;
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
  // `offset`, in characters from the start of the choice's text, is moved on.
  void AppendLogprobs(std::string& out,
                      const std::vector<PromptRow>& prompt,
                      const std::vector<TokenLogprobs>& rows,
                      size_t& offset) const {
    std::string tokens, values, tops, offsets;
    const auto add = [&](TokenId id, const TokenLogprobs* row) {
      const char* comma = tokens.empty() ? "" : ",";
      for (std::string* column : {&tokens, &values, &tops, &offsets}) *column += comma;
      const std::string text = TokenName(tokenizer_, id, options_.token_names_as_ids);
      AppendJsonString(tokens, text);
      offsets += std::to_string(offset);
      // A character counts where it begins, also when its bytes are in several tokens.
      offset += CharacterCount(tokenizer_.TokenBytes(id));
      if (row == nullptr || row->empty()) {
        values += "null";
        tops += "null";
        return;
      }
      AppendLogprob(values, row->front().logprob);
      AppendTop(*row, tops);
    };
    for (const auto& [id, row] : prompt) add(id, row);
    for (const TokenLogprobs& row : rows) {
      if (!row.empty()) add(row.front().id, &row);
    }
    AppendFormatted(
        out, R"({{"text_offset":[{}],"token_logprobs":[{}],"tokens":[{}],"top_logprobs":[{}]}})",
        offsets, values, tokens, tops);
  }

  // Different tokens may have the same text (parts of characters do); an object's keys must differ,
  // so the first and more likely one stands for them.
  void AppendTop(const TokenLogprobs& row, std::string& out) const {
    std::unordered_set<std::string> names;
    out.push_back('{');
    for (const TokenLogprob& one : row) {
      std::string name = TokenName(tokenizer_, one.id, options_.token_names_as_ids);
      if (names.contains(name)) continue;
      if (!names.empty()) out.push_back(',');
      AppendJsonString(out, name);
      out.push_back(':');
      AppendLogprob(out, one.logprob);
      names.insert(std::move(name));
    }
    out.push_back('}');
  }

  static size_t CharacterCount(std::string_view utf8) {
    return static_cast<size_t>(std::count_if(utf8.begin(), utf8.end(), [](char byte) {
      return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
    }));
  }

  void AppendChoice(const ChoiceState& choice, std::string& out) const {
    std::string text = options_.echo ? PromptText(choice) : "";
    for (const OutputEvent& event : choice.events) text += event.text;
    AppendFormatted(out, R"({{"index":{},"text":)", choice.index);
    AppendJsonString(out, text);
    out += R"(,"logprobs":)";
    if (options_.logprobs) {
      size_t offset = 0;
      AppendLogprobs(out, options_.echo ? PromptRows(choice) : std::vector<PromptRow>(),
                     choice.logprobs, offset);
    } else {
      out += "null";
    }
    AppendChoiceEnd(out, choice, options_.return_token_ids);
    out += R"(,"prompt_logprobs":)";
    if (choice.prompt_logprobs == nullptr) {
      out += "null";
    } else {
      AppendPromptLogprobs(out, tokenizer_, *choice.prompt_logprobs);
    }
    out += R"(,"prompt_token_ids":)";
    if (options_.return_token_ids && choice.prompt != nullptr) {
      AppendTokenIds(out, *choice.prompt);
    } else {
      out += "null";
    }
    out.push_back('}');
  }

  const Tokenizer& tokenizer_;
  CompletionShapeOptions options_;
  std::string identity_;
  std::vector<Streamed> streamed_;
};

}  // namespace

std::unique_ptr<ResponseShape> MakeCompletionShape(const Tokenizer& tokenizer,
                                                   CompletionShapeOptions options) {
  return std::make_unique<CompletionShape>(tokenizer, std::move(options));
}

}  // namespace baltoro
