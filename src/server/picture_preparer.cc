#include "server/picture_preparer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/chat_body.h"

namespace baltoro {
namespace {

ApiError ErrorAt(const std::string& place, const Status& why) {
  // The others say what is wrong here, not with the picture.
  return why.code() == Code::kInvalidArgument ? BadPlace(place, why.message()) : FromStatus(why);
}

}  // namespace

PicturePreparer::PicturePreparer(PictureConfig config,
                                 std::shared_ptr<MediaSource> source,
                                 int decoded_at_once)
    : config_(std::move(config)),
      source_(source != nullptr ? std::move(source) : MakeClosedMediaSource()),
      decoders_({.command = config_.decoder, .processes = decoded_at_once}),
      kept_(static_cast<size_t>(config_.held_bytes_max) / 16) {}

Result<std::string> PicturePreparer::ReadBytes(const GivenPicture& picture,
                                               const MediaBounds& bounds) const {
  const std::string& given = picture.given();
  if (picture.base64) return ReadBase64(given, config_.each.bytes_max);
  if (HasScheme(given, "data")) return ReadDataUrl(given, config_.each.bytes_max);
  if (bounds.seconds_max <= 0) {
    return InvalidArgument(
        fmt::format("the URLs of this request have taken {:g} s already; send the pictures as "
                    "data:image/...;base64,...",
                    config_.fetch_seconds_max));
  }
  return source_->Read(given, bounds);
}

Result<CutPicture> PicturePreparer::Cut(std::string_view bytes) const {
  BT_ASSIGN_OR_RETURN(const PicturePatches patches,
                      decoders_.Prepare(bytes, config_.rules, config_.each));
  CutPicture out{.picture = {}, .pixels = patches.pixels};
  RequestPicture& picture = out.picture;
  picture.count = patches.tokens;
  picture.rows = patches.grid_height;
  picture.columns = patches.grid_width;
  // Not in the process that decodes: one that a picture has taken over could give it another
  // picture's name.
  BT_ASSIGN_OR_RETURN(picture.hash, HashPatches(config_.rules, patches));
  picture.pixels =
      std::string(reinterpret_cast<const char*>(patches.bytes.bytes.get()), patches.size);
  return out;
}

Status PicturePreparer::Check(const CutPicture& picture,
                              int64_t each_tokens_max,
                              int64_t& pixels_left) const {
  pixels_left -= picture.pixels;
  if (pixels_left < 0) {
    return InvalidArgument(fmt::format(
        "the pictures of this request have more than {} pixels together", config_.pixels_max));
  }
  if (picture.picture.count <= each_tokens_max) return {};
  return InvalidArgument(
      fmt::format("the picture takes {} tokens, and this server takes {} at most of each; make "
                  "it smaller",
                  picture.picture.count, each_tokens_max));
}

size_t PicturePreparer::RequestsMax() const {
  const auto all = static_cast<size_t>(config_.held_bytes_max);
  return all - std::min(all, kept_.bytes());
}

std::optional<ApiError> PicturePreparer::Prepare(const std::string& client,
                                                 std::vector<GivenPicture> given,
                                                 int64_t each_tokens_max,
                                                 int64_t tokens_max,
                                                 const std::function<bool()>& unwanted,
                                                 std::vector<RequestPicture>& out) const {
  uint64_t bytes_left = config_.bytes_max;
  int64_t pixels_left = config_.pixels_max;
  int64_t tokens = 0;
  Seconds seconds_left = config_.fetch_seconds_max;
  for (GivenPicture& picture : given) {
    if (unwanted()) return ClientGoneError();
    const Seconds start = clock_.Now();
    const Result<std::string> bytes =
        ReadBytes(picture, {.bytes_max = std::min(config_.each.bytes_max, bytes_left),
                            .seconds_max = seconds_left,
                            .unwanted = unwanted});
    seconds_left -= clock_.Now() - start;
    picture.Drop();
    if (!bytes.ok()) return ErrorAt(picture.place, bytes.status());
    if (bytes.value().size() > bytes_left) {
      return BadPlace(picture.place,
                      fmt::format("the pictures of this request have more than {} bytes together",
                                  config_.bytes_max));
    }
    bytes_left -= bytes.value().size();
    const Sha256Digest file = Sha256(bytes.value());
    std::optional<CutPicture> cut = kept_.Find(client, file);
    const bool known = cut.has_value();
    if (!known) {
      Result<CutPicture> made = Cut(bytes.value());
      if (!made.ok()) return ErrorAt(picture.place, made.status());
      cut = std::move(made).value();
    }
    const Status fits = Check(*cut, each_tokens_max, pixels_left);
    if (!fits.ok()) return ErrorAt(picture.place, fits);
    if (!known) kept_.Put(client, file, *cut);
    tokens += cut->picture.count;
    // Before more of them are in memory than any prompt may have.
    if (tokens > tokens_max) {
      return BadPlace(picture.place,
                      fmt::format("the pictures up to this one take {} tokens, and the model's "
                                  "context is {} tokens",
                                  tokens, tokens_max));
    }
    out.push_back(std::move(cut->picture));
  }
  return std::nullopt;
}

void ExpandPictures(TokenId placeholder,
                    std::vector<RequestPicture>& pictures,
                    std::vector<TokenId>& prompt) {
  std::vector<TokenId> out;
  size_t size = prompt.size();
  for (const RequestPicture& picture : pictures) size += static_cast<size_t>(picture.count);
  out.reserve(size);
  auto picture = pictures.begin();
  for (const TokenId token : prompt) {
    if (token != placeholder || picture == pictures.end()) {
      out.push_back(token);
      continue;
    }
    picture->begin = static_cast<int32_t>(out.size());
    out.insert(out.end(), static_cast<size_t>(picture->count), placeholder);
    ++picture;
  }
  prompt = std::move(out);
}

}  // namespace baltoro
