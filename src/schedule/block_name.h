#pragma once

// Pictures by their places in a prompt, and the names of blocks in which they stand. Pure.

#include <cstdint>
#include <span>
#include <vector>

#include "cache/prefix_names.h"
#include "request/request.h"

namespace baltoro {

// The first picture that ends behind a position: they stand one after the other.
std::span<const RequestPicture>::iterator FirstBehind(std::span<const RequestPicture> pictures,
                                                      int32_t position);

// The name of block `block` of a prompt with these pictures, which is called `name` without them.
Hash128 NamePictures(const PrefixNames& names,
                     std::span<const RequestPicture> pictures,
                     int32_t block,
                     Hash128 name);

// The names of all full blocks of a request's prompt that a prefix cache can hold for it: not of
// one that ends with the last token, which is always computed.
std::vector<Hash128> NamePrompt(const PrefixNames& names, const Request& request);

}  // namespace baltoro
