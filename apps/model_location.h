#pragma once

#include <string>

#include "base/status.h"
#include "engine/speculation.h"

namespace baltoro {

// The folder of a model given on the command line: a directory, a name that `baltoro pull` or
// the hubs' own tools downloaded ("org/name" in the cache of Hugging Face or ModelScope), or, when
// empty, the pocket model that comes with the program. BALTORO_MODEL_MAP (model_map.h) goes before
// all of these.
Result<std::string> LocateModel(const std::string& model, const std::string& program);

// The folder of a draft model, of --speculative-config's `model`: found as a model is;
// "pocket/draft-mla" and "pocket/draft-llama", where no such directory is, are those of the pocket
// model. Where none is given, the first of these, if the model in `model_dir` is the pocket model.
Result<std::string> LocateDraft(const std::string& draft,
                                const std::string& model_dir,
                                const std::string& program);

// Where a draft model is asked for, LocateDraft of it takes the place of its name.
Status PlaceDraft(const std::string& model_dir,
                  const std::string& program,
                  SpeculationConfig& speculation);

// The folder of the pocket model: $BALTORO_POCKET, else beside the program (share/baltoro/pocket in
// an unpacked archive, pocket/ in a checkout).
Result<std::string> PocketDir(const std::string& program);

}  // namespace baltoro
