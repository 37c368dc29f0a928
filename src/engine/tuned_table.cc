#include "engine/tuned_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "base/json.h"
#include "base/log.h"
#include "ops/cuda/choose/overrides.h"

namespace baltoro {
namespace {

constexpr char kKind[] = "baltoro kernel choices";
constexpr char kEnding[] = ".json";
constexpr size_t kFilesMax = 256;  // of a folder

struct Field {
  const char* name;
  int64_t TunedFor::*member;
};
constexpr Field kFields[] = {{"hidden_size", &TunedFor::hidden},
                             {"moe_intermediate_size", &TunedFor::moe_intermediate},
                             {"n_routed_experts", &TunedFor::experts},
                             {"num_experts_per_tok", &TunedFor::top_k},
                             {"num_attention_heads", &TunedFor::heads},
                             {"tensor_parallel_size", &TunedFor::tensor}};

std::string TextOf(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

// A table that fits, and its entries.
struct Fitting {
  std::string path;
  KernelEntries entries;
  std::unique_ptr<cuda::Overrides> parsed;
};

// Errors begin with `path`.
Result<Fitting> ReadFitting(const std::string& path, const TunedFor& wanted) {
  BT_ASSIGN_OR_RETURN(const TunedTable table, ReadTunedTable(path));
  if (const std::string why = WhyNotFor(table, wanted); !why.empty()) {
    return InvalidArgument(path + ": " + why);
  }
  KernelEntries entries{.text = "", .before_number = path + ": entry "};
  for (const std::string& entry : table.entries) entries.text += entry + "\n";
  BT_ASSIGN_OR_RETURN(std::unique_ptr<cuda::Overrides> parsed,
                      cuda::Overrides::Parse(entries.text, entries.before_number, nullptr));
  return Fitting{path, std::move(entries), std::move(parsed)};
}

void SayUsed(const Fitting& table) {
  if (table.parsed->size() == 0) {
    BT_LOG(Info, "Using the tuned table {}: the built-in choices are the best in all it measured",
           table.path);
  } else {
    BT_LOG(Info, "Using the tuned table {}: {} {} from the built-in ones", table.path,
           table.parsed->size(), table.parsed->size() == 1 ? "choice differs" : "choices differ");
  }
}

// Of a table of the folder with those `before` it; the first such entry is told of.
void WarnOfOverlap(const std::vector<Fitting>& before, const Fitting& table) {
  for (const Fitting& earlier : before) {
    for (const cuda::Override& first : earlier.parsed->entries()) {
      for (const cuda::Override& second : table.parsed->entries()) {
        if (!first.Overlaps(second)) continue;
        BT_LOG(Warning,
               "VLLM_TUNED_CONFIG_FOLDER: {} and {} both answer the same question: the first "
               "is used",
               first.place, second.place);
        return;
      }
    }
  }
}

Result<Fitting> OfFile(const std::string& path, const TunedFor& wanted) {
  Result<Fitting> table = ReadFitting(path, wanted);
  if (!table.ok()) {
    return InvalidArgument("--tuned-config " + table.status().message() +
                           "; `baltoro tune` writes one that fits");
  }
  SayUsed(table.value());
  return table;
}

std::vector<Fitting> OfFolder(const std::string& folder, const TunedFor& wanted) {
  std::vector<std::string> paths;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    if (at->path().extension() == kEnding) paths.push_back(at->path().string());
    if (paths.size() > kFilesMax) {
      BT_LOG(
          Warning,
          "VLLM_TUNED_CONFIG_FOLDER {}: more than {} tables, of which none is used: the built-in "
          "choices stand; name one by --tuned-config",
          folder, kFilesMax);
      return {};
    }
  }
  if (error) {
    BT_LOG(Warning, "VLLM_TUNED_CONFIG_FOLDER {}: {}; the built-in choices stand", folder,
           error.message());
    return {};
  }
  std::ranges::sort(paths);
  std::vector<Fitting> tables;
  size_t entries = 0;
  for (const std::string& path : paths) {
    Result<Fitting> table = ReadFitting(path, wanted);
    if (!table.ok()) {
      BT_LOG(Warning, "VLLM_TUNED_CONFIG_FOLDER: not used: {}", table.status().message());
      continue;
    }
    const size_t its = table.value().parsed->size();
    if (entries + its > cuda::kOverridesMax) {
      BT_LOG(Warning,
             "VLLM_TUNED_CONFIG_FOLDER {}: not used: {}: its {} entries and the {} of the tables "
             "before it are more than {}; keep fewer tables there, or name one by --tuned-config",
             folder, path, its, entries, cuda::kOverridesMax);
      continue;
    }
    entries += its;
    WarnOfOverlap(tables, table.value());
    SayUsed(table.value());
    tables.push_back(std::move(table).value());
  }
  if (tables.empty()) {
    BT_LOG(Info,
           "VLLM_TUNED_CONFIG_FOLDER {}: no table for this model and card, so the built-in choices "
           "stand; `baltoro tune` writes one",
           folder);
  }
  return tables;
}

}  // namespace

TunedFor TunedForOf(const ModelDescription& described, int32_t tensor, const std::string& card) {
  const K2Config& model = described.config;
  return {.card = card,
          .version = BALTORO_VERSION,
          .form = cuda::FormName(described.experts, false),
          .hidden = model.hidden,
          .moe_intermediate = model.moe_intermediate,
          .experts = model.experts,
          .top_k = model.router.top_k,
          .heads = model.heads,
          .tensor = tensor};
}

std::string TunedFileName(const TunedTable& table) {
  std::string card = table.made_for.card;
  std::ranges::replace_if(
      card, [](unsigned char c) { return std::isalnum(c) == 0 && c != '-'; }, '_');
  return fmt::format("E={},N={},H={},tp={},form={},device_name={}.tuned.json",
                     table.made_for.experts, table.made_for.moe_intermediate, table.made_for.hidden,
                     table.made_for.tensor, table.made_for.form, card);
}

std::string TunedText(const TunedTable& table) {
  Json out = {{"kind", kKind},
              {"version", table.made_for.version},
              {"card", table.made_for.card},
              {"driver", table.driver},
              {"date", table.date},
              {"model", table.model},
              {"form", table.made_for.form}};
  for (const Field& field : kFields) out[field.name] = table.made_for.*field.member;
  out["entries"] = table.entries;
  return out.dump(2) + "\n";
}

Result<TunedTable> ReadTunedTable(const std::string& path) {
  BT_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
  if (!json.is_object() || TextOf(json, "kind") != kKind) {
    return Status(Code::kNotFound,
                  path +
                      ": not written by `baltoro tune` (a table of Triton kernels says nothing "
                      "of the kernels here)");
  }
  TunedTable table{.made_for = {.card = TextOf(json, "card"),
                                .version = TextOf(json, "version"),
                                .form = TextOf(json, "form")},
                   .model = TextOf(json, "model"),
                   .driver = TextOf(json, "driver"),
                   .date = TextOf(json, "date"),
                   .entries = {}};
  for (const Field& field : kFields) {
    const auto found = json.find(field.name);
    if (found == json.end() || !found->is_number_integer()) {
      return InvalidArgument(fmt::format("{}: {} is not a whole number", path, field.name));
    }
    table.made_for.*field.member = found->get<int64_t>();
  }
  const auto entries = json.find("entries");
  if (entries == json.end() || !entries->is_array()) {
    return InvalidArgument(path + ": entries is not a list");
  }
  for (const Json& entry : *entries) {
    if (!entry.is_string() || entry.get<std::string>().find('\n') != std::string::npos) {
      return InvalidArgument(path + ": an entry is not a line of text");
    }
    table.entries.push_back(entry.get<std::string>());
  }
  return table;
}

std::string WhyNotFor(const TunedTable& table, const TunedFor& wanted) {
  if (table.made_for.card != wanted.card) {
    return fmt::format("it was measured on {}, and this is {}", table.made_for.card, wanted.card);
  }
  if (table.made_for.version != wanted.version) {
    return fmt::format("it was measured with version {}, and this is {}", table.made_for.version,
                       wanted.version);
  }
  if (table.made_for.form != wanted.form) {
    return fmt::format("it was measured for experts in form '{}', and here it is '{}'",
                       table.made_for.form, wanted.form);
  }
  for (const Field& field : kFields) {
    if (table.made_for.*field.member != wanted.*field.member) {
      return fmt::format("it was measured for {} {}, and here it is {}", field.name,
                         table.made_for.*field.member, wanted.*field.member);
    }
  }
  return "";
}

Status UseTunedTables(const std::string& file,
                      const std::string& folder,
                      const std::string& model,
                      int32_t tensor,
                      const BackendChoice& backend) {
  if (file.empty() && folder.empty()) return {};
  const std::string named =
      file.empty() ? "VLLM_TUNED_CONFIG_FOLDER " + folder : "--tuned-config " + file;
  if (!backend.gpu) {
    BT_LOG(Warning, "{} changes nothing: it is for kernels on a GPU", named);
    return {};
  }
  if (const char* const own = std::getenv("BALTORO_KERNEL_TABLE"); own != nullptr && *own != '\0') {
    BT_LOG(Warning, "{} is not used: BALTORO_KERNEL_TABLE goes before it", named);
    return {};
  }
  const Result<ModelDescription> described = DescribeModel(model);
  if (!described.ok()) {
    if (!file.empty()) return InvalidArgument(named + ": " + described.status().message());
    BT_LOG(Warning, "{} is not used: {}", named, described.status().message());
    return {};
  }
  const TunedFor wanted = TunedForOf(described.value(), tensor, backend.gpu->name);
  std::vector<Fitting> tables;
  if (file.empty()) {
    tables = OfFolder(folder, wanted);
  } else {
    BT_ASSIGN_OR_RETURN(Fitting table, OfFile(file, wanted));
    tables.push_back(std::move(table));
  }
  std::vector<KernelEntries> entries;
  for (Fitting& table : tables) {
    if (table.parsed->size() > 0) entries.push_back(std::move(table.entries));
  }
  if (entries.empty()) return {};
  BT_ASSIGN_OR_RETURN(const CudaModule* const module, FindCudaModule());
  return module->set_kernel_table(entries);
}

}  // namespace baltoro
