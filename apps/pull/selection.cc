#include "pull/selection.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "model/weight_slice.h"
#include "parallel/nodes.h"
#include "weights/checkpoint.h"
#include "weights/tensor_names.h"

namespace baltoro {
namespace {

// As the hubs' own tools match: a folder stands for what is in it, and '*' for '/' too.
bool Fits(const std::string& path, const std::vector<std::string>& patterns) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) {
    const std::string whole = pattern.ends_with('/') ? pattern + "*" : pattern;
    return fnmatch(whole.c_str(), path.c_str(), FNM_NOESCAPE) == 0;
  });
}

std::string SomeNames(const std::vector<RepoFile>& files) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < std::min(files.size(), kShown); ++i) {
    text += (i == 0 ? "" : ", ") + files[i].path;
  }
  return files.size() > kShown ? fmt::format("{} and {} more", text, files.size() - kShown) : text;
}

// The number of the expert in "model.layers.3.mlp.experts.17.down_proj.weight".
std::optional<size_t> ExpertOf(std::string_view name) {
  constexpr std::string_view kExperts = ".mlp.experts.";
  const size_t at = name.find(kExperts);
  if (at == name.npos) return std::nullopt;
  name.remove_prefix(at + kExperts.size());
  size_t expert = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), expert);
  if (error != std::errc()) return std::nullopt;
  return expert;
}

// What the ranks of one node hold between them.
class NodeShare {
 public:
  NodeShare(const K2Config& config, const ParallelLayout& layout, int nodes, int node)
      : config_(config) {
    for (const int32_t rank : RanksOfNode(layout, nodes, node)) {
      shares_.push_back({layout, PlaceOf(layout, rank)});
      std::vector<bool>& held = held_.emplace_back(static_cast<size_t>(config.experts), false);
      for (const int32_t expert : shares_.back().held_experts(config)) {
        held[static_cast<size_t>(expert)] = true;
      }
    }
  }

  bool Reads(std::string_view stored_name) const {
    const std::string name = CanonicalName(stored_name);
    for (size_t i = 0; i < shares_.size(); ++i) {
      if (Reads(shares_[i], held_[i], name)) return true;
    }
    return false;
  }

 private:
  bool Reads(const RankShare& share, const std::vector<bool>& held, std::string_view name) const {
    const int64_t layer = LayerOf(name);
    if (layer >= 0) {
      const IndexRange layers = share.layers(config_);
      if (layer < layers.begin || layer >= layers.end) return false;
      const std::optional<size_t> expert =
          RoleOf(name) == TensorRole::kExperts ? ExpertOf(name) : std::nullopt;
      return !expert || *expert >= held.size() || held[*expert];
    }
    switch (RoleOf(name)) {
      case TensorRole::kEmbedding:
        return share.first_stage() || (share.last_stage() && config_.tied_embeddings);
      case TensorRole::kNorm:
      case TensorRole::kHead:
        return share.last_stage();
      case TensorRole::kVision:
        return share.first_stage();  // where prompts come in
      default:
        return true;  // what is not of a layer may be anybody's
    }
  }

  const K2Config& config_;
  std::vector<RankShare> shares_;
  // Of each share: whether it begins with an expert, which it then reads. Balanced experts that
  // move later come from the ranks that have them.
  std::vector<std::vector<bool>> held_;
};

}  // namespace

Result<std::vector<RepoFile>> ChooseFiles(const std::vector<RepoFile>& files,
                                          const PullCommand& command) {
  std::vector<RepoFile> out;
  if (!command.files.empty()) {
    std::map<std::string_view, const RepoFile*> by_name;
    for (const RepoFile& file : files) by_name[file.path] = &file;
    for (const std::string& name : command.files) {
      const auto found = by_name.find(name);
      if (found == by_name.end()) {
        return Status(Code::kNotFound, fmt::format("{} has no file {}; it has {}", command.repo,
                                                   name, SomeNames(files)));
      }
      if (std::ranges::find(out, *found->second) == out.end()) out.push_back(*found->second);
    }
    return out;
  }
  for (const RepoFile& file : files) {
    if (!command.include.empty() && !Fits(file.path, command.include)) continue;
    if (!Fits(file.path, command.exclude)) out.push_back(file);
  }
  if (out.empty()) {
    return Status(Code::kNotFound, files.empty()
                                       ? command.repo + " has no files"
                                       : fmt::format("--include and --exclude leave no file of {}, "
                                                     "which has {}",
                                                     command.repo, SomeNames(files)));
  }
  return out;
}

Result<std::vector<std::string>> FilesOfOtherNodes(const ShardIndex& index,
                                                   const K2Config& config,
                                                   const PullLayout& layout) {
  const ParallelLayout ranks{.tensor = layout.tensor,
                             .pipeline = layout.pipeline,
                             .whole_experts = layout.whole_experts,
                             .experts_in_turn = layout.experts_in_turn,
                             .balanced_experts = layout.balanced_experts,
                             .redundant_experts = layout.redundant_experts};
  BT_RETURN_IF_ERROR(CheckLayout(ranks, ShapeOf(config)));
  BT_RETURN_IF_ERROR(CheckNodes(ranks, layout.nodes));
  const NodeShare share(config, ranks, layout.nodes, layout.node);
  std::vector<std::string> out;
  for (const auto& [file, names] : index.files) {
    const bool read =
        std::ranges::any_of(names, [&](const std::string& name) { return share.Reads(name); });
    if (!read) out.push_back(file);
  }
  return out;
}

}  // namespace baltoro
