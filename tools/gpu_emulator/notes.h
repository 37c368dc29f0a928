#pragma once

// What a launch says of itself (LaunchNote, src/ops/cuda/launch/order.h), and that its kernel keeps
// to it. Launches run one after the other here, so what a kernel may do before those ahead have
// ended is seen from the threads that have executed griddepcontrol.wait, or have met one that has
// at a barrier: of a warp, of the block, of the cluster, or an mbarrier. Others may write and read
// little (docs/kernels/decode-step.md, "The rule").

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "access.h"
#include "machine.h"

namespace baltoro::cuda {
class Regions;
struct LaunchNote;
}  // namespace baltoro::cuda

namespace emu {

// Pieces of memory, in order and apart; those that follow each other without a gap are one.
class Pieces {
 public:
  Pieces() = default;
  explicit Pieces(const baltoro::cuda::Regions& regions) { Add(regions); }
  void Add(const baltoro::cuda::Regions& regions);

  bool anything() const { return anything_; }
  bool Hold(uint64_t from, uint64_t to) const {
    if (from >= last_from_ && to <= last_to_) return true;
    return anything_ || Find(from, to);
  }
  bool Meet(uint64_t from, uint64_t to) const;  // what is listed, not anything
  std::string Text() const;

 private:
  bool Find(uint64_t from, uint64_t to) const;

  bool anything_ = false;
  std::vector<std::pair<uint64_t, uint64_t>> pieces_;
  mutable uint64_t last_from_ = 1, last_to_ = 0;  // where it found something
};

// A copy, with which a launch in a graph is held to it whenever it runs.
struct Note {
  explicit Note(const baltoro::cuda::LaunchNote& from);

  std::string kernel;
  bool waits_first;  // each block before it lets the next launch start
  Pieces writes, early_writes;
  // What it may read of what kernels write: at any time and before its wait. What it writes it may
  // read as well.
  Pieces reads, early_reads;
  Pieces named;  // its reads alone: kernels write them, even where the host did now
};

// The note of the thread's next launch, which has it then.
std::shared_ptr<const Note> TakeNote();

// Global memory accessed by the lanes of `m`: `bytes` each, all of it from `low` to `high`.
void HoldLoads(const Warp& w,
               const Inst& i,
               uint32_t m,
               uint64_t bytes,
               const uint64_t* at,
               uint64_t low,
               uint64_t high);
void HoldStores(const Warp& w,
                const Inst& i,
                uint32_t m,
                uint64_t bytes,
                const uint64_t* at,
                uint64_t low,
                uint64_t high);
// The same of one lane, for copies.
void HoldLoad(const Warp& w, const Inst& i, int lane, uint64_t from, uint64_t bytes);
void HoldStore(const Warp& w, const Inst& i, int lane, uint64_t from, uint64_t bytes);
// It executes griddepcontrol.launch_dependents.
void HoldStart(const Warp& w, const Inst& i, uint32_t m);
// All threads of the block have ended; all blocks have.
void HoldEnd(const Block& block);
void HoldEnd(const Launch& launch);

// A new warp: without a note, it may do everything.
void BeginHolding(Warp& w);
// The lanes are behind a griddepcontrol.wait.
void MarkWaited(Warp& w, uint32_t lanes);
inline bool HasWaited(const Warp& w, int lane) {
  return (w.waited >> lane & 1) != 0;
}
// These lanes have met: what one of them waited for, all have. True.
inline bool Together(Warp& w, uint32_t lanes) {
  if ((lanes & ~w.waited) != 0 && (lanes & w.waited) != 0) MarkWaited(w, lanes);
  return true;
}

}  // namespace emu
