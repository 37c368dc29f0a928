#include "engine/ngram_index.h"

#include <algorithm>

#include "base/check.h"

namespace baltoro {

namespace {

constexpr uint64_t kFactor = 0x9e3779b97f4a7c15;
constexpr size_t kBucketsMin = 256;
// Positions that are looked at, those among them that only share a bucket.
constexpr int32_t kLinksMax = 4 * NgramIndex::kPlacesMax;

size_t BucketOf(uint64_t hash, size_t buckets) {
  hash ^= hash >> 32;
  hash *= 0xbf58476d1ce4e5b9;
  hash ^= hash >> 29;
  return static_cast<size_t>(hash) & (buckets - 1);
}

}  // namespace

NgramIndex::NgramIndex(int32_t lookup_min, int32_t lookup_max)
    : lookup_min_(lookup_min), lookup_max_(lookup_max) {
  BT_CHECK(lookup_min >= 1 && lookup_min <= lookup_max);
  for (int32_t i = 0; i < lookup_min; ++i) leaving_factor_ *= kFactor;
}

void NgramIndex::Append(std::span<const TokenId> tokens) {
  for (const TokenId token : tokens) {
    tokens_.push_back(token);
    before_.push_back(-1);
    if (tokens_.size() > latest_.size()) {
      Grow();
    } else {
      Insert(static_cast<int32_t>(tokens_.size()) - 1);
    }
  }
}

// Positions come in their order.
void NgramIndex::Insert(int32_t position) {
  // No token is 0 here, so that zeros before others change the hash.
  const auto at = [this](int32_t p) { return static_cast<uint64_t>(tokens_[p]) + 1; };
  hash_ = hash_ * kFactor + at(position);
  if (position >= lookup_min_) hash_ -= at(position - lookup_min_) * leaving_factor_;
  if (position + 1 < lookup_min_) return;
  int32_t& latest = latest_[BucketOf(hash_, latest_.size())];
  before_[position] = latest;
  latest = position;
}

void NgramIndex::Grow() {
  latest_.assign(std::max(2 * latest_.size(), kBucketsMin), -1);
  hash_ = 0;
  for (int32_t p = 0; p < static_cast<int32_t>(tokens_.size()); ++p) Insert(p);
}

int32_t NgramIndex::Common(int32_t earlier, int32_t later) const {
  const int32_t most = std::min(lookup_max_, earlier + 1);
  int32_t count = 0;
  while (count < most && tokens_[earlier - count] == tokens_[later - count]) ++count;
  return count;
}

std::vector<TokenId> NgramIndex::Propose(int32_t count) const {
  const auto end = static_cast<int32_t>(tokens_.size());
  if (end == 0) return {};
  int32_t best = -1, most = lookup_min_ - 1, places = 0, links = 0;
  for (int32_t p = before_[end - 1]; p >= 0 && places < kPlacesMax && links < kLinksMax;
       p = before_[p], ++links) {
    const int32_t common = Common(p, end - 1);
    if (common >= lookup_min_) ++places;
    if (common <= most) continue;
    best = p;
    most = common;
    if (most == lookup_max_) break;
  }
  std::vector<TokenId> drafts;
  if (best < 0) return drafts;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t p = best + 1 + i;
    drafts.push_back(p < end ? tokens_[p] : drafts[p - end]);
  }
  return drafts;
}

}  // namespace baltoro
