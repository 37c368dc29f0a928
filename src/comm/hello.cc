#include "comm/hello.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/cluster_key.h"

namespace baltoro {
namespace {

constexpr size_t kAddressTextMax = 256;
constexpr size_t kDifferencesNamed = 4;

const FingerprintEntry* Find(const std::vector<FingerprintEntry>& entries,
                             const std::string& name) {
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const FingerprintEntry& e) { return e.name == name; });
  return found == entries.end() ? nullptr : &*found;
}

}  // namespace

void PutAddress(WireWriter* out, const RankAddress& address) {
  out->PutBytes(address.path);
  out->PutBytes(address.host);
  out->Put(static_cast<uint32_t>(address.port));
}

RankAddress GetAddress(WireReader* in) {
  RankAddress address;
  address.path = in->GetBytes(kAddressTextMax);
  address.host = in->GetBytes(kAddressTextMax);
  address.port =
      static_cast<int>(std::min(in->Get<uint32_t>(), 65536u));  // refused where it is used
  return address;
}

std::string Hello::ToWire() const {
  WireWriter out;
  out.Put(static_cast<uint32_t>(purpose));
  out.Put(static_cast<uint32_t>(rank));
  out.Put(static_cast<uint32_t>(ranks));
  out.PutBytes(session);
  PutAddress(&out, address);
  out.Put(static_cast<uint32_t>(fingerprint.size()));
  for (const FingerprintEntry& entry : fingerprint) {
    out.PutBytes(entry.name);
    out.PutBytes(entry.value);
  }
  return out.bytes();
}

std::optional<Hello> Hello::FromWire(const std::string& bytes) {
  WireReader in(bytes);
  Hello hello;
  const uint32_t what = in.Get<uint32_t>(), number = in.Get<uint32_t>(), of = in.Get<uint32_t>();
  hello.session = in.GetBytes(sizeof(Digest));
  hello.address = GetAddress(&in);
  const uint32_t entries = in.Get<uint32_t>();
  if (!in.ok() || what < 1 || what > 4 || of > kHelloRanksMax || number >= of ||
      entries > kFingerprintEntriesMax) {
    return std::nullopt;
  }
  hello.purpose = static_cast<Purpose>(what);
  hello.rank = static_cast<int32_t>(number);
  hello.ranks = static_cast<int32_t>(of);
  for (uint32_t i = 0; i < entries; ++i) {
    std::string name = in.GetBytes(kFingerprintTextMax);
    hello.fingerprint.push_back(
        {.name = std::move(name), .value = in.GetBytes(kFingerprintTextMax)});
  }
  if (!in.AtEnd()) return std::nullopt;
  return hello;
}

std::string Difference(const Hello& own, const Hello& peer, const std::string& member) {
  if (peer.ranks != own.ranks) {
    return fmt::format("{0} {1} was started for {2} {0}s, {0} {3} for {4}", member, peer.rank,
                       peer.ranks, own.rank, own.ranks);
  }
  std::vector<std::string> found;
  for (const FingerprintEntry& mine : own.fingerprint) {
    const FingerprintEntry* theirs = Find(peer.fingerprint, mine.name);
    if (theirs != nullptr && theirs->value == mine.value) continue;
    const std::string value =
        theirs == nullptr ? "not set" : fmt::format("\"{}\"", Printable(theirs->value));
    found.push_back(fmt::format("{0} is {1} on {2} {3} and \"{4}\" on {2} {5}", mine.name, value,
                                member, peer.rank, mine.value, own.rank));
  }
  for (const FingerprintEntry& theirs : peer.fingerprint) {
    if (Find(own.fingerprint, theirs.name) != nullptr) continue;
    found.push_back(fmt::format("{0} is \"{1}\" on {2} {3} and not set on {2} {4}",
                                Printable(theirs.name), Printable(theirs.value), member, peer.rank,
                                own.rank));
  }
  const size_t left_out = found.size() - std::min(found.size(), kDifferencesNamed);
  found.resize(found.size() - left_out);
  return fmt::format("{}{}", fmt::join(found, "; "),
                     left_out == 0 ? "" : fmt::format("; and {} more", left_out));
}

std::string OtherKind(Purpose came) {
  constexpr const char* kOne =
      "of one engine over nodes (replicas that share experts by --enable-expert-parallel, or "
      "--nnodes)";
  constexpr const char* kMany = "of replicas for themselves (--data-parallel-size alone)";
  const bool joins = came == Purpose::kJoin;
  return fmt::format("the head is {}, and who came is {}: give both the same of these flags",
                     joins ? kMany : kOne, joins ? kOne : kMany);
}

std::string OtherKindFrame(Purpose came) {
  if (came == Purpose::kJoin) return JoinRefusal(InvalidArgument(OtherKind(came)));
  return ReplicaRefusal(OtherKind(came));
}

std::string JoinRefusal(const Status& why) {
  WireWriter out;
  out.Put(kRefusedAnswer);
  out.Put<uint32_t>(why.code() == Code::kInvalidArgument ? 1 : 0);
  out.PutBytes(why.message().substr(0, kRefusalMax));
  return out.bytes();
}

std::string ReplicaRefusal(std::string_view why) {
  WireWriter out;
  out.Put(kRefusedAnswer);
  out.PutBytes(std::string(why.substr(0, kRefusalMax)));
  return out.bytes();
}

std::string Printable(std::string_view text) {
  std::string clean(text);
  for (char& letter : clean) {
    if (letter < ' ' || letter > '~') letter = '?';
  }
  return clean;
}

}  // namespace baltoro
