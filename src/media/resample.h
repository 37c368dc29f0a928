#pragma once

// Bicubic resampling that equals Pillow's `resize(size, BICUBIC)` to the last bit: a = -0.5, wider
// where a side shrinks, in whole numbers of 22 bits behind the point, rounded to 8 bits after each
// pass. Rows are resampled first, then columns, and a side that keeps its length is left alone.
// (Pillow 13 begins with the columns where these shrink much more than the rows, which changes
// some pixels by one; every version before it, the models' own among them, does as here.)

#include "media/rgb.h"

namespace baltoro {

// What is summed with; the sums are the same.
enum class Vectors { kBest, kNone };

// `width` and `height` are at least 1. kResourceExhausted where there is no memory. Any thread.
Result<Rgb> ResampleBicubic(Rgb picture, int width, int height, Vectors vectors = Vectors::kBest);

}  // namespace baltoro
