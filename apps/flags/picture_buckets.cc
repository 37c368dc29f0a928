#include "flags/picture_buckets.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace baltoro {
namespace {

constexpr int kSideMax = 65'500;  // of a JPEG file

class BucketReader {
 public:
  explicit BucketReader(std::string_view text) : rest_(text) {}

  Result<std::vector<PictureBucket>> Read() {
    std::vector<PictureBucket> out;
    double sum = 0;
    if (!Take('{')) return Malformed();
    while (!Take('}')) {
      PictureBucket bucket;
      int frames = 0;
      if (!ReadPair(bucket, frames)) return Malformed();
      if (!Take(',') && !rest_.starts_with('}')) return Malformed();
      if (bucket.share < 0 || !std::isfinite(bucket.share))
        return Wrong("a share is a number from 0");
      if (bucket.share == 0) continue;
      if (frames != 1) return Wrong("only pictures are drawn: (HEIGHT, WIDTH, 1)");
      for (const int side : {bucket.height, bucket.width}) {
        if (side < 1 || side > kSideMax) {
          return Wrong(fmt::format("a side has 1 to {} pixels", kSideMax));
        }
      }
      sum += bucket.share;
      out.push_back(bucket);
    }
    if (!rest_.empty()) return Malformed();
    if (out.empty()) return Wrong("no size has a share of more than 0");
    for (PictureBucket& bucket : out) bucket.share /= sum;
    return out;
  }

 private:
  static Status Wrong(std::string_view why) {
    return InvalidArgument(fmt::format("argument --random-mm-bucket-config: {}", why));
  }
  static Status Malformed() {
    return Wrong("expected shares of sizes, as '{(256, 256, 1): 0.5, (720, 1280, 1): 0.5}'");
  }

  // What follows, without the blanks behind it.
  bool Take(char c) {
    Skip();
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    Skip();
    return true;
  }

  void Skip() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\n'))
      rest_.remove_prefix(1);
  }

  template <typename Number>
  bool Take(Number& out) {
    const auto read = std::from_chars(rest_.data(), rest_.data() + rest_.size(), out);
    if (read.ec != std::errc()) return false;
    rest_.remove_prefix(static_cast<size_t>(read.ptr - rest_.data()));
    Skip();
    return true;
  }

  bool ReadPair(PictureBucket& out, int& frames) {
    const char quote = rest_.starts_with('"') ? '"' : rest_.starts_with('\'') ? '\'' : '\0';
    if (quote != '\0') Take(quote);
    return Take('(') && Take(out.height) && Take(',') && Take(out.width) && Take(',') &&
           Take(frames) && (Take(',') || true) && Take(')') && (quote == '\0' || Take(quote)) &&
           Take(':') && Take(out.share);
  }

  std::string_view rest_;
};

}  // namespace

Result<std::vector<PictureBucket>> ParsePictureBuckets(std::string_view text) {
  return BucketReader(text).Read();
}

}  // namespace baltoro
