#include "server/given_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/base64.h"
#include "server/chat_body.h"
#include "server/given_video.h"

namespace baltoro {
namespace {

constexpr std::string_view kImage = "image/";
constexpr std::string_view kUnknownType = "application/octet-stream";

char Lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

Status At(const std::string& place, std::string_view why) {
  return InvalidArgument(fmt::format("{}: {}", place, why));
}

// How finely upstream's service looks. The model gets all of the picture in any case.
Status CheckDetail(const Json& holder, const std::string& place) {
  static constexpr std::array<std::string_view, 4> kDetails = {"auto", "low", "high", "original"};
  const auto detail = holder.find("detail");
  if (detail == holder.end() || detail->is_null()) return {};
  const std::string* name = StringMember(holder, "detail");
  if (name != nullptr && std::ranges::find(kDetails, *name) != kDetails.end()) return {};
  return At(place + ".detail", "must be auto, low, high or original");
}

}  // namespace

Json PicturePart() {
  return {{"type", "image"}};
}

bool IsPicturePart(const Json& part) {
  if (!part.is_object()) return false;
  if (!part.contains("type")) return part.contains("image_url");
  const std::string* type = StringMember(part, "type");
  return type != nullptr && (*type == "image_url" || *type == "input_image" || *type == "image");
}

bool HoldsPictureParts(const Json& value) {
  if (!value.is_structured()) return false;
  if (IsPicturePart(value) || IsVideoPart(value)) return true;
  return std::any_of(value.begin(), value.end(), HoldsPictureParts);
}

Status TakePicture(Json& part, const std::string& place, std::vector<GivenPicture>& out) {
  const std::string* type = StringMember(part, "type");
  const bool other = type != nullptr && *type == "image" && !part.contains("image_url");
  const char* const name = other ? "image" : "image_url";
  const std::string here = fmt::format("{}.{}", place, name);
  const auto field = part.find(name);
  if (field == part.end() || field->is_null()) {
    if (!part.contains("file_id")) return At(here, "is required");
    return At(place + ".file_id", "no files are kept here; send the picture as a data: URL");
  }
  BT_RETURN_IF_ERROR(CheckDetail(part, place));
  Json* url = &*field;
  if (field->is_object()) {
    const auto inner = field->find("url");
    if (inner == field->end()) return At(here + ".url", "is required");
    if (!inner->is_string()) return At(here + ".url", "must be a string");
    url = &*inner;
    BT_RETURN_IF_ERROR(CheckDetail(*field, here));
  }
  if (!url->is_string()) return At(here, "must be a URL, or {\"url\": \"...\"}");
  out.push_back({.place = here, .text = std::move(url->get_ref<std::string&>())});
  return {};
}

Status ReadPictureBlock(const Json& block,
                        const std::string& place,
                        std::vector<GivenPicture>& out) {
  const std::string here = place + ".source";
  const auto source = block.find("source");
  const std::string* type =
      source != block.end() && source->is_object() ? StringMember(*source, "type") : nullptr;
  if (type == nullptr) return At(here, "must be an object with a type");
  if (*type == "url") {
    const std::string* url = StringMember(*source, "url");
    if (url == nullptr) return At(here + ".url", "must be a string");
    out.push_back({.place = here + ".url", .text = *url});
    return {};
  }
  if (*type != "base64") return At(here + ".type", "must be base64 or url");
  const std::string* media = StringMember(*source, "media_type");
  if (media == nullptr || !StartsWithFolded(*media, kImage)) {
    return At(here + ".media_type", "must be image/jpeg, image/png, image/gif or image/webp");
  }
  const std::string* data = StringMember(*source, "data");
  if (data == nullptr) return At(here + ".data", "must be a string");
  out.push_back({.place = here + ".data", .text = *data, .base64 = true});
  return {};
}

bool StartsWithFolded(std::string_view text, std::string_view lower) {
  return text.size() >= lower.size() &&
         std::equal(lower.begin(), lower.end(), text.begin(),
                    [](char want, char c) { return Lower(c) == want; });
}

bool HasScheme(std::string_view url, std::string_view scheme) {
  return StartsWithFolded(url, scheme) && url.size() > scheme.size() && url[scheme.size()] == ':';
}

Result<std::string> ReadBase64(std::string_view text, uint64_t bytes_max) {
  // Before there is room for what it says.
  if (text.size() / 4 * 3 > bytes_max + 2) {
    return InvalidArgument(
        fmt::format("the picture has more than {} bytes, the most that is taken", bytes_max));
  }
  std::string out;
  if (!DecodeBase64(text, out)) {
    return InvalidArgument(
        "the base64 is broken: it must be of the standard alphabet, padded, without line breaks, "
        "and the bits that the padding cuts off must be zero");
  }
  return out;
}

Result<std::string> ReadDataUrl(std::string_view url, uint64_t bytes_max) {
  constexpr std::string_view kEncoding = ";base64";
  const size_t comma = url.find(',');
  const std::string_view head = url.substr(0, comma);
  constexpr size_t kScheme = 5;  // of "data:"
  // A sender that does not know the type leaves it out, or says so; the first bytes tell it here.
  const auto type_fits = [&] {
    const std::string_view type = head.substr(kScheme, head.find(';') - kScheme);
    return type.empty() || StartsWithFolded(type, kImage) ||
           (type.size() == kUnknownType.size() && StartsWithFolded(type, kUnknownType));
  };
  const bool formed = comma != url.npos && head.size() >= kScheme + kEncoding.size() &&
                      StartsWithFolded(head, "data:") &&
                      StartsWithFolded(head.substr(head.size() - kEncoding.size()), kEncoding) &&
                      type_fits();
  if (!formed) return InvalidArgument("must be of the form data:image/...;base64,...");
  return ReadBase64(url.substr(comma + 1), bytes_max);
}

}  // namespace baltoro
