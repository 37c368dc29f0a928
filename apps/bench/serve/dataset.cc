#include "bench/serve/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "bench/serve/dataset_parts.h"
#include "bench/serve/random_picture.h"
#include "bench/serve/random_text.h"
#include "client/picture_file.h"

namespace baltoro {
namespace {

// A length as it was asked for, drawn from the range around it.
class LengthRange {
 public:
  LengthRange(int64_t length, double ratio, int64_t least)
      : low_(std::max(least, static_cast<int64_t>(std::floor(Scaled(length, 1 - ratio))))),
        high_(std::max(low_, static_cast<int64_t>(std::ceil(Scaled(length, 1 + ratio))))) {}
  int64_t low() const { return low_; }
  int64_t high() const { return high_; }
  int64_t Draw(std::mt19937_64& random) const {
    return std::uniform_int_distribution<int64_t>(low_, high_)(random);
  }

 private:
  static double Scaled(int64_t length, double by) { return static_cast<double>(length) * by; }
  int64_t low_, high_;
};

// The pictures of a drawn prompt: how many, and of which sizes.
class PictureDraw {
 public:
  explicit PictureDraw(const DatasetOptions& options)
      : sizes_(options.picture_sizes), count_(options.pictures_min, options.pictures_max) {
    std::vector<double> shares;
    for (const PictureBucket& size : sizes_) shares.push_back(size.share);
    which_ = std::discrete_distribution<size_t>(shares.begin(), shares.end());
  }

  // Of one prompt, on average.
  double bytes() const {
    double pixels = 0;
    for (const PictureBucket& size : sizes_) {
      pixels += size.share * static_cast<double>(size.height) * static_cast<double>(size.width);
    }
    return static_cast<double>(count_.min() + count_.max()) / 2 * pixels * kRandomPixelBytes;
  }

  std::vector<std::string> Draw(std::mt19937_64& random) {
    std::vector<std::string> urls(static_cast<size_t>(sizes_.empty() ? 0 : count_(random)));
    for (std::string& url : urls) {
      const PictureBucket& size = sizes_[which_(random)];
      url = PictureUrl(RandomJpeg(size.width, size.height, random));
    }
    return urls;
  }

 private:
  const std::vector<PictureBucket>& sizes_;  // none: prompts have no pictures
  std::uniform_int_distribution<int64_t> count_;
  std::discrete_distribution<size_t> which_;
};

// About so many bytes has a word, with room.
constexpr double kWordBytes = 12;

Result<Dataset> BuildRandom(const DatasetOptions& options, bool chat, const RandomText& words) {
  const LengthRange input(options.random_input, options.range_ratio, 0);
  const LengthRange output(options.random_output, options.range_ratio, 1);
  if (options.random_prefix + input.low() < 1) {
    return InvalidArgument("--random-input-len and --random-prefix-len: a prompt would be empty");
  }
  PictureDraw pictures(options);
  BT_RETURN_IF_ERROR(CheckBytes(
      static_cast<double>(options.prompts) *
      (kWordBytes * static_cast<double>(options.random_prefix + input.high()) + pictures.bytes())));
  std::mt19937_64 random(options.seed);
  std::string text;
  words.Append(text, options.random_prefix, random);
  const size_t prefix_bytes = text.size();
  Dataset out;
  for (int64_t i = 0; i < options.prompts; ++i) {
    const int64_t length = input.Draw(random);
    text.resize(prefix_bytes);
    words.Append(text, length, random);
    const int64_t answer = output.Draw(random);
    AddPrompt(out, text, options.random_prefix + length, answer, chat, pictures.Draw(random));
  }
  return out;
}

Result<Dataset> BuildPrefixRepetition(const DatasetOptions& options,
                                      bool chat,
                                      const RandomText& words) {
  const int64_t each = options.prompts / options.prefixes;
  const int64_t length = options.prefix_len + options.suffix_len;
  if (each == 0) {
    return InvalidArgument("--num-prompts is less than --prefix-repetition-num-prefixes");
  }
  if (length == 0) {
    return InvalidArgument(
        "--prefix-repetition-prefix-len and --prefix-repetition-suffix-len are both 0");
  }
  BT_RETURN_IF_ERROR(
      CheckBytes(kWordBytes * static_cast<double>(options.prompts) * static_cast<double>(length)));
  std::mt19937_64 random(options.seed);
  Dataset out;
  for (int64_t prefix = 0; prefix < options.prefixes; ++prefix) {
    std::string text;
    words.Append(text, options.prefix_len, random);
    const size_t prefix_bytes = text.size();
    for (int64_t i = 0; i < each; ++i) {
      text.resize(prefix_bytes);
      words.Append(text, options.suffix_len, random);
      AddPrompt(out, text, length, options.prefix_output, chat);
    }
  }
  if (each * options.prefixes != options.prompts) {
    out.notices.push_back(fmt::format("{} requests: {} for each of {} prefixes",
                                      each * options.prefixes, each, options.prefixes));
  }
  if (options.shuffle) std::ranges::shuffle(out.sessions, random);
  return out;
}

}  // namespace

Status CheckBytes(double bytes) {
  if (bytes <= static_cast<double>(kPromptBytesMax)) return {};
  return Status(
      Code::kResourceExhausted,
      fmt::format("the prompts would take {:.0f} GiB of memory; fewer --num-prompts, please",
                  bytes / 0x1p30));
}

void AppendMessage(std::string& out, std::string_view role, std::string_view content) {
  out += fmt::format("{{\"role\":\"{}\",\"content\":", role);
  AppendJsonString(out, content);
  out += '}';
}

void AddPrompt(Dataset& out,
               std::string_view prompt,
               int64_t tokens,
               int64_t output,
               bool chat,
               const std::vector<std::string>& pictures) {
  BenchSession session;
  if (chat && !pictures.empty()) {
    session.text += R"({"role":"user","content":[{"type":"text","text":)";
    AppendJsonString(session.text, prompt);
    session.text += '}';
    for (const std::string& url : pictures) {
      session.text += R"(,{"type":"image_url","image_url":{"url":)";
      AppendJsonString(session.text, url);
      session.text += "}}";
    }
    session.text += "]}";
  } else if (chat) {
    AppendMessage(session.text, "user", prompt);
  } else {
    AppendJsonString(session.text, prompt);
  }
  session.turns.push_back({.text_bytes = session.text.size(),
                           .prompt_tokens = tokens,
                           .output_tokens = output,
                           .think = 0});
  out.sessions.push_back(std::move(session));
}

Result<Dataset> BuildDataset(const DatasetOptions& options, bool chat, const BenchText& text) {
  const bool from_file =
      options.name == "custom" || options.name == "custom_mm" || options.name == "hf";
  if (text.tokenizer == nullptr && !from_file) {
    return InvalidArgument(fmt::format(
        "--dataset-name {} needs a tokenizer: give --tokenizer DIR, without --skip-tokenizer-init",
        options.name));
  }
  if (options.name == "agent") return BuildAgent(options, text);
  const bool random = options.name == "random" || options.name == "random-mm";
  if (!random && options.name != "prefix_repetition") return BuildFromFile(options, chat, text);
  BT_ASSIGN_OR_RETURN(const RandomText words, RandomText::Create(*text.tokenizer));
  return random ? BuildRandom(options, chat, words) : BuildPrefixRepetition(options, chat, words);
}

}  // namespace baltoro
