#include "verify/parting.h"

#include <algorithm>

namespace baltoro {
namespace {

constexpr const char* kEnd = "(end)";

// Ends an answer or a part of it, and is no text: "<|im_end|>", "[EOS]", "</think>".
bool IsMark(std::string_view text) {
  return (text.starts_with("<|") && text.ends_with("|>")) ||
         (text.starts_with('[') && text.ends_with(']') && text.size() > 2) ||
         (text.starts_with("</") && text.ends_with('>'));
}

// A token of part of a character, which servers write in different ways.
bool IsUndecodable(std::string_view text) {
  return text.empty() || text.find("\xef\xbf\xbd") != text.npos || text.starts_with("bytes:");
}

bool SameToken(const ModelReply& ours, const ModelReply& theirs, size_t at) {
  const bool ids =
      ours.ids.size() == ours.chances.size() && theirs.ids.size() == theirs.chances.size();
  if (ids) return ours.ids[at] == theirs.ids[at];
  const std::string &left = ours.chances[at].text, &right = theirs.chances[at].text;
  return left == right || IsUndecodable(left) || IsUndecodable(right);
}

// Nats between the token that was taken and another one; nothing where that is not among the top.
template <typename Wanted>
std::optional<double> Gap(const TokenChance& taken, const Wanted& wanted) {
  std::optional<double> gap;
  for (const auto& [text, logprob] : taken.top) {
    if (text == taken.text || !wanted(text)) continue;
    const double here = std::abs(taken.logprob - logprob);
    gap = std::min(gap.value_or(here), here);
  }
  return gap;
}

std::optional<double> GapTo(const ModelReply& reply,
                            size_t at,
                            const std::string& other,
                            bool ended) {
  if (at >= reply.chances.size()) return std::nullopt;
  return Gap(reply.chances[at],
             [&](const std::string& text) { return ended ? IsMark(text) : text == other; });
}

bool AllNear(const Parting& parting, double near_tie) {
  return (parting.gap_ours || parting.gap_theirs) && parting.gap_ours.value_or(0) <= near_tie &&
         parting.gap_theirs.value_or(0) <= near_tie;
}

}  // namespace

std::optional<Parting> PartByTokens(const ModelReply& ours,
                                    const ModelReply& theirs,
                                    double near_tie) {
  const size_t count = std::min(ours.chances.size(), theirs.chances.size());
  size_t at = 0;
  while (at < count && SameToken(ours, theirs, at)) ++at;
  if (at == ours.chances.size() && at == theirs.chances.size()) return std::nullopt;
  Parting out{.at = static_cast<int64_t>(at)};
  const bool ours_ended = at == ours.chances.size(), theirs_ended = at == theirs.chances.size();
  out.ours = ours_ended ? kEnd : ours.chances[at].text;
  out.theirs = theirs_ended ? kEnd : theirs.chances[at].text;
  out.gap_ours = GapTo(ours, at, out.theirs, theirs_ended);
  out.gap_theirs = GapTo(theirs, at, out.ours, ours_ended);
  // Where both name tokens, both must think them near.
  const bool both = ours_ended || theirs_ended || (out.gap_ours && out.gap_theirs);
  out.near = both && AllNear(out, near_tie);
  return out;
}

Parting PartByText(const ModelReply& with_tokens,
                   const std::string& other_thinking,
                   const std::string& other_content,
                   double near_tie) {
  Parting out;
  const bool in_thinking = with_tokens.thinking != other_thinking;
  const std::string& own = in_thinking ? with_tokens.thinking : with_tokens.content;
  const std::string& other = in_thinking ? other_thinking : other_content;
  std::string all;
  std::vector<size_t> starts;
  for (const TokenChance& token : with_tokens.chances) {
    starts.push_back(all.size());
    all += token.text;
  }
  // The content lies behind the thinking.
  const size_t thinking = all.find(with_tokens.thinking);
  if (thinking == all.npos) return out;
  const size_t begin =
      in_thinking ? thinking : all.find(own, thinking + with_tokens.thinking.size());
  if (begin == all.npos) return out;
  const size_t same = static_cast<size_t>(
      std::mismatch(own.begin(), own.end(), other.begin(), other.end()).first - own.begin());
  const auto next = std::upper_bound(starts.begin(), starts.end(), begin + same);
  if (next == starts.begin()) return out;
  const auto at = static_cast<size_t>(next - starts.begin()) - 1;
  if (starts[at] < begin || at >= with_tokens.chances.size()) return out;
  const size_t from = starts[at] - begin;
  out.at = static_cast<int64_t>(at);
  out.ours = with_tokens.chances[at].text;
  const bool ended = from >= other.size();
  const std::string_view rest = ended ? "" : std::string_view(other).substr(from);
  out.theirs = ended ? kEnd : std::string(rest.substr(0, 20)) + (rest.size() > 20 ? "..." : "");
  out.gap_ours = Gap(with_tokens.chances[at], [&](const std::string& text) {
    return ended ? IsMark(text) : !text.empty() && rest.starts_with(text);
  });
  out.near = AllNear(out, near_tie);
  return out;
}

}  // namespace baltoro
