#pragma once

// From the bytes of a file that a client sent to pixels. The format is told by the first bytes
// alone. Sizes are read from the header and checked before anything large is allocated; every
// refusal is one sentence of ours, without a word of a decoder's.
//
// Pixels are what vLLM gives to a model: the orientation that Exif names is applied, and whatever
// is transparent is composited on white (the models' own preprocessing drops alpha, which shows
// the colours under transparent pixels).
//   JPEG  8 bits, grey, YCbCr, RGB, CMYK and YCCK (taken as inverted, as Adobe writes them);
//         sequential and progressive
//   PNG   every colour type and depth; of 16 bits the high 8; of an animation the still picture.
//         Of the ancillary chunks tRNS and eXIf alone are looked at, so nothing in the others
//         can be too much.
//   WebP  lossy and lossless; of an animation the first frame, on a transparent canvas
//   GIF   the first frame, on a canvas of the transparent colour, or of colour 0
// Colour profiles and gamma are not applied, and XMP is not read, which may name an orientation
// too.
//
// Differences from Pillow, which vLLM decodes with: a PNG whose data or end have a wrong checksum,
// or that has no end, is refused here and read there; a wrong checksum of another chunk is not
// looked at here and is refused there; greys of 16 bits keep their high byte here, and are cut off
// at 255 there, which leaves hardly more than white.
//
// Any thread. Memory: the picture (3 bytes a pixel, twice that while it is turned), and while it is
// decoded up to 9 bytes a pixel more (a progressive CMYK JPEG).

#include <cstdint>
#include <string_view>

#include "media/rgb.h"

namespace baltoro {

struct PictureLimits {
  uint64_t bytes_max = uint64_t{32} << 20;       // of the file
  int64_t pixels_max = 50'000'000;               // width times height: phones have 48 million
  int side_max = 16384;                          // pixels, either side
  int aspect_max = 200;                          // the longer side over the shorter one
  int jpeg_scans_max = 100;                      // encoders make about 10
  int64_t jpeg_scan_pixels_max = 1'000'000'000;  // scans times pixels: each is a pass over all
};

// The media type of the file that begins with these bytes, "image/jpeg", "image/png", "image/gif"
// or "image/webp"; empty where it is none of these.
std::string_view PictureType(std::string_view bytes);

// kInvalidArgument with a sentence about what is wrong with the picture, beginning with "the
// picture" or "the JPEG picture"; kResourceExhausted where there is no memory.
Result<Rgb> DecodePicture(std::string_view bytes, const PictureLimits& limits = {});

}  // namespace baltoro
