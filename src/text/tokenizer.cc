#include "text/tokenizer.h"

#include <charconv>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "text/pretokenizer.h"
#include "text/tiktoken_file.h"

namespace baltoro {
namespace {

constexpr TokenId kReservedIds = 256;  // the ids after the ordinary tokens
constexpr TokenId kAddedIdsMax = 1 << 16;

// The added tokens of Kimi K2.5, by distance from the first.
struct NamedToken {
  TokenId offset;
  const char* name;
  bool control;
};
constexpr NamedToken kDefaultNames[] = {
    {0, "[BOS]", true},
    {1, "[EOS]", true},
    {2, "<|im_end|>", true},
    {3, "<|im_user|>", true},
    {4, "<|im_assistant|>", true},
    {6, "<|start_header_id|>", true},
    {7, "<|end_header_id|>", true},
    {9, "[EOT]", true},
    {10, "<|im_system|>", true},
    {11, "<|tool_calls_section_begin|>", false},
    {12, "<|tool_calls_section_end|>", false},
    {13, "<|tool_call_begin|>", false},
    {14, "<|tool_call_argument_begin|>", false},
    {15, "<|tool_call_end|>", false},
    {17, "<|im_middle|>", true},
    {18, "<|media_begin|>", true},
    {19, "<|media_content|>", true},
    {20, "<|media_end|>", true},
    {21, "<|media_pad|>", true},
    {22, "<think>", false},
    {23, "</think>", false},
    {254, "[UNK]", true},
    {255, "[PAD]", true},
};

}  // namespace

Tokenizer::Tokenizer(BpeVocabulary vocabulary, std::vector<Added> added)
    : vocabulary_(std::move(vocabulary)), added_(std::move(added)) {
  std::vector<std::pair<std::string, int32_t>> names;
  for (size_t i = 0; i < added_.size(); ++i) {
    if (added_[i].name.empty()) continue;
    const TokenId id = vocabulary_.size() + static_cast<TokenId>(i);
    added_ids_.emplace(added_[i].name, id);
    names.emplace_back(added_[i].name, id);
  }
  matcher_ = SpecialMatcher(std::move(names));
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& model_dir) {
  const std::string path = model_dir + "/tiktoken.model";
  BT_ASSIGN_OR_RETURN(const std::vector<std::string> tokens, ReadTiktokenFile(path));
  Result<BpeVocabulary> vocabulary = BpeVocabulary::Build(tokens);
  if (!vocabulary.ok()) {
    return Status(vocabulary.status().code(), path + ": " + vocabulary.status().message());
  }
  BT_ASSIGN_OR_RETURN(std::vector<Added> added,
                      ReadAdded(model_dir + "/tokenizer_config.json", vocabulary.value().size()));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(vocabulary).value(), std::move(added)));
}

std::unique_ptr<Tokenizer> Tokenizer::WithoutVocabulary() {
  return std::unique_ptr<Tokenizer>(new Tokenizer(BpeVocabulary(), {}));
}

Result<std::vector<Tokenizer::Added>> Tokenizer::ReadAdded(const std::string& path,
                                                           TokenId first_id) {
  std::vector<Added> added(kReservedIds);
  Json decoder;
  if (FileExists(path)) {
    BT_ASSIGN_OR_RETURN(const Json config, ReadJsonFile(path));
    if (!config.is_object()) return InvalidArgument(path + ": not a JSON object");
    if (const auto found = config.find("added_tokens_decoder"); found != config.end()) {
      decoder = *found;
      if (!decoder.is_object()) {
        return InvalidArgument(path + ": added_tokens_decoder is not an object");
      }
    }
  }
  if (decoder.is_null()) {
    for (const NamedToken& token : kDefaultNames) {
      added[static_cast<size_t>(token.offset)] = {token.name, token.control};
    }
  } else {
    for (const auto& [key, value] : decoder.items()) {
      const std::string where = path + ": added_tokens_decoder[\"" + key + "\"]";
      TokenId id = -1;
      const auto [stop, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || stop != key.data() + key.size() || id < first_id ||
          id - first_id >= kAddedIdsMax) {
        return InvalidArgument(where + ": the id must be a number from " +
                               std::to_string(first_id) + ", where the ordinary tokens end, to " +
                               std::to_string(first_id + kAddedIdsMax - 1));
      }
      const auto content = value.is_object() ? value.find("content") : value.end();
      if (content == value.end() || !content->is_string() ||
          content->get_ref<const std::string&>().empty()) {
        return InvalidArgument(where + ": \"content\" must be a string that is not empty");
      }
      const auto special = value.find("special");
      if (special != value.end() && !special->is_boolean()) {
        return InvalidArgument(where + ": \"special\" must be true or false");
      }
      const auto at = static_cast<size_t>(id - first_id);
      if (at >= added.size()) added.resize(at + 1);
      added[at] = {content->get<std::string>(), special != value.end() && special->get<bool>()};
    }
  }
  for (size_t i = 0; i < size_t{kReservedIds}; ++i) {
    if (!added[i].name.empty()) continue;
    const auto id = static_cast<size_t>(first_id) + i;
    added[i].name = "<|reserved_token_" + std::to_string(id) + "|>";
  }
  std::unordered_map<std::string_view, size_t> seen;
  for (size_t i = 0; i < added.size(); ++i) {
    if (added[i].name.empty()) continue;
    const auto [other, fresh] = seen.emplace(added[i].name, i);
    if (!fresh) {
      const auto id = [&](size_t index) {
        return std::to_string(static_cast<size_t>(first_id) + index);
      };
      return InvalidArgument(path + ": added tokens " + id(other->second) + " and " + id(i) +
                             " have the same name " + added[i].name);
    }
  }
  return added;
}

std::vector<TokenId> Tokenizer::Encode(std::string_view text) const {
  std::vector<TokenId> out;
  out.reserve(text.size() / 4 + 1);
  BpeVocabulary::Scratch scratch;
  AppendText(text, scratch, out);
  return out;
}

std::vector<TokenId> Tokenizer::EncodeWithSpecials(std::string_view text) const {
  std::vector<TokenId> out;
  BpeVocabulary::Scratch scratch;
  size_t from = 0;
  while (from < text.size()) {
    const SpecialMatcher::Match match = matcher_.Next(text, from);
    AppendText(text.substr(from, match.start - from), scratch, out);
    if (match.length > 0) out.push_back(match.id);
    from = match.start + match.length;
  }
  return out;
}

std::vector<TokenId> Tokenizer::EncodeSegments(std::span<const TextSegment> segments) const {
  std::vector<TokenId> out;
  BpeVocabulary::Scratch scratch;
  std::string run;  // the ordinary text since the last added token
  for (const TextSegment& segment : segments) {
    if (!segment.special_allowed) {
      run += segment.text;
      continue;
    }
    const std::string_view text = segment.text;
    size_t from = 0;
    while (from < text.size()) {
      const SpecialMatcher::Match match = matcher_.Next(text, from);
      run += text.substr(from, match.start - from);
      if (match.length > 0) {
        AppendText(run, scratch, out);
        run.clear();
        out.push_back(match.id);
      }
      from = match.start + match.length;
    }
  }
  AppendText(run, scratch, out);
  return out;
}

void Tokenizer::AppendText(std::string_view text,
                           BpeVocabulary::Scratch& scratch,
                           std::vector<TokenId>& out) const {
  BT_CHECK(text.size() < UINT32_MAX);
  if (empty()) return;
  while (!text.empty()) {
    const size_t length = FirstPieceLength(text);
    vocabulary_.EncodePiece(text.substr(0, length), scratch, out);
    text.remove_prefix(length);
  }
}

const Tokenizer::Added* Tokenizer::FindAdded(TokenId id) const {
  if (id < vocabulary_.size() || id >= vocab_size()) return nullptr;
  const Added& added = added_[static_cast<size_t>(id - vocabulary_.size())];
  return added.name.empty() ? nullptr : &added;
}

std::string_view Tokenizer::TokenBytes(TokenId id) const {
  if (id >= 0 && id < vocabulary_.size()) return vocabulary_.Bytes(id);
  const Added* added = FindAdded(id);
  return added != nullptr ? std::string_view(added->name) : std::string_view();
}

bool Tokenizer::IsSpecial(TokenId id) const {
  return FindAdded(id) != nullptr;
}

bool Tokenizer::IsControl(TokenId id) const {
  const Added* added = FindAdded(id);
  return added != nullptr && added->control;
}

std::optional<TokenId> Tokenizer::SpecialId(std::string_view name) const {
  const auto found = added_ids_.find(name);
  if (found == added_ids_.end()) return std::nullopt;
  return found->second;
}

std::string Tokenizer::Decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (skip_special && IsControl(id)) continue;
    bytes += TokenBytes(id);
  }
  return Utf8Sanitize(bytes);
}

}  // namespace baltoro
