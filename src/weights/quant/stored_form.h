#pragma once

// Which form a module of a checkpoint has, told from the tensors that are there.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "weights/quant/form_tensors.h"
#include "weights/weight_source.h"

namespace baltoro {

// The tensor of a module by its parameter's name ("weight_scale"), if it is there.
using ParameterLookup = std::function<std::optional<SourceTensor>(std::string_view parameter)>;

struct StoredForm {
  WeightForm form = WeightForm::kBf16;  // also of plain tensors of other float types
  MatrixShape shape;
};

// kNotFound where no matrix is there in any form; kInvalidArgument where what is there makes no
// form. Of a plain matrix the shape is 0 x 0 unless it has two dimensions.
Result<StoredForm> FindStoredForm(std::string_view module, const ParameterLookup& find);

// What is wrong with the tensors of a form: one line each, without the module's name. Empty: they
// can be decoded.
std::vector<std::string> TensorProblems(const StoredForm& stored, const ParameterLookup& find);

}  // namespace baltoro
