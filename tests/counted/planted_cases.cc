#include <algorithm>
#include <cstdint>
#include <memory>

#include "counted/work_case.h"

namespace baltoro::work {

std::vector<WorkCase> PlantedCases() {
  return {
      // Each element is looked for among all that came before it.
      {"planted_search", 500,
       [](size_t size) {
         return [size] {
           std::vector<size_t> seen;
           for (size_t i = 0; i < size; ++i) {
             if (std::find(seen.begin(), seen.end(), i) == seen.end()) seen.push_back(i);
           }
           BT_CHECK(seen.size() == size);
         };
       }},
      // A buffer that is emptied from the front. All of the growth is in memmove, which needs one
      // instruction for 32 bytes.
      {"planted_erase", 2000,
       [](size_t size) {
         return [size] {
           std::string buffer = Times(size, "ab");
           size_t sum = 0;
           while (!buffer.empty()) {
             sum += static_cast<unsigned char>(buffer[0]);
             buffer.erase(0, 1);
           }
           BT_CHECK(sum == size * ('a' + 'b'));
         };
       }},
      // Linear work, and a walk over all digits from some of them, which is two fifths of the whole
      // at the largest size.
      {"planted_part", 2000,
       [](size_t size) {
         return [size] {
           uint32_t state = 1;
           for (size_t i = 0; i < size * 160; ++i) state = state * 1664525 + 1013904223;
           std::vector<uint8_t> digits(size, static_cast<uint8_t>(state >> 31));
           uint32_t sum = 0;
           for (size_t i = 0; i < size; i += 16) {
             for (const uint8_t digit : digits) sum += digit;
           }
           BT_CHECK(sum <= size * size);
         };
       }},
  };
}

}  // namespace baltoro::work
