#include "engine/tuned_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/json.h"
#include "base/log.h"

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

struct Used {
  std::string text;  // of the entries, a line each
  size_t entries = 0;
};

void Add(const TunedTable& table, const std::string& path, Used& used) {
  if (table.entries.empty()) {
    BT_LOG(Info, "Using the tuned table {}: the built-in choices are the best in all it measured",
           path);
  } else {
    BT_LOG(Info, "Using the tuned table {}: {} {} from the built-in ones", path,
           table.entries.size(), table.entries.size() == 1 ? "choice differs" : "choices differ");
  }
  for (const std::string& entry : table.entries) used.text += entry + "\n";
  used.entries += table.entries.size();
}

Status AddFile(const std::string& path, const TunedFor& wanted, Used& used) {
  const Result<TunedTable> table = ReadTunedTable(path);
  if (!table.ok()) return InvalidArgument("--tuned-config " + table.status().message());
  if (const std::string why = WhyNotFor(table.value(), wanted); !why.empty()) {
    return InvalidArgument(
        fmt::format("--tuned-config {}: {}; run `baltoro tune` again", path, why));
  }
  Add(table.value(), path, used);
  return {};
}

Status AddFolder(const std::string& folder, const TunedFor& wanted, Used& used) {
  std::vector<std::string> paths;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    if (at->path().extension() == kEnding) paths.push_back(at->path().string());
    if (paths.size() > kFilesMax) {
      return InvalidArgument(fmt::format(
          "VLLM_TUNED_CONFIG_FOLDER {}: more than {} tables; name one by --tuned-config", folder,
          kFilesMax));
    }
  }
  if (error) {
    BT_LOG(Warning, "VLLM_TUNED_CONFIG_FOLDER {}: {}; the built-in choices stand", folder,
           error.message());
    return {};
  }
  std::ranges::sort(paths);
  bool any = false;
  for (const std::string& path : paths) {
    const Result<TunedTable> table = ReadTunedTable(path);
    if (!table.ok()) {
      BT_LOG(Warning, "VLLM_TUNED_CONFIG_FOLDER: not used: {}", table.status().message());
      continue;
    }
    if (const std::string why = WhyNotFor(table.value(), wanted); !why.empty()) {
      BT_LOG(Warning, "VLLM_TUNED_CONFIG_FOLDER: not used: {}: {}", path, why);
      continue;
    }
    Add(table.value(), path, used);
    any = true;
  }
  if (!any) {
    BT_LOG(Info,
           "VLLM_TUNED_CONFIG_FOLDER {}: no table for this model and card, so the built-in choices "
           "stand; `baltoro tune` writes one",
           folder);
  }
  return {};
}

}  // namespace

TunedFor TunedForOf(const K2Config& model, int32_t tensor, const std::string& card) {
  return {.card = card,
          .version = BALTORO_VERSION,
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
                     table.made_for.tensor, table.form, card);
}

std::string TunedText(const TunedTable& table) {
  Json out = {{"kind", kKind},
              {"version", table.made_for.version},
              {"card", table.made_for.card},
              {"driver", table.driver},
              {"date", table.date},
              {"model", table.model},
              {"form", table.form}};
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
  TunedTable table{.made_for = {.card = TextOf(json, "card"), .version = TextOf(json, "version")},
                   .model = TextOf(json, "model"),
                   .form = TextOf(json, "form"),
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
                      const K2Config& model,
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
  const TunedFor wanted = TunedForOf(model, tensor, backend.gpu->name);
  Used used;
  BT_RETURN_IF_ERROR(file.empty() ? AddFolder(folder, wanted, used) : AddFile(file, wanted, used));
  if (used.entries == 0) return {};
  BT_ASSIGN_OR_RETURN(const CudaModule* const module, FindCudaModule());
  return module->set_kernel_table(used.text, "tuned table");
}

}  // namespace baltoro
