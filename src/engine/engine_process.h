#pragma once

// An engine in a process of its own: `program engine --fd N`, started and watched by the door.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"

namespace baltoro {

// The whole life of the engine's side, over a connected socket; the descriptor above it takes the
// line with which a process ends that cannot go on (base/last_words.h). Returns the process's exit
// code when the door asks for something that cannot be, or the engine fails; leaves by _exit(0) as
// soon as the door closes the socket or dies. Without a maker of constraints, requests that carry
// one are refused.
int RunEngineProcess(int fd, const ConstraintFactoryMaker& constraints = nullptr);

// The same conversation for an engine that is there without the door, and outlives the connection:
// that of a node without a door.
class EngineConnection {
 public:
  // Owns the connected socket, which waits for reads.
  explicit EngineConnection(int fd);
  ~EngineConnection();
  EngineConnection(const EngineConnection&) = delete;
  EngineConnection& operator=(const EngineConnection&) = delete;

  // One thread: does what the door asks for until the connection ends. kInvalidArgument where the
  // door says what has to be changed here, or sent what cannot be.
  Status Serve();
  // The door said that the server stops, of its own will.
  bool stopped() const;

  // Any thread. From Ready on the door's requests go to the engine, which must outlive this.
  void Ready(Engine& engine);
  // The engine is away; the door ends the connection.
  void Failed(const Status& why);
  void Events(const std::vector<TokenEvent>& events);
  // A sign of life, ten a second; without an engine of default statistics.
  void Beat(const EngineStats& stats);
  void Shutdown();

 private:
  const std::unique_ptr<class EngineSide> side_;
};

struct EngineProcess {
  std::string program;
  double restart_timeout =
      0;                 // seconds without an engine that stays, after which it ends; 0: never
  int32_t replica = -1;  // its number among several; below 0: there is one
  std::string visible_devices = {};  // its CUDA_VISIBLE_DEVICES; empty: this process's
};

// The door's side: starts `program`, waits until the engine is ready or says why it cannot be, and
// from then on keeps it running. When the process dies, every open request gets a final kLost
// event, Submit() answers kUnavailable, and a new process is started. After `restart_timeout` that
// ends, and end() says why.
Result<std::unique_ptr<Engine>> StartEngineProcess(const EngineConfig& config,
                                                   const EngineProcess& process,
                                                   EventSink sink,
                                                   const LoadProgress& progress);

}  // namespace baltoro
