#pragma once

#include "machine.h"

namespace emu {

// A warp arrives at a barrier of its block. True: it waits.
bool ArriveAtBarrier(Warp& w, const Inst& i, uint32_t id, uint32_t count, bool only_arrives);
void ArriveAtCluster(Warp& w);
// `count` threads of the warp have ended: barriers of all threads no longer wait for them.
void ThreadsLeft(Warp& w, uint32_t count);

}  // namespace emu
