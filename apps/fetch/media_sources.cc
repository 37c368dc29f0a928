#include "fetch/media_sources.h"

#include <optional>
#include <string>
#include <utility>

#include "base/input_folder.h"
#include "fetch/media_url.h"
#include "fetch/web_fetch.h"
#include "server/given_picture.h"

namespace baltoro {
namespace {

class NamedMedia final : public MediaSource {
 public:
  NamedMedia(WebPolicy web, std::optional<InputFolder> folder)
      : web_(std::move(web)), folder_(std::move(folder)) {}

  Result<std::string> Read(const std::string& url, const MediaBounds& bounds) override {
    if (HasScheme(url, "file") && folder_) return ReadFile(url, bounds.bytes_max);
    const bool open = web_.any_public || !web_.hosts.empty();
    if (open && (HasScheme(url, "http") || HasScheme(url, "https"))) {
      return FetchFromWeb(web_, url, bounds);
    }
    return RefuseMedia(url);
  }

 private:
  Result<std::string> ReadFile(const std::string& url, uint64_t bytes_max) const {
    BT_ASSIGN_OR_RETURN(const std::string path, ReadFileUrl(url));
    const std::optional<std::string> name = folder_->Below(path);
    if (!name) {
      return InvalidArgument(
          "the file is not in the folder that this server reads (--allowed-local-media-path)");
    }
    return folder_->Read(*name, bytes_max);
  }

  const WebPolicy web_;
  const std::optional<InputFolder> folder_;
};

}  // namespace

Result<std::shared_ptr<MediaSource>> OpenMediaSource(const MediaOptions& options) {
  std::optional<InputFolder> folder;
  if (!options.folder.empty()) {
    BT_ASSIGN_OR_RETURN(InputFolder opened,
                        InputFolder::Open(options.folder, "--allowed-local-media-path"));
    folder.emplace(std::move(opened));
  }
  WebPolicy web{.hosts = options.hosts,
                .any_public = options.any_public_host,
                .private_hosts = options.private_hosts,
                .redirects = options.redirects,
                .seconds_max = options.fetch_seconds_max};
  return std::shared_ptr<MediaSource>(
      std::make_shared<NamedMedia>(std::move(web), std::move(folder)));
}

}  // namespace baltoro
