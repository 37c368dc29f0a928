#include "flags/graph_options.h"

#include <fmt/format.h>

#include <algorithm>

namespace baltoro {
namespace {

constexpr int64_t kSizeMax = 1 << 20;

Status ReadMode(const Json& value, GraphOptions& out) {
  // vLLM takes names in any case, and null for its own choice.
  if (value.is_null()) return {};
  std::string mode = value.is_string() ? value.get<std::string>() : value.dump();
  std::ranges::transform(mode, mode.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  if (mode == "NONE") {
    out.none = true;
  } else if (mode == "PIECEWISE") {
    out.notices.push_back(
        "--compilation-config: cudagraph_mode PIECEWISE is taken as FULL_DECODE_ONLY: decode steps "
        "are recorded whole, others run without graphs");
  } else if (mode != "FULL" && mode != "FULL_DECODE_ONLY" && mode != "FULL_AND_PIECEWISE") {
    return InvalidArgument(
        fmt::format("--compilation-config: cudagraph_mode is {}, expected NONE, PIECEWISE, FULL, "
                    "FULL_DECODE_ONLY or FULL_AND_PIECEWISE",
                    value.dump()));
  }
  return {};
}

Result<std::vector<int64_t>> ReadSizes(const Json& value) {
  std::vector<int64_t> sizes;
  const auto wrong = [&] {
    return InvalidArgument(fmt::format(
        "--compilation-config: cudagraph_capture_sizes is {}, expected a list of positive numbers",
        value.dump()));
  };
  if (!value.is_array()) return wrong();
  for (const Json& one : value) {
    if (!one.is_number_integer()) return wrong();
    sizes.push_back(one.get<int64_t>());
  }
  return sizes;
}

}  // namespace

Result<GraphOptions> ReadGraphOptions(const GraphFlags& flags) {
  GraphOptions out;
  bool listed = flags.capture_sizes.has_value();
  std::vector<int64_t> sizes = flags.capture_sizes.value_or(std::vector<int64_t>());
  std::optional<int64_t> most = flags.capture_size_max;
  for (const auto& [key, value] : flags.compilation_config.items()) {
    if (key == "cudagraph_mode") {
      BT_RETURN_IF_ERROR(ReadMode(value, out));
    } else if (key == "cudagraph_capture_sizes") {
      if (value.is_null()) continue;
      if (flags.capture_sizes) {
        return InvalidArgument(
            "--cudagraph-capture-sizes and cudagraph_capture_sizes of --compilation-config are "
            "both given: leave one out");
      }
      BT_ASSIGN_OR_RETURN(sizes, ReadSizes(value));
      listed = true;
    } else if (key == "max_cudagraph_capture_size") {
      if (value.is_null()) continue;
      if (!value.is_number_integer() || flags.capture_size_max) {
        return InvalidArgument(
            "--compilation-config: max_cudagraph_capture_size must be a number, and not given "
            "twice");
      }
      most = value.get<int64_t>();
    } else {
      out.notices.push_back(fmt::format(
          "--compilation-config: {} has no effect here: nothing is compiled at start", key));
    }
  }
  if (listed && sizes.empty()) out.none = true;
  if (most && *most < 0) {
    return InvalidArgument(
        fmt::format("the largest size of graphs is {}, expected 0 or more", *most));
  }
  if (most && *most == 0) out.none = true;
  if (listed) {
    for (const int64_t size : sizes) {
      if (size < 1 || size > kSizeMax) {
        return InvalidArgument(
            fmt::format("a size of graphs is {}, expected 1 to {}", size, kSizeMax));
      }
      out.sizes.push_back(static_cast<int32_t>(size));
    }
    if (most && !out.none && *most != std::ranges::max(sizes)) {
      return InvalidArgument(
          fmt::format("the largest size of graphs is given as {}, but the list ends with {}", *most,
                      std::ranges::max(sizes)));
    }
  } else if (most && *most > 0) {
    out.size_max = static_cast<int32_t>(std::min(*most, kSizeMax));
  }
  return out;
}

}  // namespace baltoro
