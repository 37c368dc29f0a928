#include "weights/quant/stored_form.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "weights/quant/matrix_codec.h"

namespace baltoro {
namespace {

bool IsFloat(DType type) {
  return type == DType::kBf16 || type == DType::kF32 || type == DType::kF16;
}

// Trailing dimensions of 1 do not count: [n] is as good as [n, 1].
bool SameShape(std::vector<int64_t> a, std::vector<int64_t> b) {
  while (a.size() > 1 && a.back() == 1) a.pop_back();
  while (b.size() > 1 && b.back() == 1) b.pop_back();
  return a == b;
}

// Types that older or other writers use for the same thing.
bool IsAccepted(const FormTensor& wanted, DType found) {
  if (found == wanted.dtype) return true;
  if (wanted.parameter == "weight_shape") return found == DType::kI32;
  if (wanted.parameter == "deq_scale") return found == DType::kI64;
  return false;
}

Result<WeightForm> FormOfBytes(const SourceTensor& weight, const ParameterLookup& find) {
  if (find("deq_scale")) return WeightForm::kInt8Static;
  if (find("scale_bias")) return WeightForm::kInt4;
  const auto scale = find("weight_scale");
  if (!scale)
    return InvalidArgument("weight is I8, but neither weight_scale nor deq_scale is there");
  const int64_t rows = scale->shape.empty() ? 0 : scale->shape[0];
  if (rows == weight.shape[0]) return WeightForm::kInt8;
  if (rows == 2 * weight.shape[0]) return WeightForm::kInt4;
  return InvalidArgument(fmt::format("weight is I8 [{}], weight_scale [{}]: neither int8 nor int4",
                                     fmt::join(weight.shape, ", "), fmt::join(scale->shape, ", ")));
}

}  // namespace

Result<StoredForm> FindStoredForm(std::string_view module, const ParameterLookup& find) {
  const auto weight = find("weight");
  const auto packed = find("weight_packed");
  if (weight && packed) return InvalidArgument("weight and weight_packed are both there");
  if (packed) {
    if (packed->shape.size() != 2 || packed->shape[1] > INT64_MAX / 8) {
      return InvalidArgument("weight_packed is not a matrix");
    }
    return StoredForm{WeightForm::kInt4Group,
                      ShapeOfProjection(module, packed->shape[0], packed->shape[1] * 8)};
  }
  if (!weight) return Status(Code::kNotFound, "is missing");
  if (IsFloat(weight->dtype)) {
    StoredForm plain;
    if (weight->shape.size() == 2) {
      plain.shape = ShapeOfProjection(module, weight->shape[0], weight->shape[1]);
    }
    return plain;
  }
  if (weight->shape.size() != 2) return InvalidArgument("weight is not a matrix");
  const int64_t rows = weight->shape[0], columns = weight->shape[1];
  if (weight->dtype == DType::kF8E4M3) {
    return StoredForm{WeightForm::kFp8Block, ShapeOfProjection(module, rows, columns)};
  }
  if (weight->dtype != DType::kI8) {
    return InvalidArgument(
        fmt::format("weight is {}, which no known form has", NameOf(weight->dtype)));
  }
  BT_ASSIGN_OR_RETURN(const WeightForm form, FormOfBytes(*weight, find));
  const bool halved = form == WeightForm::kInt4;
  if (halved && rows > INT64_MAX / 2) return InvalidArgument("weight is too large");
  return StoredForm{form, ShapeOfProjection(module, halved ? rows * 2 : rows, columns)};
}

std::vector<std::string> TensorProblems(const StoredForm& stored, const ParameterLookup& find) {
  std::vector<std::string> out;
  if (stored.form == WeightForm::kBf16) return out;
  const Status fits = CheckShape(stored.form, stored.shape);
  if (!fits.ok() && stored.form == WeightForm::kInt4Group) out.push_back(fits.message());
  for (const FormTensor& wanted : TensorsOfForm(stored.form, stored.shape)) {
    const auto found = find(wanted.parameter);
    if (!found) {
      if (!wanted.optional) out.push_back(fmt::format("{} is missing", wanted.parameter));
      continue;
    }
    if (!IsAccepted(wanted, found->dtype)) {
      out.push_back(fmt::format("{} is {}, not {}", wanted.parameter, NameOf(found->dtype),
                                NameOf(wanted.dtype)));
    }
    // How many partial sums a writer put into scale_bias is its own affair: nothing reads them.
    const bool any_width = wanted.parameter == "scale_bias" && found->shape.size() == 2 &&
                           found->shape[0] == wanted.shape[0];
    if (!any_width && !SameShape(found->shape, wanted.shape)) {
      out.push_back(fmt::format("{} has shape [{}], its matrix makes it [{}]", wanted.parameter,
                                fmt::join(found->shape, ", "), fmt::join(wanted.shape, ", ")));
    }
  }
  return out;
}

}  // namespace baltoro
