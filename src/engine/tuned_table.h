#pragma once

// The file that `baltoro tune` writes: kernels that were measured to be faster on a card than those
// that are chosen by themselves, for one shape of model and number of tensor ranks. JSON, whose
// "entries" are lines of a table of overrides (ops/cuda/choose/overrides.h).

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/backend_choice.h"
#include "plan/model_description.h"

namespace baltoro {

// What a table is measured for. Kernels change with the version of the program.
struct TunedFor {
  std::string card, version;
  std::string form;  // of the experts' weights, as entries call it
  int64_t hidden = 0, moe_intermediate = 0, experts = 0, top_k = 0, heads = 0, tensor = 1;

  bool operator==(const TunedFor&) const = default;
};

struct TunedTable {
  TunedFor made_for;
  std::string model, driver, date;  // to read; nothing depends on them
  std::vector<std::string> entries;
};

TunedFor TunedForOf(const ModelDescription& model, int32_t tensor, const std::string& card);

// "E=384,N=2048,H=7168,tp=8,form=int4_group,device_name=NVIDIA_H200.tuned.json"
std::string TunedFileName(const TunedTable& table);
std::string TunedText(const TunedTable& table);
// kNotFound: JSON, but not of this kind, as tables of Triton kernels are. Errors begin with `path`.
Result<TunedTable> ReadTunedTable(const std::string& path);
// What differs, as a sentence; empty: `table` is for this.
std::string WhyNotFor(const TunedTable& table, const TunedFor& wanted);

// Gives the CUDA module the entries of the file, or of those files of the folder that fit, and logs
// a line for each that is used and each that is not. A file that does not fit is an error, as one
// that cannot be read or has a wrong entry; of a folder it is left out, as are those that no longer
// find room among kOverridesMax entries (ops/cuda/choose/overrides.h). Neither named: nothing
// happens. `model` is a directory or a known name (DescribeModel). Before OpenBackend.
Status UseTunedTables(const std::string& file,
                      const std::string& folder,
                      const std::string& model,
                      int32_t tensor,
                      const BackendChoice& backend);

}  // namespace baltoro
