#include "server/input_items.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <unordered_set>
#include <utility>

#include "base/json.h"
#include "base/keyed_hash.h"
#include "server/query.h"

namespace baltoro {
namespace {

constexpr size_t kPageDefault = 20;
constexpr size_t kPageMax = 100;
constexpr size_t kUrlBytesMax = 1024;

struct Page {
  size_t limit = kPageDefault;
  bool ascending = false;
  std::string after;
};

std::optional<ApiError> ReadPage(std::string_view query, Page& out) {
  const auto fields = ReadQuery(query);
  if (!fields) return BadRequest("query", kBadQuery);
  for (const auto& [name, value] : *fields) {
    if (name == "limit") {
      const auto [end, error] =
          std::from_chars(value.data(), value.data() + value.size(), out.limit);
      const bool whole = error == std::errc() && end == value.data() + value.size();
      if (!whole || out.limit < 1 || out.limit > kPageMax) {
        return BadRequest("limit", fmt::format("limit: must be 1 to {}", kPageMax));
      }
    } else if (name == "order") {
      if (value != "asc" && value != "desc") {
        return BadRequest("order", "order: must be \"asc\" or \"desc\"");
      }
      out.ascending = value == "asc";
    } else if (name == "after") {
      out.after = value;
    } else if (name == "before" || name == "include" || name == "include[]") {
      return BadRequest(name, fmt::format("{}: is not supported here", name));
    }
  }
  return std::nullopt;
}

// An item keeps its id unless an earlier one has it, so that `after` names one place.
void GiveId(Json& item,
            const std::string& response_id,
            size_t place,
            std::unordered_set<std::string, KeyedStringHash>& taken) {
  const std::string own = response_id + "_input_";
  const auto found = item.find("id");
  if (found != item.end() && found->is_string()) {
    const auto& id = found->get_ref<const std::string&>();
    if (!id.empty() && !id.starts_with(own) && taken.insert(id).second) return;
  }
  item["id"] = fmt::format("{}{}", own, place);
}

void Complete(Json& item) {
  const std::string type = item.value("type", Json("message")) == "message" ? "message" : "";
  if (type.empty()) return;
  item["type"] = type;
  const auto content = item.find("content");
  if (content == item.end() || !content->is_string()) return;
  const bool own = item.value("role", Json()) == "assistant";
  *content = Json::array({{{"type", own ? "output_text" : "input_text"}, {"text", *content}}});
}

// Puts the URLs of pictures back where they stood. Of the data in a long one a mark is left: a page
// of a hundred items would be gigabytes else, of what its reader has sent itself.
void ShowPictures(Json& item, const std::vector<PictureText>& pictures) {
  for (const char* name : {"content", "output"}) {
    const auto parts = item.find(name);
    if (parts == item.end() || !parts->is_array()) continue;
    for (Json& part : *parts) {
      if (!part.is_object() || part.value("type", Json()) != "input_image") continue;
      const auto url = part.find("image_url");
      if (url == part.end() || !url->is_number_unsigned()) continue;
      const auto place = url->get<size_t>();
      if (place >= pictures.size()) continue;
      const std::string& given = *pictures[place];
      const bool cut = given.size() > kUrlBytesMax && HasScheme(given, "data");
      const size_t head = std::min(given.find(','), kUrlBytesMax) + 1;
      *url = cut ? given.substr(0, head) + "..." : given;
    }
  }
}

}  // namespace

std::optional<ApiError> InputItemsPage(const std::string& response_id,
                                       const StoredResponse& stored,
                                       std::string_view query,
                                       std::string& out) {
  Page page;
  if (auto error = ReadPage(query, page)) return error;
  Result<Json> parsed = ParseJson(stored.items);
  if (!parsed.ok()) return BadRequest("id", "the conversation has grown too large to be listed");
  std::vector<Json> items;
  std::unordered_set<std::string, KeyedStringHash> taken;
  for (size_t i = 0; i < std::min(stored.input_items, parsed.value().size()); ++i) {
    Json& item = items.emplace_back(std::move(parsed.value()[i]));
    GiveId(item, response_id, i, taken);
    Complete(item);
  }
  if (!page.ascending) std::reverse(items.begin(), items.end());
  size_t first = 0;
  if (!page.after.empty()) {
    const auto last = std::find_if(items.begin(), items.end(),
                                   [&](const Json& item) { return item["id"] == page.after; });
    if (last == items.end()) {
      return BadRequest("after", "after: no item of this response has that id");
    }
    first = static_cast<size_t>(last - items.begin()) + 1;
  }
  const size_t end = std::min(items.size(), first + page.limit);
  Json data = Json::array();
  for (size_t i = first; i < end; ++i) {
    ShowPictures(items[i], stored.conversation.pictures);
    data.push_back(std::move(items[i]));
  }
  Json body = {{"object", "list"},
               {"first_id", data.empty() ? Json() : data.front()["id"]},
               {"last_id", data.empty() ? Json() : data.back()["id"]},
               {"has_more", end < items.size()}};
  body["data"] = std::move(data);
  out = body.dump(-1, ' ', false, Json::error_handler_t::replace);
  return std::nullopt;
}

}  // namespace baltoro
