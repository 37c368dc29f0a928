// The pictures of a conversation: from what the request gave to what the engine takes.

#include <fmt/format.h>

#include <algorithm>

#include "server/chat_body.h"
#include "server/given_video.h"
#include "server/server_internal.h"

namespace baltoro {
namespace {

// What a chat template of the Kimi family writes for a picture, and what stands in a prompt as
// often as the picture takes tokens. Only a template's own words become it: see Tokenizer.
constexpr std::string_view kPlaceholder = "<|media_pad|>";

}  // namespace

bool Server::HoldsPictures(const Asked& asked, const StoredResponse* earlier) const {
  if (pictures_ == nullptr || !asked.body.is_object()) return false;
  for (const char* name : {"messages", "input"}) {
    const auto found = asked.body.find(name);
    if (found != asked.body.end() && HoldsPictureParts(*found)) return true;
  }
  return earlier != nullptr && !earlier->conversation.pictures.empty();
}

std::shared_ptr<const StoredResponse> Server::EarlierOf(const Asked& asked) {
  if (!asked.body.is_object()) return nullptr;
  const std::string* previous = StringMember(asked.body, "previous_response_id");
  if (previous == nullptr) return nullptr;
  return responses_.Get(*previous, keys_.ClientOf(asked.http).value_or(""));
}

Json Server::PictureFacts() const {
  const auto info = engine_.info();
  const bool taken = info && info->picture_tokens_max > 0 && pictures_ != nullptr &&
                     pictures_->config().takes_some() && tokenizer_->SpecialId(kPlaceholder) &&
                     !config_.content_as_string;
  if (!taken) return nullptr;
  const PictureConfig& config = pictures_->config();
  const bool videos = config.rules.item_frames <= info->picture_frames_max;
  return {
      {"count_max", config.count_max},        {"videos_max", videos ? config.videos_max : 0},
      {"frames_max", config.frames_max},      {"file_bytes_max", config.each.bytes_max},
      {"files_bytes_max", config.bytes_max},  {"body_bytes_max", config_.http.limits.body_bytes},
      {"pixels_max", config.each.pixels_max}, {"all_pixels_max", config.pixels_max},
      {"side_max", config.each.side_max},     {"aspect_max", config.each.aspect_max}};
}

std::optional<ApiError> Server::CheckPictures(const ChatRequest& chat) const {
  if (chat.pictures.empty()) return std::nullopt;
  const std::string& first = chat.pictures.front().place;
  const auto info = engine_.info();
  if (info && info->picture_tokens_max == 0) {
    return BadPlace(first,
                    info->no_pictures.empty()
                        ? "this model reads text only: it has no encoder of pictures"
                        : "this model reads text only, as it is served here: " + info->no_pictures);
  }
  if (pictures_ == nullptr || !tokenizer_->SpecialId(kPlaceholder)) {
    return BadPlace(first, "this model reads text only: it has no encoder of pictures");
  }
  if (!info) return UnavailableError("The model is still loading.");
  if (config_.content_as_string) {
    return BadPlace(first,
                    "the chat template gets texts alone here (--chat-template-content-format "
                    "string), which have no place for pictures");
  }
  const PictureConfig& config = pictures_->config();
  int64_t pictures = 0, videos = 0, frames = 0;
  for (const GivenPicture& given : chat.pictures) {
    const bool video = given.frames > 0;
    const int64_t most = video ? config.videos_max : config.count_max;
    const char* const kind = video ? "videos" : "pictures";
    if (++(video ? videos : pictures) > most) {
      return BadPlace(given.place,
                      most == 0
                          ? fmt::format("this server takes no {} (--limit-mm-per-prompt)", kind)
                          : fmt::format("more than {} {} in one request "
                                        "(--limit-mm-per-prompt)",
                                        most, kind));
    }
    if (video && config.rules.item_frames > info->picture_frames_max) {
      return BadPlace(given.place, fmt::format("this model's encoder takes {} frames at once, and "
                                               "its rules for videos have {}",
                                               info->picture_frames_max, config.rules.item_frames));
    }
    frames += given.frames;
    if (frames <= config.frames_max) continue;
    return BadPlace(given.place, fmt::format("the videos up to this one have {} frames, and a "
                                             "request may have {}; send fewer a second",
                                             frames, config.frames_max));
  }
  return std::nullopt;
}

std::optional<ApiError> Server::SpellVideos(const ChatRequest& chat,
                                            std::vector<TextSegment>& segments) const {
  if (chat.pictures.empty()) return std::nullopt;
  const int item_frames = pictures_->config().rules.item_frames;
  std::vector<int64_t> items;
  for (const GivenPicture& given : chat.pictures) {
    if (given.frames > 0) items.push_back(ItemsOf(given.frames, item_frames));
  }
  const size_t places = baltoro::SpellVideos(items, item_frames, kPlaceholder, segments);
  if (places == items.size()) return std::nullopt;
  return BadRequest("messages",
                    fmt::format("messages: the chat template leaves places for {} videos, and the "
                                "request has {}",
                                places, items.size()));
}

std::optional<ApiError> Server::PlacePictures(ChatRequest& chat,
                                              const GenerationLimits& limits,
                                              const std::function<bool()>& unwanted,
                                              ChatPrompt& out) {
  if (chat.pictures.empty()) return std::nullopt;
  const TokenId placeholder = *tokenizer_->SpecialId(kPlaceholder);
  const auto places = std::count(out.tokens.begin(), out.tokens.end(), placeholder);
  int64_t wanted = 0;
  for (const GivenPicture& given : chat.pictures) {
    wanted += given.frames > 0 ? ItemsOf(given.frames, pictures_->config().rules.item_frames) : 1;
  }
  if (places != wanted) {
    return BadRequest("messages",
                      fmt::format("messages: the chat template leaves places for {} pictures, and "
                                  "the request has {}",
                                  places, wanted));
  }
  // Nothing is decoded that there would be no room to keep.
  if (!picture_shares_.Fits(*picture_shares_.Of(out.owner), pictures_->RequestsMax())) {
    return OverloadedError("Too many pictures are waiting.");
  }
  if (auto error = pictures_->Prepare(out.owner, std::move(chat.pictures),
                                      engine_.info()->picture_tokens_max, limits.max_model_len,
                                      unwanted, out.pictures)) {
    return error;
  }
  ExpandPictures(placeholder, out.pictures, out.tokens);
  return std::nullopt;
}

std::optional<ApiError> Server::HoldPictures(std::vector<RequestPicture> pictures, Prepared& out) {
  if (pictures.empty()) return std::nullopt;
  size_t bytes = 0;
  for (const RequestPicture& picture : pictures) bytes += picture.pixels.size();
  const auto share = picture_shares_.Of(out.owner);
  out.options.picture_bytes = ByteHold(picture_shares_, share, bytes);
  // One request alone is always taken.
  if (picture_shares_.all() > bytes && !picture_shares_.Fits(*share, pictures_->RequestsMax())) {
    return OverloadedError("Too many pictures are waiting.");
  }
  out.prompts.back().pictures = std::move(pictures);
  return std::nullopt;
}

}  // namespace baltoro
