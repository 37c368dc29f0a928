#pragma once

// quant_model_description.json of "ascend" checkpoints: the type of every tensor by its name, which
// decides how it is read.

#include <string>
#include <string_view>
#include <unordered_map>

#include "base/json.h"
#include "base/status.h"
#include "tensor/weight_form.h"

namespace baltoro {

inline constexpr std::string_view kQuantDescriptionFile = "quant_model_description.json";

// The form that a type of the description stands for; `tensor` is named in the refusal.
Result<WeightForm> AscendForm(std::string_view type, std::string_view tensor);
// The reverse; nullptr for forms that such checkpoints do not have.
const char* AscendType(WeightForm form);

struct QuantDescription {
  std::unordered_map<std::string, WeightForm> forms;  // canonical tensor name -> of its matrix

  // Of the matrix of a module; nullptr when the description does not name its weight.
  const WeightForm* Find(std::string_view module) const;
};

// Refuses unknown types and 4-bit weights with groups, whose scales lie otherwise. Errors do not
// name the file.
Result<QuantDescription> ParseQuantDescription(const Json& json);

// Of a folder; an empty one where it has none. Errors name the file.
Result<QuantDescription> ReadQuantDescription(const std::string& dir);

}  // namespace baltoro
