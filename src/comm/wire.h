#pragma once

// Numbers and texts of the handshake as bytes: little-endian, texts after their length.

#include <cstdint>
#include <string>
#include <string_view>

namespace baltoro {

class WireWriter {
 public:
  void PutU32(uint32_t value);
  void PutText(std::string_view text);
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// What is missing or too long reads as 0 or empty, and ok() is false from there on.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : rest_(bytes) {}
  uint32_t GetU32();
  std::string GetText(size_t bytes_max);
  bool ok() const { return ok_; }
  bool AtEnd() const { return ok_ && rest_.empty(); }

 private:
  std::string_view Take(size_t bytes);

  std::string_view rest_;
  bool ok_ = true;
};

// What a peer said, fit for a log line: control characters and bytes over 126 become '?'.
std::string Printable(std::string_view text);

}  // namespace baltoro
