#pragma once

// What door and engine say to each other, one frame (request/wire.h) a message:
//
//   door -> engine   kConfig, once and first; kSubmit, kAbort; kCarry before the first kSubmit that
//   names what it brings, kDropCarried after the last; kProfile. An engine of another node has
//   its own configuration, gets no kConfig, and may be told kRefused after its kReady
//   engine -> door   kProgress*, then kReady or kFailed; kStep, one or two a step; kStats, ten a
//   second; kProfiled for each kProfile, with its number

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "request/wire.h"

namespace baltoro {

enum class Message : uint16_t {
  kConfig = 1,   // EngineConfig
  kSubmit,       // the name of its constraint, u64, 0: none; the names of its pictures' pixels, an
                 // array of u64; the Request without these bytes
  kAbort,        // RequestId
  kProgress,     // done and total bytes, i64
  kReady,        // EngineInfo
  kFailed,       // code u8, message; the node whose end is why, i32, below 0: none's
  kStep,         // TokenEvents
  kStats,        // ToldStats; also while loading, when it says only that the process lives
  kCarry,        // a name, u64, and to the frame's end the bytes that requests mean by it
  kDropCarried,  // the name, u64, stands for nothing any more
  kProfile,      // a number, u64; ProfileAsk
  kProfiled,     // the number; code u8, message; what is said, as JSON
  kStop,         // the server stops, of its own will; the connection ends next
  kRefused,      // what an engine of another node has to be changed in; the connection ends next
};

struct ToldStats {
  EngineStats together;
  std::vector<EngineStats> replicas;  // of each that shares experts with others; else empty
};

void Encode(WireWriter& writer, const ToldStats& told);
void Encode(WireWriter& writer, const EngineConfig& config);
void Encode(WireWriter& writer, const EngineInfo& info);
void Encode(WireWriter& writer, const EngineStats& stats);
void Encode(WireWriter& writer, const std::vector<TokenEvent>& events);
void Encode(WireWriter& writer, const Status& status);
void Encode(WireWriter& writer, const ProfileAsk& ask);
EngineConfig DecodeEngineConfig(WireReader& reader);
EngineInfo DecodeEngineInfo(WireReader& reader);
EngineStats DecodeEngineStats(WireReader& reader);
ToldStats DecodeToldStats(WireReader& reader);
std::vector<TokenEvent> DecodeEvents(WireReader& reader);
Status DecodeStatus(WireReader& reader);
ProfileAsk DecodeProfileAsk(WireReader& reader);

}  // namespace baltoro
