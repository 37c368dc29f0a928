#include <fmt/format.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <vector>

// Neither of these includes what it needs: the first FILE, the second the first.
#include <jpeglib.h>

#include <jerror.h>

#include "media/jpeg_segments.h"
#include "media/orientation.h"
#include "media/picture_format.h"

namespace baltoro {
namespace {

constexpr std::string_view kFormat = "JPEG";

// What libjpeg works with. It reports errors by longjmp: Run() is the one function that it jumps
// back into, and nothing with a destructor lives in there or in what libjpeg calls.
struct Session {
  jpeg_decompress_struct decoder;
  jpeg_error_mgr errors;
  jpeg_source_mgr source;
  jmp_buf jump;

  // What the file's markers said, and where the pixels go.
  const JpegSegments* segments;
  uint8_t* rgb;
  uint8_t* cmyk_row;  // [width, 4], where there are four components

  // Set before a jump.
  bool cut_short;
};

Session& SessionOf(j_common_ptr decoder) {
  return *static_cast<Session*>(decoder->client_data);
}

[[noreturn]] void Stop(j_common_ptr decoder) {
  std::longjmp(SessionOf(decoder).jump, 1);
}

// Warnings that say that data are missing or wrong end the decoding: what libjpeg puts in their
// place is grey. The others are about bytes too many.
void Warn(j_common_ptr decoder, int level) {
  if (level >= 0) return;
  switch (decoder->err->msg_code) {
    case JWRN_ARITH_BAD_CODE:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_MUST_RESYNC:
      Stop(decoder);
    default:
      break;
  }
}

void Say(j_common_ptr) {}
void StartSource(j_decompress_ptr) {}

// All bytes are there from the start, so whoever wants more wants what the file lacks.
boolean FillSource(j_decompress_ptr decoder) {
  const auto common = reinterpret_cast<j_common_ptr>(decoder);
  SessionOf(common).cut_short = true;
  Stop(common);
}

void SkipSource(j_decompress_ptr decoder, long count) {
  if (count <= 0) return;
  jpeg_source_mgr& source = *decoder->src;
  if (static_cast<size_t>(count) > source.bytes_in_buffer) FillSource(decoder);
  source.next_input_byte += count;
  source.bytes_in_buffer -= static_cast<size_t>(count);
}

// As Pillow does it, which takes all pictures of four components as inverted.
void InvertedCmykToRgb(const uint8_t* cmyk, unsigned width, uint8_t* rgb) {
  for (unsigned x = 0; x < width; ++x) {
    const unsigned white = cmyk[4 * x + 3];
    for (unsigned c = 0; c < 3; ++c) {
      const unsigned ink = (255U - cmyk[4 * x + c]) * white + 128;
      rgb[3 * x + c] = static_cast<uint8_t>(white - (((ink >> 8) + ink) >> 8));
    }
  }
}

// False where the picture does not decode.
bool Run(Session& session) {
  if (setjmp(session.jump) != 0) return false;
  jpeg_decompress_struct* decoder = &session.decoder;
  jpeg_create_decompress(decoder);
  decoder->src = &session.source;
  jpeg_read_header(decoder, TRUE);
  if (decoder->image_width != session.segments->width ||
      decoder->image_height != session.segments->height ||
      static_cast<uint32_t>(decoder->num_components) != session.segments->components) {
    return false;
  }
  decoder->out_color_space = session.cmyk_row != nullptr ? JCS_CMYK : JCS_RGB;
  jpeg_start_decompress(decoder);
  const size_t stride = static_cast<size_t>(decoder->output_width) * 3;
  while (decoder->output_scanline < decoder->output_height) {
    uint8_t* row = session.rgb + decoder->output_scanline * stride;
    uint8_t* target = session.cmyk_row != nullptr ? session.cmyk_row : row;
    jpeg_read_scanlines(decoder, &target, 1);
    if (session.cmyk_row != nullptr) {
      InvertedCmykToRgb(session.cmyk_row, decoder->output_width, row);
    }
  }
  jpeg_finish_decompress(decoder);
  return true;
}

Status CheckSegments(const JpegSegments& segments, const PictureLimits& limits) {
  BT_RETURN_IF_ERROR(CheckSize(kFormat, segments.width, segments.height, limits));
  const auto refuse = [](const std::string& what) {
    return InvalidArgument(fmt::format("the JPEG picture {}: save it as an ordinary JPEG", what));
  };
  if (segments.sample_bits != 8) {
    return refuse(fmt::format("has {} bits a sample, and 8 are taken", segments.sample_bits));
  }
  if (segments.components != 1 && segments.components != 3 && segments.components != 4) {
    return refuse(fmt::format("has {} colour components", segments.components));
  }
  // Sequential or progressive, by Huffman or arithmetic codes; the others are lossless or in
  // layers.
  switch (segments.frame_marker) {
    case 0xc0:
    case 0xc1:
    case 0xc2:
    case 0xc9:
    case 0xca:
      break;
    default:
      return refuse("is lossless or in layers of pictures");
  }
  const int64_t pixels = int64_t{segments.width} * segments.height;
  const int64_t scans_max = std::clamp<int64_t>(limits.jpeg_scan_pixels_max / pixels, 1,
                                                std::max(limits.jpeg_scans_max, 1));
  if (segments.scans > scans_max) {
    return refuse(
        fmt::format("has {} scans, and {} are the most at its size", segments.scans, scans_max));
  }
  return {};
}

}  // namespace

Result<DecodedPicture> DecodeJpeg(std::string_view bytes, const PictureLimits& limits) {
  BT_ASSIGN_OR_RETURN(const JpegSegments segments, ReadJpegSegments(bytes));
  BT_RETURN_IF_ERROR(CheckSegments(segments, limits));
  BT_ASSIGN_OR_RETURN(
      Rgb rgb, Rgb::Make(static_cast<int>(segments.width), static_cast<int>(segments.height)));
  std::vector<uint8_t> cmyk_row(segments.components == 4 ? size_t{4} * segments.width : 0);

  Session session = {};
  session.segments = &segments;
  session.rgb = rgb.row(0);
  session.cmyk_row = cmyk_row.empty() ? nullptr : cmyk_row.data();
  session.decoder.err = jpeg_std_error(&session.errors);
  session.errors.error_exit = Stop;
  session.errors.emit_message = Warn;
  session.errors.output_message = Say;
  session.decoder.client_data = &session;
  session.source.next_input_byte = Unsigned(bytes);
  session.source.bytes_in_buffer = bytes.size();
  session.source.init_source = StartSource;
  session.source.fill_input_buffer = FillSource;
  session.source.skip_input_data = SkipSource;
  session.source.resync_to_restart = jpeg_resync_to_restart;
  session.source.term_source = StartSource;
  const bool decoded = Run(session);
  const bool no_memory = session.errors.msg_code == JERR_OUT_OF_MEMORY;
  jpeg_destroy_decompress(&session.decoder);
  if (session.cut_short) return ShortPicture(kFormat);
  if (!decoded && no_memory) {
    return Status(Code::kResourceExhausted, "too little memory for the picture; try again later");
  }
  if (!decoded) return BrokenPicture(kFormat, "its data do not decode");
  return DecodedPicture{.rgb = std::move(rgb), .orientation = ReadOrientation(segments.exif)};
}

}  // namespace baltoro
