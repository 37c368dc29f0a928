#include <png.h>

#include "media/orientation.h"
#include "media/picture_format.h"
#include "media/png_chunks.h"

namespace baltoro {
namespace {

constexpr std::string_view kFormat = "PNG";

// What libpng works with. It reports errors by longjmp: the functions below that call setjmp are
// the ones that it jumps back into, and nothing with a destructor lives in there.
struct Session {
  png_structp png = nullptr;
  png_infop info = nullptr;
  PngSource* source = nullptr;
  uint32_t width = 0;
  uint32_t height = 0;
  int passes = 1;    // more where the picture is interlaced
  int channels = 0;  // 3, or 4 with alpha

  // Where the pixels go, and [width, 4] of a row or, with several passes, [height, width, 4] where
  // there is alpha.
  uint8_t* rgb = nullptr;
  uint8_t* rgba = nullptr;

  ~Session() { png_destroy_read_struct(&png, &info, nullptr); }
};

[[noreturn]] void Stop(png_structp png, png_const_charp) {
  png_longjmp(png, 1);
}
void Say(png_structp, png_const_charp) {}

void ReadSource(png_structp png, png_bytep out, size_t count) {
  Session& session = *static_cast<Session*>(png_get_io_ptr(png));
  if (!session.source->Read(out, count)) Stop(png, "");
}

// Up to the first data; then what the rows will be is known. False where the picture is broken.
bool ReadHeader(Session& session) {
  png_structp png = session.png;
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_set_read_fn(png, &session, ReadSource);
  png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // checked before, against our own
  png_read_info(png, session.info);
  if (png_get_image_width(png, session.info) != session.width ||
      png_get_image_height(png, session.info) != session.height) {
    return false;
  }
  png_set_expand(png);    // palettes, few bits, and tRNS as alpha
  png_set_strip_16(png);  // the high byte, as Pillow takes it but for greys
  png_set_gray_to_rgb(png);
  session.passes = png_set_interlace_handling(png);
  png_read_update_info(png, session.info);
  session.channels = png_get_channels(png, session.info);
  return session.channels == 3 || session.channels == 4;
}

bool ReadRows(Session& session) {
  png_structp png = session.png;
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  const size_t width = session.width;
  const bool alpha = session.rgba != nullptr;
  for (int pass = 0; pass < session.passes; ++pass) {
    for (size_t y = 0; y < session.height; ++y) {
      uint8_t* row = session.rgb + 3 * width * y;
      uint8_t* target = row;
      if (alpha) target = session.rgba + (session.passes > 1 ? 4 * width * y : 0);
      png_read_row(png, target, nullptr);
      if (alpha && pass + 1 == session.passes) CompositeOnWhite(target, width, row);
    }
  }
  png_read_end(png, nullptr);
  return true;
}

}  // namespace

Result<DecodedPicture> DecodePng(std::string_view bytes, const PictureLimits& limits) {
  BT_ASSIGN_OR_RETURN(const PngChunks chunks, ReadPngChunks(bytes));
  BT_RETURN_IF_ERROR(CheckSize(kFormat, chunks.width, chunks.height, limits));

  PngSource source(bytes);
  Session session;
  session.source = &source;
  session.width = chunks.width;
  session.height = chunks.height;
  session.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, nullptr, Stop, Say);
  if (session.png != nullptr) session.info = png_create_info_struct(session.png);
  if (session.info == nullptr) {
    return Status(Code::kResourceExhausted, "too little memory for the picture; try again later");
  }
  if (!ReadHeader(session)) return BrokenPicture(kFormat, "its header or its colours are wrong");

  BT_ASSIGN_OR_RETURN(Rgb rgb,
                      Rgb::Make(static_cast<int>(chunks.width), static_cast<int>(chunks.height)));
  session.rgb = rgb.row(0);
  PixelBuffer rgba;
  if (session.channels == 4) {
    const size_t rows = session.passes > 1 ? chunks.height : 1;
    BT_ASSIGN_OR_RETURN(rgba, PixelBuffer::Make(4 * rows * chunks.width));
    session.rgba = rgba.bytes.get();
  }
  if (!ReadRows(session)) return BrokenPicture(kFormat, "its data do not decode");
  return DecodedPicture{.rgb = std::move(rgb), .orientation = ReadOrientation(chunks.exif)};
}

}  // namespace baltoro
