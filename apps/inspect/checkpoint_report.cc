#include "inspect/checkpoint_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "inspect/family_tensors.h"
#include "weights/checkpoint.h"
#include "weights/checkpoint_listing.h"
#include "weights/quant/stored_form.h"
#include "weights/quantization_claim.h"

namespace baltoro {
namespace {

class Inspector {
 public:
  Inspector(const std::string& dir, const OnListedFile& on_file) : dir_(dir), on_file_(on_file) {
    report_.dir = dir;
  }

  CheckpointReport Run() {
    listing_ = ListCheckpoint(dir_, on_file_);
    for (const FileProblem& each : listing_.problems) Problem(each.where, each.what);
    for (const ListedTensor& tensor : listing_.tensors) by_name_[tensor.canonical] = &tensor;
    CountKinds();
    ReadClaims();
    CheckProjections();
    CheckFamily();
    CheckExtras();
    CheckDescribed();
    return std::move(report_);
  }

 private:
  struct Module {
    std::string stored;  // as the files name it
    std::optional<StoredForm> form;
  };

  void Problem(const std::string& where, const std::string& what) {
    auto& place = problem_places_[KindOf(where) + '\n' + what];
    if (place == 0) {
      report_.problems.push_back({where, what, 1});
      place = report_.problems.size();
    } else {
      ++report_.problems[place - 1].count;
    }
  }

  const ListedTensor* Find(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }

  ParameterLookup LookupOf(const std::string& module) const {
    return [this, module](std::string_view parameter) -> std::optional<SourceTensor> {
      const ListedTensor* found = Find(fmt::format("{}.{}", module, parameter));
      if (found == nullptr) return std::nullopt;
      return SourceTensor{
          .name = found->name, .dtype = found->dtype, .shape = found->shape, .handle = 0};
    };
  }

  void CountKinds() {
    std::map<std::tuple<TensorRole, std::string, DType, std::vector<int64_t>>, TensorKind> kinds;
    for (const ListedTensor& tensor : listing_.tensors) {
      const TensorRole role = RoleOf(tensor.canonical);
      std::string kind = KindOf(tensor.name);
      TensorKind& sum = kinds[{role, kind, tensor.dtype, tensor.shape}];
      sum.name = std::move(kind);
      sum.role = role;
      sum.dtype = NameOf(tensor.dtype);
      sum.shape = tensor.shape;
      ++sum.count;
      sum.bytes += tensor.bytes;
      RoleTotal& total = report_.roles[role];
      ++total.tensors;
      total.bytes += tensor.bytes;
      ++report_.tensors;
      report_.tensor_bytes += tensor.bytes;
    }
    for (auto& [key, kind] : kinds) report_.kinds.push_back(std::move(kind));
    for (const ListedFile& file : listing_.files) report_.file_bytes += file.bytes;
    report_.files = std::ssize(listing_.files);
    if (listing_.stated_bytes >= 0 && listing_.problems.empty() &&
        listing_.stated_bytes != report_.tensor_bytes) {
      Problem("index", fmt::format("metadata says {} bytes of tensors, the files have {}",
                                   listing_.stated_bytes, report_.tensor_bytes));
    }
  }

  void ReadClaims() {
    const auto json = ReadJsonFile(dir_ + "/config.json");
    if (!json.ok()) Problem("config.json", json.status().message());
    if (json.ok()) {
      auto config = K2Config::Parse(json.value());
      if (config.ok()) {
        config_ = std::move(config).value();
        report_.model_type = config_->model_type;
        report_.layers = config_->layers;
      } else {
        Problem("config.json", config.status().message());
      }
    }
    auto description = ReadQuantDescription(dir_);
    if (!description.ok()) {
      Problem(std::string(kQuantDescriptionFile), description.status().message());
      return;  // what is claimed is not known
    }
    description_ = std::move(description).value();
    auto claim = QuantizationClaim::Read(json.ok() ? json.value() : Json(), description_);
    if (!claim.ok()) {
      Problem("config.json", claim.status().message());
    } else {
      claim_ = std::move(claim).value();
    }
  }

  // The form of every projection that is there.
  void CheckProjections() {
    for (const ListedTensor& tensor : listing_.tensors) {
      const std::string module(ModuleOf(tensor.canonical));
      if (!IsProjection(module) || modules_.count(module) > 0) continue;
      Module& entry = modules_[module];
      entry.stored = ModuleOf(tensor.name);
      const ParameterLookup lookup = LookupOf(module);
      const auto stored = FindStoredForm(module, lookup);
      if (!stored.ok()) {
        Problem(entry.stored, stored.status().code() == Code::kNotFound
                                  ? fmt::format("has {}, but no weight",
                                                tensor.name.substr(entry.stored.size() + 1))
                                  : stored.status().message());
        continue;
      }
      entry.form = stored.value();
      const WeightForm form = stored.value().form;
      ++report_.roles[RoleOf(module)].forms[form];
      for (const std::string& what : TensorProblems(stored.value(), lookup)) {
        Problem(entry.stored, fmt::format("{} ({})", what, WeightFormName(form)));
      }
      CheckClaim(entry, module, form);
    }
  }

  void CheckClaim(const Module& entry, const std::string& module, WeightForm form) {
    if (!claim_) return;
    const auto said = claim_->FormOf(entry.stored, module);
    if (said && *said != form) {
      Problem(entry.stored, fmt::format("is {}, {} says {}", WeightFormName(form), claim_->source(),
                                        WeightFormName(*said)));
    }
  }

  // Everything that the configuration needs is there, in its shape.
  void CheckFamily() {
    if (!config_) return;
    const FamilyTensors family = TensorsOfFamily(*config_);
    for (const FamilyMatrix& wanted : family.projections) {
      needed_.insert(wanted.module);
      const auto found = modules_.find(wanted.module);
      if (found == modules_.end()) {
        Problem(wanted.module + ".weight", "is missing");
        continue;
      }
      if (!found->second.form) continue;  // told before
      const MatrixShape& shape = found->second.form->shape;
      if (shape.outputs != wanted.outputs || shape.inputs != wanted.inputs) {
        Problem(found->second.stored,
                fmt::format("is [{}, {}], config.json makes it [{}, {}]", shape.outputs,
                            shape.inputs, wanted.outputs, wanted.inputs));
      }
    }
    for (const FamilyMatrix& wanted : family.plain) {
      CheckPlain(wanted.module + ".weight", {wanted.outputs, wanted.inputs}, false);
    }
    for (const FamilyVector& wanted : family.vectors) {
      CheckPlain(wanted.name, {wanted.size}, wanted.optional);
    }
  }

  void CheckPlain(const std::string& name, const std::vector<int64_t>& shape, bool optional) {
    needed_.insert(name);
    const ListedTensor* found = Find(name);
    if (found == nullptr) {
      if (!optional) Problem(name, "is missing");
      return;
    }
    if (found->shape != shape) {
      Problem(found->name, fmt::format("is [{}], config.json makes it [{}]",
                                       fmt::join(found->shape, ", "), fmt::join(shape, ", ")));
    }
    if (found->dtype != DType::kBf16 && found->dtype != DType::kF32 &&
        found->dtype != DType::kF16) {
      Problem(found->name, fmt::format("is {}, not a float", NameOf(found->dtype)));
    }
  }

  // Nothing is there that no part of the model would read.
  void CheckExtras() {
    if (!config_) return;
    for (const ListedTensor& tensor : listing_.tensors) {
      if (IsNeverUsed(tensor.canonical, config_->layers)) continue;
      if (RoleOf(tensor.canonical) == TensorRole::kVision) {
        if (!config_->multimodal)
          Problem(tensor.name, "is of a vision part that config.json lacks");
        continue;
      }
      const std::string module(ModuleOf(tensor.canonical));
      if (needed_.count(tensor.canonical) == 0 &&
          (needed_.count(module) == 0 || !IsOfForm(module, tensor.canonical))) {
        Problem(tensor.name, "is not a tensor that config.json asks for");
      }
    }
  }

  bool IsOfForm(const std::string& module, std::string_view name) const {
    const auto found = modules_.find(module);
    if (found == modules_.end() || !found->second.form) return true;  // told before
    const StoredForm& stored = *found->second.form;
    const std::vector<FormTensor> tensors = TensorsOfForm(stored.form, stored.shape);
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const FormTensor& each) { return each.parameter == ParameterOf(name); });
  }

  // A description names every tensor, and no others.
  void CheckDescribed() {
    if (description_.forms.empty()) return;
    for (const auto& [name, form] : description_.forms) {
      if (Find(name) == nullptr) {
        Problem(name, fmt::format("is not there, though {} names it", kQuantDescriptionFile));
      }
    }
    for (const ListedTensor& tensor : listing_.tensors) {
      const auto found = description_.forms.find(tensor.canonical);
      if (found == description_.forms.end()) {
        Problem(tensor.name, fmt::format("is not named by {}", kQuantDescriptionFile));
      }
    }
  }

  const std::string& dir_;
  const OnListedFile& on_file_;
  CheckpointReport report_;
  CheckpointListing listing_;
  std::unordered_map<std::string, const ListedTensor*> by_name_;
  std::unordered_map<std::string, Module> modules_;  // projections, by canonical name
  std::unordered_set<std::string> needed_;           // plain tensors and modules of projections
  std::unordered_map<std::string, size_t> problem_places_;
  std::optional<K2Config> config_;
  QuantDescription description_;
  std::optional<QuantizationClaim> claim_;
};

}  // namespace

CheckpointReport InspectCheckpoint(const std::string& dir, const OnListedFile& on_file) {
  return Inspector(dir, on_file).Run();
}

}  // namespace baltoro
