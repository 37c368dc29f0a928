#include "server/media_source.h"

#include "server/given_picture.h"

namespace baltoro {
namespace {

class ClosedMediaSource final : public MediaSource {
 public:
  Result<std::string> Read(const std::string& url) override {
    if (HasScheme(url, "http") || HasScheme(url, "https")) {
      return InvalidArgument(
          "this server fetches nothing (--allowed-media-domains is not available yet); send the "
          "picture itself as data:image/...;base64,...");
    }
    if (HasScheme(url, "file")) {
      return InvalidArgument(
          "this server reads no files for requests (--allowed-local-media-path is not available "
          "yet); send the picture itself as data:image/...;base64,...");
    }
    return InvalidArgument("must be a URL of the form data:image/...;base64,...");
  }
};

}  // namespace

std::unique_ptr<MediaSource> MakeClosedMediaSource() {
  return std::make_unique<ClosedMediaSource>();
}

}  // namespace baltoro
