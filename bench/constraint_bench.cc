// What constraints cost a decode step: tokens a second of a whole engine, with requests that are
// free, held to a regular expression that lets nearly everything through, and held to a JSON
// schema.
//
//   constraint_bench MODEL_DIR [--load-format=FORMAT] [--threads=N]
//
// With --load-format=stand-in there is no model, so that the time of a step is that of its masks
// (and of the loop around them): with a large vocabulary, what a step of a fast model must hide.

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/engine.h"
#include "grammar/constraint_factory.h"
#include "grammar/json_schema.h"
#include "grammar/output_constraint.h"
#include "grammar/regex.h"
#include "text/tokenizer.h"

namespace baltoro::bench {
namespace {

constexpr int32_t kOutput = 128;  // tokens of each request
constexpr int kRounds = 3;
constexpr const char* kSchema = R"({"type": "array", "minItems": 1000, "items": {
  "type": "object", "required": ["name", "count", "tags"], "additionalProperties": false,
  "properties": {"name": {"type": "string"}, "count": {"type": "integer"},
                 "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}}}}})";

class Waiter {
 public:
  EventSink sink() {
    return [this](const std::vector<TokenEvent>& events) {
      const std::lock_guard lock(mutex_);
      for (const TokenEvent& event : events) {
        tokens_ += static_cast<int64_t>(event.tokens.size());
        if (event.finish == FinishReason::kNone) continue;
        ++ended_;
        if (event.finish == FinishReason::kError) fmt::print(stderr, "error: {}\n", event.error);
      }
      changed_.notify_all();
    };
  }
  // Waits for `count` more ends; the tokens that came since the last call.
  int64_t Wait(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ >= count; });
    ended_ = 0;
    return std::exchange(tokens_, 0);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int ended_ = 0;
  int64_t tokens_ = 0;
};

Result<std::string> Constraint(bool schema) {
  GrammarBuilder builder;
  const GrammarBuilder::Rule start = builder.DeclareRule("start");
  if (schema) {
    BT_ASSIGN_OR_RETURN(const Json json, ParseJson(kSchema));
    BT_ASSIGN_OR_RETURN(const auto value, AddJsonSchema(builder, json, {}, nullptr));
    builder.DefineRule(start, value);
  } else {
    BT_ASSIGN_OR_RETURN(const auto value, AddRegex(builder, "^[^\\x00-\\x08]*$"));
    builder.DefineRule(start, value);
  }
  OutputConstraint constraint;
  BT_ASSIGN_OR_RETURN(constraint.grammar, builder.Build(start));
  return constraint.Serialise();
}

class Bench {
 public:
  Bench(Engine& engine, Waiter& waiter, const Tokenizer& tokenizer)
      : engine_(engine), waiter_(waiter) {
    prompt_ = tokenizer.Encode("List everything in the shed as JSON, one entry for each thing.");
  }

  // Tokens a second of `batch` requests at a time.
  double Run(int batch, const std::string& constraint) {
    const Seconds start = clock_.Now();
    for (int i = 0; i < batch; ++i) {
      Request request;
      request.id = RequestId{next_++};
      request.prompt = prompt_;
      request.sampling.seed = static_cast<uint64_t>(i);
      request.stop.max_tokens = request.stop.min_tokens = kOutput;
      request.constraint = constraint;
      const Status status = engine_.Submit(std::move(request));
      if (!status.ok()) {
        fmt::print(stderr, "refused: {}\n", status.message());
        std::exit(1);
      }
    }
    const int64_t tokens = waiter_.Wait(batch);
    return static_cast<double>(tokens) / (clock_.Now() - start);
  }

 private:
  Engine& engine_;
  Waiter& waiter_;
  const MonotonicClock clock_;
  std::vector<TokenId> prompt_;
  uint64_t next_ = 1;
};

Status Main(const EngineConfig& config) {
  Waiter waiter;
  BT_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(config.model_dir));
  BT_ASSIGN_OR_RETURN(const std::string any, Constraint(false));
  BT_ASSIGN_OR_RETURN(const std::string schema, Constraint(true));
  BT_ASSIGN_OR_RETURN(const auto engine, StartEngine(config, waiter.sink(), nullptr,
                                                     [](const std::string& dir, int32_t vocab) {
                                                       return MakeConstraintFactory(dir, vocab);
                                                     }));
  Bench bench(*engine, waiter, *tokenizer);
  for (const std::string& text : {std::string(), any, schema}) (void)bench.Run(1, text);  // warms

  fmt::print("vocabulary {}; tokens a second, best of {}\n", engine->info().vocab_size, kRounds);
  fmt::print("{:>5} {:>10} {:>10} {:>6} {:>10} {:>6}\n", "batch", "free", "text", "", "schema", "");
  for (const int batch : {1, 8, 32}) {
    double best[3] = {};
    for (int round = 0; round < kRounds; ++round) {  // in turn, so that all see the same machine
      int at = 0;
      for (const std::string& text : {std::string(), any, schema}) {
        best[at] = std::max(best[at], bench.Run(batch, text));
        ++at;
      }
    }
    fmt::print("{:>5} {:>10.1f} {:>10.1f} {:>5.0f}% {:>10.1f} {:>5.0f}%\n", batch, best[0], best[1],
               100 * best[1] / best[0], best[2], 100 * best[2] / best[0]);
  }
  return {};
}

}  // namespace
}  // namespace baltoro::bench

int main(int argc, char** argv) {
  baltoro::EngineConfig config;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg.starts_with("--load-format=")) {
      config.load_format = arg.substr(14);
    } else if (arg.starts_with("--threads=")) {
      config.threads = std::atoi(arg.c_str() + 10);
    } else {
      config.model_dir = arg;
    }
  }
  if (config.model_dir.empty()) {
    fmt::print(stderr, "usage: constraint_bench MODEL_DIR [--load-format=FORMAT] [--threads=N]\n");
    return 2;
  }
  baltoro::InitLog("constraint_bench", baltoro::LogLevel::kWarning);
  const baltoro::Status status = baltoro::bench::Main(config);
  if (!status.ok()) fmt::print(stderr, "{}\n", status.message());
  return status.ok() ? 0 : 1;
}
