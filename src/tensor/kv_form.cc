#include "tensor/kv_form.h"

#include <algorithm>
#include <cfloat>

#include "tensor/float8.h"

namespace baltoro {

float KvGroupScale(float largest) {
  return std::max(std::min(largest, FLT_MAX) / kE4M3Max, FLT_MIN);
}

const char* KvFormName(KvForm form) {
  switch (form) {
    case KvForm::kF32:
      return "float32";
    case KvForm::kBf16:
      return "bfloat16";
    case KvForm::kFp8:
      return "fp8";
    case KvForm::kFp8Groups:
      return "fp8_ds_mla";
  }
  return "";
}

Result<KvForm> ParseKvForm(const std::string& value, DType act) {
  if (value == "auto") return PlainKvForm(act);
  if (value == "bfloat16") return KvForm::kBf16;
  if (value == "fp8" || value == "fp8_e4m3") return KvForm::kFp8;
  if (value == "fp8_ds_mla") return KvForm::kFp8Groups;
  return InvalidArgument("--kv-cache-dtype " + value +
                         " is not available: there are auto, bfloat16, fp8 (the same as fp8_e4m3) "
                         "and fp8_ds_mla");
}

}  // namespace baltoro
