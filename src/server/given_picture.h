#pragma once

// Pictures and videos as the requests of all APIs give them, before anything of them is decoded.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace baltoro {

// What somebody else keeps as well.
using PictureText = std::shared_ptr<const std::string>;

struct GivenPicture {
  std::string place;           // the field that holds it, as its API writes places; for errors
  std::string text;            // a URL of any scheme, or base64
  bool base64 = false;         // `text` is no URL
  int64_t frames = 0;          // above 0: it is a video of so many: see given_video.h
  PictureText kept = nullptr;  // not null: instead of `text`

  const std::string& given() const { return kept != nullptr ? *kept : text; }
  // Gives the memory back, which clear() would not.
  void Drop() {
    text = std::string();
    kept = nullptr;
  }

  bool operator==(const GivenPicture&) const = default;
};

// What the chat template sees of each picture, in the order of the list.
Json PicturePart();

// A part of a message's content that is to be a picture: OpenAI's image_url and input_image, and
// image; of any API. Nothing is said about the rest of it.
bool IsPicturePart(const Json& part);
// Whether there is one anywhere in `value`, or a video, down to the parts of a tool's result.
bool HoldsPictureParts(const Json& value);

// Moves the picture out of a part in OpenAI's forms, {"type": "image_url", "image_url": {"url",
// "detail"}}, with a string in place of the object, or with the type input_image or image. The
// error is kInvalidArgument, and begins with the place of what is wrong: `place` or inside it.
Status TakePicture(Json& part, const std::string& place, std::vector<GivenPicture>& out);

// The same of Anthropic's {"type": "image", "source": {"type": "base64", "media_type", "data"} or
// {"type": "url", "url"}}, which is copied.
Status ReadPictureBlock(const Json& block,
                        const std::string& place,
                        std::vector<GivenPicture>& out);

// `lower` is written in small letters.
bool StartsWithFolded(std::string_view text, std::string_view lower);
// Whether a URL begins with this scheme, which is written in small letters, and a colon.
bool HasScheme(std::string_view url, std::string_view scheme);

// The bytes that a URL of the scheme "data" holds, or base64 alone. kInvalidArgument where it is of
// another form, or has more than `bytes_max` bytes.
Result<std::string> ReadDataUrl(std::string_view url, uint64_t bytes_max);
Result<std::string> ReadBase64(std::string_view text, uint64_t bytes_max);

}  // namespace baltoro
