#pragma once

#include <random>
#include <string>

namespace baltoro {

// What a pixel of a drawn picture takes in a request, at most: of the file, and as base64.
inline constexpr double kRandomPixelBytes = 1.7;

// A JPEG file of this size whose samples are drawn, as upstream draws its pictures: quality 75,
// colours at half the resolution. There is hardly a larger file of so many pixels, nor one that
// takes longer to decode. Ends the process where there is no memory.
std::string RandomJpeg(int width, int height, std::mt19937_64& random);

}  // namespace baltoro
