#pragma once

// Decode steps are recorded for few sizes, and made as large as the next of them by rows that
// nobody reads.

#include <cstdint>
#include <vector>

namespace baltoro {

// 1, 2, 4, then every 8 up to 256, every 16 up to 512; `most` is the last unless it is larger.
std::vector<int32_t> GraphSizes(int32_t most);
// Those of `asked` that are no more than `most`, rising, each once.
std::vector<int32_t> GraphSizes(std::vector<int32_t> asked, int32_t most);

// The least of `sizes`, which rise, that is no less than `size`; `size` itself if none is.
int32_t GraphSizeFor(const std::vector<int32_t>& sizes, int32_t size);

}  // namespace baltoro
