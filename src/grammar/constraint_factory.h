#pragma once

// Makes the TokenConstraint of a request from the bytes in Request::constraint
// (grammar/output_constraint.h), with the vocabulary of the model.

#include <cstdint>
#include <memory>
#include <string>

#include "grammar/token_trie.h"
#include "request/request.h"

namespace baltoro {

// Loads the tokenizer of `model_dir` on a thread of its own and returns at once; Make waits for it,
// and fails with its error if it could not be read. `vocab_size` is the model's count of logits.
// Grammars and masks are kept between requests, in bounded caches.
std::shared_ptr<ConstraintFactory> MakeConstraintFactory(const std::string& model_dir,
                                                         int32_t vocab_size);

// The same with a trie at hand.
std::shared_ptr<ConstraintFactory> MakeConstraintFactory(std::shared_ptr<const TokenTrie> trie);

}  // namespace baltoro
