#pragma once

// Engines in processes of their own, for tests: stand-ins, which BT_ENGINE_CHILD runs.

#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/file.h"
#include "engine/remote_engine.h"
#include "engine/stand_in.h"
#include "engine/testing/event_log.h"

namespace baltoro::test {

inline double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

template <typename Condition>
bool Eventually(const Condition& condition, double seconds) {
  const auto start = std::chrono::steady_clock::now();
  while (!condition()) {
    if (SecondsSince(start) > seconds) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

inline bool IsAlive(pid_t pid) {
  // A zombie that init has not reaped yet is not alive.
  const Result<std::string> stat = ReadFile("/proc/" + std::to_string(pid) + "/stat");
  if (!stat.ok()) return false;
  const size_t paren = stat.value().rfind(") ");
  return paren != std::string::npos && stat.value()[paren + 2] != 'Z';
}

inline EngineConfig StandIn(double step_ms) {
  EngineConfig config;
  config.load_format = "stand-in";
  config.stand_in_step_ms = step_ms;
  config.max_num_seqs = 8;
  return config;
}

inline RemoteEngineOptions Options() {
  RemoteEngineOptions options;
  options.command = {BT_ENGINE_CHILD, "engine", "--fd", "3"};
  return options;
}

inline std::unique_ptr<Engine> Start(const EngineConfig& config, EventLog& log) {
  auto engine = RemoteEngine::Start(config, Options(), log.sink(), nullptr);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return engine.ok() ? std::move(engine).value() : nullptr;
}

inline pid_t PidOf(const Engine& engine) {
  return dynamic_cast<const RemoteEngine&>(engine).pid();
}

inline Request MakeRequest(uint64_t id, int max_tokens) {
  Request request;
  request.id = RequestId{id};
  request.prompt = {static_cast<TokenId>(id % 2000), 2, 3};
  request.stop.max_tokens = max_tokens;
  return request;
}

inline std::vector<TokenId> Expected(const Request& request) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < request.stop.max_tokens; ++i) {
    tokens.push_back(StandInToken(request.prompt, tokens));
  }
  return tokens;
}

}  // namespace baltoro::test
