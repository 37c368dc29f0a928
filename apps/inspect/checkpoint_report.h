#pragma once

// What a checkpoint folder holds and what is wrong with it, from config.json, the index and the
// headers; no weight is read.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "tensor/weight_form.h"
#include "weights/checkpoint_listing.h"
#include "weights/tensor_names.h"

namespace baltoro {

// Tensors of one kind: the same name but for its numbers, the same type and shape.
struct TensorKind {
  std::string name;  // numbers as "*"
  TensorRole role = TensorRole::kOther;
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t count = 0;
  int64_t bytes = 0;  // of all
};

struct RoleTotal {
  int64_t tensors = 0;
  int64_t bytes = 0;
  std::map<WeightForm, int64_t> forms;  // projections in each
};

// A thing amiss; alike ones are counted and told once.
struct ReportProblem {
  std::string where;  // the first of them
  std::string what;
  int64_t count = 1;
};

struct CheckpointReport {
  std::string dir;
  std::string model_type;  // empty: unknown
  int64_t layers = 0;
  int64_t files = 0, file_bytes = 0;
  int64_t tensors = 0, tensor_bytes = 0;
  std::vector<TensorKind> kinds;  // by role, then name
  std::map<TensorRole, RoleTotal> roles;
  std::vector<ReportProblem> problems;
};

// `on_file` as for ListCheckpoint.
CheckpointReport InspectCheckpoint(const std::string& dir, const OnListedFile& on_file = {});

std::string ReportText(const CheckpointReport& report);
Json ReportJson(const CheckpointReport& report);

}  // namespace baltoro
