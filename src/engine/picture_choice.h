#pragma once

// Whether an engine takes pictures, and with how much memory.

#include <cstdint>
#include <memory>
#include <optional>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/picture_memory.h"
#include "model/k2_config.h"
#include "ops/ops.h"
#include "vision/vision_config.h"
#include "weights/weight_source.h"

namespace baltoro {

struct PictureChoice {
  VisionConfig encoder;
  int64_t patches_max = 0;  // of a batch: of the largest picture that the model's rules allow
  int32_t rows = 0;         // that are kept
  int64_t bytes = 0;        // of all that a rank takes for pictures

  int32_t tokens_max() const;
  void Tell(EngineInfo& info) const;
};

// None where the model's folder has no encoder, where --language-model-only leaves it out, and,
// with a line in the log, where the operations have none for pictures.
Result<std::optional<PictureChoice>> ChoosePictures(const EngineConfig& config,
                                                    const K2Config& model,
                                                    const OpsTable& ops);

// A rank's encoder with its memory.
Result<std::unique_ptr<PictureMemory>> LoadPictures(const PictureChoice& choice,
                                                    WeightSource& source,
                                                    const OpsTable& ops,
                                                    ThreadPool* pool);

}  // namespace baltoro
