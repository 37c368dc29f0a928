#include "flags/pull_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "flags/availability.h"
#include "flags/eplb_config.h"
#include "flags/flag_reader.h"
#include "flags/help.h"
#include "flags/node_options.h"
#include "flags/parse.h"

namespace baltoro {
namespace {

using enum ValueKind;

constexpr FlagSpec kPullFlags[] = {
    {.name = "local-dir",
     .kind = kString,
     .help = "Folder for the files; without it they go to the cache, where `serve org/name` finds "
             "them."},
    {.name = "cache-dir",
     .kind = kString,
     .help = "The cache; else HF_HUB_CACHE, HF_HOME/hub or ~/.cache/huggingface/hub, of ModelScope "
             "MODELSCOPE_CACHE/models."},
    {.name = "revision",
     .kind = kString,
     .initial = "main",
     .help = "Branch, tag or commit; of ModelScope `master` where none is given."},
    {.name = "source",
     .kind = kString,
     .initial = "huggingface",
     .choices = "huggingface|modelscope",
     .help = "The hub; VLLM_USE_MODELSCOPE=true means ModelScope where this is not given."},
    {.name = "include",
     .kind = kStrings,
     .help = "Only files that one of these patterns fits; * stands for any text, / too."},
    {.name = "exclude", .kind = kStrings, .help = "No files that one of these patterns fits."},
    {.name = "token",
     .kind = kString,
     .secret = true,
     .help =
         "For private and gated models; else HF_TOKEN or the file that `hf auth login` left, of "
         "ModelScope MODELSCOPE_API_TOKEN. Other machines than the hub never see it."},
    {.name = "dry-run",
     .kind = kSwitch,
     .help = "Tells what would be fetched, how many bytes, and how many are free on the disk."},
    {.name = "force-download",
     .kind = kSwitch,
     .help = "Fetches files again that are already here."},
    {.name = "max-workers",
     .kind = kInt,
     .initial = "8",
     .min = 1,
     .max = 64,
     .help = "Connections at once, over all files and parts of files."},
    {.name = "part-size",
     .kind = kCount,
     .initial = "256M",
     .min = 65536,
     .max = 1099511627776,
     .help = "Bytes of one part of a file; parts are fetched side by side."},
    {.name = "retries",
     .kind = kInt,
     .initial = "8",
     .min = 0,
     .max = 1000,
     .help = "Attempts after a failed one, before the command gives up; one that got further does "
             "not count."},
    {.name = "retry-wait",
     .kind = kFloat,
     .initial = "1",
     .min = 0,
     .max = 60,
     .help = "Seconds before the second attempt; doubled for each further one, up to 60. What a "
             "server asks for goes before (up to 300)."},
    {.name = "stall-timeout",
     .kind = kInt,
     .initial = "60",
     .min = 1,
     .max = 3600,
     .help = "Seconds in which less than 1 KiB/s came before a connection is given up."},
    {.name = "quiet", .kind = kSwitch, .help = "Prints the path of the model, and nothing else."},
    {.name = "repo-type",
     .kind = kString,
     .initial = "model",
     .choices = "model|dataset|space",
     .state = FlagState::kNotYet,
     .reason = "only models are downloaded",
     .help = "What the repository holds."},
    {.name = "local-dir-use-symlinks",
     .kind = kString,
     .state = FlagState::kNoEffectHere,
     .reason = "files of --local-dir are always files of their own",
     .help = "Of older huggingface-cli."},
    {.name = "resume-download",
     .kind = kSwitch,
     .state = FlagState::kNoEffectHere,
     .reason = "a download that was cut off is always resumed",
     .help = "Of older huggingface-cli."},
};

constexpr FlagSpec kLayoutFlags[] = {
    {.name = "tensor-parallel-size",
     .aliases = "-tp",
     .kind = kInt,
     .initial = "1",
     .min = 1,
     .max = 1024,
     .help = "As of `serve`."},
    {.name = "pipeline-parallel-size",
     .aliases = "-pp",
     .kind = kInt,
     .initial = "1",
     .min = 1,
     .max = 1024,
     .help = "As of `serve`."},
    {.name = "enable-expert-parallel",
     .aliases = "-ep",
     .kind = kBool,
     .initial = "false",
     .help = "As of `serve`."},
    {.name = "expert-placement-strategy",
     .kind = kString,
     .initial = "linear",
     .choices = "linear|round_robin",
     .help = "As of `serve`."},
    {.name = "enable-eplb",
     .kind = kBool,
     .initial = "false",
     .help = "As of `serve`: where --eplb-config asks for copies of experts, the nodes that begin "
             "with them get their files too."},
    {.name = "eplb-config", .kind = kJsonObject, .initial = "{}", .help = "As of `serve`."},
    {.name = "nnodes",
     .aliases = "-n",
     .kind = kInt,
     .initial = "1",
     .min = 1,
     .max = 256,
     .help = "As of `serve`; torchrun's and SLURM's variables count as there."},
    {.name = "node-rank",
     .aliases = "-r",
     .kind = kInt,
     .initial = "0",
     .min = 0,
     .help = "As of `serve`."},
};

bool IsRepoName(std::string_view name) {
  const auto is_part = [](std::string_view part) {
    return !part.empty() && part != "." && part != ".." && part.size() <= 96 &&
           std::ranges::all_of(part, [](char c) {
             return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    c == '-' || c == '_' || c == '.';
           });
  };
  const size_t slash = name.find('/');
  return slash != std::string_view::npos && is_part(name.substr(0, slash)) &&
         is_part(name.substr(slash + 1));
}

// "refs/pr/1", "v1.0": what may stand in a path below refs/.
bool IsRevision(std::string_view text) {
  if (text.empty() || text.size() > 200 || text.starts_with('/') || text.ends_with('/'))
    return false;
  for (std::string_view part : SplitText(text, '/')) {
    if (part.empty() || part == "." || part == "..") return false;
  }
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c < 127 && c != '\\'; });
}

Status ReadLayout(const FlagReader& flags, const Environment& environment, PullCommand& out) {
  PullLayout& layout = out.layout;
  flags.Get("tensor-parallel-size", layout.tensor);
  flags.Get("pipeline-parallel-size", layout.pipeline);
  flags.Get("enable-expert-parallel", layout.whole_experts);
  std::string placement = "linear";
  flags.Get("expert-placement-strategy", placement);
  layout.experts_in_turn = placement == "round_robin";
  Json eplb = Json::object();
  flags.Get("eplb-config", eplb);
  BT_ASSIGN_OR_RETURN(const BalanceConfig balance,
                      ReadEplbConfig(eplb, flags.Is("enable-eplb"), out.notices));
  layout.balanced_experts = balance.enabled;
  layout.redundant_experts = balance.redundant_experts;
  for (const FlagSpec& spec : kLayoutFlags) layout.given = layout.given || flags.Has(spec.name);
  if (!layout.given) return {};
  NodeFlags nodes{.master_addr = "127.0.0.1"};  // nobody is met here
  flags.Get("nnodes", nodes.nodes);
  flags.Get("node-rank", nodes.node);
  std::string notice;
  BT_ASSIGN_OR_RETURN(const NodeOptions found,
                      FindNodes(nodes, environment, layout.tensor * layout.pipeline, notice));
  if (!notice.empty()) out.notices.push_back(notice);
  layout.nodes = found.nodes;
  layout.node = found.node;
  return {};
}

Status ReadPull(const ParsedFlags& parsed, const Environment& environment, PullCommand& out) {
  const FlagReader flags(parsed);
  if (parsed.positionals.empty()) return InvalidArgument("a REPO is expected, as org/name");
  out.repo = parsed.positionals.front();
  out.files.assign(parsed.positionals.begin() + 1, parsed.positionals.end());
  if (!IsRepoName(out.repo)) {
    return InvalidArgument(fmt::format(
        "'{}' is no name of a repository: org/name is expected, of letters, digits, - _ and .",
        out.repo));
  }
  flags.Get("local-dir", out.local_dir);
  flags.Get("cache-dir", out.cache_dir);
  if (!out.local_dir.empty() && !out.cache_dir.empty()) {
    return InvalidArgument("--local-dir and --cache-dir are two places: leave one out");
  }
  if (flags.Has("local-dir") && out.local_dir.empty()) {
    return InvalidArgument("argument --local-dir: an empty name is no folder");
  }
  flags.Get("include", out.include);
  flags.Get("exclude", out.exclude);
  if (!out.files.empty() && (!out.include.empty() || !out.exclude.empty())) {
    return InvalidArgument("files are named, so --include and --exclude have nothing to choose");
  }
  out.places = HubPlacesOf(environment);
  std::string source = out.places.use_modelscope ? "modelscope" : "huggingface";
  flags.Get("source", source);
  out.modelscope = source == "modelscope";
  out.revision = out.modelscope ? "master" : "main";
  flags.Get("revision", out.revision);
  if (!IsRevision(out.revision)) {
    return InvalidArgument(
        fmt::format("argument --revision: '{}' is no branch, tag or commit", out.revision));
  }
  flags.Get("token", out.token);
  flags.Get("max-workers", out.max_workers);
  flags.Get("part-size", out.part_bytes);
  flags.Get("retries", out.retries);
  flags.Get("retry-wait", out.retry_wait_s);
  flags.Get("stall-timeout", out.stall_s);
  out.dry_run = flags.Is("dry-run");
  out.force = flags.Is("force-download");
  out.quiet = flags.Is("quiet");
  return ReadLayout(flags, environment, out);
}

}  // namespace

FlagTable PullFlags() {
  return FlagTable(
      "baltoro pull", "REPO [FILE ...] [options]",
      {{"Options",
        "Downloads a model, with the flags of `hf download`; what is here already is not fetched "
        "again.",
        kPullFlags, /*first=*/true},
       {"Layout",
        "With any of these, weight files that no rank of this node reads are left out: of each its "
        "header alone is fetched, so that `serve` with the same flags can plan.",
        kLayoutFlags, /*first=*/true}});
}

Outcome<PullCommand> ParsePull(std::span<const std::string> args, const Environment& environment) {
  const FlagTable table = PullFlags();
  if (std::optional<Ending> help = FindHelp(table, args)) return *std::move(help);
  const Result<ParsedFlags> flags = ParseFlags(table, args);
  if (!flags.ok()) return UsageError(table, flags.status().message());
  const Availability judged = Judge(table, flags.value());
  if (!judged.refusals.empty()) {
    Ending ending = UsageError(table, fmt::format("{}", fmt::join(judged.refusals, "\n")));
    ending.exit_code = 1;
    return ending;
  }
  PullCommand out;
  out.notices = flags.value().notices;
  out.notices.insert(out.notices.end(), judged.notices.begin(), judged.notices.end());
  const Status read = ReadPull(flags.value(), environment, out);
  if (!read.ok()) return UsageError(table, read.message());
  return out;
}

}  // namespace baltoro
