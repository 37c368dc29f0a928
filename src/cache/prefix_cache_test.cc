#include "cache/prefix_cache.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "cache/kv_storage.h"

namespace baltoro {
namespace {

constexpr HashKey kSecret{1, 2};

std::vector<int32_t> Tokens(int32_t first) {
  std::vector<int32_t> tokens(kBlockTokens);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::string Hex(const Hash128& hash) {
  std::string text;
  for (const uint64_t word : {hash.low, hash.high}) {
    for (int i = 0; i < 8; ++i) {
      char two[3];
      std::snprintf(two, sizeof(two), "%02x", static_cast<unsigned>(word >> (8 * i) & 0xFF));
      text += two;
    }
  }
  return text;
}

// The wanted values are what `openssl mac -macopt hexkey:000102030405060708090a0b0c0d0e0f
// -macopt size:16 SipHash` prints (OpenSSL 3.0).
TEST(KeyedHashTest, EqualsOpenSslOnInputsOfEveryTailLength) {
  const HashKey key{0x0706050403020100, 0x0f0e0d0c0b0a0908};
  const std::vector<std::pair<size_t, std::string>> wanted = {
      {0, "a3817f04ba25a8e66df67214c7550293"},   {1, "da87c1d86b99af44347659119b22fc45"},
      {2, "8177228da4a45dc7fca38bdef60affe4"},   {3, "9c70b60c5267a94e5f33b6b02985ed51"},
      {4, "f88164c12d9c8faf7d0f6e7c7bcd5579"},   {5, "1368875980776f8854527a07690e9627"},
      {6, "14eeca338b208613485ea0308fd7a15e"},   {7, "a1f1ebbed8dbc153c0b84aa61ff08239"},
      {8, "3b62a9ba6258f5610f83e264f31497b4"},   {15, "5493e99933b0a8117e08ec0f97cfc3d9"},
      {16, "6ee2a4ca67b054bbfd3315bf85230577"},  {63, "5150d1772f50834a503e069a973fbd7c"},
      {272, "ec8331f9a68a08ea1eb45144516ee896"},
  };
  for (const auto& [length, hex] : wanted) {
    std::vector<uint8_t> bytes(length);
    std::iota(bytes.begin(), bytes.end(), uint8_t{0});
    EXPECT_EQ(Hex(SipHash128(key, bytes)), hex) << length;
  }
}

TEST(PrefixCacheTest, FindsABlockByNameAndTokens) {
  PrefixCache cache(kSecret, 4);
  const Hash128 name = cache.names().Chain(cache.names().Root("salt"), Tokens(0));
  ASSERT_TRUE(cache.Insert(name, Tokens(0), BlockId{3}));

  EXPECT_EQ(cache.Find(name, Tokens(0)), BlockId{3});
  EXPECT_TRUE(cache.Holds(BlockId{3}));
}

TEST(PrefixCacheTest, ANameWithOtherTokensIsNoHit) {
  PrefixCache cache(kSecret, 4);
  const Hash128 name = cache.names().Chain(cache.names().Root(""), Tokens(0));
  ASSERT_TRUE(cache.Insert(name, Tokens(0), BlockId{0}));

  // As if the hash of other tokens collided.
  EXPECT_EQ(cache.Find(name, Tokens(1)), BlockId{-1});
}

TEST(PrefixCacheTest, SaltParentTokensAndSecretAllChangeTheName) {
  PrefixCache cache(kSecret, 4);
  const Hash128 name = cache.names().Chain(cache.names().Root("a"), Tokens(0));

  EXPECT_NE(cache.names().Chain(cache.names().Root("b"), Tokens(0)), name);
  EXPECT_NE(cache.names().Chain(name, Tokens(0)), name);
  EXPECT_NE(cache.names().Chain(cache.names().Root("a"), Tokens(1)), name);
  PrefixCache other({1, 3}, 4);
  EXPECT_NE(other.names().Chain(other.names().Root("a"), Tokens(0)), name);
}

TEST(PrefixCacheTest, TheFirstBlockOfANameStays) {
  PrefixCache cache(kSecret, 4);
  const Hash128 name = cache.names().Chain(cache.names().Root(""), Tokens(0));
  ASSERT_TRUE(cache.Insert(name, Tokens(0), BlockId{0}));

  EXPECT_FALSE(cache.Insert(name, Tokens(0), BlockId{1}));

  EXPECT_EQ(cache.Find(name, Tokens(0)), BlockId{0});
  EXPECT_FALSE(cache.Holds(BlockId{1}));
}

TEST(PrefixCacheTest, AForgottenBlockIsGone) {
  PrefixCache cache(kSecret, 4);
  const Hash128 name = cache.names().Chain(cache.names().Root(""), Tokens(0));
  ASSERT_TRUE(cache.Insert(name, Tokens(0), BlockId{0}));

  cache.Forget(BlockId{0});
  cache.Forget(BlockId{1});  // never held

  EXPECT_EQ(cache.Find(name, Tokens(0)), BlockId{-1});
  EXPECT_EQ(cache.size(), 0);
}

TEST(KvStorageTest, LayersDoNotOverlapAndClearZeroesOneBlockOfEach) {
  auto storage = KvStorage::Create(
      {.layers = 2, .num_blocks = 3, .latent = 6, .rope = 2, .form = KvForm::kFp8Groups});
  ASSERT_TRUE(storage.ok()) << storage.status().message();
  KvStorage& kv = storage.value();
  EXPECT_EQ(kv.layout().block_bytes(), 64 * (6 + 4 + 4));
  for (int layer = 0; layer < 2; ++layer) {
    std::memset(kv.layer(layer), 0x11 * (layer + 1), kv.layout().layer_bytes());
  }

  ASSERT_TRUE(kv.Clear(BlockId{1}).ok());

  for (int layer = 0; layer < 2; ++layer) {
    const auto* bytes = static_cast<const uint8_t*>(kv.layer(layer));
    for (int64_t i = 0; i < kv.layout().layer_bytes(); ++i) {
      const bool cleared = i / kv.layout().block_bytes() == 1;
      ASSERT_EQ(bytes[i], cleared ? 0 : 0x11 * (layer + 1)) << layer << " " << i;
    }
  }
}

}  // namespace
}  // namespace baltoro
