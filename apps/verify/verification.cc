#include "verify/verification.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <thread>

#include "base/clock.h"

namespace baltoro {
namespace {

class Verification {
 public:
  Verification(const VerifyOptions& options,
               const std::vector<VerifyPrompt>& prompts,
               const std::atomic<bool>& stop,
               const VerifyProgress& progress)
      : options_(options),
        prompts_(prompts),
        stop_(stop),
        progress_(progress),
        compared_(prompts.size()) {
    ours_.name = "ours";
    ours_.target = options.ours;
    theirs_.name = "theirs";
    theirs_.target = options.theirs;
  }

  Result<Verified> Run() {
    const MonotonicClock clock;
    const Seconds begun = clock.Now();
    BT_RETURN_IF_ERROR(Find(ours_));
    BT_RETURN_IF_ERROR(Find(theirs_));
    BT_RETURN_IF_ERROR(CompareAll());
    for (const ServerState* server : {&ours_, &theirs_}) {
      if (server->answered || stop_) continue;
      return Status(Code::kUnavailable,
                    Who(*server) + "no request was answered: " + server->can.logprobs_why);
    }
    Verified out = Gathered();
    out.seconds = clock.Now() - begun;
    return out;
  }

 private:
  // What stays of a prompt when it has been compared.
  struct Compared {
    PromptComparison comparison;
    std::optional<StreamTimes> ours = {}, theirs = {};
  };

  static std::string Who(const ServerState& server) {
    return fmt::format("{} ({}): ", server.name == "ours" ? "--url" : "--against",
                       server.target.url);
  }

  Status Find(ServerState& server) {
    BT_ASSIGN_OR_RETURN(Asker asker, Asker::Create(&server, options_, &stop_));
    Result<std::string> model = asker.FindModel(server.target.model);
    if (!model.ok()) return Status(model.status().code(), Who(server) + model.status().message());
    server.model = model.value();
    server.answered = false;  // to the list of models, which says nothing about answers
    server.can = asker.Probe();
    return {};
  }

  // From as many threads as are asked for.
  Status CompareAll() {
    std::atomic<size_t> next = 0;
    size_t done = 0;
    std::mutex mutex;
    Status problem;
    std::vector<std::jthread> threads;
    const size_t count = std::min(prompts_.size(), static_cast<size_t>(options_.concurrency));
    for (size_t t = 0; t < count; ++t) {
      threads.emplace_back([&] {
        Result<Asker> ours = Asker::Create(&ours_, options_, &stop_);
        Result<Asker> theirs = Asker::Create(&theirs_, options_, &stop_);
        if (!ours.ok() || !theirs.ok()) {
          const std::lock_guard lock(mutex);
          problem = ours.ok() ? theirs.status() : ours.status();
          return;
        }
        for (size_t i = next++; i < prompts_.size(); i = next++) {
          std::optional<Compared> one = CompareOne(prompts_[i], ours.value(), theirs.value());
          if (stop_) return;  // what was under way is not whole
          const std::lock_guard lock(mutex);
          compared_[i] = std::move(one);
          progress_(++done, prompts_.size());
        }
      });
    }
    threads.clear();
    return problem;
  }

  Compared CompareOne(const VerifyPrompt& prompt, Asker& ours, Asker& theirs) {
    Heard ours_heard, theirs_heard;
    for (const auto& [asker, heard] :
         {std::pair(&ours, &ours_heard), std::pair(&theirs, &theirs_heard)}) {
      asker->AskStreamed(prompt, *heard);
      asker->AskWhole(prompt, *heard);
      asker->AskTokens(prompt, *heard);
    }
    const GivenText given = AskGiven(ours, theirs, ours_heard, theirs_heard);
    Compared out{.comparison = Compare(prompt, ours_heard, theirs_heard, given,
                                       {.near_tie = options_.near_tie})};
    if (ours_heard.streamed.success && theirs_heard.streamed.success) {
      out.ours = TimesOf(ours_heard.streamed);
      out.theirs = TimesOf(theirs_heard.streamed);
    }
    return out;
  }

  GivenText AskGiven(Asker& ours, Asker& theirs, Heard& ours_heard, Heard& theirs_heard) {
    // What one cannot do the other need not.
    ours_heard.given_error = ours_.can.echo_why;
    theirs_heard.given_error = theirs_.can.echo_why;
    if (!ours_.can.echo || !theirs_.can.echo) return {};
    Result<GivenText> given = ChooseGiven(ours_heard, theirs_heard);
    if (!given.ok()) {
      ours_heard.given_error = given.status().message();
      return {};
    }
    ours.AskGiven(given.value(), ours_heard);
    theirs.AskGiven(given.value(), theirs_heard);
    return std::move(given).value();
  }

  Verified Gathered() {
    Verified out{.ours_url = ours_.target.url,
                 .theirs_url = theirs_.target.url,
                 .ours_model = ours_.model,
                 .theirs_model = theirs_.model,
                 .ours_can = ours_.can,
                 .theirs_can = theirs_.can,
                 .asked = prompts_.size(),
                 .near_tie = options_.near_tie,
                 .tolerance = options_.tolerance,
                 .interrupted = stop_};
    std::vector<StreamTimes> ours_times, theirs_times;
    for (std::optional<Compared>& one : compared_) {
      if (!one) continue;
      out.prompts.push_back(std::move(one->comparison));
      if (one->ours) ours_times.push_back(*one->ours);
      if (one->theirs) theirs_times.push_back(*one->theirs);
    }
    out.ours_times = Summary(ours_times);
    out.theirs_times = Summary(theirs_times);
    return out;
  }

  const VerifyOptions& options_;
  const std::vector<VerifyPrompt>& prompts_;
  const std::atomic<bool>& stop_;
  const VerifyProgress& progress_;
  ServerState ours_, theirs_;
  std::vector<std::optional<Compared>> compared_;
};

}  // namespace

Result<Verified> RunVerification(const VerifyOptions& options,
                                 const std::vector<VerifyPrompt>& prompts,
                                 const std::atomic<bool>& stop,
                                 const VerifyProgress& progress) {
  return Verification(options, prompts, stop, progress).Run();
}

}  // namespace baltoro
