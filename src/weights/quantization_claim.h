#pragma once

// What the files beside the weights say about the form of each projection: quantization_config of
// config.json, or quant_model_description.json.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "weights/quant_description.h"

namespace baltoro {

class QuantizationClaim {
 public:
  QuantizationClaim();
  ~QuantizationClaim();
  QuantizationClaim(QuantizationClaim&&) noexcept;
  QuantizationClaim& operator=(QuantizationClaim&&) noexcept;

  // `config` is config.json; null: not there. The description is empty where there is none. Errors
  // say what is not known or contradicts itself.
  static Result<QuantizationClaim> Read(const Json& config, QuantDescription description);
  static Result<QuantizationClaim> Read(const Json& config,
                                        std::shared_ptr<const QuantDescription> description);

  // Of a module by its names in the file and without prefix; nothing where the files do not say.
  std::optional<WeightForm> FormOf(const std::string& stored_module,
                                   std::string_view canonical_module) const;
  const char* source() const;  // "config.json" or the description's name
  // As --quantization calls it: "fp8", "compressed-tensors", "ascend"; empty: nothing is claimed.
  std::string_view method() const;

 private:
  struct Pattern;
  Status ReadFp8(const Json& config);
  Status ReadPacked(const Json& config);
  Status AddIgnored(const Json& list);

  WeightForm claimed_ = WeightForm::kBf16;  // of what is not ignored
  std::vector<Pattern> ignored_;
  std::shared_ptr<const QuantDescription> description_ = std::make_shared<QuantDescription>();
};

}  // namespace baltoro
