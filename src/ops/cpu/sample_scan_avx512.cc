#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "ops/cpu/sample_scan.h"

namespace baltoro::cpu {

namespace {
#include "ops/cpu/sample_scan.inc"
}  // namespace

const SampleScan kSampleScanAvx512 = {.maxima = Maxima,
                                      .exp_sums = ExpSums,
                                      .exp_chunk = ExpChunk,
                                      .count_greater = CountGreater,
                                      .apply_mask = ApplyMask};

}  // namespace baltoro::cpu
