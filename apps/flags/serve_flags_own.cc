#include "flags/idle.h"
#include "flags/serve_flags.h"

namespace baltoro {
namespace {

using enum ValueKind;
using enum FlagState;

constexpr FlagSpec kOwnFlags[] = {
    {.name = "device",
     .kind = kString,
     .initial = "auto",
     .choices = "auto|cpu|cuda",
     .help =
         "Where the model runs; auto is the GPU where the machine has an NVIDIA card, which stops "
         "the start if it cannot be used, and the CPU where it has none."},
    {.name = "cpu-threads",
     .kind = kInt,
     .initial = "0",
     .min = 0,
     .max = 4096,
     .help =
         "Threads that compute, shared by the ranks of this node; 0 is one for each physical core "
         "on which the process may run, and no more than its control group pays for."},
    {.name = "deterministic",
     .kind = kSwitch,
     .initial = "false",
     .help =
         "A request's tokens and log-probabilities are the same bits whatever else is computed; "
         "on a GPU this takes time. Not with --decode-context-parallel-size above 1, nor with "
         "tensor ranks on GPUs that cannot read each other's memory, as those of two nodes."},
    {.name = "target-step-ms",
     .kind = kFloat,
     .min = 0,
     .max = 600000,
     .idle = &kTimesNoSteps,
     .idle_reason = "what a step takes depends on what others plan for it",
     .help =
         "Milliseconds that a step may take while it computes prompts and others wait for their "
         "next token; without a value 250 on a CPU, 60 on a GPU. While nobody waits it may take "
         "four times as long. 0 is no limit. Not with --deterministic."},
    {.name = "log-format",
     .kind = kString,
     .initial = "text",
     .choices = "text|json",
     .help = "Form of the log's lines, of all processes; json is an object a line: time, level, "
             "process, pid, source, message."},
    {.name = "max-queued-requests",
     .kind = kInt,
     .initial = "1024",
     .min = 1,
     .help = "Requests that may wait; above that the answer is 429."},
    {.name = "stand-in-step-ms",
     .kind = kFloat,
     .initial = "0",
     .min = 0,
     .max = 60000,
     .help = "Milliseconds that a step takes with --load-format stand-in."},
    {.name = "tuned-config",
     .kind = kString,
     .idle = &kWithoutGpu,
     .idle_reason = "a CPU has one kernel for each operation",
     .help = "Table of `baltoro tune`, for this model, these ranks and this card: kernels that are "
             "used instead of the built-in choices. Without it, VLLM_TUNED_CONFIG_FOLDER."},
    {.name = "balance-scheduling",
     .kind = kBool,
     .initial = "false",
     .idle = &kSharesNoExperts,
     .idle_reason = "there are no other replicas in a step",
     .help = "While one of the replicas that share experts has --max-num-seqs requests at work, "
             "none of them begins a waiting one: steps are shorter for those at work, first tokens "
             "may come later."},
    {.name = "modelled-exchange",
     .kind = kString,
     .idle = &kRanksExchange,
     .idle_reason = "the ranks exchange in earnest",
     .help = "ROWS:MICROSECONDS,...: each step waits for two sums a layer over tensor ranks that "
             "are not there, by the rows of the step. For measuring one rank's slice of a model: "
             "docs/benchmarking.md."},
    {.name = "engine-in-process",
     .kind = kSwitch,
     .initial = "false",
     .help = "Runs the engine inside the door, without a process of its own."},
    {.name = "engine-restart-timeout",
     .kind = kFloat,
     .initial = "1200",
     .min = 0,
     .idle = &kInProcess,
     .idle_reason = "the engine is no process of its own, so it ends with the server",
     .help = "Seconds without an engine that stays, over all attempts to start it again, after "
             "which the server ends with code 1; 0 never."},
    {.name = "cluster-key-file",
     .kind = kString,
     .idle = &kKnowsNoNode,
     .idle_reason = "there is no other node",
     .help = "File with the secret that nodes prove to each other."},
    {.name = "head-timeout",
     .kind = kFloat,
     .initial = "7",
     .min = 1,
     .idle = &kIsHead,
     .idle_reason = "the head waits for its nodes as long as they need",
     .help = "Seconds after which a node leaves whose head was there and is gone."},
    {.name = "api-key-file",
     .kind = kString,
     .help = "File with one key on each line, beside --api-key."},
    {.name = "page",
     .kind = kBool,
     .initial = "on a loopback address",
     .help = "Serves a page at /, for browsers: a chat, the memory plan, live metrics. It shows "
             "nothing of the server without an API key where these are asked for."},
    {.name = "share-prefix-cache",
     .kind = kSwitch,
     .initial = "false",
     .help = "Prompts of one API key are found in the prefix cache by requests with another; each "
             "key finds only its own without this."},
    {.name = "normalise-tool-call-ids",
     .kind = kBool,
     .initial = "true",
     .help =
         "Numbers the tool calls of a conversation as the model was trained to read them; clients "
         "keep their own ids."},
    {.name = "quantization-param-path",
     .kind = kString,
     .idle = &kNoScales,
     .idle_reason = "of the forms of the KV cache only fp8 has scales, one a layer",
     .help = "JSON file with the scales of an fp8 KV cache, one a layer, instead of the "
             "checkpoint's."},
    {.name = "online-quantization",
     .kind = kString,
     .initial = "none",
     .choices = "none|fp8",
     .help = "Quantises the projections of attention (but kv_b), of dense layers and of shared "
             "experts that the checkpoint has in BF16 to FP8 blocks of 128x128 as they are "
             "loaded."},
};

constexpr FlagSpec kRemovedFlags[] = {
    {.name = "swap-space",
     .kind = kFloat,
     .min = 0,
     .state = kRemovedUpstream,
     .reason = "a preempted sequence is computed again; the host tier is --kv-offloading-size",
     .help = "GiB of host memory for preempted sequences."},
    {.name = "disable-log-requests",
     .kind = kBool,
     .state = kRemovedUpstream,
     .reason = "requests are logged only with --enable-log-requests",
     .help = "No line for each request."},
    {.name = "enable-reasoning",
     .kind = kBool,
     .state = kRemovedUpstream,
     .reason = "--reasoning-parser alone does that",
     .help = "Splits thinking from the answer."},
    {.name = "use-v2-block-manager",
     .kind = kBool,
     .state = kRemovedUpstream,
     .reason = "there is one block manager",
     .help = "An older block manager."},
    {.name = "num-scheduler-steps",
     .kind = kInt,
     .state = kRemovedUpstream,
     .reason = "each step is planned",
     .help = "Steps between two plans."},
    {.name = "multi-step-stream-outputs",
     .kind = kBool,
     .state = kRemovedUpstream,
     .reason = "each step is streamed",
     .help = "Streams between plans."},
    {.name = "num-lookahead-slots",
     .kind = kInt,
     .state = kRemovedUpstream,
     .reason = "drafts bring their own",
     .help = "Slots for drafted tokens."},
    {.name = "max-seq-len-to-capture",
     .kind = kInt,
     .state = kRemovedUpstream,
     .reason = "graphs do not depend on lengths",
     .help = "Longest sequence with a graph."},
    {.name = "max-context-len-to-capture",
     .kind = kInt,
     .state = kRemovedUpstream,
     .reason = "graphs do not depend on lengths",
     .help = "Longest sequence with a graph."},
    {.name = "preemption-mode",
     .kind = kString,
     .state = kRemovedUpstream,
     .reason = "it is computed again",
     .help = "What happens to a preempted sequence."},
    {.name = "worker-use-ray",
     .kind = kBool,
     .state = kRemovedUpstream,
     .reason = "--distributed-executor-backend replaced it",
     .help = "Starts ranks by Ray."},
    {.name = "tokenizer-pool-size",
     .kind = kInt,
     .state = kRemovedUpstream,
     .reason = "all connection threads tokenise",
     .help = "Tokenizer processes."},
    {.name = "tokenizer-pool-type",
     .kind = kString,
     .state = kRemovedUpstream,
     .reason = "all connection threads tokenise",
     .help = "Who starts them."},
    {.name = "tokenizer-pool-extra-config",
     .kind = kJsonObject,
     .state = kRemovedUpstream,
     .reason = "all connection threads tokenise",
     .help = "Their settings."},
    {.name = "guided-decoding-backend",
     .kind = kString,
     .state = kRemovedUpstream,
     .reason = "--structured-outputs-config replaced it",
     .help = "Which library holds grammars."},
    {.name = "disable-async-output-proc",
     .kind = kBool,
     .state = kRemovedUpstream,
     .reason = "there is no such choice",
     .help = "Handles outputs in the step."},
    {.name = "disable-mm-preprocessor-cache",
     .kind = kBool,
     .state = kRemovedUpstream,
     .reason = "--mm-processor-cache-gb 0 replaced it",
     .help = "Keeps no processed images."},
};

}  // namespace

std::span<const FlagSpec> OwnFlags() {
  return kOwnFlags;
}
std::span<const FlagSpec> RemovedFlags() {
  return kRemovedFlags;
}

}  // namespace baltoro
