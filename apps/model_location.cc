#include "model_location.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "base/file.h"
#include "base/log.h"
#include "flags/environment.h"
#include "flags/hub_places.h"
#include "model_map.h"
#include "plan/model_description.h"

extern char** environ;

namespace baltoro {
namespace fs = std::filesystem;

namespace {

constexpr size_t kRefBytesMax = 256;
constexpr std::string_view kPocketDraft = "pocket/draft-";

std::string Env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The snapshot of a repository that its main branch was last seen at, else the newest; or empty.
fs::path CachedSnapshot(const HubPlaces& places, const std::string& name) {
  const fs::path folder = fs::path(places.hf_cache) / CacheFolderOf(name);
  std::error_code ignored;
  const Result<std::string> main = ReadFile(folder / "refs/main", kRefBytesMax);
  if (main.ok() && main.value().find('/') == std::string::npos) {
    const fs::path snapshot = folder / "snapshots" / main.value();
    if (fs::exists(snapshot / "config.json", ignored)) return snapshot;
  }
  fs::path best;
  std::error_code error;
  fs::directory_iterator at(folder / "snapshots", error);
  for (; !error && at != fs::directory_iterator(); at.increment(error)) {
    if (!fs::exists(at->path() / "config.json", ignored)) continue;
    if (best.empty() ||
        fs::last_write_time(at->path(), ignored) > fs::last_write_time(best, ignored))
      best = at->path();
  }
  return best;
}

// The folder that ModelScope's tools download to, or empty.
fs::path ModelScopeFolder(const HubPlaces& places, const std::string& name) {
  const fs::path folder = fs::path(places.modelscope_cache) / ModelScopeFolderOf(name);
  std::error_code ignored;
  return fs::exists(folder / "config.json", ignored) ? folder : fs::path();
}

fs::path Downloaded(const HubPlaces& places, const std::string& name) {
  const fs::path cached = CachedSnapshot(places, name), other = ModelScopeFolder(places, name);
  const bool is_other = cached.empty() || (places.use_modelscope && !other.empty());
  return is_other ? other : cached;
}

std::string Lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// "owner/name" of the model of the family that this is the name of, or that a folder is named
// after; else empty.
std::string KnownModel(std::string name) {
  while (name.ends_with('/')) name.pop_back();
  name = Lower(name.substr(name.rfind('/') + 1));
  for (const ModelDescription& known : KnownModels()) {
    if (Lower(known.name) == name) return known.owner + "/" + known.name;
  }
  return "";
}

// What to do about a model that is not here; empty for a name that is none of a hub.
std::string DownloadHint(const std::string& model, bool is_hub_name) {
  const std::string known = KnownModel(model);
  if (known.empty() && !is_hub_name) return "";
  const std::string& hub = is_hub_name ? model : known;
  const bool is_path = !is_hub_name && model.find('/') != std::string::npos;
  return fmt::format("; download it: `baltoro pull {}{}`, then serve {}{}", hub,
                     is_path ? " --local-dir " + model : "", is_path ? model : hub,
                     known.empty() ? "" : "; `baltoro plan` needs no more than the name");
}

}  // namespace

Result<std::string> PocketDir(const std::string& program) {
  std::error_code ignored;
  const fs::path bin = fs::canonical(program, ignored).parent_path();
  for (const fs::path& dir : {fs::path(Env("BALTORO_POCKET")), bin / "../share/baltoro/pocket",
                              bin / "../../../pocket"}) {
    if (!dir.empty() && fs::exists(dir / "model/config.json", ignored))
      return fs::canonical(dir).string();
  }
  return Status(Code::kNotFound,
                "the pocket model is not beside the program; name a model, or set BALTORO_POCKET "
                "to the pocket folder of a checkout");
}

namespace {

// A directory, a name in the cache, or, when empty or of its name, the pocket model.
Result<std::string> LocateNamed(const std::string& model, const std::string& program) {
  if (model.empty() || (model == kPocketName && !FileExists(fs::path(model) / "config.json"))) {
    BT_ASSIGN_OR_RETURN(const std::string pocket, PocketDir(program));
    return pocket + "/model";
  }
  std::error_code ignored;
  if (fs::is_directory(model, ignored)) {
    if (FileExists(fs::path(model) / "config.json")) return model;
    return Status(Code::kNotFound,
                  model +
                      ": this directory has no config.json, so it is no model; give the one "
                      "that has, with the weights beside it" +
                      DownloadHint(model, /*is_hub_name=*/false));
  }
  if (fs::exists(model, ignored)) {
    return Status(
        Code::kNotFound,
        model + ": is a file; a model is the directory that holds config.json and weights");
  }
  const bool is_name = std::count(model.begin(), model.end(), '/') == 1 && model.front() != '/' &&
                       model.front() != '.';
  if (is_name) {
    const fs::path cached = Downloaded(HubPlacesOf(ReadEnvironment(environ)), model);
    if (!cached.empty()) return cached.string();
    return Status(Code::kNotFound, model +
                                       ": no directory of this name, and not in the cache of "
                                       "Hugging Face (HF_HOME) or of ModelScope" +
                                       DownloadHint(model, /*is_hub_name=*/true));
  }
  return Status(Code::kNotFound,
                model + ": no such directory" + DownloadHint(model, /*is_hub_name=*/false));
}

}  // namespace

Result<std::string> LocateModel(const std::string& model, const std::string& program) {
  BT_ASSIGN_OR_RETURN(const ModelMap map, ReadModelMap(Env(kModelMapVariable)));
  const std::string* const mapped = FindMapped(map, model);
  if (mapped == nullptr) return LocateNamed(model, program);
  Result<std::string> dir = LocateNamed(*mapped == kPocketName ? "" : *mapped, program);
  if (!dir.ok()) {
    return Status(dir.status().code(), fmt::format("{}; {} leads {} to it", dir.status().message(),
                                                   kModelMapVariable, model));
  }
  BT_LOG(Warning, "{} is {} here ({})", model, dir.value(), kModelMapVariable);
  return dir;
}

Result<std::string> LocateDraft(const std::string& draft,
                                const std::string& model_dir,
                                const std::string& program) {
  BT_ASSIGN_OR_RETURN(const ModelMap map, ReadModelMap(Env(kModelMapVariable)));
  const std::string* const mapped = FindMapped(map, draft);
  const std::string& named = mapped == nullptr ? draft : *mapped;
  const Result<std::string> pocket = PocketDir(program);
  std::error_code ignored;
  if (pocket.ok() && named.starts_with(kPocketDraft) && !fs::exists(named, ignored)) {
    const fs::path own = pocket.value() + named.substr(std::string_view(kPocketName).size());
    if (fs::exists(own / "config.json", ignored)) return own.string();
  }
  if (!named.empty() && named != kPocketName) return LocateModel(draft, program);
  if (pocket.ok() && fs::equivalent(model_dir, pocket.value() + "/model", ignored)) {
    return pocket.value() + "/draft-mla";
  }
  return InvalidArgument("it is not given: the folder of a draft model, or its name on a hub");
}

Status PlaceDraft(const std::string& model_dir,
                  const std::string& program,
                  SpeculationConfig& speculation) {
  if (speculation.method != DraftMethod::kEagle3) return {};
  const auto draft = LocateDraft(speculation.model, model_dir, program);
  if (!draft.ok()) {
    return Status(draft.status().code(),
                  "--speculative-config: model: " + draft.status().message());
  }
  speculation.model = draft.value();
  return {};
}

}  // namespace baltoro
