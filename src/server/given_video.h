#pragma once

// Videos as requests give them: frames, two a second, as vLLM takes them:
// data:video/jpeg;base64,FRAME,FRAME,..., each frame the file of a picture. Files of videos are not
// decoded. Some frames that follow each other are one item, which has the tokens of one frame.
//
// A chat template writes one placeholder for a video, which is no token. It becomes, for each item,
// the time of its first frame and a placeholder of a picture.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "server/given_picture.h"
#include "text/segment.h"

namespace baltoro {

inline constexpr int kFramesASecond = 2;

// {"type": "video_url", ...}. Nothing is said about the rest of it.
bool IsVideoPart(const Json& part);
// What the chat template sees of each video.
Json VideoPart();
// Moves the frames out of {"type": "video_url", "video_url": {"url"}}, or with a string in place of
// the object. The error is kInvalidArgument, and begins with the place of what is wrong.
Status TakeVideo(Json& part, const std::string& place, std::vector<GivenPicture>& out);

// The frames of a video's URL, each in base64, at least one; they live as long as the URL.
// kInvalidArgument where it is of another form.
Result<std::vector<std::string_view>> FramesOf(std::string_view url);

// Items of so many frames.
int64_t ItemsOf(int64_t frames, int item_frames);
// What stands in a prompt for a video of `items`, of which `mark` is the placeholder of a picture.
std::string VideoText(int64_t items, int item_frames, std::string_view mark);
// Puts VideoText in the places that the template left for videos, as many of them as there are.
// Returns how many places there were. Words of a request are not looked at.
size_t SpellVideos(std::span<const int64_t> items,
                   int item_frames,
                   std::string_view mark,
                   std::vector<TextSegment>& segments);

}  // namespace baltoro
