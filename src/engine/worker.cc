#include "engine/worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <numeric>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/profile.h"
#include "engine/empty_step.h"
#include "engine/graph_sizes.h"
#include "engine/worker_batch.h"

namespace baltoro {

namespace {

// Tokens of a step whose trial takes a CPU seconds.
constexpr int32_t kLargeTrial = 8192;

}  // namespace

Worker::Worker(const WorkerConfig& config,
               std::unique_ptr<ThreadPool> pool,
               std::unique_ptr<K2Model> model,
               KvStorage kv)
    : config_(config),
      pool_(std::move(pool)),
      model_(std::move(model)),
      kv_(std::move(kv)),
      arena_(*model_->ops().memory),
      sample_arena_(*model_->ops().memory),
      sample_staging_(model_->ops().staging == nullptr ? HostMemory() : *model_->ops().staging),
      slots_(config.max_num_seqs) {
  if (config.constraints != nullptr) {
    masks_ = std::make_unique<StepMasks>(config.constraints, config.max_num_seqs,
                                         model_->config().vocab, config.mask_threads);
  }
  for (int32_t layer = 0; layer < kv_.layout().layers; ++layer) {
    layers_.push_back({.data = kv_.layer(layer),
                       .form = kv_.layout().form,
                       .num_blocks = kv_.layout().num_blocks,
                       .latent = kv_.layout().latent,
                       .rope = kv_.layout().rope,
                       .scale = config.kv_scales.empty() ? 1 : config.kv_scales[layer]});
  }
}

Result<std::unique_ptr<Worker>> Worker::Create(const WorkerConfig& config,
                                               std::unique_ptr<ThreadPool> pool,
                                               std::unique_ptr<K2Model> model,
                                               KvStorage kv,
                                               WorkerDraft draft,
                                               std::unique_ptr<PictureMemory> pictures) {
  BT_CHECK(kv.layout().layers == model->layers());
  BT_CHECK((kv.layout().draft_blocks > 0) == (draft.model != nullptr));
  BT_CHECK(kv.layout().latent == model->config().kv_lora);
  BT_CHECK(kv.layout().rope == model->config().rope_dim);
  BT_CHECK(config.kv_scales.empty() || std::ssize(config.kv_scales) == kv.layout().layers);
  std::unique_ptr<Worker> worker(
      new Worker(config, std::move(pool), std::move(model), std::move(kv)));
  worker->pictures_ = std::move(pictures);
  const auto bytes = static_cast<size_t>(int64_t{config.logits_rows_max} *
                                         worker->model_->config().vocab * SizeOf(DType::kF32));
  BT_ASSIGN_OR_RETURN(worker->logits_, Buffer::Create(bytes, "logits (lower --max-num-seqs)",
                                                      *worker->model_->ops().memory));
  for (size_t i = 0; i < config.tap_layers.size(); ++i) {
    const int64_t rows = config.max_num_batched_tokens * worker->model_->config().hidden;
    BT_ASSIGN_OR_RETURN(Buffer taps,
                        Buffer::Create(static_cast<size_t>(rows) * sizeof(float),
                                       "what a draft model reads (lower --max-num-batched-tokens)",
                                       *worker->model_->ops().memory));
    worker->taps_.push_back(std::move(taps));
  }
  if (draft.model != nullptr) {
    // A chunk of fixed steps is of one request, and of sampled tokens a row each.
    BT_CHECK((config.samples || draft.team != nullptr) && config.fixed.prompt_chunk == 0);
    worker->draft_team_ = std::move(draft.team);
    const KvLayout& layout = worker->kv_.layout();
    const KvLayerView own{.data = worker->kv_.draft_layer(),
                          .form = layout.draft_form,
                          .num_blocks = layout.draft_blocks,
                          .latent = layout.draft_latent,
                          .rope = layout.draft_rope};
    const int32_t sequences = std::min(config.max_num_seqs, config.max_num_batched_tokens);
    BT_ASSIGN_OR_RETURN(worker->drafter_,
                        DraftModel::Create(std::move(draft.model),
                                           {.tokens = std::move(draft.tokens),
                                            .cache = own,
                                            .tokens_max = config.max_num_batched_tokens,
                                            .sequences_max = sequences,
                                            .drafts_max = config.speculation.drafts},
                                           worker->pool_.get()));
  }
  const MonotonicClock clock;
  const Seconds start = clock.Now();
  const FixedSteps& fixed = config.fixed;
  if (worker->pass_tokens_max() >= kLargeTrial && !config.quiet) {
    BT_LOG(Info,
           "Trying a step of {} tokens and one with {} rows of answers and their drafts, for which "
           "memory is taken now",
           worker->pass_tokens_max(), worker->pass_sequences_max());
  }
  BT_CHECK(fixed.prompt_chunk == 0 || fixed.decode_rows > 0);
  worker->model_->CutKeysAt(fixed.key_part_blocks);
  BT_RETURN_IF_ERROR(worker->TryLargestSteps());
  Seconds trial = clock.Now() - start;
  BT_RETURN_IF_ERROR(worker->TakeMemoryAhead());
  if (worker->model_->ops().memory->kind() != DeviceKind::kCpu) {
    if (!config.quiet) {
      BT_LOG(Info, "The largest steps were tried in {:.2f} seconds, other sizes in {:.2f}", trial,
             clock.Now() - start - trial);
    }
    // The first time most of it went into loading kernels, which other layers do not do again.
    const Seconds warm = clock.Now();
    BT_RETURN_IF_ERROR(worker->TryLargestSteps());
    trial = clock.Now() - warm;
  }
  worker->largest_step_seconds_ =
      trial * static_cast<double>(worker->model_->TrialParts(worker->pass_tokens_max()));
  if (worker->model_->uses_graphs()) worker->RecordSteps();
  if (config.balance) worker->model_->BalanceExperts(*config.balance);
  worker->scratch_bytes_ = worker->ScratchBytes();
  return worker;
}

Status Worker::TryLargestSteps() {
  BT_RETURN_IF_ERROR(model_->ReserveScratch(kv_.layout().form, pass_tokens_max(),
                                            pass_sequences_max(), arena_, config_.logits_rows_max));
  return model_->ranks() == nullptr ? Status() : model_->ranks()->status();
}

Status Worker::TakeMemoryAhead() {
  if (model_->ranks() != nullptr) {
    // Alone, a kernel that is loaded later keeps nobody waiting, and loading all takes seconds.
    BT_RETURN_IF_ERROR(model_->WarmUp(kv_.layout().form, pass_tokens_max(), pass_sequences_max(),
                                      arena_, config_.logits_rows_max));
  }
  if (!config_.samples || model_->ops().memory->kind() == DeviceKind::kCpu) return {};
  // A row that is larger than all goes may be takes what it needs.
  const size_t bytes = config_.sample_bytes + (size_t{1} << 20);
  BT_RETURN_IF_ERROR(sample_arena_.Reserve(bytes));
  return sample_staging_.Reserve(bytes);
}

int64_t Worker::ScratchBytes() const {
  const size_t own =
      arena_.bytes_reserved() + sample_arena_.bytes_reserved() + sample_staging_.bytes_reserved();
  return static_cast<int64_t>(own) + model_->scratch_bytes() + model_->staging_bytes() +
         (drafter_ == nullptr ? 0 : drafter_->scratch_bytes()) +
         (pictures_ == nullptr ? 0 : pictures_->bytes());
}

int32_t Worker::RecordedMax(int32_t rows) const {
  return std::min(config_.max_num_batched_tokens, config_.logits_rows_max) / rows;
}

// The first step of a size runs, alone, as it may allocate; the second is recorded and not run, as
// other ranks may be behind.
void Worker::RecordStep(int32_t sequences, int32_t rows, int64_t keys) {
  for (const auto mode : {K2Model::StepMode::kAlone, K2Model::StepMode::kRecord}) {
    model_->SetStepMode(mode);
    ForwardEmpty(sequences, rows, keys);
  }
  model_->SetStepMode(K2Model::StepMode::kRun);
}

void Worker::ForwardEmpty(int32_t sequences, int32_t rows, int64_t keys) {
  const EmptyStep empty(sequences, rows, keys);
  std::vector<int32_t> all(empty.zeros.size());
  std::iota(all.begin(), all.end(), 0);
  const std::vector<TensorView> taps = TapsOf(std::ssize(all));
  const int32_t replicas = model_->share().layout.data;
  const std::vector<int64_t> group(static_cast<size_t>(replicas > 1 ? replicas : 0),
                                   std::ssize(all));
  arena_.Reset();
  model_->Forward({.tokens = empty.zeros,
                   .positions = empty.zeros,
                   .slots = empty.slots,
                   .sequences = empty.sequences,
                   .logits_rows = all,
                   .override_rows = {},
                   .embedding_overrides = {},
                   .tap_layers = config_.tap_layers,
                   .taps = taps,
                   .group_rows = group},
                  layers_, LogitsOf(std::ssize(all)), arena_);
}

void Worker::RecordSteps() {
  const MonotonicClock clock;
  const Seconds start = clock.Now();
  const int32_t most = std::min(config_.max_num_seqs, config_.max_num_batched_tokens);
  graph_sizes_ =
      config_.graph_sizes.empty() ? GraphSizes(most) : GraphSizes(config_.graph_sizes, most);
  if (config_.fixed.prompt_chunk > 0) graph_sizes_ = {config_.fixed.decode_rows};
  if (graph_sizes_.empty()) return;
  recorded_rows_ = {1};
  for (const int32_t drafts : DraftCounts(config_.speculation)) {
    const bool fits = 1 + drafts <= K2Model::kRecordedRowsMax && config_.fixed.prompt_chunk == 0;
    if (drafts > 0 && fits) recorded_rows_.push_back(1 + drafts);
  }
  for (const int32_t rows : recorded_rows_) {
    std::vector<int32_t> sizes = graph_sizes_;
    std::erase_if(sizes, [&](int32_t size) { return rows > 1 && size > RecordedMax(rows); });
    for (const int32_t size : sizes) {
      RecordStep(size, rows, 1);
      // The number of keys decides how the rows of a sequence are computed.
      if (rows == 1 || !model_->RowsAlone(int64_t{size} * rows, 1, layers_[0])) continue;
      RecordStep(size, rows, model_->positions_max());
    }
    if (drafter_ == nullptr) continue;
    drafter_->Record(sizes, rows, TapsOf(config_.max_num_batched_tokens));
  }
  BT_LOG(Info, "Graph capturing finished in {:.2f} secs: decode steps of {} sizes, 1 to {}",
         clock.Now() - start, graph_sizes_.size(), graph_sizes_.back());
}

TensorView Worker::LogitsOf(int64_t rows) const {
  BT_CHECK(rows <= config_.logits_rows_max);
  return TensorView(logits_.data(), DType::kF32, {rows, model_->config().vocab});
}

std::vector<TensorView> Worker::TapsOf(int64_t tokens) const {
  std::vector<TensorView> taps;
  for (const Buffer& memory : taps_) {
    taps.emplace_back(const_cast<void*>(memory.data()), DType::kF32,
                      std::initializer_list<int64_t>{tokens, model_->config().hidden});
  }
  return taps;
}

Result<StepResult> Worker::Run(const StepPlan& plan) {
  BT_RETURN_IF_ERROR(Apply(plan));
  StepResult result;
  result.step = plan.step;
  result.sequences.resize(plan.sequences.size());
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    result.sequences[i].slot = plan.sequences[i].slot;
  }
  if (pictures_ != nullptr && !plan.encodes.empty()) {
    const ProfileSpan span("encode");
    BT_RETURN_IF_ERROR(pictures_->Encode(plan.encodes));
  }
  try {
    for (size_t begin = 0; begin < plan.sequences.size();) {
      const size_t end = PassEnd(plan, begin);
      BT_RETURN_IF_ERROR(RunSequences(plan, begin, end, result));
      begin = end;
    }
    if (plan.sequences.empty()) BT_RETURN_IF_ERROR(RunForOthers(plan));
    if (model_->ranks() == nullptr) return result;
    BT_RETURN_IF_ERROR(model_->ranks()->status());
    const bool gpu = model_->ops().memory->kind() != DeviceKind::kCpu;
    if (const int64_t bytes = ScratchBytes(); bytes > std::exchange(scratch_bytes_, bytes) && gpu) {
      BT_LOG_LIMITED(Warning,
                     "Scratch memory grew to {} bytes while steps run (step {}, {} tokens)", bytes,
                     plan.step, plan.num_tokens());
    }
    return result;
  } catch (const std::bad_alloc&) {
    // Others have gone on, or wait: what they hold can no longer be the same.
    if (model_->ranks() != nullptr) {
      return Status(Code::kResourceExhausted, fmt::format("out of memory in step {}", plan.step));
    }
    BT_LOG_LIMITED(Warning, "Out of memory in step {}: its {} requests are computed one by one",
                   plan.step, plan.sequences.size());
  }
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    SequenceResult& one = result.sequences[i];
    if (slot_of(plan.sequences[i]).over && (one.failed || one.ended)) continue;
    Undo(plan.sequences[i], one);
    if (one.failed) continue;
    try {
      BT_RETURN_IF_ERROR(RunSequences(plan, i, i + 1, result));
    } catch (const std::bad_alloc&) {
      BT_LOG_LIMITED(Error, "Out of memory in step {}: one request fails", plan.step);
      Fail(plan.sequences[i],
           Status(Code::kResourceExhausted, "the engine has not enough memory for the request"),
           one);
    }
  }
  return result;
}

bool Worker::Decodes(const PlannedSequence& planned) const {
  return planned.first_position >= std::ssize(slot_of(planned).admitted.prompt);
}

size_t Worker::PassEnd(const StepPlan& plan, size_t begin) const {
  const FixedSteps& fixed = config_.fixed;
  if (fixed.prompt_chunk == 0) return plan.sequences.size();
  size_t end = begin;
  for (int32_t rows = 0; end < plan.sequences.size(); ++end) {
    const PlannedSequence& planned = plan.sequences[end];
    if (!Decodes(planned)) break;
    rows += planned.token_count;
    if (rows > fixed.decode_rows) break;
  }
  return std::max(end, begin + 1);
}

// As if nothing had been sampled in this step. Keys are simply written again.
void Worker::Undo(const PlannedSequence& planned, SequenceResult& one) {
  Slot& slot = slot_of(planned);
  slot.output.resize(slot.output_before);
  slot.ngrams.reset();  // it may have more
  one = {};
  one.slot = planned.slot;
  if (masks_ != nullptr && !masks_->Undo(planned.slot)) {
    Fail(planned, masks_->error(planned.slot), one);
  }
}

void Worker::Fail(const PlannedSequence& planned, const Status& error, SequenceResult& one) {
  one.failed = slot_of(planned).over = true;
  one.error = error.message();
  one.error_code = error.code();
}

Status Worker::Apply(const StepPlan& plan) {
  if (masks_ != nullptr) masks_->Apply(plan);
  const RankShare& share = model_->share();
  for (const BlockId block : plan.cleared) {
    if (drafter_ != nullptr) BT_RETURN_IF_ERROR(kv_.ClearDraft(block));
    const BlockPlace place = PlaceOfBlock(share.layout, static_cast<int64_t>(block));
    if (place.context != share.place.context(share.layout)) continue;
    BT_RETURN_IF_ERROR(kv_.Clear(static_cast<BlockId>(place.block)));
  }
  for (const SlotId slot : plan.retired) slots_[static_cast<size_t>(slot)] = {};
  for (const AdmittedSequence& admitted : plan.admitted) {
    Slot& slot = slots_[static_cast<size_t>(admitted.slot)];
    BT_CHECK(!slot.live);
    slot.live = true;
    slot.admitted = admitted;
    slot.output = admitted.output;
    if (admitted.sampling.allowed_token_ids.empty()) continue;
    slot.mask.assign(static_cast<size_t>((model_->config().vocab + 31) / 32), 0);
    for (const TokenId id : admitted.sampling.allowed_token_ids) {
      slot.mask[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
    }
  }
  for (const PlannedSequence& planned : plan.sequences) {
    Slot& slot = slot_of(planned);
    BT_CHECK(slot.live);
    slot.output_before = slot.output.size();
    for (const BlockId block : plan.new_blocks_of(planned)) {
      slot.blocks.push_back(static_cast<int32_t>(block));
    }
  }
  return {};
}

// Its experts, for the rows of the replicas that share them; beside a recorded step of theirs in a
// step that is recorded too, with as many rows as they have.
Status Worker::RunForOthers(const StepPlan& plan) {
  if (plan.group_rows.empty()) return CheckGroupRows(plan, {}, 0);
  const ProfileSpan span("forward", {{{"tokens", 0}}});
  if (const Evened evened = EvenedGroup(plan); evened.sequences > 0) {
    ForwardEmpty(evened.sequences, evened.rows, 1);
    return {};
  }
  BT_RETURN_IF_ERROR(CheckGroupRows(plan, plan.group_rows, 0));
  arena_.Reset();
  ForwardBatch nothing;
  nothing.tap_layers = config_.tap_layers;
  const std::vector<TensorView> taps = TapsOf(0);
  nothing.taps = taps;
  nothing.group_rows = plan.group_rows;
  model_->Forward(nothing, layers_, LogitsOf(0), arena_);
  return {};
}

// All ranks of a group exchange what the plans say.
Status Worker::CheckGroupRows(const StepPlan& plan,
                              std::span<const int64_t> told,
                              int64_t rows) const {
  const RankShare& share = model_->share();
  const auto replicas = static_cast<size_t>(share.layout.data > 1 ? share.layout.data : 0);
  if (told.size() == replicas &&
      (replicas == 0 || told[static_cast<size_t>(share.place.data)] == rows)) {
    return {};
  }
  return Status(
      Code::kInternal,
      fmt::format("step {}: {} rows, and the plan told others of another number", plan.step, rows));
}

Status Worker::RunSequences(const StepPlan& plan, size_t begin, size_t end, StepResult& result) {
  Batch batch;
  const std::vector<int64_t> group_rows = GroupRowsOf(plan);
  if (group_rows.empty()) {
    batch.rows_each = RowsEach(plan, begin, end);
  } else {
    const Evened evened = EvenedGroup(plan);
    batch.rows_each = evened.rows;
    batch.sequences_all = evened.sequences;
  }
  for (size_t i = begin; i < end; ++i) {
    const PlannedSequence& planned = plan.sequences[i];
    const Slot& slot = slot_of(planned);
    if (slot.over) result.sequences[i].failed = true;
    if (slot.left_out || (slot.over && model_->ranks() == nullptr)) continue;
    batch.entries.push_back({.index = i,
                             .prompt_row_begin = 0,
                             .prompt_row_count = 0,
                             .sampled_row_begin = 0,
                             .sampled_row_count = 0});
    batch.fixed = config_.fixed.prompt_chunk > 0 && Decodes(planned);
    if (batch.fixed) {
      PackDecodes(plan, planned, batch);
    } else {
      Pack(plan, planned, batch);
    }
  }
  if (batch.entries.empty()) return RunForOthers(plan);
  Pad(batch);
  BT_RETURN_IF_ERROR(CheckGroupRows(plan, group_rows, std::ssize(batch.tokens)));
  batch.logits = LogitsOf(static_cast<int64_t>(batch.logits_rows.size()));

  // Masks are of this batch, and read its plan: they are made by the time it is left.
  struct MaskWaiter {
    StepMasks* masks;
    ~MaskWaiter() {
      if (masks != nullptr) masks->Wait();
    }
  };
  const MaskWaiter waiter{masks_.get()};
  if (masks_ != nullptr) masks_->Begin(plan, begin, end);
  arena_.Reset();
  const std::vector<TensorView> taps = TapsOf(std::ssize(batch.tokens));
  TakePictures(plan, batch);
  const ForwardBatch step{.tokens = batch.tokens,
                          .positions = batch.positions,
                          .slots = batch.cache_slots,
                          .sequences = batch.sequences,
                          .logits_rows = batch.logits_rows,
                          .override_rows = batch.override_rows,
                          .embedding_overrides = batch.embedding_overrides,
                          .tap_layers = config_.tap_layers,
                          .taps = taps,
                          .group_rows = group_rows};
  {
    const ProfileSpan span("forward", {{{"tokens", static_cast<int64_t>(batch.tokens.size())}}});
    model_->Forward(step, layers_, batch.logits, arena_);
  }
  const bool computed = model_->ranks() == nullptr || model_->ranks()->status().ok();
  if (!computed) return {};
  if (!config_.samples) {
    return draft_team_ == nullptr ? Status() : ProposeByModel(plan, batch, step, result);
  }
  const ProfileSpan span("sample");
  SamplePrompt(plan, batch, result);
  if (masks_ != nullptr) masks_->Wait();
  SampleTokens(plan, batch, result);
  if (!config_.speculation.enabled()) return {};
  try {
    return ProposeDrafts(plan, batch, step, result);
  } catch (const std::bad_alloc&) {
    if (draft_team_ != nullptr) throw;  // others have gone on, or wait
    // What was sampled stands. Keys that the draft has not written cost acceptance alone.
    BT_LOG_LIMITED(Warning, "Out of memory in step {}: no drafts are made", plan.step);
    for (const Batch::Entry& entry : batch.entries) {
      slot_of(plan.sequences[entry.index]).ngrams.reset();
      result.sequences[entry.index].drafts.clear();
    }
    return {};
  }
}

Status Worker::TakeResult(const StepResult& result) {
  for (const SequenceResult& one : result.sequences) {
    const auto at = static_cast<size_t>(one.slot);
    if (at >= slots_.size() || !slots_[at].live) {
      return InvalidArgument(
          fmt::format("step {}: a result for a slot that nobody has", result.step));
    }
    Slot& slot = slots_[at];
    if (one.failed || one.ended) slot.over = slot.left_out = true;
    if (config_.samples) continue;  // it knew that
    slot.output.insert(slot.output.end(), one.tokens.begin(), one.tokens.end());
  }
  return {};
}

}  // namespace baltoro
