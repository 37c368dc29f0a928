#pragma once

// Cuts text into the pieces inside which BPE merges. It finds what this pattern finds, alternatives
// tried in order from the left (&& is class intersection, \s is White_Space, (?i:) folds Unicode):
//
//   [\p{Han}]+
//   [^\r\n\p{L}\p{N}]? U* L+ (?i:'s|'t|'re|'ve|'m|'ll|'d)?
//   [^\r\n\p{L}\p{N}]? U+ L* (?i:'s|'t|'re|'ve|'m|'ll|'d)?
//   \p{N}{1,3}
//    ?[^\s\p{L}\p{N}]+[\r\n]*
//   \s*[\r\n]+
//   \s+(?!\S)
//   \s+
// where U = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]], L = [\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]].
//
// A byte that is no part of valid UTF-8 is a piece of its own and matches no class, so no byte is
// ever lost. Linear in the text, no recursion, no allocation; any thread.

#include <cstddef>
#include <string_view>

namespace baltoro {

// The length in bytes of the first piece of `text`: at least 1 unless `text` is empty. `text` must
// start where a piece starts and go on to the end of the whole text.
size_t FirstPieceLength(std::string_view text);

}  // namespace baltoro
