#include "base/json.h"

#include <utility>
#include <vector>

#include "base/file.h"
#include "base/utf8.h"

namespace baltoro {
namespace {

// Builds the tree from what nlohmann's parser reads, and checks the limits on the way.
class TreeBuilder {
 public:
  TreeBuilder(Json& root, const JsonLimits& limits) : root_(root), limits_(limits) {}

  bool null() { return Add(nullptr) != nullptr; }
  bool boolean(bool value) { return Add(value) != nullptr; }
  bool number_integer(Json::number_integer_t value) { return Add(value) != nullptr; }
  bool number_unsigned(Json::number_unsigned_t value) { return Add(value) != nullptr; }
  bool number_float(Json::number_float_t value, const std::string&) {
    return Add(value) != nullptr;
  }
  bool string(std::string& value) { return Add(std::move(value)) != nullptr; }
  bool binary(Json::binary_t&) { return false; }  // JSON has none
  bool start_object(size_t) { return Open(Json::object()); }
  bool start_array(size_t) { return Open(Json::array()); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }
  bool key(std::string& key) {
    const auto [member, fresh] = open_.back()->emplace(key, nullptr);
    if (!fresh && limits_.reject_duplicate_keys) {
      error_ = "duplicate key \"" + key.substr(0, 64) + "\"";
      return false;
    }
    member_ = &*member;
    return true;
  }
  template <typename Exception>
  bool parse_error(size_t position, const std::string&, const Exception&) {
    error_ = "not valid JSON at byte " + std::to_string(position);
    return false;
  }

  const std::string& error() const { return error_; }

 private:
  // Where the value now is; null, with an error, over a limit.
  template <typename Value>
  Json* Add(Value&& value) {
    if (++nodes_ > limits_.nodes) {
      error_ = "more than " + std::to_string(limits_.nodes) + " JSON values";
      return nullptr;
    }
    if (!open_.empty() && open_.back()->is_array()) {
      return &open_.back()->emplace_back(std::forward<Value>(value));
    }
    Json& place = open_.empty() ? root_ : *member_;
    place = std::forward<Value>(value);
    return &place;
  }
  bool Open(Json container) {
    Json* place = Add(std::move(container));
    if (place == nullptr) return false;
    open_.push_back(place);
    if (open_.size() <= static_cast<size_t>(limits_.depth)) return true;
    error_ = "JSON nested deeper than " + std::to_string(limits_.depth);
    return false;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  Json& root_;
  const JsonLimits limits_;
  std::string error_;
  size_t nodes_ = 0;
  std::vector<Json*> open_;  // containers from the root on; none grows while an inner one is open
  Json* member_ = nullptr;   // of the innermost object: the value of the last key
};

}  // namespace

Result<Json> ParseJson(std::string_view text, const JsonLimits& limits) {
  Json root;
  TreeBuilder builder(root, limits);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    return InvalidArgument(builder.error().empty() ? "not valid JSON" : builder.error());
  }
  return root;
}

Result<Json> ReadJsonFile(const std::string& path) {
  BT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  auto parsed = ParseJson(text, {.depth = 256, .nodes = 20'000'000});
  if (!parsed.ok()) return InvalidArgument(path + ": " + parsed.status().message());
  return parsed;
}

void AppendJsonString(std::string& out, std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  out.push_back('"');
  size_t plain = 0;  // start of the run that needs no change
  size_t i = 0;
  const auto flush = [&](size_t end) { out.append(text.substr(plain, end - plain)); };
  while (i < text.size()) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\') {
      ++i;
      continue;
    }
    if (byte >= 0x80) {
      const size_t length = Utf8ValidLength(text.substr(i));
      if (length > 0) {
        i += length;
        continue;
      }
      flush(i);
      out.append("\xEF\xBF\xBD");
      plain = ++i;
      continue;
    }
    flush(i);
    switch (byte) {
      case '"':
        out.append("\\\"");
        break;
      case '\\':
        out.append("\\\\");
        break;
      case '\n':
        out.append("\\n");
        break;
      case '\r':
        out.append("\\r");
        break;
      case '\t':
        out.append("\\t");
        break;
      default:
        out.append("\\u00");
        out.push_back(kHex[byte >> 4]);
        out.push_back(kHex[byte & 15]);
    }
    plain = ++i;
  }
  flush(i);
  out.push_back('"');
}

}  // namespace baltoro
