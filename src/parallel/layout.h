#pragma once

// Who holds what when a model lies on several ranks: pure arithmetic, used alike by the memory
// plan, the loader, the model and the cache. Tensor ranks (TP) cut heads, columns and the
// vocabulary; pipeline stages (PP) cut layers; decode-context ranks (DCP) are the TP ranks of a
// group seen as holders of cache blocks; data ranks (DP) are replicas of attention that share the
// experts.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace baltoro {

struct IndexRange {
  int64_t begin = 0, end = 0;  // end excluded
  int64_t size() const { return end - begin; }
  bool operator==(const IndexRange&) const = default;
};

struct ParallelLayout {
  int32_t tensor = 1;
  int32_t pipeline = 1;
  int32_t decode_context = 1;  // divides `tensor`
  int32_t data = 1;
  bool whole_experts = false;    // --enable-expert-parallel: ranks hold experts, not slices of all
  bool experts_in_turn = false;  // whole experts: rank r holds r, r + ranks, ... ; else a run
  // --enable-eplb: experts are moved and doubled among the ranks while steps run; each rank has
  // equally many slots for them, of which slot s of rank r is slot r * slots + s of all.
  bool balanced_experts = false;
  int32_t redundant_experts = 0;  // slots beside one for each expert, of balanced experts only
  // --expert-dispatch-dtype fp8, of replicas that share experts on GPUs: rows travel to them as
  // e4m3 codes also where the experts read no codes.
  bool fp8_dispatch = false;
  std::vector<int32_t> stage_layers = {};  // layers of each stage; empty: StageLayers' own rule

  int32_t ranks() const { return tensor * pipeline * data; }
  // Ranks that share one set of experts: the tensor ranks of every data rank.
  int32_t expert_ranks() const { return tensor * data; }
};

// Global rank = (data * pipeline + stage) * tensor + tensor rank, as torch.distributed groups of
// the same names have it.
struct RankPlace {
  int32_t data = 0, stage = 0, tensor = 0;
  int32_t context(const ParallelLayout& layout) const { return tensor % layout.decode_context; }
  int32_t expert(const ParallelLayout& layout) const { return data * layout.tensor + tensor; }
};
RankPlace PlaceOf(const ParallelLayout& layout, int32_t rank);

// What must divide or suffice. `experts` 0: a dense model; `key_heads` 0: no heads with keys of
// their own.
struct LayoutShape {
  int32_t heads = 0, key_heads = 0, layers = 0, experts = 0;
  int64_t vocab = 0, intermediate = 0, moe_intermediate = 0;
};
// kInvalidArgument: which sizes clash and which flag to change.
Status CheckLayout(const ParallelLayout& layout, const LayoutShape& shape);

// Whether replicas can share experts like that (an expert group); one replica always can.
// kInvalidArgument: what to leave out.
Status CheckExpertGroup(const ParallelLayout& layout);

// Whether experts can be balanced like that. kInvalidArgument: what to leave out.
Status CheckExpertBalance(const ParallelLayout& layout, bool deterministic);

// Whether the tensor ranks can each have as many heads of a picture encoder. kInvalidArgument:
// which flag to change.
Status CheckEncoderHeads(const ParallelLayout& layout, int32_t heads);

// Part `index` of `total` things in `parts` runs whose sizes differ by at most one, larger first.
IndexRange EvenShare(int64_t total, int32_t parts, int32_t index);

// As EvenShare, of things that are stored in blocks of `block`: a share begins where a block
// begins, or lies inside of one and then has a multiple of `grain`. kInvalidArgument where some
// share could not be like that; `what` names the things ("experts: 2048 columns" is written for
// "experts").
Result<IndexRange> BlockShare(int64_t total,
                              int64_t block,
                              int64_t grain,
                              int32_t parts,
                              int32_t index,
                              const std::string& what);

// Whether a range can be taken out of things that are stored in blocks: it begins where one begins,
// or lies inside of one.
bool FallsOnBlocks(const IndexRange& range, int64_t block);

// Layers of a stage. Without stage_layers: equal runs; what does not divide goes to the stages
// before the last, which also holds the head, the latest of them first.
IndexRange StageLayers(const ParallelLayout& layout, int32_t layers, int32_t stage);

// Experts held by an expert rank, as (first, count, step). Of balanced experts: its slots before
// the first rearrangement, where number n is expert n mod `experts`.
struct ExpertShare {
  int64_t first = 0, count = 0, step = 1;
};
ExpertShare ExpertsOf(const ParallelLayout& layout, int32_t experts, int32_t expert_rank);

// Cache blocks are dealt in turn: block b lies on context rank b mod DCP, as that rank's block
// b / DCP. The blocks of a sequence may be any; a pool that gives them out in order deals out its
// sequences as evenly as can be.
struct BlockPlace {
  int32_t context = 0;
  int64_t block = 0;
};
BlockPlace PlaceOfBlock(const ParallelLayout& layout, int64_t block);

// Tokens of a sequence of `length` whose blocks of `block_tokens` are 0, 1, 2, ..., that lie on
// `context`.
int64_t ContextTokens(const ParallelLayout& layout,
                      int64_t length,
                      int64_t block_tokens,
                      int32_t context);

}  // namespace baltoro
