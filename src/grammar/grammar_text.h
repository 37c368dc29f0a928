#pragma once

// Grammars as users write them: the GBNF of llama.cpp, and the EBNF of other servers, which is the
// same but for details.
//
//   root  ::= "yes" | "no" ", because " words   # a rule ends where the next one begins
//   words ::= [a-z]+ (" " [a-z]{1,20})* .?
//
// Literals and classes know \n \r \t \\ \" \' \[ \] \- \^ \xHH \uHHHH \UHHHHHHHH, classes also \d
// \w \s. "." is any character. <[123]> is the token with that id.

#include <string_view>

#include "base/status.h"
#include "grammar/grammar_builder.h"

namespace baltoro {

// Returns the rule named `root`. Errors begin with "line L, column C: ". Groups nest at most 256
// deep.
Result<GrammarBuilder::Rule> AddGrammarText(GrammarBuilder& builder,
                                            std::string_view text,
                                            std::string_view root = "root");

}  // namespace baltoro
