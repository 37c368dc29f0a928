#include "comm/wire.h"

namespace baltoro {

void WireWriter::PutU32(uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) {
    bytes_.push_back(static_cast<char>(static_cast<unsigned char>(value >> shift)));
  }
}

void WireWriter::PutText(std::string_view text) {
  PutU32(static_cast<uint32_t>(text.size()));
  bytes_ += text;
}

std::string_view WireReader::Take(size_t bytes) {
  ok_ = ok_ && bytes <= rest_.size();
  if (!ok_) return {};
  const std::string_view taken = rest_.substr(0, bytes);
  rest_.remove_prefix(bytes);
  return taken;
}

uint32_t WireReader::GetU32() {
  uint32_t value = 0;
  int shift = 0;
  for (const char byte : Take(4)) {
    value |= uint32_t{static_cast<unsigned char>(byte)} << shift;
    shift += 8;
  }
  return value;
}

std::string WireReader::GetText(size_t bytes_max) {
  const size_t bytes = GetU32();
  ok_ = ok_ && bytes <= bytes_max;
  return std::string(Take(bytes));
}

std::string Printable(std::string_view text) {
  std::string clean(text);
  for (char& letter : clean) {
    if (letter < ' ' || letter > '~') letter = '?';
  }
  return clean;
}

}  // namespace baltoro
