#pragma once

// What the first masks of nearly every JSON grammar need, made before there is one.

#include <memory>

#include "grammar/mask_store.h"
#include "grammar/token_trie.h"

namespace baltoro {

// Fills the store with the walks of JSON strings (any, and of bounded length), numbers, addresses
// of mail and URIs, about 20 ms of work.
void WarmMaskStore(const std::shared_ptr<const TokenTrie>& trie,
                   const std::shared_ptr<MaskStore>& store);

}  // namespace baltoro
