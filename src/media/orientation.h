#pragma once

// Exif's orientation: how a camera was held.

#include <string_view>

#include "media/rgb.h"

namespace baltoro {

// The orientation in a block of Exif, with or without its "Exif\0\0"; 1, upright, where it names
// none or is not as it should be: a picture is not refused for what its camera wrote beside it.
int ReadOrientation(std::string_view exif);

// The picture as it is meant to be seen.
Result<Rgb> Orient(Rgb picture, int orientation);

}  // namespace baltoro
