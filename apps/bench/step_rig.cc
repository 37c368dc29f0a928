#include "bench/step_rig.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "base/clock.h"
#include "base/log.h"
#include "engine/backend_choice.h"
#include "engine/tuned_table.h"
#include "model/weight_plan.h"
#include "ops/compose/small_ops.h"
#include "ops/cpu/cpu_use.h"
#include "parallel/expert_slots.h"
#include "plan/model_description.h"
#include "weights/dummy_source.h"
#include "weights/tensor_names.h"

namespace baltoro {
namespace {

constexpr int64_t kBlock = KvLayerView::kBlockTokens;
constexpr int kWarmUps = 3;
constexpr int64_t kSpareBytes = int64_t{1} << 30;  // left free beside the cache

FormOfModule FormsOf(const ModelDescription& model) {
  return [model](std::string_view module) {
    if (module.find("kv_b_proj") != std::string_view::npos) return model.kv_b;
    if (module.find("self_attn") != std::string_view::npos) return model.attention;
    if (module.find(".experts.") != std::string_view::npos) return model.experts;
    if (module.find("shared_experts") != std::string_view::npos) return model.shared;
    return model.dense;
  };
}

// Numbers between -1 and 1 in all of a buffer. A product of zeros takes less power than one of
// numbers, so that a card runs it faster than any it will be asked for.
Status FillUniform(const Memory& memory, DType type, const Buffer& buffer) {
  BT_CHECK(type == DType::kBf16 || type == DType::kF32);
  const size_t element = SizeOf(type), part = std::min(buffer.bytes(), size_t{4} << 20);
  std::vector<char> drawn(part);
  for (size_t i = 0; i < part / element; ++i) {
    const float value = HashUniform(1, static_cast<uint32_t>(i));
    // A bf16 is the front half of a float.
    std::memcpy(&drawn[i * element], reinterpret_cast<const char*>(&value) + 4 - element, element);
  }
  for (size_t at = 0; at < buffer.bytes(); at += part) {
    BT_RETURN_IF_ERROR(memory.CopyIn(static_cast<char*>(buffer.data()) + at, drawn.data(),
                                     std::min(part, buffer.bytes() - at)));
  }
  return {};
}

// Of the operations' own product of two square matrices.
Result<double> MatrixRate(const OpsTable& ops, ThreadPool* pool) {
  const int64_t size = ops.memory->kind() == DeviceKind::kCuda ? 8192 : 2048;
  const auto bytes = static_cast<size_t>(size * size * SizeOf(ops.act));
  BT_ASSIGN_OR_RETURN(const Buffer x, Buffer::Create(bytes, "a product", *ops.memory));
  BT_ASSIGN_OR_RETURN(const Buffer out, Buffer::Create(bytes, "a product", *ops.memory));
  const WeightForm form = PlainForm(ops.act);
  const auto packed = static_cast<size_t>(ops.packed_bytes(form, size, size));
  BT_ASSIGN_OR_RETURN(const Buffer w, Buffer::Create(packed, "a product", *ops.memory));
  const PackedMatrix matrix{.data = w.data(), .form = form, .n = size, .k = size};
  BT_RETURN_IF_ERROR(FillUniform(*ops.memory, ops.act, x));
  BT_RETURN_IF_ERROR(FillUniform(*ops.memory, ops.act, w));
  Arena scratch(*ops.memory);
  const OpContext context{.pool = pool, .scratch = &scratch, .rank = ops.rank};
  const MonotonicClock clock;
  double best = 0;
  for (int run = 0; run < 5; ++run) {
    constexpr int kProducts = 4;
    const Seconds start = clock.Now();
    for (int i = 0; i < kProducts; ++i) {
      scratch.Reset();
      ops.small->linear(context, TensorView(out.data(), ops.act, {size, size}),
                        TensorView(x.data(), ops.act, {size, size}), matrix);
    }
    BT_RETURN_IF_ERROR(ops.wait(context));
    const double flops = 2.0 * kProducts * static_cast<double>(size * size * size);
    best = std::max(best, flops / (clock.Now() - start));
  }
  return best;
}

// Of plain reads by all threads.
Result<double> HostReadRate(const Memory& memory, ThreadPool& pool) {
  constexpr int64_t kBytes = int64_t{1} << 30, kParts = 256;
  BT_ASSIGN_OR_RETURN(const Buffer data, Buffer::Create(kBytes, "a read", memory));
  std::vector<uint64_t> sums(kParts);
  const auto* words = static_cast<uint64_t*>(data.data());
  constexpr int64_t kWords = kBytes / int64_t{sizeof(uint64_t)} / kParts;
  for (int64_t i = 0; i < kParts * kWords; i += 512) static_cast<uint64_t*>(data.data())[i] = 1;
  const MonotonicClock clock;
  double best = 0;
  for (int run = 0; run < 4; ++run) {
    const Seconds start = clock.Now();
    pool.ParallelFor(kParts, [&](int64_t part, int) {
      uint64_t sum = 0;
      for (int64_t i = part * kWords; i < (part + 1) * kWords; ++i) sum += words[i];
      sums[part] = sum;
    });
    best = std::max(best, static_cast<double>(kBytes) / (clock.Now() - start));
  }
  if (std::accumulate(sums.begin(), sums.end(), uint64_t{0}) == 0) return 0.0;  // keeps the loads
  return best;
}

double Percentile(std::vector<double> seconds, double share) {
  std::ranges::sort(seconds);
  const auto last = static_cast<double>(seconds.size() - 1);
  return seconds[static_cast<size_t>(std::lround(share * last))];
}

}  // namespace

Result<std::unique_ptr<StepRig>> StepRig::Create(const BenchStepCommand& command,
                                                 const StepSeat& seat) {
  std::unique_ptr<StepRig> rig(new StepRig);
  rig->command_ = command;
  BT_RETURN_IF_ERROR(rig->Load(command, seat));
  BT_RETURN_IF_ERROR(rig->MakeCache(command, seat));
  // Nobody allocates while another waits for it in a step.
  BT_RETURN_IF_ERROR(LeastOfAll(seat, 0).status());
  return rig;
}

// The router's choices, which the step is given instead of what dummy weights would choose.
Status StepRig::DrawRouting(const BenchStepCommand& command,
                            const OpsTable& ops,
                            int64_t tokens_max) {
  const int32_t moe_layers = config_.layers - std::min(config_.layers, config_.dense_layers);
  // On a GPU banks of few tokens choose the experts themselves, by the logits.
  const bool banks_choose = ops.memory->kind() != DeviceKind::kCpu;
  const int32_t replicas = share_.layout.data;
  routing_ = std::make_unique<StepRouting>(
      RoutingShape{.layers = moe_layers,
                   .experts = config_.experts - command.redundant_experts,
                   .top_k = config_.router.top_k,
                   .zipf = command.routing == "zipf" ? command.zipf_exponent : 0,
                   .ranks = replicas,
                   .slots = config_.experts,
                   .balanced = command.balance_experts,
                   .banks_choose = banks_choose && replicas == 1},
      command.seed, *pool_);
  const int64_t choices =
      int64_t{std::max(moe_layers, 1)} * tokens_max * replicas * config_.router.top_k;
  BT_ASSIGN_OR_RETURN(choices_, Buffer::Create(static_cast<size_t>(choices) * sizeof(int32_t),
                                               "expert choices", *ops.memory));
  const int64_t logits_rows =
      !banks_choose || replicas > 1
          ? 0
          : int64_t{std::max(moe_layers, 1)} * std::min(tokens_max, StepRouting::kChosenMax) + 1;
  BT_ASSIGN_OR_RETURN(
      router_logits_,
      Buffer::Create(static_cast<size_t>(logits_rows * config_.experts) * sizeof(float),
                     "drawn logits of the router", *ops.memory));
  ops_ = StepRouting::Traced(ops, static_cast<const int32_t*>(choices_.data()),
                             static_cast<const float*>(router_logits_.data()),
                             std::max(moe_layers, 1), replicas);
  return {};
}

Status StepRig::Load(const BenchStepCommand& command, const StepSeat& seat) {
  BT_ASSIGN_OR_RETURN(const ModelDescription description, DescribeModel(command.model));
  config_ = description.config;
  BT_ASSIGN_OR_RETURN(const ParallelLayout layout, LayoutOfSeat(command, config_));
  share_ = {layout, PlaceOf(layout, seat.rank())};
  if (command.layers > 0) config_.layers = std::min(config_.layers, command.layers);
  EngineConfig engine;
  engine.device = command.device;
  engine.max_num_seqs = static_cast<int32_t>(
      std::min<int64_t>(std::ranges::max(command.batches), std::numeric_limits<int32_t>::max()));
  BT_ASSIGN_OR_RETURN(const BackendChoice backend, ChooseBackend(engine));
  if (backend.gpu) BT_RETURN_IF_ERROR(CheckGpuTakes(engine, config_));
  if (seat.rank() == 0) {
    BT_RETURN_IF_ERROR(
        UseTunedTables(command.tuned_config, "", command.model, command.tensor, backend));
  }
  BT_RETURN_IF_ERROR(LeastOfAll(seat, 0).status());  // one table for all, before any is asked
  BT_ASSIGN_OR_RETURN(const OpsTable* const ops, OpenBackend(backend, seat.rank()));
  BT_ASSIGN_OR_RETURN(kv_form_, ParseKvForm(command.kv_cache_dtype, ops->act));
  pool_ = std::make_unique<ThreadPool>(
      cpu::FindCpuUse(command.threads, static_cast<int>(command.ranks)).threads);
  if (backend.gpu) {
    machine_ = backend.gpu->name;
    BT_ASSIGN_OR_RETURN(const CudaModule* const module, FindCudaModule());
    BT_ASSIGN_OR_RETURN(rates_.read_bytes, module->read_rate());
  } else {
    machine_ = fmt::format("{} threads", pool_->threads());
    BT_ASSIGN_OR_RETURN(rates_.read_bytes, HostReadRate(*ops->memory, *pool_));
  }
  BT_ASSIGN_OR_RETURN(rates_.flops, MatrixRate(*ops, pool_.get()));

  const auto available = static_cast<int64_t>(ops->memory->Available());
  DummySource source(command.seed, FormsOf(description));
  const WeightOptions weights{.quantise_fp8_inputs = backend.gpu.has_value(), .alike_layers = true};
  BT_ASSIGN_OR_RETURN(WeightPlan plan, PlanWeights(config_, source, *ops, weights));
  if (layout.ranks() > 1) {
    BT_ASSIGN_OR_RETURN(plan, SliceWeights(config_, std::move(plan), share_));
  }
  needs_ = NeedsOf(plan, *ops);

  const int64_t sequences = std::ranges::max(command.batches);
  const int64_t decode_rows = sequences * (1 + command.drafts);
  const int64_t tokens_max =
      std::max(command.prefills.empty() ? 1 : std::ranges::max(command.prefills), decode_rows);
  BT_RETURN_IF_ERROR(DrawRouting(command, *ops, tokens_max));
  if (layout.data > 1) {
    std::unique_ptr<EchoedSlabs> slabs;
    if (command.move_experts) {
      BT_ASSIGN_OR_RETURN(slabs, EchoedSlabs::Create(*ops, config_));
    }
    auto absent = std::make_unique<AbsentReplicas>(*ops, std::move(slabs));
    replicas_ = absent.get();
    ranks_ = std::make_unique<ModelRanks>(share_, std::move(absent));
  } else {
    BT_ASSIGN_OR_RETURN(ranks_, TakeSeat(seat, layout, config_, *ops, tokens_max));
  }
  K2LoadOptions load;
  load.ranks = ranks_.get();
  load.parts_as_of_ranks = command.tensor > 1;
  load.weights = weights;
  load.positions_max =
      std::max(tokens_max, std::ranges::max(command.contexts) + 1 + command.drafts);
  BT_ASSIGN_OR_RETURN(model_, K2Model::Load(config_, source, ops_, pool_.get(), load));
  if (!command.enforce_eager) model_->UseGraphs();
  arena_ = std::make_unique<Arena>(*ops->memory);
  BT_RETURN_IF_ERROR(model_->ReserveScratch(kv_form_, tokens_max, sequences, *arena_, decode_rows));
  if (ranks_ != nullptr) {
    BT_RETURN_IF_ERROR(model_->WarmUp(kv_form_, tokens_max, sequences, *arena_, decode_rows));
  }
  BT_ASSIGN_OR_RETURN(
      logits_, Buffer::Create(static_cast<size_t>(decode_rows * config_.vocab) * sizeof(float),
                              "logits", *ops->memory));
  memory_used_ = available - static_cast<int64_t>(ops->memory->Available());
  return {};
}

Status StepRig::MakeCache(const BenchStepCommand& command, const StepSeat& seat) {
  const Memory& memory = *ops_.memory;
  int64_t wanted = 1;
  for (const int64_t batch : command.batches) {
    for (const int64_t context : command.contexts) {
      wanted = std::max(wanted, batch * ((context + command.drafts + kBlock - 1) / kBlock));
    }
  }
  for (const int64_t tokens : command.prefills) {
    wanted = std::max(wanted, (tokens + kBlock - 1) / kBlock);
  }
  // A draft's keys are a layer more, at most twice as wide.
  const int64_t layers = config_.layers + (command.drafts > 0 ? 2 : 0);
  const int64_t block_bytes = kBlock * KvBytesPerToken(config_, kv_form_, layers);
  const int64_t ways = share_.layout.decode_context;
  const auto room = static_cast<int64_t>(memory.Available()) - kSpareBytes;
  BT_ASSIGN_OR_RETURN(const int64_t blocks,
                      LeastOfAll(seat, std::min((wanted + ways - 1) / ways, room / block_bytes)));
  if (blocks < 1) return Status(Code::kResourceExhausted, "no room for a KV cache");
  BT_ASSIGN_OR_RETURN(KvStorage storage,
                      KvStorage::Create({.layers = config_.layers,
                                         .num_blocks = static_cast<int32_t>(blocks),
                                         .latent = static_cast<int32_t>(config_.kv_lora),
                                         .rope = static_cast<int32_t>(config_.rope_dim),
                                         .form = kv_form_},
                                        memory));
  storage_ = std::make_unique<KvStorage>(std::move(storage));
  for (int32_t layer = 0; layer < config_.layers; ++layer) {
    cache_.push_back({.data = storage_->layer(layer),
                      .form = kv_form_,
                      .num_blocks = blocks,
                      .latent = config_.kv_lora,
                      .rope = config_.rope_dim});
  }
  blocks_.resize(static_cast<size_t>(blocks * ways));
  std::iota(blocks_.begin(), blocks_.end(), 0);
  std::ranges::shuffle(blocks_, std::mt19937_64(command.seed));

  if (command.drafts > 0) BT_RETURN_IF_ERROR(MakeDraft(command));

  // Drawn bytes that are small numbers in every form: bf16 below 2, e4m3 below 2.
  const auto layer_bytes = static_cast<size_t>(storage_->layout().layer_bytes());
  std::vector<uint8_t> drawn(std::min(layer_bytes, size_t{64} << 20));
  std::minstd_rand random;
  for (uint8_t& byte : drawn) byte = static_cast<uint8_t>(random()) & 0xBF;
  if (kv_form_ == KvForm::kFp8Groups) std::ranges::fill(drawn, 0x38);  // scales as well
  for (int32_t layer = 0; layer < config_.layers; ++layer) {
    auto* const to = static_cast<char*>(storage_->layer(layer));
    for (size_t at = 0; at < layer_bytes; at += drawn.size()) {
      const size_t bytes = std::min(drawn.size(), layer_bytes - at);
      if (layer == 0 && at == 0) {
        BT_RETURN_IF_ERROR(memory.CopyIn(to, drawn.data(), bytes));
      } else {
        BT_RETURN_IF_ERROR(memory.Copy(to + at, storage_->layer(0), bytes));
      }
    }
  }
  return {};
}

Status StepRig::MakeDraft(const BenchStepCommand& command) {
  if (share_.layout.ranks() > 1) {
    return InvalidArgument(
        "--speculative: give neither --ranks nor -dcp with it; -tp times one rank's share");
  }
  const int64_t sequences = std::ranges::max(command.batches);
  const DraftRig::Sizes sizes{.drafts = command.drafts,
                              .sequences_max = sequences,
                              .rows_max = sequences * (1 + command.drafts),
                              .positions_max = model_->positions_max(),
                              .blocks = std::ssize(blocks_),
                              .graphs = !command.enforce_eager,
                              .seed = command.seed};
  BT_ASSIGN_OR_RETURN(drafter_, DraftRig::Create(config_, sizes, ops_, pool_.get()));
  return {};
}

Result<StepTiming> StepRig::Decode(int64_t batch, int64_t context) {
  const int64_t each = (context + kBlock - 1) / kBlock;
  if (batch * each > std::ssize(blocks_)) {
    return Status(Code::kResourceExhausted, "the keys do not fit");
  }
  std::vector<int32_t> tokens(static_cast<size_t>(batch)), positions(tokens.size()),
      rows(tokens.size());
  std::vector<int64_t> slots;
  std::vector<AttentionSequence> sequences;
  std::ranges::fill(positions, static_cast<int32_t>(context - 1));
  std::iota(rows.begin(), rows.end(), 0);
  for (int64_t i = 0; i < batch; ++i) {
    tokens[i] = static_cast<int32_t>(i * 7919 % config_.vocab);
    const auto blocks = std::span<const int32_t>(blocks_).subspan(i * each, each);
    slots.push_back(blocks.back() * kBlock + (context - 1) % kBlock);
    sequences.push_back({.query_begin = static_cast<int32_t>(i),
                         .query_count = 1,
                         .first_position = static_cast<int32_t>(context - 1),
                         .absorbed_from = 0,
                         .blocks = blocks,
                         .block_positions = {},
                         .key_count = static_cast<int32_t>(context)});
  }
  return Time({.tokens = tokens,
               .positions = positions,
               .slots = slots,
               .sequences = sequences,
               .logits_rows = rows,
               .override_rows = {},
               .embedding_overrides = {}});
}

Result<StepTiming> StepRig::Prefill(int64_t tokens) {
  const int64_t blocks = (tokens + kBlock - 1) / kBlock;
  if (blocks > std::ssize(blocks_)) {
    return Status(Code::kResourceExhausted, "the keys do not fit");
  }
  std::vector<int32_t> ids, positions(static_cast<size_t>(tokens));
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<int64_t> slots;
  for (int64_t i = 0; i < tokens; ++i) {
    ids.push_back(static_cast<int32_t>(i * 7919 % config_.vocab));
    slots.push_back(blocks_[i / kBlock] * kBlock + i % kBlock);
  }
  const std::vector<AttentionSequence> sequences = {
      {.query_begin = 0,
       .query_count = static_cast<int32_t>(tokens),
       .first_position = 0,
       .absorbed_from = static_cast<int32_t>(tokens),
       .blocks = std::span<const int32_t>(blocks_).first(static_cast<size_t>(blocks)),
       .block_positions = {},
       .key_count = static_cast<int32_t>(tokens)}};
  const std::vector<int32_t> rows = {static_cast<int32_t>(tokens - 1)};
  return Time({.tokens = ids,
               .positions = positions,
               .slots = slots,
               .sequences = sequences,
               .logits_rows = rows,
               .override_rows = {},
               .embedding_overrides = {}});
}

// One rearrangement follows the other, each to where quite other loads want the experts.
void StepRig::MoveExperts() {
  moves_ = true;
  loads_random_.seed(command_.seed);
  model_->BalanceExperts({.window = 1,
                          .interval = 1,
                          .step_bytes = std::numeric_limits<int64_t>::max(),
                          .place = [this](const BalanceShape& shape, const ExpertSlots&) {
                            return DrawPlacement(shape);
                          }});
}

ExpertSlots StepRig::DrawPlacement(const BalanceShape& shape) {
  std::vector<double> loads;
  for (int32_t i = 0; i < shape.experts; ++i) {
    loads.push_back(std::pow(i + 1.0, -command_.zipf_exponent));
  }
  std::ranges::shuffle(loads, loads_random_);
  return BalanceExperts(shape, loads);
}

Result<RoutedWork> StepRig::BringRouting(int64_t tokens) {
  const RoutedWork drawn = routing_->ids().empty() && config_.experts == 0
                               ? RoutedWork()
                               : routing_->Draw(tokens * share_.layout.data, *pool_);
  BT_RETURN_IF_ERROR(ops_.memory->CopyIn(choices_.data(), routing_->ids().data(),
                                         routing_->ids().size() * sizeof(int32_t)));
  BT_RETURN_IF_ERROR(ops_.memory->CopyIn(router_logits_.data(), routing_->logits().data(),
                                         routing_->logits().size() * sizeof(float)));
  StepRouting::Rewind();
  return drawn;
}

Result<StepTiming> StepRig::Time(ForwardBatch batch) {
  const auto tokens = static_cast<int64_t>(batch.tokens.size());
  const std::vector<int64_t> group_rows(
      replicas_ == nullptr ? 0 : static_cast<size_t>(share_.layout.data), tokens);
  batch.group_rows = group_rows;
  const TensorView logits(logits_.data(), DType::kF32,
                          {static_cast<int64_t>(batch.logits_rows.size()), config_.vocab});
  const OpContext context{.rank = ops_.rank};
  const MonotonicClock clock;
  std::vector<double> seconds;
  full_rounds_.clear();
  RoutedWork routed;
  std::vector<std::string> told;
  if (command_.explain) model_->Explain([&](const std::string& line) { told.push_back(line); });
  for (int run = -kWarmUps; run < command_.repeats; ++run) {
    BT_ASSIGN_OR_RETURN(const RoutedWork drawn, BringRouting(tokens));
    // Once for all steps of this size, which have their rows where the first one has them.
    if (replicas_ != nullptr) replicas_->BringRowsOfOthers(run == -kWarmUps);
    arena_->Reset();
    const Seconds start = clock.Now();
    model_->Forward(batch, cache_, logits, *arena_);
    BT_RETURN_IF_ERROR(ops_.wait(context));
    const Seconds took = clock.Now() - start;
    model_->Explain(nullptr);
    const bool full = moves_ && replicas_->slabs()->TakeTraded() == 2 * kExpertsOnTheirWay;
    if (run < 0) continue;
    seconds.push_back(took);
    if (full) full_rounds_.push_back(took);
    routed.Add(drawn, 1.0 / command_.repeats);
  }
  StepTiming timing = TimingOf(seconds, routed);
  timing.told = std::move(told);
  if (replicas_ != nullptr) BT_RETURN_IF_ERROR(replicas_->status());
  if (moves_) return timing;  // choices became slots of experts that have moved
  // Banks that choose themselves have written what they chose.
  std::vector<int32_t> chosen(routing_->ids().size());
  BT_RETURN_IF_ERROR(
      ops_.memory->CopyOut(chosen.data(), choices_.data(), chosen.size() * sizeof(int32_t)));
  if (chosen != routing_->ids()) {
    return Status(Code::kInternal, "a bank chose other experts than those drawn");
  }
  return timing;
}

StepTiming TimingOf(std::vector<double> seconds, const RoutedWork& routed) {
  if (seconds.empty()) return {};
  return {.median = Percentile(seconds, 0.5),
          .p99 = Percentile(seconds, 0.99),
          .least = std::ranges::min(seconds),
          .most = std::ranges::max(seconds),
          .routed = routed};
}

}  // namespace baltoro
