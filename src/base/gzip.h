#pragma once

// Files that are kept compressed: gzip's format (RFC 1952), told from plain text by its first
// bytes.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/status.h"

namespace baltoro {

bool IsGzip(std::string_view bytes);

// What is compressed in `bytes`, in all members of the archive, one after the other. More than
// `bytes_max` is an error, found before that much memory is taken, and so is anything that is not
// whole: an end that is missing, a checksum that is another, bytes behind the last member.
Result<std::string> Gunzip(std::string_view bytes, uint64_t bytes_max);

// ReadFile of a file that may be compressed, whatever its name. `bytes_max` holds for the file and
// for what is in it.
Result<std::string> ReadPlainOrGzip(const std::string& path,
                                    uint64_t bytes_max = kTextBytesMax,
                                    std::string_view flag = {});

}  // namespace baltoro
