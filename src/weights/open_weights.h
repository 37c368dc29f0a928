#pragma once

// From a folder and what the command line says about its weights to their source. The tensors
// decide which form each matrix has; what config.json and a description say is compared with them.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "weights/weight_source.h"

namespace baltoro {

enum class LoadFormat : uint8_t { kSafetensors, kDummy };

struct WeightChoice {
  LoadFormat format = LoadFormat::kSafetensors;
  uint64_t seed = 0;  // of dummy weights
  // Of --quantization: "fp8", "compressed-tensors", "ascend", "none"; empty or "auto": as the files
  // say.
  std::string quantization = {};
  // Of --online-quantization: "fp8" quantises what OnlineFp8Source says; empty or "none": nothing.
  std::string online_quantization = {};
  bool quiet = false;  // nothing is logged, as another will open them and tell
};

// The errors name the file, and for a contradiction between the choice and the files say both.
// Dummy weights need no file but have the forms that config.json or a description in `dir` tells,
// and where neither does (or `dir` is empty), those of `quantization`.
Result<std::unique_ptr<WeightSource>> OpenWeights(const std::string& dir,
                                                  const WeightChoice& choice);

// Whether --quantization `asked` is what `where` says of its weights, `said`: a method, or empty
// for none. An empty `asked` and "auto" are anything.
Status CheckQuantization(const std::string& asked, std::string_view said, const std::string& where);

}  // namespace baltoro
