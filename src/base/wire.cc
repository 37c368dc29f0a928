#include "base/wire.h"

namespace baltoro {

bool WireReader::GetBool() {
  const auto value = Get<uint8_t>();
  if (value > 1) ok_ = false;
  return value == 1;
}

std::string WireReader::GetBytes(size_t bytes_max) {
  const size_t count = GetCount(1);
  if (count > bytes_max) {
    ok_ = false;
    return {};
  }
  std::string bytes(rest_.substr(0, count));
  rest_.remove_prefix(count);
  return bytes;
}

size_t WireReader::GetCount(size_t bytes_each) {
  const auto count = Get<uint32_t>();
  if (!ok_ || count > rest_.size() / bytes_each) {
    ok_ = false;
    return 0;
  }
  return count;
}

Status WireReader::Finish(std::string_view what) const {
  if (!ok_) return InvalidArgument(std::string(what) + ": cut short, or a value out of range");
  if (!rest_.empty()) {
    return InvalidArgument(std::string(what) + ": " + std::to_string(rest_.size()) +
                           " bytes too many");
  }
  return {};
}

bool WireReader::Has(size_t bytes) {
  if (rest_.size() < bytes) {
    ok_ = false;
    rest_ = {};
  }
  return ok_;
}

}  // namespace baltoro
