#include "tune/tuner.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "engine/backend_choice.h"
#include "engine/nvidia_card.h"

namespace baltoro {
namespace {

BenchStepCommand RigOf(const TuneCommand& command) {
  BenchStepCommand rig;
  rig.model = command.model;
  rig.device = "cuda";
  rig.tensor = command.tensor;
  rig.layers = command.layers;
  rig.batches = command.batches;
  rig.contexts = {command.context};
  rig.prefills = command.prefills;
  rig.kv_cache_dtype = command.kv_cache_dtype;
  rig.repeats = command.repeats;
  return rig;
}

// No --device would measure without a GPU, so the advice is another than that of ChooseBackend.
Status CheckGpuIsHere() {
  const Status status = FindGpu().status();
  if (status.ok()) return {};
  const CardFacts card = LookForCard("/", std::getenv("CUDA_VISIBLE_DEVICES"));
  std::string why = status.message();
  if (card.unwanted) {
    why = "CUDA_VISIBLE_DEVICES names none; unset it or name one";
  } else if (card.device_file.empty() && card.pci.empty()) {
    why = "this machine has none; run tune on one that will serve the model";
  }
  return Status(status.code(), "it measures kernels of a GPU: " + why);
}

}  // namespace

Result<std::unique_ptr<Tuner>> Tuner::Create(const TuneCommand& command) {
  ChooseKernelLoading(1);
  BT_RETURN_IF_ERROR(CheckGpuIsHere());
  BT_ASSIGN_OR_RETURN(const CudaModule* const module, FindCudaModule());
  // Entries that an engineer has put in would be measured against.
  BT_RETURN_IF_ERROR(module->set_kernel_table({}));
  std::unique_ptr<Tuner> tuner(new Tuner(command, module));
  BT_ASSIGN_OR_RETURN(tuner->rig_, StepRig::Create(RigOf(command), {}));
  return tuner;
}

Result<StepTiming> Tuner::Step(const TuneStep& step) {
  return step.prefill ? rig_->Prefill(step.tokens) : rig_->Decode(step.tokens, command_.context);
}

Result<std::vector<TuneQuestion>> Tuner::Questions(const TuneStep& step) {
  std::vector<TuneQuestion> questions;
  BT_RETURN_IF_ERROR(module_->set_kernel_table({}));
  rig_->ForgetRecorded();
  BT_RETURN_IF_ERROR(
      module_->listen_to_choices([&](const std::string& question, const std::string& built_in,
                                     const std::vector<std::string>& others) {
        if (std::ranges::find(questions, question, &TuneQuestion::question) != questions.end()) {
          return;
        }
        questions.push_back({.question = question, .built_in = built_in, .others = others});
      }));
  const Status status = Step(step).status();
  BT_RETURN_IF_ERROR(module_->listen_to_choices(nullptr));
  BT_RETURN_IF_ERROR(status);
  return questions;
}

Result<double> Tuner::Round(const TuneStep& step, const std::string& entries) {
  BT_RETURN_IF_ERROR(
      module_->set_kernel_table({{.text = entries, .before_number = "tune: entry "}}));
  rig_->ForgetRecorded();
  BT_ASSIGN_OR_RETURN(const StepTiming timing, Step(step));
  return timing.median;
}

Result<Comparison> Tuner::Time(const TuneStep& step, const std::string& entries, bool all_rounds) {
  Rounds rounds;
  for (int32_t round = 0; round < command_.rounds; ++round) {
    BT_ASSIGN_OR_RETURN(const double built_in, Round(step, ""));
    BT_ASSIGN_OR_RETURN(const double other, Round(step, entries));
    rounds.built_in.push_back(built_in);
    rounds.other.push_back(other);
    if (!all_rounds && other >= built_in) break;
  }
  return Compare(rounds);
}

}  // namespace baltoro
