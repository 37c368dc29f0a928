#pragma once

// From given pictures and videos to the pictures of an engine's request.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "media/cut_patches.h"
#include "media/decode_picture.h"
#include "media/picture_process.h"
#include "request/request.h"
#include "server/api_error.h"
#include "server/given_picture.h"
#include "server/media_source.h"
#include "server/picture_cache.h"

namespace baltoro {

struct PictureConfig {
  PictureRules rules;
  // A program and its arguments that decode pictures: see PictureProcess.
  std::vector<std::string> decoder;
  int64_t count_max = 999;           // of a request; 0: none is taken
  int64_t videos_max = 999;          // likewise
  int64_t frames_max = 1024;         // of all videos of a request
  PictureLimits each = {};           // of one file
  uint64_t bytes_max = 64 << 20;     // of all files of a request
  Seconds fetch_seconds_max = 30;    // for all that a request only names
  int64_t pixels_max = 200'000'000;  // of all pictures of a request, as they were sent
  // Of patches, of all requests until they end, and of what is kept for later ones: up to 1/16.
  int64_t held_bytes_max = int64_t{4} << 30;

  bool takes_some() const { return count_max > 0 || videos_max > 0; }
};

class PicturePreparer {
 public:
  // `source` null: URLs of other schemes than "data" are refused. `decoded_at_once`: no more
  // pictures are decoded and scaled at once, each in a process of its own; together they have at
  // most that many times each.pixels_max pixels.
  PicturePreparer(PictureConfig config, std::shared_ptr<MediaSource> source, int decoded_at_once);

  const PictureConfig& config() const { return config_; }
  // What requests may hold of config().held_bytes_max, beside what is kept.
  size_t RequestsMax() const;
  PictureCache::Counts kept_counts() const { return kept_.counts(); }
  // See PictureProcess.
  Status StartDecoder() const { return decoders_.StartOne(); }

  // Reads, decodes, scales, cuts and hashes them, one after the other, and gives back the text of
  // each as soon as it is read. A video becomes several, of rules.item_frames frames each. What was
  // decoded for the same `client` lately is not decoded again. `each_tokens_max`: of one picture;
  // `tokens_max`: of all, which is what the model has room for. Blocks, for seconds where pictures
  // are large; any thread but one that serves connections. Fills all of a RequestPicture but
  // `begin`. Ends early once `unwanted` is true, with whatever error.
  std::optional<ApiError> Prepare(const std::string& client,
                                  std::vector<GivenPicture> given,
                                  int64_t each_tokens_max,
                                  int64_t tokens_max,
                                  const std::function<bool()>& unwanted,
                                  std::vector<RequestPicture>& out) const;

 private:
  // What a request has left, and has got.
  struct Account;

  Result<std::string> ReadBytes(const GivenPicture& picture, const MediaBounds& bounds) const;
  Status Spend(size_t bytes, Account& account) const;
  // A picture of one file, or an item of the files of its frames.
  Result<CutPicture> Cut(std::span<const std::string> files, const PictureRules& rules) const;
  // Cuts them, unless that was done lately, and adds the picture if it may be one of the request's.
  Status Add(const std::vector<std::string>& files, bool of_video, Account& account) const;
  Status AddPicture(GivenPicture& picture, Account& account) const;
  Status AddVideo(GivenPicture& video, Account& account) const;

  const PictureConfig config_;
  const std::shared_ptr<MediaSource> source_;  // never null
  const MonotonicClock clock_;
  mutable PictureProcess decoders_;
  mutable PictureCache kept_;
};

// Each of the tokens `placeholder` becomes as many of them as its picture takes, whose begin is
// filled. As many are there as pictures.
void ExpandPictures(TokenId placeholder,
                    std::vector<RequestPicture>& pictures,
                    std::vector<TokenId>& prompt);

}  // namespace baltoro
