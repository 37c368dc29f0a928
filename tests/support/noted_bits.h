#pragma once

// The bits of what a test computed, for a comparison with another run of the same program.

#include <span>
#include <string_view>

namespace baltoro::test {

// Adds a line to the file that BALTORO_TEST_BITS names: the test that runs, `what`, how many values
// there are and a hash of their bits. Without the variable nothing is done.
void NoteBits(std::string_view what, std::span<const float> values);

}  // namespace baltoro::test
