#pragma once

// Where two answers part, and how near the two tokens were to each other there.

#include "verify/comparing.h"

namespace baltoro {

// By the tokens of both; nothing where these are the same to the end of both.
std::optional<Parting> PartByTokens(const ModelReply& ours,
                                    const ModelReply& theirs,
                                    double near_tie);

// By the tokens of one and the text of the other, which gives none. `at` is -1 where the text
// cannot be found among the tokens. The gap is in gap_ours.
Parting PartByText(const ModelReply& with_tokens,
                   const std::string& other_thinking,
                   const std::string& other_content,
                   double near_tie);

}  // namespace baltoro
