#include "server/given_video.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/chat_body.h"

namespace baltoro {
namespace {

// What a chat template of the Kimi family writes for a video.
constexpr std::string_view kPlaceholder = "<|kimi_k25_video_placeholder|>";
constexpr std::string_view kHead = "data:video/jpeg;base64,";

// hh:mm:ss.fff; days are left out.
std::string TimeOf(int64_t frame) {
  const int64_t milliseconds = frame * 1000 / kFramesASecond, seconds = milliseconds / 1000;
  return fmt::format("{:02}:{:02}:{:02}.{:03}", seconds / 3600 % 24, seconds / 60 % 60,
                     seconds % 60, milliseconds % 1000);
}

Status CheckForm(std::string_view url) {
  if (StartsWithFolded(url, kHead)) return {};
  return InvalidArgument(
      fmt::format("must be of the form {}FRAME,FRAME,...: {} frames a second, each the base64 of "
                  "a JPEG, PNG, WebP or GIF; files of videos are not decoded here",
                  kHead, kFramesASecond));
}

}  // namespace

bool IsVideoPart(const Json& part) {
  if (!part.is_object()) return false;
  const std::string* type = StringMember(part, "type");
  return type != nullptr && *type == "video_url";
}

Json VideoPart() {
  return {{"type", "video"}};
}

Status TakeVideo(Json& part, const std::string& place, std::vector<GivenPicture>& out) {
  const std::string here = place + ".video_url";
  const auto field = part.find("video_url");
  if (field == part.end() || field->is_null()) return InvalidArgument(here + ": is required");
  Json* url = &*field;
  if (field->is_object()) {
    const auto inner = field->find("url");
    if (inner == field->end()) return InvalidArgument(here + ".url: is required");
    url = &*inner;
  }
  if (!url->is_string()) {
    return InvalidArgument(here + ": must be a URL, or {\"url\": \"...\"}");
  }
  auto& text = url->get_ref<std::string&>();
  if (const Status form = CheckForm(text); !form.ok()) {
    return InvalidArgument(fmt::format("{}: {}", here, form.message()));
  }
  // Counted alone: nobody has said yet that so many are taken.
  const int64_t frames = 1 + std::count(text.begin() + kHead.size(), text.end(), ',');
  out.push_back({.place = here, .text = std::move(text), .frames = frames});
  return {};
}

Result<std::vector<std::string_view>> FramesOf(std::string_view url) {
  BT_RETURN_IF_ERROR(CheckForm(url));
  std::vector<std::string_view> frames;
  for (url.remove_prefix(kHead.size());;) {
    const size_t comma = url.find(',');
    frames.push_back(url.substr(0, comma));
    if (comma == url.npos) return frames;
    url.remove_prefix(comma + 1);
  }
}

int64_t ItemsOf(int64_t frames, int item_frames) {
  return (frames + item_frames - 1) / item_frames;
}

std::string VideoText(int64_t items, int item_frames, std::string_view mark) {
  std::string text;
  for (int64_t i = 0; i < items; ++i) {
    text += fmt::format("{}<|media_begin|>video<|media_content|>{}<|media_end|>",
                        TimeOf(i * item_frames), mark);
  }
  return text;
}

size_t SpellVideos(std::span<const int64_t> items,
                   int item_frames,
                   std::string_view mark,
                   std::vector<TextSegment>& segments) {
  size_t places = 0;
  for (TextSegment& segment : segments) {
    if (!segment.special_allowed) continue;
    std::string spelt;
    size_t done = 0;
    for (size_t at; (at = segment.text.find(kPlaceholder, done)) != std::string::npos; ++places) {
      spelt.append(segment.text, done, at - done);
      if (places < items.size()) spelt += VideoText(items[places], item_frames, mark);
      done = at + kPlaceholder.size();
    }
    if (done == 0) continue;
    spelt.append(segment.text, done);
    segment.text = std::move(spelt);
  }
  return places;
}

}  // namespace baltoro
