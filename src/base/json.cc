#include "base/json.h"

#include <unordered_set>
#include <vector>

#include "base/file.h"
#include "base/utf8.h"

namespace baltoro {
namespace {

// Checks limits while nlohmann's parser reads, before anything is built, then lets the DOM handler
// build.
template <typename Value>
class LimitedHandler : public nlohmann::detail::json_sax_dom_parser<Value> {
 public:
  using Base = nlohmann::detail::json_sax_dom_parser<Value>;
  LimitedHandler(Value& out, const JsonLimits& limits) : Base(out, false), limits_(limits) {}

  bool null() { return Count() && Base::null(); }
  bool boolean(bool value) { return Count() && Base::boolean(value); }
  bool number_integer(typename Value::number_integer_t value) {
    return Count() && Base::number_integer(value);
  }
  bool number_unsigned(typename Value::number_unsigned_t value) {
    return Count() && Base::number_unsigned(value);
  }
  bool number_float(typename Value::number_float_t value, const std::string& text) {
    return Count() && Base::number_float(value, text);
  }
  bool string(std::string& value) { return Count() && Base::string(value); }
  bool start_object(size_t size) {
    keys_.emplace_back();
    return Count() && Enter() && Base::start_object(size);
  }
  bool key(std::string& value) {
    if (limits_.reject_duplicate_keys && !keys_.back().insert(value).second) {
      error_ = "duplicate key \"" + value.substr(0, 64) + "\"";
      return false;
    }
    return Base::key(value);
  }
  bool end_object() {
    keys_.pop_back();
    --depth_;
    return Base::end_object();
  }
  bool start_array(size_t size) { return Count() && Enter() && Base::start_array(size); }
  bool end_array() {
    --depth_;
    return Base::end_array();
  }
  template <typename Exception>
  bool parse_error(size_t position, const std::string&, const Exception&) {
    error_ = "not valid JSON at byte " + std::to_string(position);
    return false;
  }

  const std::string& error() const { return error_; }

 private:
  bool Count() {
    if (++nodes_ <= limits_.nodes) return true;
    error_ = "more than " + std::to_string(limits_.nodes) + " JSON values";
    return false;
  }
  bool Enter() {
    if (++depth_ <= limits_.depth) return true;
    error_ = "JSON nested deeper than " + std::to_string(limits_.depth);
    return false;
  }

  JsonLimits limits_;
  std::string error_;
  size_t nodes_ = 0;
  int depth_ = 0;
  std::vector<std::unordered_set<std::string>> keys_;
};

template <typename Value>
Result<Value> Parse(std::string_view text, const JsonLimits& limits) {
  Value root;
  LimitedHandler<Value> handler(root, limits);
  if (!Value::sax_parse(text.begin(), text.end(), &handler)) {
    return InvalidArgument(handler.error().empty() ? "not valid JSON" : handler.error());
  }
  return root;
}

template <typename Value>
Result<Value> Read(const std::string& path) {
  BT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  auto parsed = Parse<Value>(text, {.depth = 256, .nodes = 20'000'000});
  if (!parsed.ok()) return InvalidArgument(path + ": " + parsed.status().message());
  return parsed;
}

}  // namespace

Result<Json> ParseJson(std::string_view text, const JsonLimits& limits) {
  return Parse<Json>(text, limits);
}

Result<SortedJson> ParseSortedJson(std::string_view text, const JsonLimits& limits) {
  return Parse<SortedJson>(text, limits);
}

Result<Json> ReadJsonFile(const std::string& path) {
  return Read<Json>(path);
}

Result<SortedJson> ReadSortedJsonFile(const std::string& path) {
  return Read<SortedJson>(path);
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
