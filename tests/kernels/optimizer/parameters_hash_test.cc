#include "kernels/optimizer/parameters_hash.h"

#include <gmock/gmock.h>

#include <bit>
#include <set>

#include "tests/kernels/nn/values.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;

uint64_t HashOf(const std::vector<float>& values) {
  uint64_t hash = 1;  // overwritten
  EXPECT_TRUE(ParametersHash({}, {.values = View(values), .hash = &hash}).ok());
  return hash;
}

float WithBitFlipped(float value, int bit) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) ^ (uint32_t{1} << bit));
}

// Written again from the formula, the terms in the opposite order.
uint64_t ReferenceHash(const std::vector<float>& values) {
  uint64_t sum = 0;
  for (uint64_t i = values.size(); i-- > 0;) {
    uint64_t z = std::bit_cast<uint32_t>(values[i]);
    z += 0x9E3779B97F4A7C15ull * i;
    z ^= z >> 30;
    z *= 0xBF58476D1CE4E5B9ull;
    z ^= z >> 27;
    z *= 0x94D049BB133111EBull;
    z ^= z >> 31;
    sum += z;
  }
  return sum;
}

TEST(ParametersHash, IsTheSumOfTheFormula) {
  for (const int64_t size : {0, 1, 2, 1000, 100003}) {
    const std::vector<float> values = RandomValues(size, 3);
    EXPECT_EQ(HashOf(values), ReferenceHash(values)) << size;
  }
  // What SplitMix64 with the seed 0 gives after its first step: a number that others have
  // published.
  EXPECT_EQ(HashOfValue(1, 0), 0xe220a8397b1dcdafu);
}

TEST(ParametersHash, OfTwoPartsAddUp) {
  const std::vector<float> values = RandomValues(40000, 3);
  for (const int64_t cut : {0, 1, 17000, 40000}) {
    const ConstTensor all = View(values);
    uint64_t first = 0, second = 0;
    ASSERT_TRUE(ParametersHash({}, {.values = {all.data, cut, DType::kF32}, .hash = &first}).ok());
    ASSERT_TRUE(ParametersHash({}, {.values = {values.data() + cut, 40000 - cut, DType::kF32},
                                    .first = cut,
                                    .hash = &second})
                    .ok());
    EXPECT_EQ(first + second, HashOf(values)) << cut;
  }
}

TEST(ParametersHash, OfEverySingleFlippedBitIsAnother) {
  std::vector<float> values = RandomValues(64, 1);
  values[5] = 0, values[6] = -0.0f, values[7] = INFINITY, values[8] = NAN;
  std::set<uint64_t> hashes = {HashOf(values)};
  for (float& value : values) {
    const float before = value;
    for (int bit = 0; bit < 32; ++bit) {
      value = WithBitFlipped(before, bit);
      hashes.insert(HashOf(values));
    }
    value = before;
  }
  EXPECT_EQ(hashes.size(), 1 + 64 * 32) << "each is another, and none is that of the values";
}

TEST(ParametersHash, OfSwappedAndOfMovedValuesIsAnother) {
  std::vector<float> values = RandomValues(64, 2);
  std::set<uint64_t> hashes = {HashOf(values)};
  for (size_t i = 0; i < values.size(); ++i) {
    for (size_t j = i + 1; j < values.size(); ++j) {
      std::swap(values[i], values[j]);
      hashes.insert(HashOf(values));
      std::swap(values[i], values[j]);
    }
  }
  EXPECT_EQ(hashes.size(), 1 + 64 * 63 / 2);
  std::rotate(values.begin(), values.begin() + 1, values.end());
  EXPECT_EQ(hashes.count(HashOf(values)), 0u);
}

TEST(ParametersHash, SeesAChangeThatKeepsTheSumOfTheBits) {
  const float one = 1.0f, next = std::nextafter(1.0f, 2.0f), last = std::nextafter(1.0f, 0.0f);
  EXPECT_NE(HashOf({one, one}), HashOf({next, last}));
  EXPECT_NE(HashOf({0.0f}), HashOf({0.0f, 0.0f})) << "a zero more";
}

TEST(ParametersHash, DoesNotDependOnTheNumberOfThreads) {
  const std::vector<float> values = RandomValues(100003, 4);
  const int before = omp_get_max_threads();
  std::set<uint64_t> hashes;
  for (const int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    hashes.insert(HashOf(values));
  }
  omp_set_num_threads(before);
  EXPECT_EQ(hashes.size(), 1u);
}

TEST(ParametersHash, RefusesOtherTypesAndNoRoom) {
  const std::vector<int32_t> whole = {1, 2};
  const std::vector<float> values = {1, 2};
  uint64_t hash = 0;
  EXPECT_THAT(ParametersHash({}, {.values = std::span(whole), .hash = &hash}).message(),
              HasSubstr("values"));
  EXPECT_THAT(ParametersHash({}, {.values = View(values)}).message(), HasSubstr("hash: null"));
}

}  // namespace
}  // namespace nsa
