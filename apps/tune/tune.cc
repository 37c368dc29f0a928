#include "tune/tune.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cstdio>
#include <ctime>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/nvidia_driver.h"
#include "engine/tuned_table.h"
#include "plan/model_description.h"
#include "tune/table_file.h"
#include "tune/tuner.h"

namespace baltoro {
namespace {

constexpr size_t kEntriesMax = 32;  // so that a folder takes two tables of one model

std::string Name(const TuneStep& step) {
  return fmt::format("{} {}", step.prefill ? "prefill" : "decode", step.tokens);
}

// The best of the others, where one is faster than what is chosen by itself.
Result<std::vector<Found>> TuneOne(Tuner& tuner, const TuneStep& step, double least) {
  BT_ASSIGN_OR_RETURN(const std::vector<TuneQuestion> questions, tuner.Questions(step));
  std::vector<Found> found;
  int32_t stand = 0;
  for (const TuneQuestion& one : questions) {
    Found best{.question = one.question, .kernel = "", .gain = 0};
    Comparison of_best, nearest;
    std::string nearest_kernel;
    for (const std::string& kernel : one.others) {
      const std::string entry = one.question + " kernel=" + kernel + "\n";
      BT_ASSIGN_OR_RETURN(const Comparison timed, tuner.Time(step, entry, false));
      if (nearest_kernel.empty() || timed.gain() > nearest.gain()) {
        nearest = timed;
        nearest_kernel = kernel;
      }
      if (!timed.faster(least) || timed.gain() <= best.gain) continue;
      best.kernel = kernel;
      best.gain = timed.gain();
      of_best = timed;
    }
    if (best.kernel.empty()) {
      ++stand;
      const std::string why =
          one.others.empty()
              ? "no other kernel takes it"
              : fmt::format("{} of {} others is the nearest: {:+.2f}% of the step", nearest_kernel,
                            one.others.size(), -100 * nearest.gain() / nearest.built_in);
      fmt::print("  {}: {} is best ({})\n", one.question, one.built_in, why);
    } else {
      fmt::print(
          "  {}: {} is faster than {}: step {:.1f} us, not {:.1f} ({:.1f}%, spread {:.1f})\n",
          one.question, best.kernel, one.built_in, of_best.other * 1e6, of_best.built_in * 1e6,
          100 * of_best.gain() / of_best.built_in, of_best.spread * 1e6);
      found.push_back(std::move(best));
    }
    std::fflush(stdout);
  }
  if (found.empty()) fmt::print("  the built-in choice is the best for all {} questions\n", stand);
  return found;
}

std::string Joined(const std::vector<std::string>& entries) {
  std::string text;
  for (const std::string& entry : entries) text += entry + "\n";
  return text;
}

Result<std::vector<std::string>> ConfirmByTime(Tuner& tuner,
                                               const std::vector<TuneStep>& steps,
                                               std::vector<std::vector<Found>> found,
                                               double least) {
  std::vector<int64_t> sizes;
  for (const TuneStep& step : steps) sizes.push_back(step.tokens);
  const auto stays = [&](size_t i, bool own,
                         const std::vector<std::string>& entries) -> Result<bool> {
    if (i == 0) fmt::print("\nall {} entries together:\n", entries.size());
    BT_ASSIGN_OR_RETURN(const Comparison timed, tuner.Time(steps[i], Joined(entries), true));
    const bool stay = own ? timed.faster(least) : !timed.slower(least);
    fmt::print("  {}: step {:.1f} us, built-in {:.1f} us, spread {:.1f} us{}\n", Name(steps[i]),
               timed.other * 1e6, timed.built_in * 1e6, timed.spread * 1e6,
               stay  ? ""
               : own ? "; not faster beyond the spread: its entries are left out"
                     : "; slower by entries of other steps: none is kept");
    std::fflush(stdout);
    return stay;
  };
  return Confirm(std::move(found), sizes, kEntriesMax, stays);
}

Result<std::vector<std::string>> Measure(Tuner& tuner, const TuneCommand& command) {
  std::vector<TuneStep> steps;
  for (const int64_t batch : command.batches) steps.push_back({.tokens = batch});
  for (const int64_t tokens : command.prefills) {
    steps.push_back({.prefill = true, .tokens = tokens});
  }
  const double least = command.least_gain / 100;
  std::vector<std::vector<Found>> found;
  for (const TuneStep& step : steps) {
    fmt::print("{}\n", Name(step));
    BT_ASSIGN_OR_RETURN(std::vector<Found> one, TuneOne(tuner, step, least));
    found.push_back(std::move(one));
  }
  return ConfirmByTime(tuner, steps, std::move(found), least);
}

Status Tune(const TuneCommand& command) {
  BT_ASSIGN_OR_RETURN(const ModelDescription description, DescribeModel(command.model));
  BT_ASSIGN_OR_RETURN(const std::unique_ptr<Tuner> tuner, Tuner::Create(command));
  TunedTable table{.made_for = TunedForOf(description, command.tensor, tuner->rig().machine()),
                   .model = command.model,
                   .driver = "CUDA " + CudaVersionText(DriverCudaVersion()),
                   .date = fmt::format("{:%F}", fmt::gmtime(std::time(nullptr))),
                   .entries = {}};
  BT_ASSIGN_OR_RETURN(const TableFile file,
                      TableFile::Try(command.folder, command.file, TunedFileName(table)));
  fmt::print("{}, one of {} tensor ranks, {} layers, on {}\n", command.model, command.tensor,
             tuner->rig().config().layers, tuner->rig().machine());
  BT_ASSIGN_OR_RETURN(table.entries, Measure(*tuner, command));
  BT_RETURN_IF_ERROR(file.Write(TunedText(table)));
  fmt::print("\n");
  for (const std::string& entry : table.entries) fmt::print("{}\n", entry);
  if (table.entries.empty()) {
    fmt::print("The built-in choices are the best in all that was measured; {} has no entries.\n",
               file.path());
  } else {
    fmt::print(
        "{}: {} choices differ from the built-in ones; serve takes it by --tuned-config, or "
        "by VLLM_TUNED_CONFIG_FOLDER.\n",
        file.path(), table.entries.size());
  }
  return {};
}

}  // namespace

int RunTune(const TuneCommand& command) {
  std::fputs(command.notice.c_str(), stderr);
  const Status status = Tune(command);
  if (status.ok()) return 0;
  fmt::print(stderr, "baltoro tune: error: {}\n", status.message());
  return status.code() == Code::kInvalidArgument ? 2 : 1;
}

}  // namespace baltoro
