#pragma once

// How requests and events cross from one process to another: little-endian numbers in frames
//
//   magic u32 | version u16 | type u16 | length u32 | payload
//
// over a socket, local today. Decoding trusts nothing: every length is checked against what is
// there before anything is allocated. What a frame's type means is the engine's business
// (engine/engine_wire.h).

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "request/request.h"

namespace baltoro {

static_assert(std::endian::native == std::endian::little, "frames are written as they lie");

inline constexpr uint32_t kFrameMagic = 0x4F544C42;  // "BLTO"
inline constexpr uint16_t kWireVersion = 5;
inline constexpr size_t kFrameHeaderBytes = 12;
inline constexpr size_t kFramePayloadMax = size_t{64} << 20;

// Appends to a payload.
class WireWriter {
 public:
  template <typename T>
  requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) void Put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void Put(bool value) { Put(static_cast<uint8_t>(value)); }
  void PutBytes(std::string_view bytes) {
    Put(static_cast<uint32_t>(bytes.size()));
    bytes_.append(bytes);
  }
  template <typename T>
  requires std::is_arithmetic_v<T>
  void PutArray(std::span<const T> values) {
    Put(static_cast<uint32_t>(values.size()));
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads a payload. After the first value that is not there every read gives a zero, and ok() is
// false; so a decoder reads all fields and asks once.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) T Get() {
    T value{};
    if (!Has(sizeof(T))) return value;
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_.remove_prefix(sizeof(T));
    return value;
  }
  bool GetBool();
  // An enum of which `last` is the highest value.
  template <typename T>
  T GetEnum(T last) {
    const T value = Get<T>();
    if (value <= last) return value;
    ok_ = false;
    return T{};
  }
  std::string GetBytes();
  template <typename T>
  std::vector<T> GetArray() {
    const size_t count = GetCount(sizeof(T));
    std::vector<T> values(count);
    if (count > 0) std::memcpy(values.data(), rest_.data(), count * sizeof(T));
    rest_.remove_prefix(count * sizeof(T));
    return values;
  }
  // A count of things that take at least `bytes_each` here; zero if they cannot be there.
  size_t GetCount(size_t bytes_each);

  bool ok() const { return ok_; }
  // All was read, and nothing is left.
  Status Finish(std::string_view what) const;

 private:
  bool Has(size_t bytes);
  std::string_view rest_;
  bool ok_ = true;
};

struct Frame {
  uint16_t type = 0;
  std::string payload;
};

// The header of a frame with a payload of so many bytes, at most kFramePayloadMax.
std::string EncodeFrameHeader(uint16_t type, size_t payload_bytes);
// The header of a frame and its payload, ready to be sent.
std::string EncodeFrame(uint16_t type, std::string_view payload);

// Cuts a stream of bytes into frames.
class FrameParser {
 public:
  void Append(std::string_view bytes) { buffer_.append(bytes); }
  // The next whole frame, nothing if more bytes are needed, or why the stream cannot go on.
  Result<std::optional<Frame>> Next();

 private:
  std::string buffer_;
  size_t begin_ = 0;
};

void Encode(WireWriter& writer, const SamplingParams& sampling);
void Encode(WireWriter& writer, const std::vector<TokenLogprobs>& rows);
void Encode(WireWriter& writer, const Request& request);
void Encode(WireWriter& writer, const TokenEvent& event);
SamplingParams DecodeSampling(WireReader& reader);
std::vector<TokenLogprobs> DecodeLogprobs(WireReader& reader);
Request DecodeRequest(WireReader& reader);
TokenEvent DecodeTokenEvent(WireReader& reader);

}  // namespace baltoro
