#include "weights/weight_source.h"

#include "base/check.h"

namespace baltoro {

// Sources of plain numbers need say no more.

Result<StoredMatrix> WeightSource::StoredAs(const SourceTensor& tensor) const {
  return StoredMatrix{.form = PlainForm(tensor.dtype)};
}

Status WeightSource::ReadStored(const SourceTensor&, int64_t, int64_t, StoredBytes&) const {
  BT_CHECK(false);
}

void WeightSource::AddRanges(const SourceTensor&, int64_t, int64_t, std::vector<FileRange>&) const {
}

std::map<std::string, int64_t> WeightSource::UnusedKinds(int64_t) const {
  return {};
}

}  // namespace baltoro
