// Pictures: a prompt waits where one stands until it is encoded, and encoding is part of the steps,
// some layers in each, out of what prompts may cost.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

#include "base/check.h"
#include "schedule/block_name.h"
#include "schedule/planted_bug.h"
#include "schedule/scheduler.h"

namespace baltoro {

// Its name in the memory of pictures.
PictureName Scheduler::NameOf(const RequestPicture& picture, const std::string& salt) const {
  std::vector<uint8_t> bytes(picture.hash.begin(), picture.hash.end());
  if (!Planted(PlantedBug::kIgnoreSalt)) bytes.insert(bytes.end(), salt.begin(), salt.end());
  const Hash128 hash = SipHash128(config_.hash_secret, bytes);
  PictureName name;
  static_assert(sizeof(name) == sizeof(hash));
  std::memcpy(name.data(), &hash, sizeof(hash));
  return name;
}

// Gives the pictures from `from` on, as far as a step can come, a place if there is room: which of
// the request's, as a range. One that runs holds them; of one that waits it is the first alone.
Sequence::Range Scheduler::TakePictures(Sequence& sequence, int32_t from, bool runs) {
  const std::vector<RequestPicture>& pictures = sequence.request.pictures;
  const std::span<const RequestPicture> all(pictures);
  const auto first = static_cast<size_t>(FirstBehind(all, from) - all.begin());
  Sequence::Range taken{.begin = first, .end = first};
  for (; taken.end < pictures.size() &&
         pictures[taken.end].begin - from < config_.max_num_batched_tokens;
       ++taken.end) {
    if (!runs && !taken.empty()) break;
    PictureStore::Place* place = TakePlace(sequence, taken.end);
    if (place == nullptr && !EncodingIsNeeded()) {
      DropEncoding();
      place = TakePlace(sequence, taken.end);
    }
    if (place == nullptr) break;
    if (!runs || taken.end < sequence.pictures_held.end) continue;
    pictures_.Hold(*place);
    if (sequence.pictures_held.empty()) sequence.pictures_held.begin = taken.end;
    sequence.pictures_held.end = taken.end + 1;
  }
  return taken;
}

PictureStore::Place* Scheduler::TakePlace(const Sequence& sequence, size_t index) {
  return pictures_.Take(sequence.picture_names[index], sequence.request.pictures[index].count);
}

// Up to which position of its prompt the sequence can be computed by this plan, from `from` on.
int32_t Scheduler::ReadyUntil(
    Sequence& sequence, int32_t from, bool runs, StepPlan& plan, Budget& budget) {
  const std::vector<RequestPicture>& pictures = sequence.request.pictures;
  const Sequence::Range taken = TakePictures(sequence, from, runs);
  for (size_t i = taken.begin; i < taken.end; ++i) {
    if (!Encoded(sequence, i, plan, budget)) return std::max(pictures[i].begin, from);
  }
  return taken.end < pictures.size() ? std::max(pictures[taken.end].begin, from)
                                     : std::numeric_limits<int32_t>::max();
}

// Whether picture `index` of its is encoded, or will be by this plan. With it those behind it, and
// small ones of others.
bool Scheduler::Encoded(const Sequence& sequence, size_t index, StepPlan& plan, Budget& budget) {
  const PictureStore::Place* const place = pictures_.Find(sequence.picture_names[index]);
  while (!place->encoded) {
    // Else another batch is on its way, which somebody waits for.
    const bool among = std::ranges::count(encoding_.names, place->name) > 0;
    if (!among && !EncodingIsNeeded()) {
      DropEncoding();
      BeginEncoding(sequence, index);
    }
    if (!EncodeLayers(plan, budget)) return false;
  }
  return true;
}

// Whether a sequence that runs waits for some picture of the batch: it holds it, as the batch does.
bool Scheduler::EncodingIsNeeded() {
  return std::ranges::any_of(encoding_.names, [this](const PictureName& name) {
    return pictures_.Find(name)->holders > 1;
  });
}

// What was done of it is lost.
void Scheduler::DropEncoding() {
  for (const PictureName& name : encoding_.names) pictures_.Release(name);
  encoding_ = {};
}

// With picture `index` of its, which has a place; those behind it, as far as a step can come, or
// until each rank has one; and those of others beside them.
void Scheduler::BeginEncoding(const Sequence& sequence, size_t index) {
  BT_CHECK(encoding_.names.empty());
  encoding_.layers_left = config_.picture_layers;
  encoding_.begins = true;
  const std::span<const RequestPicture> own(sequence.request.pictures);
  const int32_t first = own[index].begin;
  for (; index < own.size(); ++index) {
    const bool far = own[index].begin - first >= config_.max_num_batched_tokens;
    if (far && std::ssize(encoding_.names) >= config_.picture_ranks) break;
    if (TakePlace(sequence, index) == nullptr) break;
    if (!JoinEncoding(sequence, index, config_.picture_patches_max)) break;
  }
  BT_CHECK(!encoding_.names.empty());
  const int64_t shared = std::min(config_.picture_patches_shared, config_.picture_patches_max);
  for (const Sequence* const other : running_) {
    const Sequence::Range held = other->pictures_held;
    for (size_t i = held.begin; i < held.end; ++i) {
      if (!JoinEncoding(*other, i, shared)) return;
    }
  }
  // They come in soon, or know the picture by then.
  for (Sequence* const other : waiting_) {
    const std::span<const RequestPicture> all(other->request.pictures);
    if (all.empty()) continue;
    const auto from = static_cast<int32_t>(PrefixOf(*other).size()) * kBlockTokens;
    auto i = static_cast<size_t>(FirstBehind(all, from) - all.begin());
    for (; i < all.size(); ++i) {
      if (TakePlace(*other, i) == nullptr) return;
      if (!JoinEncoding(*other, i, shared)) return;
    }
  }
}

// Adds a picture that has a place, unless it is encoded, or among them already. False: with it some
// rank would have more than `patches_max` patches.
bool Scheduler::JoinEncoding(const Sequence& sequence, size_t index, int64_t patches_max) {
  const RequestPicture& picture = sequence.request.pictures[index];
  PictureStore::Place& place = *pictures_.Find(sequence.picture_names[index]);
  if (place.encoded || std::ranges::count(encoding_.names, place.name) > 0) return true;
  encoding_.pictures.push_back({.frames = picture.frames,
                                .rows = picture.rows,
                                .columns = picture.columns,
                                .pixels = picture.pixels,
                                .place = place.begin});
  if (!ShareOut(patches_max)) {
    encoding_.pictures.pop_back();
    BT_CHECK(ShareOut(std::numeric_limits<int64_t>::max()));
    return false;
  }
  pictures_.Hold(place);
  encoding_.names.push_back(place.name);
  return true;
}

// Among the ranks: the largest first, each to the one that has fewest patches. What the batch costs
// is what the rank with most has to do. False: it has more than `patches_max`.
bool Scheduler::ShareOut(int64_t patches_max) {
  const auto patches_of = [](const EncodedPicture& picture) {
    return int64_t{picture.frames} * picture.rows * picture.columns;
  };
  std::vector<EncodedPicture*> order;
  for (EncodedPicture& picture : encoding_.pictures) order.push_back(&picture);
  std::ranges::stable_sort(order, [&](const EncodedPicture* a, const EncodedPicture* b) {
    return patches_of(*a) > patches_of(*b);
  });
  struct Load {
    int64_t patches = 0;
    double pairs = 0;
  };
  std::vector<Load> loads(static_cast<size_t>(config_.picture_ranks));
  for (EncodedPicture* const picture : order) {
    const auto least = std::ranges::min_element(loads, {}, &Load::patches);
    picture->rank = static_cast<int32_t>(least - loads.begin());
    const int64_t patches = patches_of(*picture);
    least->patches += patches;
    least->pairs += static_cast<double>(patches) * static_cast<double>(patches);
  }
  encoding_.patches = std::ranges::max(loads, {}, &Load::patches).patches;
  encoding_.pairs = std::ranges::max(loads, {}, &Load::pairs).pairs;
  return encoding_.patches <= patches_max;
}

// As many layers of the batch as the step may cost, in each plan one at least, and while nobody
// knows what one costs no more. False: none more.
bool Scheduler::EncodeLayers(StepPlan& plan, Budget& budget) {
  const double cost = costs_.Of(EncodeWork(1, encoding_.patches, encoding_.pairs));
  int32_t layers = encoding_.layers_left;
  if (!costs_.unlimited()) {
    const double room = cost > 0 ? std::floor(budget.prompt_cost / cost) : 0;
    if (room < 1 && !plan.encodes.empty()) return false;
    layers = static_cast<int32_t>(std::clamp<double>(room, 1, layers));
    budget.prompt_cost -= cost * layers;
  }
  PlannedEncode& planned = plan.encodes.emplace_back();
  planned.layers = layers;
  planned.patches = encoding_.patches;
  planned.pairs = encoding_.pairs;
  if (std::exchange(encoding_.begins, false)) {
    planned.pictures = std::exchange(encoding_.pictures, {});
  }
  encoding_.layers_left -= layers;
  if (encoding_.layers_left > 0 && !Planted(PlantedBug::kEncodedTooEarly)) return true;
  for (const PictureName& name : encoding_.names) pictures_.Find(name)->encoded = true;
  if (encoding_.layers_left == 0) DropEncoding();
  return true;
}

// The rows of the entry that stand for pictures.
void Scheduler::AddPictureRows(const Sequence& sequence, PlannedSequence& planned) {
  const int32_t first = planned.first_position, end = first + planned.token_count;
  const std::span<const RequestPicture> all(sequence.request.pictures);
  for (auto one = FirstBehind(all, first); one != all.end() && one->begin < end; ++one) {
    const RequestPicture& picture = *one;
    const int32_t begin = std::max(picture.begin, first);
    const int32_t count = std::min(picture.begin + picture.count, end) - begin;
    const auto index = static_cast<size_t>(one - all.begin());
    const PictureStore::Place* const place = pictures_.Find(sequence.picture_names[index]);
    BT_CHECK(place != nullptr && place->encoded);
    planned.pictures.push_back(
        {.row = begin - first, .count = count, .from = place->begin + begin - picture.begin});
  }
}

// Those that lie before what is planned; or all.
void Scheduler::ReleasePictures(Sequence& sequence, bool all) {
  Sequence::Range& held = sequence.pictures_held;
  while (!held.empty()) {
    const RequestPicture& picture = sequence.request.pictures[held.begin];
    if (!all && picture.begin + picture.count > sequence.planned) return;
    pictures_.Release(sequence.picture_names[held.begin]);
    ++held.begin;
  }
  held = {};
}

// The name of a block says which pictures stand in it.
Hash128 Scheduler::NameWithPictures(const Sequence& sequence, int32_t block, Hash128 name) const {
  if (Planted(PlantedBug::kPicturesUnnamed)) return name;
  return NamePictures(prefix_.names(), sequence.request.pictures, block, name);
}

}  // namespace baltoro
