#include "model/expert_balancer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/profile.h"
#include "ops/compose/small_ops.h"

namespace baltoro {
namespace {

// A placement that takes less than this from the busiest rank is not worth the moves.
constexpr double kGainMin = 0.01;
// A layer of 384 experts takes half a millisecond.
constexpr int kLayersPlannedInAStep = 4;
// On their way to a GPU; for one more all are waited for.
constexpr int kTablesInFlight = 64;

std::span<const std::byte> Slab(const PackedMatrix& bank, int32_t slot) {
  return {static_cast<const std::byte*>(bank.at(slot).data),
          static_cast<size_t>(bank.stride_bytes)};
}

// As a layer's copies lie in memory: first, then slots.
std::vector<int32_t> HostTable(const BalanceShape& shape, const ExpertSlots& placed) {
  CopyTable table = CopyTableOf(shape, placed);
  table.first.insert(table.first.end(), table.slots.begin(), table.slots.end());
  return std::move(table.first);
}

constexpr int64_t kAlignment = 256;  // of a table
int64_t Aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}
int64_t TableBytes(const BalanceShape& shape) {
  return Aligned((shape.experts + 1 + shape.slots) * int64_t{sizeof(int32_t)});
}
// Rows of the slots and of the experts.
int64_t CountBytes(const BalanceShape& shape, int64_t layers) {
  return layers * (shape.slots + shape.experts) * int64_t{sizeof(int64_t)};
}

}  // namespace

int64_t ExpertTableBytes(const BalanceShape& shape, int64_t layers) {
  return layers * TableBytes(shape) + CountBytes(shape, layers);
}

ExpertBalancer::ExpertBalancer(const RankShare& share,
                               int32_t experts,
                               const ModelWeights& weights,
                               const OpsTable& ops,
                               ThreadPool* pool)
    : shape_(BalanceShapeOf(share.layout, experts)),
      rank_(share.place.expert(share.layout)),
      ops_(ops),
      pool_(pool),
      staging_(static_cast<std::byte*>(weights.staging.data())),
      uploads_(*ops.memory),
      transfers_(ops.staging == nullptr ? HostMemory() : *ops.staging) {
  for (const LayerWeights& from : weights.layers) {
    Layer& layer = layers_.emplace_back();
    if (from.experts_gate_up.n == 0) continue;
    layer.gate_up = from.experts_gate_up;
    layer.down = from.experts_down;
    layer.placed = StartingSlots(share.layout, experts);
    layer.rows.assign(layer.placed.size(), 0);
    layer.loads.assign(static_cast<size_t>(experts), 0);
  }
  next_layer_ = layers_.size();
}

Result<std::unique_ptr<ExpertBalancer>> ExpertBalancer::Create(const RankShare& share,
                                                               int32_t experts,
                                                               const ModelWeights& weights,
                                                               const OpsTable& ops,
                                                               ThreadPool* pool) {
  std::unique_ptr<ExpertBalancer> made(new ExpertBalancer(share, experts, weights, ops, pool));
  BT_RETURN_IF_ERROR(made->Place());
  return made;
}

Status ExpertBalancer::Place() {
  const int64_t layers =
      std::ranges::count_if(layers_, [](const Layer& layer) { return !layer.placed.empty(); });
  const int64_t table = TableBytes(shape_), tables = layers * table;
  const auto bytes = static_cast<size_t>(ExpertTableBytes(shape_, layers));
  BT_ASSIGN_OR_RETURN(
      tables_, Buffer::Create(bytes, "tables of experts that move (--enable-eplb)", *ops_.memory));
  auto* const base = static_cast<std::byte*>(tables_.data());
  const auto slots = static_cast<size_t>(shape_.slots);
  const auto experts = static_cast<size_t>(shape_.experts);
  counts_ = {reinterpret_cast<int64_t*>(base + tables),
             static_cast<size_t>(layers) * (slots + experts)};
  taken_.assign(counts_.size(), 0);
  size_t index = 0;
  for (Layer& layer : layers_) {
    if (layer.placed.empty()) continue;
    const std::vector<int32_t> host = HostTable(shape_, layer.placed);
    auto* const at = reinterpret_cast<int32_t*>(base + static_cast<int64_t>(index) * table);
    BT_RETURN_IF_ERROR(ops_.memory->CopyIn(at, host.data(), host.size() * sizeof(int32_t)));
    const auto counts = counts_.subspan(index * (slots + experts), slots + experts);
    layer.copies = {.first = {at, experts + 1},
                    .slots = {at + experts + 1, slots},
                    .rows = counts.first(slots),
                    .chosen = counts.last(experts)};
    ++index;
  }
  if (ops_.staging == nullptr) return {};
  BT_RETURN_IF_ERROR(uploads_.Reserve(static_cast<size_t>(table)));
  return transfers_.Reserve(
      static_cast<size_t>(kTablesInFlight * table + Aligned(CountBytes(shape_, layers))));
}

OpContext ExpertBalancer::Context() {
  return {.pool = pool_, .scratch = &uploads_, .staging = &transfers_, .rank = ops_.rank};
}

void ExpertBalancer::Copy(void* to, const void* from, int64_t bytes) {
  CopyBytes(*ops_.small, Context(), to, from, bytes);
}

void ExpertBalancer::Start(const ExpertBalanceOptions& options, SlabExchange& slabs) {
  BT_CHECK(options.window > 0 && options.interval > 0 && options.step_bytes > 0);
  options_ = options;
  slabs_ = &slabs;
  since_ = options.interval * 3 / 4;
  measured_.assign(layers_.size() * static_cast<size_t>(shape_.ranks), 0.0F);
  DropRows();  // of trials
}

ExpertCopies ExpertBalancer::CopiesOf(int32_t layer) const {
  return layers_[static_cast<size_t>(layer)].copies;
}

void ExpertBalancer::BeginStep() {
  if (slabs_ == nullptr) return;
  bool taken = false;
  const auto take = [&] {
    if (!std::exchange(taken, true)) TakeRows();
  };
  if (logs()) {
    take();
    LogStep();
  }
  if (++since_measured_ > options_.measured) {
    take();
    Measure();
    since_measured_ = 1;
  }
  ++since_;
  if (since_ >= options_.interval && !moving()) {
    take();
    AddUpLoads();
    since_ = 0;
  }
  while (moving()) {
    MoveSome();
    if (!moving()) End();
    if (options_.gradual) break;
  }
  const bool counts = options_.interval - since_ <= options_.window;
  if (logs()) {
    take();  // so that the next line is about this step alone
  } else if (counts && !counting_) {
    take();  // so that the window begins with this step
  }
  counting_ = counts;
}

// Of all steps since they were taken or dropped.
void ExpertBalancer::TakeRows() {
  HaveArrived(
      ops_.fetch(Context(), taken_.data(), counts_.data(), counts_.size() * sizeof(int64_t)));
  const int64_t* counts = taken_.data();
  for (Layer& layer : layers_) {
    for (int64_t& rows : layer.rows) rows = *counts++;
    for (int64_t& load : layer.loads) {
      const int64_t chosen = *counts++;
      if (counting_) load += chosen;
    }
  }
  AddRows(measured_);
  DropRows();
}

// All that was queued has ended so: what went through the host's memory is where it should be.
void ExpertBalancer::HaveArrived(const Status& ended) {
  if (!ended.ok()) BT_LOG(Error, "{}", ended.message());
  BT_CHECK(ended.ok());
  transfers_.Reset();
  tables_in_flight_ = 0;
}

void ExpertBalancer::DropRows() {
  ops_.small->clear(
      Context(), TensorView(counts_.data(), DType::kI64, {static_cast<int64_t>(counts_.size())}));
}

// Those that were taken last, to [layers, ranks].
void ExpertBalancer::AddRows(std::span<float> of_ranks) const {
  const auto ranks = static_cast<size_t>(shape_.ranks);
  for (size_t i = 0; i < layers_.size(); ++i) {
    for (size_t slot = 0; slot < layers_[i].rows.size(); ++slot) {
      const int32_t rank = RankOfSlot(shape_, static_cast<int32_t>(slot));
      of_ranks[i * ranks + static_cast<size_t>(rank)] += static_cast<float>(layers_[i].rows[slot]);
    }
  }
}

// Of the rows of all replicas.
ExpertBalancer::Balance ExpertBalancer::BalanceOf(std::vector<float> of_ranks) {
  const auto ranks = static_cast<size_t>(shape_.ranks);
  slabs_->AddUp(of_ranks);
  Balance balance;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const auto of_layer = std::span(of_ranks).subspan(i * ranks, ranks);
    balance.mean += std::accumulate(of_layer.begin(), of_layer.end(), 0.0) / shape_.ranks;
    balance.busiest += *std::ranges::max_element(of_layer);
  }
  return balance;
}

void ExpertBalancer::Measure() {
  news_.balancedness = BalanceOf(measured_).value();
  std::ranges::fill(measured_, 0.0F);
  if (options_.tells && options_.tell) options_.tell(news_);
}

void ExpertBalancer::LogStep() {
  std::vector<float> counts(measured_.size(), 0.0F);
  AddRows(counts);
  const Balance balance = BalanceOf(std::move(counts));
  if (!options_.tells || balance.busiest == 0) return;
  BT_LOG(Info,
         "EPLB step: {} for model {}: avg_tokens={:.2f}, max_tokens={:.0f}, balancedness={:.4f}, "
         "steps until the next rearrangement: {}",
         since_, options_.model, balance.mean, balance.busiest, balance.value(),
         std::max<int64_t>(options_.interval - since_, 0));
}

void ExpertBalancer::AddUpLoads() {
  std::vector<int64_t> counted;
  for (Layer& layer : layers_) {
    counted.insert(counted.end(), layer.loads.begin(), layer.loads.end());
    std::ranges::fill(layer.loads, 0);
  }
  past_.push_back(std::move(counted));
  // A window longer than the interval reaches back over whole ones.
  const int64_t kept = (options_.window + options_.interval - 1) / options_.interval;
  while (std::ssize(past_) > kept) past_.pop_front();
  loads_.assign(past_.back().size(), 0.0F);
  for (const std::vector<int64_t>& one : past_) {
    for (size_t i = 0; i < one.size(); ++i) loads_[i] += static_cast<float>(one[i]);
  }
  slabs_->AddUp(loads_);
  next_layer_ = 0;
  means_ = busiest_before_ = busiest_after_ = 0;
}

void ExpertBalancer::MoveSome() {
  for (int i = 0; rounds_.empty() && next_layer_ < layers_.size() && i < kLayersPlannedInAStep;
       ++i) {
    PlanLayer(next_layer_++);
  }
  if (rounds_.empty()) return;
  const ProfileSpan span("move experts");
  RunRound(layers_[layer_], rounds_.front());
  rounds_.pop_front();
}

void ExpertBalancer::PlanLayer(size_t index) {
  const Layer& layer = layers_[index];
  if (layer.placed.empty()) return;
  size_t at = 0;  // of its loads: layers without experts have none
  for (size_t i = 0; i < index; ++i) at += layers_[i].loads.size();
  const auto begin = loads_.begin() + static_cast<std::ptrdiff_t>(at);
  const std::vector<double> loads(begin, begin + shape_.experts);
  const std::vector<double> now = RankLoads(shape_, layer.placed, loads);
  ExpertSlots after =
      options_.place ? options_.place(shape_, layer.placed) : BalanceExperts(shape_, loads);
  const double before_max = *std::ranges::max_element(now);
  double after_max = std::ranges::max(RankLoads(shape_, after, loads));
  const bool worth = options_.place || after_max < before_max * (1 - kGainMin);
  if (!worth) after_max = before_max;
  means_ += std::accumulate(now.begin(), now.end(), 0.0) / static_cast<double>(now.size());
  busiest_before_ += before_max;
  busiest_after_ += after_max;
  if (!worth) return;
  layer_ = index;
  const int64_t slab = layer.gate_up.stride_bytes + layer.down.stride_bytes;
  const auto each = static_cast<int32_t>(
      std::clamp<int64_t>(options_.step_bytes / slab, 1, ExpertsOnTheirWay(shape_)));
  after = KeepPlaces(shape_, layer.placed, after);
  for (Moves& round : RoundsBetween(shape_, layer.placed, after, each)) {
    rounds_.push_back(std::move(round));
  }
}

std::byte* ExpertBalancer::Staged(const Layer& layer, bool down, size_t place) const {
  const auto bank = [](const PackedMatrix& matrix) {
    return static_cast<size_t>(matrix.stride_bytes);
  };
  if (!down) return staging_ + place * bank(layer.gate_up);
  const auto places = static_cast<size_t>(ExpertsOnTheirWay(shape_));
  return staging_ + places * bank(layer.gate_up) + place * bank(layer.down);
}

// All ranks are here in the same step, so nobody needs what is overwritten: what other ranks get of
// it goes out before.
void ExpertBalancer::RunRound(Layer& layer, const Moves& moves) {
  const int32_t slots = SlotsOfRank(shape_);
  for (const bool down : {false, true}) {
    const PackedMatrix& bank = down ? layer.down : layer.gate_up;
    std::vector<SlabExchange::Out> out;
    std::vector<SlabExchange::In> in;
    size_t place = 0;
    for (const ExpertMove& move : moves) {
      const int32_t from = RankOfSlot(shape_, move.from), to = RankOfSlot(shape_, move.to);
      if (from == rank_ && to != rank_) {
        out.push_back({.rank = to, .slab = Slab(bank, move.from % slots)});
      }
      if (to != rank_) continue;
      std::byte* const staged = Staged(layer, down, place++);
      if (from == rank_) {
        Copy(staged, bank.at(move.from % slots).data, bank.stride_bytes);
      } else {
        in.push_back({.rank = from, .slab = {staged, static_cast<size_t>(bank.stride_bytes)}});
      }
    }
    slabs_->Trade(out, in);
  }
  Use(layer, moves);
}

void ExpertBalancer::Use(Layer& layer, const Moves& moves) {
  size_t place = 0;
  for (const ExpertMove& move : moves) {
    if (RankOfSlot(shape_, move.to) != rank_) continue;
    for (const bool down : {false, true}) {
      const PackedMatrix& bank = down ? layer.down : layer.gate_up;
      Copy(const_cast<void*>(bank.at(move.to % SlotsOfRank(shape_)).data),
           Staged(layer, down, place), bank.stride_bytes);
    }
    ++place;
  }
  const ExpertSlots before = layer.placed;
  for (const ExpertMove& move : moves) {
    layer.placed[static_cast<size_t>(move.to)] = before[static_cast<size_t>(move.from)];
  }
  news_.moved_experts += moves.size();
  const std::vector<int32_t> host = HostTable(shape_, layer.placed);
  const size_t bytes = host.size() * sizeof(int32_t);
  if (tables_in_flight_ == kTablesInFlight) HaveArrived(ops_.wait(Context()));
  ++tables_in_flight_;
  uploads_.Reset();  // what was brought there before has been read when this arrives
  const void* const brought = ops_.upload(Context(), uploads_, host.data(), bytes);
  Copy(const_cast<int32_t*>(layer.copies.first.data()), brought, static_cast<int64_t>(bytes));
}

void ExpertBalancer::End() {
  ++news_.rearrangements;
  news_.balancedness_before = busiest_before_ > 0 ? means_ / busiest_before_ : 1;
  news_.balancedness_expected = busiest_after_ > 0 ? means_ / busiest_after_ : 1;
  if (!options_.tells) return;
  BT_LOG(
      Info,
      "EPLB: rearrangement {} has ended: of the last window's rows, balancedness was {:.4f}, and "
      "would be {:.4f} as experts lie now",
      news_.rearrangements, news_.balancedness_before, news_.balancedness_expected);
  if (options_.tell) options_.tell(news_);
}

}  // namespace baltoro
