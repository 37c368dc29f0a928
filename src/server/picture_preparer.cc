#include "server/picture_preparer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/chat_body.h"
#include "server/given_video.h"

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

struct PicturePreparer::Account {
  const std::string& client;
  const int64_t each_tokens_max, tokens_max;
  const std::function<bool()>& unwanted;
  uint64_t bytes_left;
  int64_t pixels_left;
  Seconds seconds_left;
  std::vector<RequestPicture>& out;
  int64_t tokens = 0;  // of `out`
};

Status PicturePreparer::Spend(size_t bytes, Account& account) const {
  if (bytes > account.bytes_left) {
    return InvalidArgument(fmt::format(
        "the pictures of this request have more than {} bytes together", config_.bytes_max));
  }
  account.bytes_left -= bytes;
  return {};
}

Result<CutPicture> PicturePreparer::Cut(std::span<const std::string> files,
                                        const PictureRules& rules) const {
  std::vector<PicturePatches> frames;
  for (const std::string& file : files) {
    BT_ASSIGN_OR_RETURN(PicturePatches cut, decoders_.Prepare(file, rules, config_.each));
    frames.push_back(std::move(cut));
  }
  PicturePatches patches;
  if (frames.size() == 1) {
    patches = std::move(frames.front());
  } else {
    BT_ASSIGN_OR_RETURN(patches, JoinFrames(frames));
  }
  CutPicture out{.picture = {}, .pixels = patches.pixels};
  RequestPicture& picture = out.picture;
  picture.count = patches.tokens;
  picture.frames = patches.frames;
  picture.rows = patches.grid_height;
  picture.columns = patches.grid_width;
  // Not in the process that decodes: one that a picture has taken over could give it another
  // picture's name.
  BT_ASSIGN_OR_RETURN(picture.hash, HashPatches(rules, patches));
  picture.pixels =
      std::string(reinterpret_cast<const char*>(patches.bytes.bytes.get()), patches.size);
  return out;
}

Status PicturePreparer::Add(const std::vector<std::string>& files,
                            bool of_video,
                            Account& account) const {
  // A picture's file and the files of frames never have the same name.
  std::string names = of_video ? "video" : "";
  for (const std::string& file : files) {
    const Sha256Digest digest = Sha256(file);
    names.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  }
  const Sha256Digest name = Sha256(names);
  std::optional<CutPicture> cut = kept_.Find(account.client, name);
  const bool known = cut.has_value();
  if (!known) {
    BT_ASSIGN_OR_RETURN(cut, Cut(files, of_video ? config_.rules.OfFrames() : config_.rules));
  }
  account.pixels_left -= cut->pixels;
  if (account.pixels_left < 0) {
    return InvalidArgument(fmt::format(
        "the pictures of this request have more than {} pixels together", config_.pixels_max));
  }
  if (cut->picture.count > account.each_tokens_max) {
    return InvalidArgument(
        fmt::format("the picture takes {} tokens, and this server takes {} at most of each; make "
                    "it smaller",
                    cut->picture.count, account.each_tokens_max));
  }
  if (!known) kept_.Put(account.client, name, *cut);
  account.tokens += cut->picture.count;
  // Before more of them are in memory than any prompt may have.
  if (account.tokens > account.tokens_max) {
    return InvalidArgument(
        fmt::format("the pictures up to this one take {} tokens, and the model's context is {} "
                    "tokens",
                    account.tokens, account.tokens_max));
  }
  account.out.push_back(std::move(cut->picture));
  return {};
}

Status PicturePreparer::AddPicture(GivenPicture& picture, Account& account) const {
  const Seconds start = clock_.Now();
  Result<std::string> bytes =
      ReadBytes(picture, {.bytes_max = std::min(config_.each.bytes_max, account.bytes_left),
                          .seconds_max = account.seconds_left,
                          .unwanted = account.unwanted});
  account.seconds_left -= clock_.Now() - start;
  picture.Drop();
  BT_RETURN_IF_ERROR(bytes.status());
  BT_RETURN_IF_ERROR(Spend(bytes.value().size(), account));
  std::vector<std::string> files;
  files.push_back(std::move(bytes).value());
  return Add(files, /*of_video=*/false, account);
}

Status PicturePreparer::AddVideo(GivenPicture& video, Account& account) const {
  BT_ASSIGN_OR_RETURN(const std::vector<std::string_view> frames, FramesOf(video.given()));
  const size_t first_item = account.out.size();
  const auto item_frames = static_cast<size_t>(config_.rules.item_frames);
  std::vector<std::string> files;
  for (size_t i = 0; i < frames.size(); ++i) {
    if (account.unwanted()) return Status(Code::kUnavailable, "nobody waits for the video");
    const auto of_frame = [&](const Status& why) {
      return why.code() != Code::kInvalidArgument
                 ? why
                 : InvalidArgument(fmt::format("up to frame {}: {}", i, why.message()));
    };
    Result<std::string> bytes = ReadBase64(frames[i], config_.each.bytes_max);
    if (!bytes.ok()) return of_frame(bytes.status());
    BT_RETURN_IF_ERROR(Spend(bytes.value().size(), account));
    files.push_back(std::move(bytes).value());
    if (files.size() < item_frames && i + 1 < frames.size()) continue;
    const Status added = Add(files, /*of_video=*/true, account);
    if (!added.ok()) return of_frame(added);
    files.clear();
    const RequestPicture &first = account.out[first_item], &last = account.out.back();
    if (last.rows != first.rows || last.columns != first.columns) {
      return of_frame(InvalidArgument("its frames have several sizes; a video's are all of one"));
    }
  }
  video.Drop();
  return {};
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
  Account account{.client = client,
                  .each_tokens_max = each_tokens_max,
                  .tokens_max = tokens_max,
                  .unwanted = unwanted,
                  .bytes_left = config_.bytes_max,
                  .pixels_left = config_.pixels_max,
                  .seconds_left = config_.fetch_seconds_max,
                  .out = out};
  for (GivenPicture& one : given) {
    if (unwanted()) return ClientGoneError();
    const Status added = one.frames > 0 ? AddVideo(one, account) : AddPicture(one, account);
    if (!added.ok()) return ErrorAt(one.place, added);
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
