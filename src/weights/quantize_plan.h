#pragma once

// Which tensor of a bf16 checkpoint becomes what in another form, before any data is read, and what
// the files beside the weights say then (model-family §3.2 to 3.4).

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "weights/checkpoint.h"
#include "weights/checkpoint_writer.h"
#include "weights/quant/form_tensors.h"
#include "weights/tensor_names.h"

namespace baltoro {

enum class QuantFormat { kFp8, kInt4, kW4A8 };

Result<QuantFormat> ParseQuantFormat(std::string_view name);  // "fp8", "int4", "w4a8"
// "attention,dense,shared,experts"; attention holds kv_b.
Result<std::set<TensorRole>> ParseQuantParts(std::string_view list);
// What the public checkpoints of the format quantise.
std::set<TensorRole> UsualParts(QuantFormat format);

struct QuantizeStep {
  CheckpointTensor source;
  WeightForm form = WeightForm::kBf16;  // kBf16: the bytes are copied, whatever their type
  MatrixShape shape;                    // where the form is another
  std::vector<size_t> outputs;  // places in QuantizePlan::tensors, as TensorsOfForm has them
};

struct QuantizePlan {
  std::vector<QuantizeStep> steps;
  std::vector<OutputTensor> tensors;
};

// Refuses sources that are not bf16 where they are to be quantised, and shapes that a format cannot
// hold; the message names the tensor.
Result<QuantizePlan> PlanQuantize(const std::vector<CheckpointTensor>& source,
                                  QuantFormat format,
                                  const std::set<TensorRole>& parts);

// config.json of the result: its quantization_config says what was done (in text_config, where
// there is one), or is gone, for kW4A8.
Result<Json> QuantizedConfig(Json config, QuantFormat format, const QuantizePlan& plan);

// Text of quant_model_description.json of the result of kW4A8.
std::string QuantDescriptionOf(const QuantizePlan& plan);

}  // namespace baltoro
