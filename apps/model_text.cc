#include "model_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/log.h"

namespace baltoro {
namespace {

constexpr uint64_t kTemplateBytesMax = 1 << 20;
constexpr char kVocabulary[] = "/tiktoken.model";
constexpr char kGenerationConfig[] = "/generation_config.json";

// That `flag` names a folder which holds this file.
Status CheckFolder(const char* flag, const std::string& dir, const std::string& file) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(dir, ignored)) {
    return Status(
        Code::kNotFound,
        fmt::format("{} {}: {}; give the directory that holds {}", flag, dir,
                    FileExists(dir) ? "no directory" : "no such directory", file.substr(1)));
  }
  if (FileExists(dir + file)) return {};
  return Status(Code::kNotFound,
                fmt::format("{} {}: there is no {} in it", flag, dir, file.substr(1)));
}

Result<std::unique_ptr<Tokenizer>> LoadTokenizer(const ServeOptions& options,
                                                 const std::string& dir,
                                                 int64_t vocab) {
  const bool named = !options.tokenizer.empty();
  if (named) BT_RETURN_IF_ERROR(CheckFolder("--tokenizer", options.tokenizer, kVocabulary));
  if (!FileExists(dir + kVocabulary)) {
    return Status(Code::kNotFound,
                  fmt::format("{}: there is no tiktoken.model, the vocabulary; give --tokenizer "
                              "DIR, or --skip-tokenizer-init to serve token ids only",
                              dir));
  }
  Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(dir);
  if (!tokenizer.ok()) {
    return Status(tokenizer.status().code(),
                  (named ? "--tokenizer " : "") + tokenizer.status().message());
  }
  if (const int32_t tokens = tokenizer.value()->vocab_size(); tokens > vocab) {
    return InvalidArgument(
        fmt::format("{}{}: its vocabulary has {} tokens, the model {}: it is "
                    "another model's",
                    named ? "--tokenizer " : "", dir, tokens, vocab));
  }
  return tokenizer;
}

// As vLLM tells them apart: what is no file and has a bracket or a line's end is the template.
Result<std::unique_ptr<ChatTemplate>> ReadTemplateFlag(const std::string& given) {
  constexpr char kFlag[] = "--chat-template";
  const bool literal = given.find_first_of("{}\n") != std::string::npos;
  if (!FileExists(given) && literal) return ChatTemplate::Parse(given, kFlag);
  BT_ASSIGN_OR_RETURN(const std::string source, ReadFile(given, kTemplateBytesMax, kFlag));
  return ChatTemplate::Parse(source, fmt::format("{} {}", kFlag, given));
}

// A special token, which a configuration writes with its properties, as its text: everywhere in
// `value`, whose depth ParseJson has limited.
void AsTexts(Json& value) {
  if (value.is_object() && value.contains("content") && value["content"].is_string()) {
    value = std::string(value["content"].get_ref<const std::string&>());
    return;
  }
  if (value.is_structured()) {
    for (Json& member : value) AsTexts(member);
  }
}

// A file, empty: there is none.
Result<std::string> GenerationConfigFile(const ServeOptions& options, const std::string& dir) {
  if (options.generation_config == "vllm") return std::string();
  if (options.generation_config == "auto") {
    const std::string own = dir + kGenerationConfig;
    return FileExists(own) ? own : std::string();
  }
  BT_RETURN_IF_ERROR(
      CheckFolder("--generation-config", options.generation_config, kGenerationConfig));
  return options.generation_config + kGenerationConfig;
}

}  // namespace

Result<ModelText> LoadModelText(const ServeOptions& options,
                                const std::string& dir,
                                int64_t vocab) {
  ModelText out;
  if (options.skip_tokenizer_init) {
    BT_LOG(Warning,
           "--skip-tokenizer-init: prompts and answers are token ids (/v1/completions with "
           "return_token_ids); chat is refused{}",
           options.tokenizer.empty() && options.chat_template.empty()
               ? ""
               : "; --tokenizer and --chat-template have no effect");
    return out;
  }
  const std::string source = options.tokenizer.empty() ? dir : options.tokenizer;
  BT_ASSIGN_OR_RETURN(out.tokenizer, LoadTokenizer(options, source, vocab));
  if (!options.chat_template.empty()) {
    BT_ASSIGN_OR_RETURN(out.chat_template, ReadTemplateFlag(options.chat_template));
    return out;
  }
  auto own = ChatTemplate::LoadFromDir(source);
  if (own.ok()) {
    out.chat_template = std::move(own).value();
    return out;
  }
  if (own.status().code() != Code::kNotFound) return own.status();
  BT_LOG(Warning,
         "This model has no chat template, and chat is refused: {}; --chat-template gives "
         "it one",
         own.status().message());
  return out;
}

Result<Json> ReadTokenizerInfo(const ServeOptions& options,
                               const std::string& dir,
                               const ChatTemplate* chat_template) {
  const std::string path =
      (options.tokenizer.empty() ? dir : options.tokenizer) + "/tokenizer_config.json";
  Json info = Json::object();
  if (FileExists(path)) {
    BT_ASSIGN_OR_RETURN(info, ReadJsonFile(path));
    if (!info.is_object()) return InvalidArgument(path + ": not a JSON object");
  }
  for (const char* file : {"vocab_file", "merges_file", "name_or_path"}) info.erase(file);
  AsTexts(info);
  if (chat_template != nullptr) info["chat_template"] = chat_template->source();
  return info;
}

Status ReadGenerationDefaults(const ServeOptions& options,
                              const std::string& dir,
                              ServerConfig& out) {
  Json config = Json::object();
  BT_ASSIGN_OR_RETURN(const std::string source, GenerationConfigFile(options, dir));
  if (!source.empty()) {
    BT_ASSIGN_OR_RETURN(config, ReadJsonFile(source));
    if (!config.is_object()) return InvalidArgument(source + ": not a JSON object");
  }
  for (const auto& [key, value] : options.override_generation_config.items()) config[key] = value;
  FieldReader reader(config);
  SamplingParams& sampling = out.default_sampling;
  reader.Number("temperature", sampling.temperature, 0, 100);
  reader.Number("top_p", sampling.top_p, 0, 1, /*open_min=*/true);
  reader.Number("min_p", sampling.min_p, 0, 1);
  reader.Integer("top_k", sampling.top_k, -1, INT32_MAX);
  sampling.top_k = std::max(sampling.top_k, 0);
  reader.Number("repetition_penalty", sampling.repetition_penalty, 0, 100, /*open_min=*/true);
  int64_t max_new_tokens = 0;
  reader.Integer("max_new_tokens", max_new_tokens, 1, INT32_MAX);
  if (max_new_tokens > 0) out.max_tokens_cap = static_cast<int32_t>(max_new_tokens);
  if (!reader.ok()) return InvalidArgument("generation config: " + reader.error()->message);
  return {};
}

}  // namespace baltoro
