#include "flags/serve_bench_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <random>

#include "flags/availability.h"
#include "flags/flag_reader.h"
#include "flags/help.h"
#include "flags/hub_places.h"
#include "flags/parse.h"

namespace baltoro {
namespace {

Result<double> NumberOf(std::string_view text, std::string_view flag) {
  double value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size() || std::isnan(value)) {
    return InvalidArgument(fmt::format("argument --{}: '{}' is not a number", flag, text));
  }
  return value;
}

Result<double> RateOf(std::string_view text, std::string_view flag) {
  BT_ASSIGN_OR_RETURN(const double rate, NumberOf(text, flag));
  if (rate > 0) return rate;
  return InvalidArgument(fmt::format("argument --{}: {} is no rate above 0", flag, text));
}

using Pairs = std::vector<std::pair<std::string, std::string>>;

// "KEY=VALUE", or with another mark between the two.
Result<Pairs> ReadPairs(const FlagReader& flags, std::string_view name, char mark) {
  std::vector<std::string> words;
  flags.Get(name, words);
  Pairs out;
  for (const std::string& word : words) {
    const size_t at = word.find(mark);
    if (at == 0 || at == std::string::npos) {
      return InvalidArgument(
          fmt::format("argument --{}: '{}' is not of the form KEY{}VALUE", name, word, mark));
    }
    out.emplace_back(word.substr(0, at), word.substr(at + 1));
  }
  return out;
}

// [http[s]://]HOST[:PORT][/PATH]
Status ReadBaseUrl(const std::string& url, BenchServeCommand& out) {
  std::string_view rest = url;
  out.https = rest.starts_with("https://");
  if (out.https) {
    rest.remove_prefix(8);
  } else if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
  }
  const size_t slash = std::min(rest.find('/'), rest.size());
  out.root = rest.substr(slash);
  while (out.root.ends_with('/')) out.root.pop_back();
  rest = rest.substr(0, slash);
  const size_t colon = rest.rfind(':');
  const bool has_port = colon != rest.npos && rest.find(']', colon) == rest.npos;
  out.host = rest.substr(0, has_port ? colon : rest.size());
  out.port = out.https ? 443 : 80;
  if (out.host.starts_with('[') && out.host.ends_with(']')) {
    out.host = out.host.substr(1, out.host.size() - 2);
  }
  if (has_port) {
    BT_ASSIGN_OR_RETURN(const double port, NumberOf(rest.substr(colon + 1), "base-url"));
    out.port = port >= 1 && port <= 65535 && port == std::floor(port) ? static_cast<int>(port) : 0;
  }
  if (!out.host.empty() && out.port > 0) return {};
  return InvalidArgument("argument --base-url: '" + url + "' is not like http://127.0.0.1:8000");
}

Status FillServer(const FlagReader& flags, const Environment& environment, BenchServeCommand& out) {
  out.backend = "openai";
  flags.Get("backend", out.backend);
  out.chat = out.backend == "openai-chat";
  out.host = "127.0.0.1";
  flags.Get("host", out.host);
  flags.Get("port", out.port);
  std::string url;
  flags.Get("base-url", url);
  if (flags.Has("base-url")) BT_RETURN_IF_ERROR(ReadBaseUrl(url, out));
  flags.Get("insecure", out.insecure);
  if (out.insecure && !out.https) {
    out.notices.push_back("--insecure has no effect: plain http has no certificates");
  }
  const std::string_view tail = out.chat ? "chat/completions" : "completions";
  out.endpoint = fmt::format("/v1/{}", tail);
  flags.Get("endpoint", out.endpoint);
  const bool chat_path = out.endpoint.ends_with("chat/completions");
  if (!out.endpoint.ends_with(tail) || chat_path != out.chat) {
    return InvalidArgument(fmt::format("--endpoint {}: with --backend {} it ends in {}",
                                       out.endpoint, out.backend, tail));
  }
  if (!out.endpoint.starts_with('/')) out.endpoint.insert(0, "/");
  out.endpoint.insert(0, out.root);
  flags.Get("model", out.model);
  flags.Get("served-model-name", out.served_name);
  flags.Get("lora-modules", out.loras);
  std::string dealt;
  flags.Get("lora-assignment", dealt);
  out.loras_in_turn = dealt == "round-robin";
  flags.Get("tokenizer", out.tokenizer);
  flags.Get("skip-tokenizer-init", out.skip_tokenizer);
  for (const char* name : {"OPENAI_API_KEY", "VLLM_API_KEY"}) {
    const auto key = environment.find(name);
    if (key == environment.end() || key->second.empty() || !out.headers.empty()) continue;
    out.headers.emplace_back("authorization", "Bearer " + key->second);
  }
  BT_ASSIGN_OR_RETURN(const Pairs given, ReadPairs(flags, "header", '='));
  for (const auto& [key, value] : given) {
    std::string name = key;
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    std::erase_if(out.headers, [&](const auto& other) { return other.first == name; });
    out.headers.emplace_back(name, value);
  }
  return {};
}

Status FillLoad(const FlagReader& flags, BenchServeCommand& out) {
  LoadOptions& load = out.load;
  std::string rate = "inf";
  flags.Get("request-rate", rate);
  BT_ASSIGN_OR_RETURN(load.rate, RateOf(rate, "request-rate"));
  flags.Get("burstiness", load.burstiness);
  flags.Get("max-concurrency", load.max_concurrency);
  flags.Get("ramp-up-strategy", load.ramp);
  flags.Get("ramp-up-start-rps", load.ramp_start);
  flags.Get("ramp-up-end-rps", load.ramp_end);
  flags.Get("num-warmups", out.warm_ups);
  flags.Get("ready-check-timeout-sec", out.ready_seconds);
  flags.Get("profile", out.profile);
  flags.Get("sweep-concurrency", out.sweep_concurrency);
  flags.Get("sweep-prompts", out.sweep_prompts);
  if (out.sweep_prompts > 0 && out.sweep_concurrency.empty()) {
    return InvalidArgument("--sweep-prompts needs --sweep-concurrency");
  }
  flags.Get("sweep-svg", out.sweep_svg);
  std::vector<std::string> rates;
  flags.Get("sweep-rate", rates);
  for (const std::string& word : rates) {
    BT_ASSIGN_OR_RETURN(const double each, RateOf(word, "sweep-rate"));
    out.sweep_rates.push_back(each);
  }
  const bool sweep = !out.sweep_rates.empty() || !out.sweep_concurrency.empty();
  if (!out.sweep_rates.empty() && !out.sweep_concurrency.empty()) {
    return InvalidArgument("--sweep-concurrency and --sweep-rate: one of the two");
  }
  if (!out.sweep_svg.empty() && !sweep) {
    return InvalidArgument("--sweep-svg needs --sweep-concurrency or --sweep-rate");
  }
  if (load.ramp.empty()) {
    if (flags.Has("ramp-up-start-rps") || flags.Has("ramp-up-end-rps")) {
      return InvalidArgument("--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy");
    }
    return {};
  }
  if (flags.Has("request-rate") || !out.sweep_rates.empty()) {
    return InvalidArgument("--ramp-up-strategy says the rate: leave --request-rate out");
  }
  if (!flags.Has("ramp-up-start-rps") || !flags.Has("ramp-up-end-rps")) {
    return InvalidArgument("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps");
  }
  // A rate of 0 sends nothing, ever.
  if (load.ramp_start > load.ramp_end || load.ramp_end == 0 || load.ramp_start == 0) {
    return InvalidArgument("--ramp-up-start-rps is at least 1 and at most --ramp-up-end-rps");
  }
  return {};
}

void FillBody(const FlagReader& flags, BenchServeCommand& out) {
  // As upstream: completions name it always.
  if (!out.chat) out.body["repetition_penalty"] = 1.0;
  for (const auto& [flag, field] :
       {std::pair{"top-p", "top_p"}, std::pair{"top-k", "top_k"}, std::pair{"min-p", "min_p"},
        std::pair{"temperature", "temperature"},
        std::pair{"frequency-penalty", "frequency_penalty"},
        std::pair{"presence-penalty", "presence_penalty"},
        std::pair{"repetition-penalty", "repetition_penalty"}}) {
    if (const Json* value = flags.Find(flag)) out.body[field] = *value;
  }
  if (const Json* count = flags.Find("logprobs")) {
    if (out.chat) out.body["logprobs"] = true;
    out.body[out.chat ? "top_logprobs" : "logprobs"] = *count;
  }
  const bool random = out.data.name == "random" || out.data.name == "random-mm";
  if (random || flags.Is("ignore-eos")) out.body["ignore_eos"] = true;
  if (random && !flags.Is("ignore-eos")) {
    out.notices.push_back("random prompts: answers have their full length (ignore_eos)");
  }
  if (const Json* extra = flags.Find("extra-body")) {
    for (const auto& [key, value] : extra->items()) out.body[key] = value;
  }
  if (!out.body.contains("temperature")) {
    out.notices.push_back(
        "no --temperature: the server's default holds; --temperature 0 takes the likeliest token");
  }
}

constexpr int64_t kPicturesMax = 255;  // of a drawn prompt, as upstream

// How many pictures a drawn prompt has, and of which sizes.
Status FillPictures(const FlagReader& flags, DatasetOptions& data) {
  std::string sizes(BenchServeFlags().Get("random-mm-bucket-config")->initial);
  flags.Get("random-mm-bucket-config", sizes);
  BT_ASSIGN_OR_RETURN(data.picture_sizes, ParsePictureBuckets(sizes));
  int64_t most = kPicturesMax;
  if (const Json* limits = flags.Find("random-mm-limit-mm-per-prompt")) {
    const auto image = limits->find("image");
    if (image == limits->end() || !image->is_number_integer() || *image < 0) {
      return InvalidArgument(
          "argument --random-mm-limit-mm-per-prompt: expected a whole number from 0 as \"image\"");
    }
    most = image->get<int64_t>();
  }
  const auto base = static_cast<double>(flags.Number("random-mm-base-items-per-request", 1));
  double ratio = 0;
  flags.Get("random-mm-num-mm-items-range-ratio", ratio);
  data.pictures_min = static_cast<int64_t>(std::floor(base * (1 - ratio)));
  data.pictures_max = std::min(most, static_cast<int64_t>(std::ceil(base * (1 + ratio))));
  if (data.pictures_min <= data.pictures_max) return {};
  return InvalidArgument(
      fmt::format("--random-mm-base-items-per-request: {} pictures at least are more than the {} "
                  "of --random-mm-limit-mm-per-prompt",
                  data.pictures_min, most));
}

Status FillData(const FlagReader& flags, BenchServeCommand& out) {
  DatasetOptions& data = out.data;
  flags.Get("dataset-name", data.name);
  flags.Get("dataset-path", data.path);
  flags.Get("num-prompts", data.prompts);
  flags.Get("seed", data.seed);
  data.oversample = !flags.Is("no-oversample");
  data.shuffle = !flags.Is("disable-shuffle");
  data.chat_template = !flags.Is("skip-chat-template");
  flags.Get("random-input-len", data.random_input);
  flags.Get("random-output-len", data.random_output);
  flags.Get("random-prefix-len", data.random_prefix);
  flags.Get("random-range-ratio", data.range_ratio);
  if (flags.Has("sharegpt-output-len"))
    data.sharegpt_output = flags.Number("sharegpt-output-len", 0);
  if (flags.Has("hf-output-len")) data.hf_output = flags.Number("hf-output-len", 0);
  flags.Get("custom-output-len", data.custom_output);
  flags.Get("prefix-repetition-prefix-len", data.prefix_len);
  flags.Get("prefix-repetition-suffix-len", data.suffix_len);
  flags.Get("prefix-repetition-num-prefixes", data.prefixes);
  flags.Get("prefix-repetition-output-len", data.prefix_output);
  flags.Get("hf-subset", data.hf_subset);
  flags.Get("hf-split", data.hf_split);
  flags.Get("agent-context-min", data.agent_context_min);
  flags.Get("agent-context-max", data.agent_context_max);
  flags.Get("agent-shared-len", data.agent_shared);
  flags.Get("agent-turns", data.agent_turns);
  flags.Get("agent-output-len", data.agent_output);
  flags.Get("agent-think-time", data.agent_think);
  flags.Get("input-len", data.random_input);
  if (flags.Has("output-len")) {
    const int64_t length = flags.Number("output-len", 0);
    data.random_output = data.custom_output = data.prefix_output = data.agent_output = length;
    data.sharegpt_output = data.hf_output = length;
  }
  data.id_prefix = fmt::format("bench-{:08x}-", std::random_device()());
  flags.Get("request-id-prefix", data.id_prefix);

  const bool from_file = data.name == "sharegpt" || data.name == "custom" ||
                         data.name == "custom_mm" || data.name == "hf";
  if (from_file && data.path.empty()) {
    return InvalidArgument(fmt::format("--dataset-name {} needs --dataset-path", data.name));
  }
  if (!from_file && !data.path.empty()) {
    return InvalidArgument(fmt::format(
        "--dataset-name {} is drawn; a file at --dataset-path goes with sharegpt, custom, "
        "custom_mm or hf",
        data.name));
  }
  if (data.name == "agent" && !out.chat) {
    return InvalidArgument("--dataset-name agent needs --backend openai-chat: it has tools");
  }
  if ((data.name == "random-mm" || data.name == "custom_mm") && !out.chat) {
    return InvalidArgument(
        fmt::format("--dataset-name {} needs --backend openai-chat: it has pictures", data.name));
  }
  if (data.name == "random-mm") BT_RETURN_IF_ERROR(FillPictures(flags, data));
  if (data.agent_context_min > data.agent_context_max) {
    return InvalidArgument("--agent-context-min is more than --agent-context-max");
  }
  return {};
}

Status FillResults(const FlagReader& flags, BenchServeCommand& out) {
  std::string list;
  flags.Get("percentile-metrics", list);
  if (!list.empty()) out.metrics.clear();
  for (const std::string_view name : SplitText(list, ',')) {
    if (name != "ttft" && name != "tpot" && name != "itl" && name != "e2el") {
      return InvalidArgument(fmt::format(
          "argument --percentile-metrics: '{}' is none of ttft, tpot, itl, e2el", name));
    }
    out.metrics.emplace_back(name);
  }
  list.clear();
  flags.Get("metric-percentiles", list);
  if (!list.empty()) out.percentiles.clear();
  for (const std::string_view word : SplitText(list, ',')) {
    BT_ASSIGN_OR_RETURN(const double percent, NumberOf(word, "metric-percentiles"));
    if (percent < 0 || percent > 100) {
      return InvalidArgument(
          fmt::format("argument --metric-percentiles: {} is not within 0 and 100", word));
    }
    out.percentiles.push_back(percent);
  }
  BT_ASSIGN_OR_RETURN(const Pairs goals, ReadPairs(flags, "goodput", ':'));
  for (const auto& [name, text] : goals) {
    BT_ASSIGN_OR_RETURN(const double ms, NumberOf(text, "goodput"));
    if ((name != "ttft" && name != "tpot" && name != "e2el") || ms < 0) {
      return InvalidArgument(fmt::format(
          "argument --goodput: '{}:{}' is not ttft, tpot or e2el with milliseconds", name, text));
    }
    out.goodput[name] = ms;
  }
  flags.Get("save-result", out.save);
  flags.Get("append-result", out.append);
  flags.Get("save-detailed", out.detailed);
  flags.Get("result-dir", out.result_dir);
  flags.Get("result-filename", out.result_file);
  flags.Get("label", out.label);
  out.progress = !flags.Is("disable-tqdm");
  BT_ASSIGN_OR_RETURN(out.metadata, ReadPairs(flags, "metadata", '='));
  const bool sweep = !out.sweep_rates.empty() || !out.sweep_concurrency.empty();
  if (sweep && !out.append && !out.result_file.empty()) {
    return InvalidArgument("a sweep has several results: --result-filename needs --append-result");
  }
  return {};
}

Status Fill(const FlagReader& flags, const Environment& environment, BenchServeCommand& out) {
  BT_RETURN_IF_ERROR(FillServer(flags, environment, out));
  BT_RETURN_IF_ERROR(FillLoad(flags, out));
  BT_RETURN_IF_ERROR(FillData(flags, out));
  FillBody(flags, out);
  return FillResults(flags, out);
}

// Flags that change nothing beside the others.
void TellIdle(const ParsedFlags& flags, BenchServeCommand& out) {
  const DatasetOptions& data = out.data;
  const std::string own = data.name == "prefix_repetition" ? "prefix-repetition"
                          : data.name == "custom_mm"       ? "custom"
                                                           : data.name;
  const bool random = data.name == "random" || data.name == "random-mm";
  const auto tell = [&](std::string_view name, bool idle, std::string_view where) {
    if (idle && flags.uses.contains(name)) {
      out.notices.push_back(fmt::format("--{} has no effect {}", name, where));
    }
  };
  const std::string here = "with --dataset-name " + data.name;
  for (const auto& [name, use] : flags.uses) {
    for (const std::string of :
         {"sharegpt", "custom", "hf", "prefix-repetition", "agent", "random-mm"}) {
      tell(name, of != own && name.starts_with(of + "-"), here);
    }
    tell(name, !random && name.starts_with("random-") && !name.starts_with("random-mm-"), here);
  }
  const bool drawn = data.path.empty();
  tell("input-len", !random, here);
  tell("no-oversample", drawn, here);
  tell("disable-shuffle", drawn && own != "prefix-repetition", here);
  tell("skip-chat-template", out.chat || data.name != "custom", "but with openai and custom");
  tell("burstiness",
       out.load.rate == kAllAtOnce && out.load.ramp.empty() && out.sweep_rates.empty(),
       "without --request-rate");
  tell("request-rate", !out.sweep_rates.empty(), "beside --sweep-rate");
  tell("num-prompts", out.sweep_prompts > 0, "beside --sweep-prompts");
  tell("max-concurrency", !out.sweep_concurrency.empty(), "beside --sweep-concurrency");
  tell("lora-assignment", out.loras.empty(), "without --lora-modules");
  tell("served-model-name", !out.loras.empty(), "beside --lora-modules");
  for (const char* name : {"host", "port"})
    tell(name, flags.uses.contains("base-url"), "beside --base-url");
  for (const char* name : {"save-detailed", "result-dir", "result-filename", "metadata", "label"}) {
    tell(name, !out.save && !out.append, "without --save-result");
  }
}

}  // namespace

Outcome<BenchServeCommand> ParseBenchServe(std::span<const std::string> args,
                                           const Environment& environment) {
  const FlagTable table = BenchServeFlags();
  if (std::optional<Ending> help = FindHelp(table, args)) return *std::move(help);
  const Result<ParsedFlags> parsed = ParseFlags(table, args);
  if (!parsed.ok()) return UsageError(table, parsed.status().message());
  if (!parsed.value().positionals.empty()) {
    return UsageError(table, "unrecognized arguments: " + parsed.value().positionals.front());
  }
  const Availability availability = Judge(table, parsed.value());
  if (!availability.refusals.empty()) {
    Ending ending{.exit_code = 1};
    for (const std::string& line : availability.refusals) {
      ending.err += fmt::format("{}: {}\n", table.command(), line);
    }
    return ending;
  }
  BenchServeCommand out;
  out.notices = parsed.value().notices;
  out.notices.insert(out.notices.end(), availability.notices.begin(), availability.notices.end());
  out.data.hf_cache = HubPlacesOf(environment).hf_cache;
  const Status filled = Fill(FlagReader(parsed.value()), environment, out);
  if (!filled.ok()) return UsageError(table, filled.message());
  TellIdle(parsed.value(), out);
  return out;
}

}  // namespace baltoro
