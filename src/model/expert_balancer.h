#pragma once

// Experts that are moved and doubled while steps run (--enable-eplb), as one rank sees it: where
// the experts of its layers lie, how many rows each had, and the weights on their way.
//
//   a window of steps -> loads, added up over the replicas -> a placement for each layer
//     -> its moves, in rounds, one a step, to a place beside the weights -> all there: used
//
// Every rank does the same in the same step, from numbers that are the same on all: nobody is told
// anything but loads and weights. Rounds of one layer follow those of another. One thread, that of
// the model.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/layer_weights.h"
#include "model/weight_slice.h"
#include "ops/expert_copies.h"
#include "ops/slab_exchange.h"
#include "parallel/expert_slots.h"

namespace baltoro {

// What the last rearrangement came to, of this rank's stage, and counters.
struct BalanceNews {
  uint64_t rearrangements = 0;  // that have ended
  uint64_t moved_experts = 0;   // slots that got another expert, of all ranks
  // Mean load of a rank through that of the busiest, over all layers, for what was counted: as the
  // experts lay, and as they lie now. Below 0: there was no rearrangement yet.
  double balancedness_before = -1, balancedness = -1;
};

struct ExpertBalanceOptions {
  int64_t window = 1000;     // steps whose rows are counted before a rearrangement
  int64_t interval = 3000;   // steps from one to the next; the first comes after a quarter
  bool gradual = true;       // else all moves are made before the step in which they are due
  int64_t log_interval = 0;  // a line about each so many steps; 0: none
  bool tells = false;        // this rank writes lines and calls `tell`
  std::string model = {};    // its name in lines
  std::function<void(const BalanceNews&)> tell = {};  // behind each rearrangement
  int64_t step_bytes = int64_t{16} << 20;  // that a rank gets in a step; one expert at least
};

class ExpertBalancer {
 public:
  // The experts of `weights` lie as they are loaded. `weights` must outlive this and stay in place.
  ExpertBalancer(const RankShare& share, int32_t experts, const ModelWeights& weights);

  // From now on rows are counted and experts move; `slabs` must outlive this.
  void Start(const ExpertBalanceOptions& options, SlabExchange& slabs);
  // Of a layer of this rank; empty: it has no experts. Valid until BeginStep.
  ExpertCopies CopiesOf(int32_t layer);
  // Before each step in which any replica has rows, on all ranks.
  void BeginStep();

  const BalanceNews& news() const { return news_; }

 private:
  struct Layer {
    PackedMatrix gate_up, down;  // of this rank's slots; no rows: the layer has no experts
    ExpertSlots placed;
    CopyTable copies;
    std::vector<int64_t> rows;   // of each slot of all ranks, since the last step began
    std::vector<int64_t> loads;  // of each expert, since the last rearrangement was due
  };
  using Moves = std::vector<ExpertMove>;

  bool moving() const { return next_layer_ < layers_.size() || !rounds_.empty(); }
  void TakeRows();
  void LogStep();
  void AddUpLoads();
  void MoveSome();
  void PlanLayer(size_t index);
  void RunRound(Layer& layer, const Moves& moves);
  void SwitchOver(Layer& layer);
  void End();
  std::byte* Staged(const Layer& layer, bool down, int32_t slot) const;

  const BalanceShape shape_;
  const int32_t rank_;  // among those that share the experts
  std::byte* const staging_;
  std::vector<Layer> layers_;
  ExpertBalanceOptions options_;
  SlabExchange* slabs_ = nullptr;  // null: not started
  int64_t since_ = 0;              // steps since a rearrangement was due
  bool counting_ = false;
  std::deque<std::vector<int64_t>> past_;  // loads of all layers, of intervals in the window
  // Of the rearrangement that is under way.
  std::vector<float> loads_;  // [layers, experts]
  size_t next_layer_ = 0;     // to be planned; layers_.size(): all are
  size_t layer_ = 0;          // whose rounds these are
  std::deque<Moves> rounds_;
  Moves arrived_;
  ExpertSlots after_;
  double means_ = 0, busiest_before_ = 0, busiest_after_ = 0;
  BalanceNews news_;
};

}  // namespace baltoro
