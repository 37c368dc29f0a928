#include "engine/start_log.h"

#include <fmt/format.h>

#include <cstdlib>
#include <initializer_list>
#include <string_view>

#include "base/log.h"
#include "engine/rank_team.h"
#include "ops/cpu/isa.h"

namespace baltoro {
namespace {

constexpr double kGiB = 1 << 30;

// A line for each of these variables that is set, and not to 0.
void NoteUnused(std::initializer_list<const char*> names, const char* why) {
  for (const char* const name : names) {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value == '\0' || std::string_view(value) == "0") continue;
    BT_LOG(Warning, "{}={} changes nothing: {}", name, value, why);
  }
}

}  // namespace

void LogOperations(const StartArgs& args, const cpu::CpuUse& use) {
  if (args.backend.gpu) {
    BT_LOG(Info, "Operations: {} on {}", args.ops.name, args.backend.gpu->name);
    NoteUnused({"BALTORO_CPU"}, "it is for operations on a CPU");
    if (!args.backend.gpu->launches_overlap) {
      BT_LOG(Warning, "BALTORO_NO_OVERLAP=1: kernels start one after the other, which takes time");
    }
    if (args.backend.gpu->kernel_overrides > 0) {
      BT_LOG(Warning, "BALTORO_KERNEL_TABLE: {} entries say which kernels compute what they name",
             args.backend.gpu->kernel_overrides);
    }
  } else {
    BT_LOG(Info, "Operations: {} on {}", args.ops.name,
           cpu::Describe(use, cpu::NameOf(cpu::ActiveIsa())));
    NoteUnused({"BALTORO_KERNEL_TABLE", "BALTORO_NO_OVERLAP"}, "it is for kernels on a GPU");
  }
}

void LogDeterministic(const EngineConfig& config, const FixedSteps& fixed) {
  if (fixed.prompt_chunk == 0) {
    BT_LOG(Info, "Deterministic: other requests find prompts in the prefix cache, never answers.");
    return;
  }
  BT_LOG(
      Info,
      "Deterministic: prompts in steps of {} tokens of one request, answers in steps of {} rows; "
      "the prefix cache has whole steps of prompts.",
      fixed.prompt_chunk, fixed.decode_rows);
  if (!config.graph_sizes.empty()) {
    BT_LOG(Info, "The sizes asked for to be recorded have no effect with --deterministic.");
  }
}

void LogPictures(const PictureAnswer& pictures) {
  if (!pictures.why_not.empty()) {
    BT_LOG(Info, "Pictures are not taken: {}", pictures.why_not);
  }
  if (!pictures.choice) return;
  const PictureChoice& choice = *pictures.choice;
  if (choice.ranks > 1) {
    BT_LOG(Info, "Pictures: each of {} tensor ranks has {} (--mm-encoder-tp-mode {}){}{}",
           choice.ranks,
           choice.shared_out ? "the whole encoder and some of the pictures"
                             : "some heads and columns of the encoder",
           choice.shared_out ? "data" : "weights", choice.note.empty() ? "" : ": ", choice.note);
  }
  BT_LOG(
      Info,
      "Pictures: an encoder of {} layers, {:.2f} GiB of weights and {:.2f} GiB of workspace, and "
      "{} rows of encoded pictures in {:.2f} GiB",
      choice.encoder.layers, static_cast<double>(choice.bytes.weights) / kGiB,
      static_cast<double>(choice.bytes.workspace) / kGiB, choice.rows,
      static_cast<double>(choice.bytes.rows) / kGiB);
}

void LogCache(const StartArgs& args, const KvBudget& budget, KvForm form) {
  const EngineConfig& config = args.config;
  const int64_t tokens = budget.num_blocks * kBlockTokens;
  BT_LOG(Info, "Available KV cache memory: {:.2f} GiB", static_cast<double>(budget.bytes) / kGiB);
  const int32_t replicas = args.layout.data;
  const std::string each = replicas > 1 ? fmt::format(" in each of {} replicas", replicas) : "";
  BT_LOG(Info, "GPU KV cache size: {} tokens{} ({}as {})", tokens, each,
         args.gpu() ? "" : "in host memory, ", KvFormName(form));
  BT_LOG(Info, "Maximum concurrency for {} tokens per request: {:.2f}x{}", budget.max_model_len,
         static_cast<double>(tokens) / static_cast<double>(budget.max_model_len), each);
  BT_LOG(Info, "Chunked prefill is enabled with max_num_batched_tokens={}. Prefix caching is {}.",
         config.max_num_batched_tokens, config.enable_prefix_caching ? "enabled" : "disabled");
  if (!config.async_scheduling) return;
  if (args.layout.ranks() == 1 || RankTeam::CanPlanAhead(args.layout, config.nodes)) {
    BT_LOG(Info, "Asynchronous scheduling is enabled.");
  } else if (args.gpu() && args.layout.data == 1) {
    BT_LOG(Info, "No asynchronous scheduling: as many plans are under way as there are stages.");
  }
}

}  // namespace baltoro
