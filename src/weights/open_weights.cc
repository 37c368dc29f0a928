#include "weights/open_weights.h"

#include <fmt/format.h>

#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "weights/checkpoint_source.h"
#include "weights/dummy_source.h"
#include "weights/online_fp8_source.h"
#include "weights/quant/stored_form.h"
#include "weights/quantization_claim.h"
#include "weights/tensor_names.h"

namespace baltoro {
namespace {

using SharedDescription = std::shared_ptr<const QuantDescription>;

// Once for all that look at it. Empty without a folder.
Result<SharedDescription> ReadDescription(const std::string& dir) {
  if (dir.empty()) return std::make_shared<const QuantDescription>();
  auto description = ReadQuantDescription(dir);
  if (!description.ok()) return description.status();
  return std::make_shared<const QuantDescription>(std::move(description).value());
}

Result<QuantizationClaim> ReadClaim(const std::string& dir, SharedDescription description) {
  if (dir.empty()) return QuantizationClaim();
  Json config;
  if (FileExists(dir + "/config.json")) {
    BT_ASSIGN_OR_RETURN(config, ReadJsonFile(dir + "/config.json"));
  }
  auto claim = QuantizationClaim::Read(config, std::move(description));
  if (!claim.ok()) return InvalidArgument(dir + "/config.json: " + claim.status().message());
  return claim;
}

bool IsGiven(const std::string& quantization) {
  return !quantization.empty() && quantization != "auto";
}

Status CheckName(const std::string& quantization) {
  for (const char* known : {"fp8", "compressed-tensors", "ascend", "none"}) {
    if (quantization == known) return {};
  }
  return InvalidArgument(fmt::format(
      "--quantization is {}; known are fp8, compressed-tensors, ascend and none", quantization));
}

// The method that tensors tell where no other file does.
std::string_view MethodOfTensors(const Checkpoint& checkpoint) {
  for (const CheckpointTensor& each : checkpoint.tensors()) {
    const std::string_view parameter = ParameterOf(each.tensor.name);
    if (parameter == "weight_packed") return "compressed-tensors";
    if (parameter == "weight_scale_inv") return "fp8";
    const bool bytes = parameter == "weight" && each.tensor.dtype == DType::kI8;
    if (bytes || parameter == "deq_scale" || parameter == "scale_bias") return "ascend";
  }
  return "";
}

// A configuration that tells another form than the tensors have is worth a line, no more: it often
// leaves out an exception.
void CompareWithTensors(const QuantizationClaim& claim, const CheckpointSource& source) {
  if (claim.method().empty() || claim.method() == "ascend") return;  // the source compares those
  // Not through Find: what is looked at here is not used by that.
  const std::vector<CheckpointTensor> tensors = source.checkpoint().tensors();
  std::unordered_map<std::string_view, const SourceTensor*> by_name;
  for (const CheckpointTensor& each : tensors) by_name[each.tensor.name] = &each.tensor;
  int64_t count = 0;
  std::string first;
  for (const CheckpointTensor& each : tensors) {
    const std::string module(ModuleOf(each.tensor.name));
    const std::string_view parameter = ParameterOf(each.tensor.name);
    if (!IsProjection(module) || (parameter != "weight" && parameter != "weight_packed")) continue;
    const auto stored =
        FindStoredForm(module, [&](std::string_view wanted) -> std::optional<SourceTensor> {
          const auto found = by_name.find(fmt::format("{}.{}", module, wanted));
          if (found == by_name.end()) return std::nullopt;
          return *found->second;
        });
    if (!stored.ok()) continue;  // told when it is loaded
    const WeightForm form = stored.value().form;
    const std::string stored_module(ModuleOf(each.stored_name));
    const auto said = claim.FormOf(stored_module, module);
    if (!said || *said == form) continue;
    if (count++ == 0) {
      first = fmt::format("{} is {}, not {}", stored_module, WeightFormName(form),
                          WeightFormName(*said));
    }
  }
  if (count == 0) return;
  BT_LOG(Warning, "{}/{}: {} matrices are not stored as it says ({}); their tensors are believed",
         source.description(), claim.source(), count, first);
}

bool IsOnline(const WeightChoice& choice) {
  return choice.online_quantization == "fp8";
}

void LogOnline(const Checkpoint& checkpoint) {
  int64_t count = 0;
  for (const CheckpointTensor& each : checkpoint.tensors()) {
    count += IsQuantisedOnline(each.tensor.name, each.tensor.dtype);
  }
  if (count == 0) {
    BT_LOG(Warning,
           "--online-quantization fp8 changes nothing: no matrix of attention, dense layers and "
           "shared experts is stored in BF16");
  } else {
    BT_LOG(Info,
           "{} BF16 matrices of attention, dense layers and shared experts are quantised to fp8 "
           "as they are loaded",
           count);
  }
}

Result<std::unique_ptr<WeightSource>> OpenFiles(const std::string& dir,
                                                const WeightChoice& choice,
                                                const QuantizationClaim& claim,
                                                SharedDescription description) {
  BT_ASSIGN_OR_RETURN(std::unique_ptr<CheckpointSource> source,
                      CheckpointSource::Open(dir, std::move(description)));
  std::string_view said = claim.method();
  const std::string where = said.empty() ? dir : dir + "/" + claim.source();
  if (said.empty() && IsGiven(choice.quantization)) said = MethodOfTensors(source->checkpoint());
  BT_RETURN_IF_ERROR(CheckQuantization(choice.quantization, said, where));
  if (!choice.quiet) {
    CompareWithTensors(claim, *source);
    if (IsOnline(choice)) LogOnline(source->checkpoint());
  }
  return std::unique_ptr<WeightSource>(std::move(source));
}

// What the public checkpoints of a method quantise, as the recipes of model-family §3 have it.
WeightForm UsualForm(std::string_view method, std::string_view module) {
  const TensorRole role = RoleOf(module);
  if (method == "fp8") return WeightForm::kFp8Block;
  if (method == "compressed-tensors") {
    return role == TensorRole::kExperts ? WeightForm::kInt4Group : WeightForm::kBf16;
  }
  if (method != "ascend" || role == TensorRole::kKvB) return WeightForm::kBf16;
  if (role == TensorRole::kAttention) return WeightForm::kInt8Static;
  return role == TensorRole::kExperts ? WeightForm::kInt4 : WeightForm::kInt8;
}

Result<std::unique_ptr<WeightSource>> MakeDummy(const std::string& dir,
                                                const WeightChoice& choice,
                                                QuantizationClaim claim) {
  FormOfModule forms;
  if (!claim.method().empty()) {
    BT_RETURN_IF_ERROR(
        CheckQuantization(choice.quantization, claim.method(), dir + "/" + claim.source()));
    // The list of exceptions may name modules with or without a release's prefix.
    const auto shared = std::make_shared<const QuantizationClaim>(std::move(claim));
    forms = [shared](std::string_view module) {
      const std::string name(module);
      for (const std::string& stored : {name, "language_model." + name}) {
        const auto said = shared->FormOf(stored, module);
        if (!said || *said == WeightForm::kBf16) return WeightForm::kBf16;
      }
      return *shared->FormOf(name, module);
    };
  } else if (IsGiven(choice.quantization)) {
    forms = [method = choice.quantization](std::string_view module) {
      return UsualForm(method, module);
    };
  }
  return std::unique_ptr<WeightSource>(
      std::make_unique<DummySource>(choice.seed, std::move(forms)));
}

}  // namespace

Status CheckQuantization(const std::string& asked,
                         std::string_view said,
                         const std::string& where) {
  if (!IsGiven(asked)) return {};
  BT_RETURN_IF_ERROR(CheckName(asked));
  if (asked == (said.empty() ? "none" : said)) return {};
  if (said.empty()) {
    return InvalidArgument(
        fmt::format("--quantization is {}, but the weights of {} are not quantised; `baltoro "
                    "quantize` writes a quantised checkpoint",
                    asked, where));
  }
  return InvalidArgument(fmt::format("--quantization is {}, but {} says {}", asked, where, said));
}

Result<std::unique_ptr<WeightSource>> OpenWeights(const std::string& dir,
                                                  const WeightChoice& choice) {
  if (IsGiven(choice.quantization)) BT_RETURN_IF_ERROR(CheckName(choice.quantization));
  const std::string& online = choice.online_quantization;
  if (!online.empty() && online != "none" && !IsOnline(choice)) {
    return InvalidArgument(
        fmt::format("--online-quantization is {}; known are fp8 and none", online));
  }
  BT_ASSIGN_OR_RETURN(const SharedDescription description, ReadDescription(dir));
  BT_ASSIGN_OR_RETURN(QuantizationClaim claim, ReadClaim(dir, description));
  auto source = choice.format == LoadFormat::kDummy ? MakeDummy(dir, choice, std::move(claim))
                                                    : OpenFiles(dir, choice, claim, description);
  if (!source.ok() || !IsOnline(choice)) return source;
  return std::unique_ptr<WeightSource>(
      std::make_unique<OnlineFp8Source>(std::move(source).value()));
}

}  // namespace baltoro
