#pragma once

// How requests and events cross from one process to another: little-endian numbers in frames
//
//   magic u32 | version u16 | type u16 | length u32 | payload
//
// over a socket, local today. Decoding trusts nothing: every length is checked against what is
// there before anything is allocated. What a frame's type means is the engine's business
// (engine/engine_wire.h).

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/wire.h"
#include "request/request.h"

namespace baltoro {

inline constexpr uint32_t kFrameMagic = 0x4F544C42;  // "BLTO"
inline constexpr uint16_t kWireVersion = 5;
inline constexpr size_t kFrameHeaderBytes = 12;
inline constexpr size_t kFramePayloadMax = size_t{64} << 20;

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
