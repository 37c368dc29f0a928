#include "server/media_source.h"

#include "server/given_picture.h"

namespace baltoro {
namespace {

class ClosedMediaSource final : public MediaSource {
 public:
  Result<std::string> Read(const std::string& url, const MediaBounds&) override {
    return RefuseMedia(url);
  }
};

}  // namespace

Status RefuseMedia(const std::string& url) {
  if (HasScheme(url, "http") || HasScheme(url, "https")) {
    return InvalidArgument(
        "this server fetches nothing (its operator has not given --allowed-media-domains); send "
        "the picture itself as data:image/...;base64,...");
  }
  if (HasScheme(url, "file")) {
    return InvalidArgument(
        "this server reads no files for requests (its operator has not given "
        "--allowed-local-media-path); send the picture itself as data:image/...;base64,...");
  }
  return InvalidArgument(
      "must be a URL of the form data:image/...;base64,..., or http, https or file");
}

std::unique_ptr<MediaSource> MakeClosedMediaSource() {
  return std::make_unique<ClosedMediaSource>();
}

}  // namespace baltoro
