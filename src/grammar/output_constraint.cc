#include "grammar/output_constraint.h"

#include <algorithm>
#include <span>
#include <utility>

#include "request/wire.h"

namespace baltoro {

namespace {

constexpr uint16_t kVersion = 1;
constexpr size_t kBannedMax = 1024;
constexpr size_t kBannedTokensMax = 256;

void PutOptional(WireWriter& writer, const std::optional<TokenId>& token) {
  writer.Put(token.has_value());
  writer.Put(token.value_or(0));
}

std::optional<TokenId> GetOptional(WireReader& reader) {
  const bool has = reader.GetBool();
  const auto token = reader.Get<TokenId>();
  if (!has) return std::nullopt;
  return token;
}

}  // namespace

std::string OutputConstraint::Serialise() const {
  WireWriter writer;
  writer.Put(kVersion);
  writer.Put(starts_in_reasoning);
  PutOptional(writer, think_end);
  PutOptional(writer, section_begin);
  writer.Put(thinking_budget);
  writer.Put(static_cast<uint32_t>(banned_sequences.size()));
  for (const auto& banned : banned_sequences) {
    writer.PutArray(std::span<const TokenId>(banned));
  }
  writer.Put(grammar.has_value());
  writer.PutBytes(grammar ? grammar->Serialise() : std::string());
  return writer.Take();
}

Result<OutputConstraint> OutputConstraint::Parse(std::string_view bytes) {
  WireReader reader(bytes);
  if (reader.Get<uint16_t>() != kVersion) {
    return InvalidArgument("the constraint is of another version");
  }
  OutputConstraint out;
  out.starts_in_reasoning = reader.GetBool();
  out.think_end = GetOptional(reader);
  out.section_begin = GetOptional(reader);
  out.thinking_budget = reader.Get<int64_t>();
  out.banned_sequences.resize(reader.GetCount(sizeof(uint32_t)));
  if (out.banned_sequences.size() > kBannedMax) {
    return InvalidArgument("the constraint bans more than 1024 sequences");
  }
  for (auto& banned : out.banned_sequences) {
    banned = reader.GetArray<TokenId>();
    if (reader.ok() && (banned.empty() || banned.size() > kBannedTokensMax)) {
      return InvalidArgument("a banned sequence has no tokens or more than 256");
    }
  }
  std::sort(out.banned_sequences.begin(), out.banned_sequences.end());
  const auto same = std::unique(out.banned_sequences.begin(), out.banned_sequences.end());
  out.banned_sequences.erase(same, out.banned_sequences.end());
  const bool has_grammar = reader.GetBool();
  const std::string grammar_bytes = reader.GetBytes();
  BT_RETURN_IF_ERROR(reader.Finish("constraint"));
  if (has_grammar) {
    BT_ASSIGN_OR_RETURN(out.grammar, Grammar::Parse(grammar_bytes));
  } else if (!grammar_bytes.empty()) {
    return InvalidArgument("the constraint has bytes of a grammar but none");
  }
  return out;
}

}  // namespace baltoro
