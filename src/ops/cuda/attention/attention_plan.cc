#include "ops/cuda/attention/attention_plan.h"

#include <algorithm>
#include <vector>

#include "ops/cuda/attention/heads/head_plan.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch/card.h"

namespace baltoro::cuda {
namespace {

constexpr int32_t kBlock = KvLayerView::kBlockTokens;

int64_t BlocksOf(const AttentionSequence& sequence) {
  return (int64_t{sequence.key_count} + kBlock - 1) / kBlock;
}

int32_t PositionOf(const AttentionSequence& sequence, int64_t block) {
  return sequence.block_positions.empty() ? static_cast<int32_t>(block) * kBlock
                                          : sequence.block_positions[block];
}

// Brings a step's lists to the device.
class Planner {
 public:
  Planner(const OpContext& ctx, Arena& arena, const AttentionPlanArgs& args)
      : ctx_(ctx), arena_(arena), args_(args) {}

  const AttentionPlan* Run(const AttentionStep& step) {
    plan_.tokens = args_.tokens;
    plan_.form = args_.form;
    plan_.heads = args_.heads;
    if (!step.runs.empty()) Absorbed(step);
    if (!step.passes.empty()) Expanded(step);
    auto* const kept = static_cast<AttentionPlan*>(ctx_.staging->Allocate(sizeof(AttentionPlan)));
    *kept = plan_;
    return kept;
  }

 private:
  const AttentionSequence& SourceOf(const AbsorbedRun& run) const {
    return args_.sequences[run.source];
  }

  void Absorbed(const AttentionStep& step) {
    plan_.absorbed_rows = step.absorbed_rows;
    plan_.limits = step.limits;
    const std::vector<AbsorbedRun>& runs = step.runs;
    UploadTables(runs);
    const Result<size_t> bytes = MlaDecodeWorkspaceBytes(plan_.limits);
    CheckOk(bytes.status());
    const Result<size_t> plan_bytes = MlaDecodePlanBytes(plan_.limits);
    CheckOk(plan_bytes.status());
    // The numbers lie ahead of the workspace, so that one copy brings both.
    constexpr size_t kAlignment = 256;
    const size_t count = 3 * runs.size() + 1 + static_cast<size_t>(plan_.absorbed_rows);
    const size_t room = (count * sizeof(int32_t) + kAlignment - 1) / kAlignment * kAlignment;
    auto* const device = static_cast<char*>(arena_.Allocate(room + bytes.value()));
    auto* const staged = static_cast<char*>(ctx_.staging->Allocate(room + plan_bytes.value()));
    auto* const numbers = reinterpret_cast<int32_t*>(staged);
    std::fill_n(numbers, count, -1);
    SetNumbers(runs, numbers, reinterpret_cast<const int32_t*>(device));
    plan_.workspace = device + room;
    CheckOk(PlanMlaDecodeOnHost(plan_.limits, numbers, numbers + runs.size() + 1, staged + room));
    CheckCuda(cudaMemcpyAsync(device, staged, room + plan_bytes.value(), cudaMemcpyHostToDevice,
                              StreamOf(ctx_)),
              "upload of the plan of MLA decode");
  }

  // Query begins [runs + 1], key counts and first positions [runs], rows.
  void SetNumbers(const std::vector<AbsorbedRun>& runs, int32_t* begin, const int32_t* on_device) {
    const size_t count = runs.size();
    int32_t* const keys = begin + count + 1;
    int32_t* const firsts = keys + count;
    int32_t* const rows = firsts + count;
    int32_t row = 0;
    for (size_t i = 0; i < count; ++i) {
      const AbsorbedRun& run = runs[i];
      begin[i] = row;
      keys[i] = run.count > 0 ? SourceOf(run).key_count : 0;
      firsts[i] = SourceOf(run).first_position + run.skipped;
      for (int32_t j = 0; j < run.count; ++j) {
        rows[row++] = SourceOf(run).query_begin + run.skipped + j;
      }
    }
    begin[count] = row;
    plan_.sequences.query_begin = on_device;
    plan_.sequences.key_count = on_device + (keys - begin);
    plan_.sequences.first_position = on_device + (firsts - begin);
    plan_.rows = on_device + (rows - begin);
  }

  void UploadTables(const std::vector<AbsorbedRun>& runs) {
    int64_t width = 0;
    bool given = false;
    for (const AbsorbedRun& run : runs) {
      if (run.count == 0) continue;
      width = std::max(width, BlocksOf(SourceOf(run)));
      given |= !SourceOf(run).block_positions.empty();
    }
    BT_CHECK(args_.blocks_max == 0 || width <= args_.blocks_max);
    const int64_t stride = std::max({width, args_.blocks_max, int64_t{1}});
    plan_.sequences.table_stride = stride;
    plan_.sequences.block_table = UploadRuns(runs, width, [](const auto& s, int64_t block) {
      BT_CHECK(s.blocks[block] >= 0);
      return s.blocks[block];
    });
    if (given) {
      plan_.sequences.block_positions = UploadRuns(
          runs, width, [](const auto& s, int64_t block) { return PositionOf(s, block); });
    } else if (args_.blocks_max > 0 && args_.gives_positions) {
      // A graph may be used for steps that give positions as well as for others.
      auto* const positions = arena_.AllocateArray<int32_t>(runs.size() * stride);
      const auto count = static_cast<int64_t>(runs.size());
      if (width > 0) LaunchFillPositions(positions, count, width, stride, StreamOf(ctx_));
      plan_.sequences.block_positions = positions;
    }
  }

  // A device array [runs, table_stride] of which the first `width` columns are written.
  template <typename ValueOf>
  const int32_t* UploadRuns(const std::vector<AbsorbedRun>& runs, int64_t width, ValueOf value_of) {
    return UploadColumns(ctx_, arena_, std::ssize(runs), width, plan_.sequences.table_stride,
                         [&](int64_t i, int64_t block) {
                           const AbsorbedRun& run = runs[i];
                           const bool has = run.count > 0 && block < BlocksOf(SourceOf(run));
                           return has ? value_of(SourceOf(run), block) : 0;
                         });
  }

  void Expanded(const AttentionStep& step) {
    std::vector<int32_t> numbers = step.block_sources;
    numbers.insert(numbers.end(), step.block_valid.begin(), step.block_valid.end());
    numbers.insert(numbers.end(), step.block_positions.begin(), step.block_positions.end());
    plan_.block_sources = static_cast<const int32_t*>(
        Upload(ctx_, arena_, numbers.data(), numbers.size() * sizeof(int32_t)));
    plan_.block_valid = plan_.block_sources + step.block_sources.size();
    plan_.block_positions = plan_.block_valid + step.block_sources.size();
    plan_.tiles = static_cast<const PrefillTile*>(
        Upload(ctx_, arena_, step.tiles.data(), step.tiles.size() * sizeof(PrefillTile)));
    plan_.merges = static_cast<const PrefillMerge*>(
        Upload(ctx_, arena_, step.merges.data(), step.merges.size() * sizeof(PrefillMerge)));
    auto* const kept = static_cast<ExpandedPass*>(
        ctx_.staging->Allocate(step.passes.size() * sizeof(ExpandedPass)));
    std::copy(step.passes.begin(), step.passes.end(), kept);
    plan_.passes = kept;
    plan_.pass_count = static_cast<int64_t>(step.passes.size());
    plan_.pass_rows_max = step.pass_rows_max;
    plan_.partial_rows = step.partial_rows;
  }

  const OpContext& ctx_;
  Arena& arena_;
  const AttentionPlanArgs& args_;
  AttentionPlan plan_;
};

}  // namespace

const AttentionPlan* PlanAttentionInPasses(const OpContext& ctx,
                                           Arena& arena,
                                           const AttentionPlanArgs& args,
                                           int64_t pass_bytes) {
  BT_CHECK(ctx.staging != nullptr);
  return Planner(ctx, arena, args).Run(ChooseAttentionStep(args, pass_bytes, ThisCard()));
}

bool RowsAlone(const StepShape& shape, KvForm form, int64_t keys) {
  return shape.context_ranks == 1 && ChooseRowsAlone(shape.heads, shape.tokens, form, keys);
}

const void* PlanAttention(const OpContext& ctx, Arena& arena, const AttentionPlanArgs& args) {
  if (args.head_width > 0) return PlanHeads(ctx, arena, args);
  return PlanAttentionInPasses(ctx, arena, args, kAttentionPassBytes);
}

}  // namespace baltoro::cuda
