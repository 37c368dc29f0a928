#pragma once

// What a plan needs to know of a model: its shape, and the form of each kind of matrix. Read from
// config.json and the names in the index alone, or built in for the public members of the family.

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/k2_config.h"
#include "tensor/weight_form.h"

namespace baltoro {

struct ModelDescription {
  std::string name;
  std::string owner = {};  // on the hub, of a built-in one
  K2Config config = {};
  WeightForm attention = WeightForm::kBf16;  // all projections but kv_b
  WeightForm kv_b = WeightForm::kBf16;
  WeightForm dense = WeightForm::kBf16;
  WeightForm shared = WeightForm::kBf16;
  WeightForm experts = WeightForm::kBf16;
  WeightForm plain = WeightForm::kBf16;  // how plain numbers are kept: kBf16 or kF32
  int64_t file_bytes = 0;                // that the index states; 0: unknown
};

// The built-in descriptions.
std::vector<ModelDescription> KnownModels();

// A directory with config.json (and the index, if it is there), or a known name, with or without an
// organisation before it, in any case. Errors list what is known.
Result<ModelDescription> DescribeModel(const std::string& model);

// How --quantization calls the form of the weights; empty where none is quantised.
std::string_view MethodOf(const ModelDescription& model);

// --online-quantization fp8: what is kept in fp8 that is stored in bf16.
void QuantiseOnline(ModelDescription& model);

// As above for a directory whose files are given; `index` and `quantisation` (of
// quant_model_description.json) may be null.
Result<ModelDescription> DescribeFiles(const K2Config& config,
                                       const Json& index,
                                       const Json& quantisation);

}  // namespace baltoro
