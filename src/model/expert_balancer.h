#pragma once

// Experts that are moved and doubled while steps run (--enable-eplb), as one rank sees it: where
// the experts of its layers lie, how many rows each had, and the weights on their way.
//
//   a window of steps -> loads, added up over the replicas -> a placement for each layer
//     -> its moves, in rounds, one a step, each of which is used in that step
//
// Every rank does the same in the same step, from numbers that are the same on all: nobody is told
// anything but loads and weights. Rounds of one layer follow those of another. One thread, that of
// the model.
//
// Tables, counts and weights lie in the memory of the operations, at fixed places, and are written
// in the order of the steps: a step waits for none of that. Counts alone are read back, when a
// window ends and for a line of the log.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/buffer.h"
#include "model/layer_weights.h"
#include "model/weight_slice.h"
#include "ops/expert_copies.h"
#include "ops/ops.h"
#include "ops/slab_exchange.h"
#include "parallel/expert_slots.h"

namespace baltoro {

// How even the load of this rank's stage is, and counters. Balancedness is the mean load of a rank
// through that of the busiest, over all layers; below 0: not known yet.
struct BalanceNews {
  uint64_t rearrangements = 0;  // that have ended
  uint64_t moved_experts = 0;   // slots that got another expert, of all ranks
  double balancedness = -1;     // of the steps that were measured last, as experts lay in them
  // Of the window of the last rearrangement: as experts lay, and had they lain as since then.
  double balancedness_before = -1, balancedness_expected = -1;
};

struct ExpertBalanceOptions {
  int64_t window = 1000;     // steps whose rows are counted before a rearrangement
  int64_t interval = 3000;   // steps from one to the next; the first comes after a quarter
  bool gradual = true;       // else all moves are made before the step in which they are due
  int64_t log_interval = 0;  // a line about each so many steps; 0: none
  int64_t measured = 250;    // steps that are measured at once, for which counts are read
  bool tells = false;        // this rank writes lines and calls `tell`
  std::string model = {};    // its name in lines
  // Behind each rearrangement and each measurement.
  std::function<void(const BalanceNews&)> tell = {};
  // That a rank gets in a step; one expert at least, kExpertsOnTheirWay at most.
  int64_t step_bytes = int64_t{16} << 20;
  // For tests: the next placement, the same on all ranks, whatever it is worth. Empty: by loads.
  std::function<ExpertSlots(const BalanceShape&, const ExpertSlots& now)> place = {};
};

// Bytes of a rank's tables and counts, of `layers` that have experts; without the staging of
// weights, which is theirs (layer_weights.h).
int64_t ExpertTableBytes(const BalanceShape& shape, int64_t layers);

class ExpertBalancer {
 public:
  // The experts of `weights` lie as they are loaded. `weights`, `ops` and `pool` (null: one thread)
  // must outlive this, and weights stay in place. Takes memory.
  static Result<std::unique_ptr<ExpertBalancer>> Create(const RankShare& share,
                                                        int32_t experts,
                                                        const ModelWeights& weights,
                                                        const OpsTable& ops,
                                                        ThreadPool* pool);

  // From now on experts move; `slabs` must outlive this.
  void Start(const ExpertBalanceOptions& options, SlabExchange& slabs);
  // Of a layer of this rank; empty: it has no experts. Always the same.
  ExpertCopies CopiesOf(int32_t layer) const;
  // Before each step in which any replica has rows, on all ranks.
  void BeginStep();

  const BalanceNews& news() const { return news_; }

 private:
  struct Layer {
    PackedMatrix gate_up, down;  // of this rank's slots; no rows: the layer has no experts
    ExpertSlots placed;
    ExpertCopies copies;         // in the memory of the operations
    std::vector<int64_t> rows;   // of each slot of all ranks, as they were taken last
    std::vector<int64_t> loads;  // of each expert, since the last rearrangement was due
  };
  using Moves = std::vector<ExpertMove>;
  struct Balance {
    double mean = 0, busiest = 0;  // rows of a rank, over all layers
    double value() const { return busiest > 0 ? mean / busiest : 1; }
  };

  ExpertBalancer(const RankShare& share,
                 int32_t experts,
                 const ModelWeights& weights,
                 const OpsTable& ops,
                 ThreadPool* pool);
  Status Place();
  OpContext Context();
  void Copy(void* to, const void* from, int64_t bytes);
  bool moving() const { return next_layer_ < layers_.size() || !rounds_.empty(); }
  bool logs() const { return options_.log_interval > 0 && since_ % options_.log_interval == 0; }
  void TakeRows();
  void DropRows();
  void HaveArrived(const Status& ended);
  void AddRows(std::span<float> of_ranks) const;
  Balance BalanceOf(std::vector<float> of_ranks);
  void LogStep();
  void Measure();
  void AddUpLoads();
  void MoveSome();
  void PlanLayer(size_t index);
  void RunRound(Layer& layer, const Moves& moves);
  void Use(Layer& layer, const Moves& moves);
  void End();
  std::byte* Staged(const Layer& layer, bool down, size_t place) const;

  const BalanceShape shape_;
  const int32_t rank_;  // among those that share the experts
  const OpsTable& ops_;
  ThreadPool* const pool_;
  std::byte* const staging_;
  std::vector<Layer> layers_;
  Buffer tables_;               // first and slots of each layer, then what is counted of each
  std::span<int64_t> counts_;   // in it: rows and choices of all layers
  std::vector<int64_t> taken_;  // as many
  Arena uploads_, transfers_;   // memory of the operations; of the host, that copies go through
  int tables_in_flight_ = 0;
  ExpertBalanceOptions options_;
  SlabExchange* slabs_ = nullptr;  // null: not started
  int64_t since_ = 0;              // steps since a rearrangement was due
  bool counting_ = false;
  int64_t since_measured_ = 0;             // steps
  std::vector<float> measured_;            // [layers, ranks]: rows of those steps
  std::deque<std::vector<int64_t>> past_;  // loads of all layers, of intervals in the window
  // Of the rearrangement that is under way.
  std::vector<float> loads_;  // [layers, experts]
  size_t next_layer_ = 0;     // to be planned; layers_.size(): all are
  size_t layer_ = 0;          // whose rounds these are
  std::deque<Moves> rounds_;
  double means_ = 0, busiest_before_ = 0, busiest_after_ = 0;
  BalanceNews news_;
};

}  // namespace baltoro
