#include "server/api_keys.h"

#include <gtest/gtest.h>
#include <openssl/crypto.h>

#include <cstdlib>
#include <new>

namespace baltoro {
namespace {

// OpenSSL's memory, until it runs out.
bool memory_is_out = false;

void* Allocate(size_t bytes, const char* /*file*/, int /*line*/) {
  return memory_is_out ? nullptr : std::malloc(bytes);
}
void* Resize(void* old, size_t bytes, const char* /*file*/, int /*line*/) {
  return memory_is_out ? nullptr : std::realloc(old, bytes);
}
void Free(void* memory, const char* /*file*/, int /*line*/) {
  std::free(memory);
}

// Before OpenSSL takes any.
const int kTaken = CRYPTO_set_mem_functions(Allocate, Resize, Free);

HttpRequest With(std::string_view name, std::string_view value) {
  HttpRequest request;
  request.headers.emplace_back(name, value);
  return request;
}

TEST(ApiKeysTest, AKeyIsKnownInEitherHeaderAndNamesItsClient) {
  const ApiKeys keys({"one", "two", "one"});
  EXPECT_EQ(keys.count(), 2u);
  const auto one = keys.ClientOf(With("authorization", "bearer one"));
  ASSERT_TRUE(one);
  EXPECT_EQ(one->size(), 16u);
  EXPECT_EQ(keys.ClientOf(With("x-api-key", "one")), one);
  EXPECT_NE(keys.ClientOf(With("x-api-key", "two")), one);
  for (const char* other : {"", "three", "on", "Bearer one"}) {
    EXPECT_FALSE(keys.ClientOf(With("x-api-key", other))) << other;
  }
}

// Neither the end of the process nor a digest that was never made, which is that of no key and of
// every other that was not made.
TEST(ApiKeysTest, WithoutMemoryNobodyIsLetIn) {
  ASSERT_EQ(kTaken, 1);
  const ApiKeys keys({"one"}), open({});
  memory_is_out = true;
  EXPECT_THROW((void)keys.ClientOf(With("x-api-key", "one")), std::bad_alloc);
  EXPECT_THROW((void)open.ClientOf(With("x-api-key", "one")), std::bad_alloc);
  memory_is_out = false;
  EXPECT_TRUE(keys.ClientOf(With("x-api-key", "one")));
}

}  // namespace
}  // namespace baltoro
