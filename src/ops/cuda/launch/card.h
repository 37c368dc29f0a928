#pragma once

// The device in use, as choices see it.

#include "ops/cuda/choose/card.h"

namespace baltoro::cuda {

// Of the calling thread's current device: asked for once, whichever thread comes first.
const Card& ThisCard();

}  // namespace baltoro::cuda
