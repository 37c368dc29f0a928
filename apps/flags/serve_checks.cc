#include "flags/serve_checks.h"

#include <fmt/format.h>

#include <algorithm>

#include "flags/flag_reader.h"
#include "flags/replica_options.h"
#include "parallel/nodes.h"

namespace baltoro {
namespace {

Status CheckFrontend(const FlagReader& flags) {
  if (flags.Is("enable-auto-tool-choice") && !flags.Has("tool-call-parser")) {
    return InvalidArgument("Error: --enable-auto-tool-choice requires --tool-call-parser");
  }
  if (flags.Is("enable-log-outputs") && !flags.Is("enable-log-requests")) {
    return InvalidArgument("Error: --enable-log-outputs requires --enable-log-requests");
  }
  if (flags.Is("headless") && flags.Number("api-server-count", 0) > 0) {
    return InvalidArgument("--api-server-count must be 0 with --headless: there is no web server");
  }
  return Status();
}

Status CheckTls(const FlagReader& flags) {
  const bool asks = flags.Number("ssl-cert-reqs", 0) != 0;
  for (const std::string_view name :
       {"ssl-keyfile", "ssl-ca-certs", "ssl-ciphers", "enable-ssl-refresh"}) {
    if (!flags.Has(name) || flags.Has("ssl-certfile")) continue;
    return InvalidArgument(
        fmt::format("--{} needs --ssl-certfile: there is no TLS without a certificate", name));
  }
  if (asks && !flags.Has("ssl-ca-certs")) {
    return InvalidArgument(fmt::format(
        "--ssl-cert-reqs {} needs --ssl-ca-certs: no certificate of a client could be checked",
        flags.Number("ssl-cert-reqs", 0)));
  }
  return Status();
}

constexpr int64_t kBatchedTokensMax = 1 << 20;

Status CheckScheduler(const FlagReader& flags) {
  // Each sequence has a token in a step.
  for (const std::string_view name : {"max-num-batched-tokens", "max-num-seqs"}) {
    if (flags.Number(name, 0) <= kBatchedTokensMax) continue;
    return InvalidArgument(fmt::format("--{} {}: at most {} in a step", name, flags.Number(name, 0),
                                       kBatchedTokensMax));
  }
  if (!flags.Has("max-num-batched-tokens") || !flags.Has("max-num-seqs")) return Status();
  const int64_t tokens = flags.Number("max-num-batched-tokens", 0);
  const int64_t sequences = flags.Number("max-num-seqs", 0);
  if (tokens >= sequences) return Status();
  return InvalidArgument(fmt::format(
      "max_num_batched_tokens ({}) must be greater than or equal to max_num_seqs ({}): each "
      "running sequence needs a token in a step",
      tokens, sequences));
}

Status CheckStandIn(const FlagReader& flags) {
  std::string format;
  flags.Get("load-format", format);
  if (!flags.Has("stand-in-step-ms") || format == "stand-in") return Status();
  return InvalidArgument("--stand-in-step-ms needs --load-format stand-in");
}

Status CheckExchange(const FlagReader& flags) {
  std::string format;
  flags.Get("load-format", format);
  if (!flags.Has("modelled-exchange") || format != "stand-in") return Status();
  return InvalidArgument(
      "--modelled-exchange has no steps to lengthen with --load-format stand-in: give "
      "--stand-in-step-ms");
}

Status CheckLoader(const FlagReader& flags) {
  const Json* const loader = flags.Find("model-loader-extra-config");
  if (loader == nullptr || loader->empty()) return Status();
  std::string format;
  flags.Get("load-format", format);
  for (const auto& [key, value] : loader->items()) {
    if (format != "dummy") {
      return InvalidArgument(
          fmt::format("--model-loader-extra-config: {} is not a setting of this loader, which has "
                      "none; --load-format dummy has alike_layers",
                      key));
    }
    if (key != "alike_layers" || !value.is_boolean()) {
      return InvalidArgument(
          "--model-loader-extra-config: --load-format dummy knows alike_layers, true or false");
    }
  }
  return Status();
}

Status CheckRanks(const FlagReader& flags) {
  const int64_t tp = flags.Number("tensor-parallel-size", 1);
  const int64_t dp = flags.Number("data-parallel-size", 1);
  const int64_t dcp = flags.Number("decode-context-parallel-size", 1);
  BT_RETURN_IF_ERROR(ReadReplicas(flags).status());
  if (tp % dcp != 0) {
    return InvalidArgument(fmt::format(
        "--tensor-parallel-size {} must be divisible by --decode-context-parallel-size {}", tp,
        dcp));
  }
  if (flags.Is("deterministic")) {
    // Whether the ranks are GPUs of several nodes, and how these reach each other, is seen later.
    BT_RETURN_IF_ERROR(CheckFixedOrder(
        {.tensor = static_cast<int32_t>(tp), .decode_context = static_cast<int32_t>(dcp)},
        /*nodes=*/1, /*gpus=*/false));
  }
  if (flags.Is("enable-eplb") && (!flags.Is("enable-expert-parallel") || tp * dp == 1)) {
    return InvalidArgument("--enable-eplb needs --enable-expert-parallel and more than one rank");
  }
  return Status();
}

}  // namespace

Status CheckServeFlags(const ParsedFlags& flags) {
  const FlagReader reader(flags);
  BT_RETURN_IF_ERROR(CheckFrontend(reader));
  BT_RETURN_IF_ERROR(CheckTls(reader));
  BT_RETURN_IF_ERROR(CheckScheduler(reader));
  BT_RETURN_IF_ERROR(CheckStandIn(reader));
  BT_RETURN_IF_ERROR(CheckExchange(reader));
  BT_RETURN_IF_ERROR(CheckLoader(reader));
  return CheckRanks(reader);
}

StepSizes ChooseStepSizes(int64_t max_num_seqs, int64_t max_num_batched_tokens) {
  StepSizes sizes;
  if (max_num_batched_tokens > 0) {
    sizes.max_num_batched_tokens = static_cast<int32_t>(max_num_batched_tokens);
    sizes.max_num_seqs = std::min(sizes.max_num_seqs, sizes.max_num_batched_tokens);
  }
  if (max_num_seqs > 0) {
    sizes.max_num_seqs = static_cast<int32_t>(max_num_seqs);
    sizes.max_num_batched_tokens = std::max(sizes.max_num_batched_tokens, sizes.max_num_seqs);
  }
  return sizes;
}

}  // namespace baltoro
