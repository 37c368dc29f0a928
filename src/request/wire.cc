#include "request/wire.h"

#include <type_traits>
#include <utility>

#include "base/check.h"

namespace baltoro {

namespace {

constexpr size_t kLogprobBytes = 12;

}  // namespace

std::string EncodeFrameHeader(uint16_t type, size_t payload_bytes) {
  BT_CHECK(payload_bytes <= kFramePayloadMax);
  WireWriter header;
  header.Put(kFrameMagic);
  header.Put(kWireVersion);
  header.Put(type);
  header.Put(static_cast<uint32_t>(payload_bytes));
  return header.Take();
}

std::string EncodeFrame(uint16_t type, std::string_view payload) {
  std::string frame = EncodeFrameHeader(type, payload.size());
  frame.append(payload);
  return frame;
}

Result<std::optional<Frame>> FrameParser::Next() {
  const std::string_view rest = std::string_view(buffer_).substr(begin_);
  if (rest.size() < kFrameHeaderBytes) return std::optional<Frame>();
  WireReader header(rest.substr(0, kFrameHeaderBytes));
  const auto magic = header.Get<uint32_t>();
  const auto version = header.Get<uint16_t>();
  const auto type = header.Get<uint16_t>();
  const auto length = header.Get<uint32_t>();
  if (magic != kFrameMagic) return InvalidArgument("a frame does not start with its magic number");
  if (version != kWireVersion) {
    return InvalidArgument("a frame of version " + std::to_string(version) + ", expected " +
                           std::to_string(kWireVersion));
  }
  if (length > kFramePayloadMax) {
    return InvalidArgument("a frame of " + std::to_string(length) + " bytes, the limit is " +
                           std::to_string(kFramePayloadMax));
  }
  if (rest.size() - kFrameHeaderBytes < length) return std::optional<Frame>();
  Frame frame{.type = type, .payload = std::string(rest.substr(kFrameHeaderBytes, length))};
  begin_ += kFrameHeaderBytes + length;
  if (begin_ == buffer_.size() || begin_ > (size_t{1} << 20)) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  return std::optional<Frame>(std::move(frame));
}

void Encode(WireWriter& writer, const SamplingParams& s) {
  writer.Put(s.temperature);
  writer.Put(s.top_p);
  writer.Put(s.min_p);
  writer.Put(s.top_k);
  writer.Put(s.presence_penalty);
  writer.Put(s.frequency_penalty);
  writer.Put(s.repetition_penalty);
  writer.Put(s.seed);
  writer.Put(s.logprobs);
  writer.Put(s.prompt_logprobs);
  writer.Put(static_cast<uint32_t>(s.logit_bias.size()));
  for (const auto& [id, bias] : s.logit_bias) {
    writer.Put(id);
    writer.Put(bias);
  }
  writer.PutArray<TokenId>(s.allowed_token_ids);
}

SamplingParams DecodeSampling(WireReader& reader) {
  SamplingParams s;
  s.temperature = reader.Get<float>();
  s.top_p = reader.Get<float>();
  s.min_p = reader.Get<float>();
  s.top_k = reader.Get<int32_t>();
  s.presence_penalty = reader.Get<float>();
  s.frequency_penalty = reader.Get<float>();
  s.repetition_penalty = reader.Get<float>();
  s.seed = reader.Get<uint64_t>();
  s.logprobs = reader.Get<int32_t>();
  s.prompt_logprobs = reader.Get<int32_t>();
  s.logit_bias.resize(reader.GetCount(sizeof(TokenId) + sizeof(float)));
  for (auto& [id, bias] : s.logit_bias) {
    id = reader.Get<TokenId>();
    bias = reader.Get<float>();
  }
  s.allowed_token_ids = reader.GetArray<TokenId>();
  return s;
}

void Encode(WireWriter& writer, const std::vector<TokenLogprobs>& rows) {
  writer.Put(static_cast<uint32_t>(rows.size()));
  for (const TokenLogprobs& row : rows) {
    writer.Put(static_cast<uint32_t>(row.size()));
    for (const TokenLogprob& one : row) {
      writer.Put(one.id);
      writer.Put(one.logprob);
      writer.Put(one.rank);
    }
  }
}

std::vector<TokenLogprobs> DecodeLogprobs(WireReader& reader) {
  std::vector<TokenLogprobs> rows(reader.GetCount(sizeof(uint32_t)));
  for (TokenLogprobs& row : rows) {
    row.resize(reader.GetCount(kLogprobBytes));
    for (TokenLogprob& one : row) {
      one.id = reader.Get<TokenId>();
      one.logprob = reader.Get<float>();
      one.rank = reader.Get<int32_t>();
    }
  }
  return rows;
}

void Encode(WireWriter& writer, const RequestPicture& picture) {
  for (const int32_t number :
       {picture.begin, picture.count, picture.frames, picture.rows, picture.columns}) {
    writer.Put(number);
  }
  for (const uint8_t byte : picture.hash) writer.Put(byte);
  writer.PutBytes(picture.pixels.str());
}

RequestPicture DecodePicture(WireReader& reader) {
  RequestPicture picture;
  for (int32_t* const number :
       {&picture.begin, &picture.count, &picture.frames, &picture.rows, &picture.columns}) {
    *number = reader.Get<int32_t>();
  }
  for (uint8_t& byte : picture.hash) byte = reader.Get<uint8_t>();
  picture.pixels = reader.GetBytes();
  return picture;
}

void Encode(WireWriter& writer, const Request& request) {
  writer.Put(request.id);
  writer.PutArray<TokenId>(request.prompt);
  writer.Put(static_cast<uint32_t>(request.pictures.size()));
  for (const RequestPicture& picture : request.pictures) Encode(writer, picture);
  Encode(writer, request.sampling);
  writer.Put(request.stop.max_tokens);
  writer.Put(request.stop.min_tokens);
  writer.Put(request.stop.ignore_eos);
  writer.PutArray<TokenId>(request.stop.eos_ids);
  writer.PutArray<TokenId>(request.stop.stop_ids);
  writer.Put(request.priority);
  writer.Put(request.owner);
  writer.PutBytes(request.cache_salt);
  writer.PutBytes(request.constraint.str());
  writer.Put(request.replica);
}

Request DecodeRequest(WireReader& reader) {
  Request request;
  request.id = reader.Get<RequestId>();
  request.prompt = reader.GetArray<TokenId>();
  constexpr size_t kPictureBytes = 5 * sizeof(int32_t) + 16 + sizeof(uint32_t);
  request.pictures.resize(reader.GetCount(kPictureBytes));
  for (RequestPicture& picture : request.pictures) picture = DecodePicture(reader);
  request.sampling = DecodeSampling(reader);
  request.stop.max_tokens = reader.Get<int32_t>();
  request.stop.min_tokens = reader.Get<int32_t>();
  request.stop.ignore_eos = reader.GetBool();
  request.stop.eos_ids = reader.GetArray<TokenId>();
  request.stop.stop_ids = reader.GetArray<TokenId>();
  request.priority = reader.Get<int32_t>();
  request.owner = reader.Get<uint64_t>();
  request.cache_salt = reader.GetBytes();
  request.constraint = reader.GetBytes();
  request.replica = reader.Get<int32_t>();
  return request;
}

void Encode(WireWriter& writer, const TokenEvent& event) {
  writer.Put(event.request);
  writer.Put(event.started);
  writer.PutArray<TokenId>(event.tokens);
  Encode(writer, event.logprobs);
  Encode(writer, event.prompt_logprobs);
  writer.Put(event.finish);
  writer.Put(event.stop_token.has_value());
  if (event.stop_token.has_value()) writer.Put(*event.stop_token);
  writer.Put(event.cached_tokens);
  writer.PutBytes(event.error);
  writer.Put(static_cast<uint8_t>(event.error_code));
}

TokenEvent DecodeTokenEvent(WireReader& reader) {
  TokenEvent event;
  event.request = reader.Get<RequestId>();
  event.started = reader.GetBool();
  event.tokens = reader.GetArray<TokenId>();
  event.logprobs = DecodeLogprobs(reader);
  event.prompt_logprobs = DecodeLogprobs(reader);
  event.finish = reader.GetEnum(FinishReason::kLost);
  if (reader.GetBool()) event.stop_token = reader.Get<TokenId>();
  event.cached_tokens = reader.Get<int32_t>();
  event.error = reader.GetBytes();
  event.error_code = static_cast<Code>(reader.GetEnum(static_cast<uint8_t>(Code::kInternal)));
  return event;
}

}  // namespace baltoro
