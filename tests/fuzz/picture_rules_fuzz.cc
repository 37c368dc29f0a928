// preprocessor_config.json: whatever rules are read, every picture fits within them.

#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "media/picture_rules.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto rules = baltoro::ParsePictureRules(text, "file");
  if (!rules.ok()) {
    BT_CHECK(rules.status().message().starts_with("file: "));
    return 0;
  }
  for (const auto& [width, height] : {std::pair{1, 1}, {16384, 82}, {7071, 7071}, {1, 200}}) {
    const baltoro::PictureFit fit = baltoro::FitPicture(width, height, rules.value());
    BT_CHECK(fit.width >= 1 && fit.width <= width);
    BT_CHECK(fit.height >= 1 && fit.height <= height);
    BT_CHECK(fit.grid_width <= rules.value().side_patches_max);
    BT_CHECK(fit.grid_height <= rules.value().side_patches_max);
    BT_CHECK(fit.tokens(rules.value()) >= 1);
  }
  return 0;
}
