#pragma once

// Whether an engine takes pictures, and with how much memory: asked by the engine itself, and by
// whoever plans its memory.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/picture_memory.h"
#include "model/k2_config.h"
#include "ops/ops.h"
#include "plan/memory_plan.h"
#include "vision/vision_config.h"
#include "weights/weight_source.h"

namespace baltoro {

struct PictureChoice {
  VisionConfig encoder;
  int64_t patches_max = 0;  // of a batch: of the largest picture that the model's rules allow
  int32_t rows = 0;         // that are kept
  PictureBytes bytes;       // of a rank of the first stage, of the one that has most
  int32_t ranks = 1;        // tensor ranks
  bool shared_out = false;  // each of several has the whole encoder, and some of the pictures
  int32_t gather_rows = 0;  // PictureSharing::rows_max
  std::string note = {};    // why not as --mm-encoder-tp-mode says
  // In one layer of the encoder, as so many tokens of a prompt.
  double patch_tokens = 0, pair_tokens = 0;

  int32_t tokens_max() const;
  void Tell(EngineInfo& info) const;
};

struct PictureAnswer {
  std::optional<PictureChoice> choice = {};
  std::string why_not = {};  // of a model with an encoder that is not used here
};

// Where and of what the engine is.
struct PictureQuestion {
  const EngineConfig& config;
  std::string model_dir;  // with config.json; empty: a released model that is not here
  const K2Config& model;
  const OpsTable& ops;     // of a plan for a GPU: those of a CPU
  bool gpu = false;        // that the engine computes on
  int32_t ranks_here = 1;  // of the replica, on this machine
};

// Reads the files of the folder that say what the encoder is; takes nothing.
Result<PictureAnswer> ChoosePictures(const PictureQuestion& question);

// A rank's encoder with its memory, which is as much as was chosen. `tensor`: its place among the
// tensor ranks; `ranks`, its way to them, outlives the memory. Null: it is alone.
Result<std::unique_ptr<PictureMemory>> LoadPictures(const PictureChoice& choice,
                                                    WeightSource& source,
                                                    const OpsTable& ops,
                                                    ThreadPool* pool,
                                                    int32_t tensor = 0,
                                                    RankOps* ranks = nullptr);

}  // namespace baltoro
