#include "server/response_shape.h"

#include <fmt/format.h>

#include <cmath>

#include "base/append.h"
#include "base/json.h"
#include "base/utf8.h"

namespace baltoro {

void ResponseShape::FailStream(const ApiError& error, std::string& out) {
  out += "data: " + ErrorBody(error) + "\n\ndata: [DONE]\n\n";
}

void AppendUsage(std::string& out, const Usage& usage) {
  AppendFormatted(out,
                  R"({{"prompt_tokens":{},"total_tokens":{},"completion_tokens":{},)"
                  R"("prompt_tokens_details":{{"cached_tokens":{}}}}})",
                  usage.prompt_tokens, usage.prompt_tokens + usage.completion_tokens,
                  usage.completion_tokens, usage.cached_tokens);
}

void AppendStopReason(std::string& out, const ChoiceEnd& end) {
  if (end.stop_string) {
    AppendJsonString(out, *end.stop_string);
  } else if (end.stop_token) {
    out += std::to_string(*end.stop_token);
  } else {
    out += "null";
  }
}

void AppendTokenIds(std::string& out, const std::vector<TokenId>& ids) {
  out.push_back('[');
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out.push_back(',');
    out += std::to_string(ids[i]);
  }
  out.push_back(']');
}

void AppendChoiceEnd(std::string& out, const ChoiceState& choice, bool with_token_ids) {
  out += R"(,"finish_reason":)";
  AppendJsonString(out, choice.end.finish_reason);
  out += R"(,"stop_reason":)";
  AppendStopReason(out, choice.end);
  out += R"(,"token_ids":)";
  if (with_token_ids) {
    AppendTokenIds(out, choice.tokens);
  } else {
    out += "null";
  }
}

void AppendLogprob(std::string& out, float logprob) {
  if (!std::isfinite(logprob)) {
    out += "-9999.0";
    return;
  }
  AppendFormatted(out, "{}", logprob);
}

std::string TokenText(const Tokenizer& tokenizer, TokenId id) {
  return Utf8Sanitize(tokenizer.TokenBytes(id));
}

std::string TokenName(const Tokenizer& tokenizer, TokenId id, bool as_id) {
  if (as_id || tokenizer.empty()) return "token_id:" + std::to_string(id);
  return TokenText(tokenizer, id);
}

void AppendPromptLogprobs(std::string& out,
                          const Tokenizer& tokenizer,
                          const std::vector<TokenLogprobs>& rows) {
  out.push_back('[');
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i > 0) out.push_back(',');
    if (rows[i].empty()) {
      out += "null";
      continue;
    }
    out.push_back('{');
    for (size_t j = 0; j < rows[i].size(); ++j) {
      const TokenLogprob& one = rows[i][j];
      // The token itself comes first and may come again among the top ones.
      if (j > 0 && one.id == rows[i][0].id) continue;
      AppendFormatted(out, R"({}"{}":{{"logprob":)", j > 0 ? "," : "", one.id);
      AppendLogprob(out, one.logprob);
      AppendFormatted(out, R"(,"rank":{},"decoded_token":)", one.rank);
      AppendJsonString(out, TokenText(tokenizer, one.id));
      out.push_back('}');
    }
    out.push_back('}');
  }
  out.push_back(']');
}

}  // namespace baltoro
