// Pictures: a prompt waits where one stands until it is encoded, and encoding is part of the steps,
// some layers in each, out of what prompts may cost.

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "base/check.h"
#include "schedule/block_name.h"
#include "schedule/planted_bug.h"
#include "schedule/scheduler.h"

namespace baltoro {

Status Scheduler::CheckPictures(const Request& request) const {
  int64_t end = 0;
  for (const RequestPicture& picture : request.pictures) {
    const int64_t patches = int64_t{picture.frames} * picture.rows * picture.columns;
    if (picture.begin < end || picture.count < 1) {
      return InvalidArgument("the pictures of the prompt are not one after the other");
    }
    end = int64_t{picture.begin} + picture.count;
    if (end >= static_cast<int64_t>(request.prompt.size())) {
      return InvalidArgument("nothing comes behind the last picture of the prompt");
    }
    if (picture.count > config_.picture_rows || patches > config_.picture_patches_max) {
      return InvalidArgument("a picture of " + std::to_string(picture.count) + " tokens and " +
                             std::to_string(patches) + " patches; this engine takes up to " +
                             std::to_string(config_.picture_rows) + " and " +
                             std::to_string(config_.picture_patches_max));
    }
  }
  return {};
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
    const RequestPicture& picture = pictures[taken.end];
    PictureStore::Place* const place = pictures_.Take(picture.hash, picture.count);
    if (place == nullptr) break;
    if (!runs || taken.end < sequence.pictures_held.end) continue;
    pictures_.Hold(*place);
    if (sequence.pictures_held.empty()) sequence.pictures_held.begin = taken.end;
    sequence.pictures_held.end = taken.end + 1;
  }
  return taken;
}

// Up to which position of its prompt the sequence can be computed by this plan, from `from` on.
int32_t Scheduler::ReadyUntil(
    Sequence& sequence, int32_t from, bool runs, StepPlan& plan, Budget& budget) {
  const std::vector<RequestPicture>& pictures = sequence.request.pictures;
  const Sequence::Range taken = TakePictures(sequence, from, runs);
  for (size_t i = taken.begin; i < taken.end; ++i) {
    if (!Encoded(pictures, i, taken.end, plan, budget)) return std::max(pictures[i].begin, from);
  }
  return taken.end < pictures.size() ? std::max(pictures[taken.end].begin, from)
                                     : std::numeric_limits<int32_t>::max();
}

// Whether picture `index` of these is encoded, or will be by this plan. With it those that come
// right behind it, up to `end`.
bool Scheduler::Encoded(const std::vector<RequestPicture>& pictures,
                        size_t index,
                        size_t end,
                        StepPlan& plan,
                        Budget& budget) {
  const PictureStore::Place* const place = pictures_.Find(pictures[index].hash);
  if (!EncodingHasItsPlaces()) encoding_.names.clear();
  while (!place->encoded) {
    const bool among = std::ranges::count(encoding_.names, place->name) > 0;
    if (!among && !BeginEncoding(pictures, index, end)) {
      // Another batch is on its way, which somebody waits for.
      if (!EncodeLayers(plan, budget)) return false;
      continue;
    }
    if (!EncodeLayers(plan, budget)) return false;
  }
  return true;
}

// A batch that nobody holds may have lost one to another picture: what was done of it is lost.
bool Scheduler::EncodingHasItsPlaces() {
  int32_t begin = encoding_.place;
  return std::ranges::all_of(encoding_.names, [&](const PictureName& name) {
    const PictureStore::Place* const place = pictures_.Find(name);
    if (place == nullptr || place->begin != begin) return false;
    begin += place->rows;
    return true;
  });
}

// False if there is a batch on its way that is needed.
bool Scheduler::BeginEncoding(const std::vector<RequestPicture>& pictures,
                              size_t index,
                              size_t end) {
  const auto held = [this](const PictureName& name) { return pictures_.Find(name)->holders > 0; };
  if (!encoding_.names.empty()) {
    if (std::ranges::any_of(encoding_.names, held)) return false;
    encoding_.names.clear();
  }
  encoding_ = {.layers_left = config_.picture_layers, .begins = true};
  for (int32_t place = -1; index < end; ++index) {
    const RequestPicture& picture = pictures[index];
    const PictureStore::Place& own = *pictures_.Find(picture.hash);
    const double patches = static_cast<double>(picture.frames) * picture.rows * picture.columns;
    const bool follows = place < 0 || own.begin == place;
    if (own.encoded || !follows ||
        encoding_.patches + static_cast<int64_t>(patches) > config_.picture_patches_max) {
      break;
    }
    // The same picture twice has one place.
    if (place < 0) encoding_.place = own.begin;
    place = own.begin + own.rows;
    encoding_.names.push_back(own.name);
    encoding_.pictures.push_back({.frames = picture.frames,
                                  .rows = picture.rows,
                                  .columns = picture.columns,
                                  .pixels = picture.pixels});
    encoding_.patches += static_cast<int64_t>(patches);
    encoding_.pairs += patches * patches;
  }
  BT_CHECK(!encoding_.names.empty());
  return true;
}

// As many layers of the batch as the step may cost, in each plan one at least. False: none more.
bool Scheduler::EncodeLayers(StepPlan& plan, Budget& budget) {
  const double cost = costs_.Of(EncodeWork(1, encoding_.patches, encoding_.pairs));
  int32_t layers = encoding_.layers_left;
  if (cost > 0 && !costs_.unlimited()) {
    const double room = std::floor(budget.prompt_cost / cost);
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
    planned.place = encoding_.place;
  }
  encoding_.layers_left -= layers;
  if (encoding_.layers_left > 0 && !Planted(PlantedBug::kEncodedTooEarly)) return true;
  for (const PictureName& name : encoding_.names) pictures_.Find(name)->encoded = true;
  if (encoding_.layers_left == 0) encoding_.names.clear();
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
    const PictureStore::Place* const place = pictures_.Find(picture.hash);
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
    pictures_.Release(picture.hash);
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
