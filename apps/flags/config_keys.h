#pragma once

// The keys of a flag whose value is a JSON object, like --eplb-config: values of one type each,
// where null is the same as a key that is not given. Errors name flag and key.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace baltoro {

class ConfigKeys {
 public:
  // `flag` as it is written, "--eplb-config"; flag and config must outlive this.
  ConfigKeys(std::string_view flag, const Json& config) : flag_(flag), config_(config) {}

  Status Wrong(std::string_view key, std::string_view what) const;
  // For a key that there is not: which of `known` may have been meant.
  Status Unknown(std::string_view key, const std::vector<std::string_view>& known) const;

  // Null: not given.
  const Json* Find(std::string_view key) const;
  // These give `standard` where the key is not given.
  Result<std::string> Text(std::string_view key, std::string standard = {}) const;
  Result<bool> Switch(std::string_view key, bool standard) const;
  // A whole number from `least` to `most`; `standard` may be another.
  Result<int64_t> Count(std::string_view key, int64_t least, int64_t most, int64_t standard) const;

 private:
  const std::string_view flag_;
  const Json& config_;
};

}  // namespace baltoro
