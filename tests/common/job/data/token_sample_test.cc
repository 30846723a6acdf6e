#include "common/job/data/token_sample.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;

void Write(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

std::string Npy(const std::string& descr, const std::string& order, const std::string& shape,
                const std::string& data) {
  std::string dictionary =
      "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
  dictionary.resize(118, ' ');
  return std::string("\x93NUMPY\1\0\x76\0", 10) + dictionary + data;
}

std::string Tokens(const std::vector<uint16_t>& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size()};
}

TEST(SampleTokens, FindsTheLargestTokenAndItsPlace) {
  const TempDir dir;
  Write(dir / "a.bin", Tokens({3, 474, 7, 474}));
  Write(dir / "a.npy", Npy("<u2", "False", "(4,)", Tokens({3, 474, 7, 474})));
  for (const char* name : {"a.bin", "a.npy"}) {
    const auto sample = SampleTokens(dir / name);
    ASSERT_OK(sample) << name;
    EXPECT_EQ(sample->tokens, 4);
    EXPECT_EQ(sample->looked_at, 4);
    EXPECT_EQ(sample->largest, 474);
    EXPECT_EQ(sample->position, 1);
  }
}

TEST(SampleTokens, LooksAtPartsOfALargeFileUpToItsEnd) {
  const TempDir dir;
  std::vector<uint16_t> tokens(6'000'000, 5);
  tokens.back() = 50256;
  Write(dir / "a.bin", Tokens(tokens));
  const auto sample = SampleTokens(dir / "a.bin");
  ASSERT_OK(sample);
  EXPECT_EQ(sample->tokens, 6'000'000);
  EXPECT_LT(sample->looked_at, 4'200'000);
  EXPECT_EQ(sample->largest, 50256);
  EXPECT_EQ(sample->position, 5'999'999);
}

TEST(SampleTokens, RefusesHeadersThatTheWorkerRefuses) {
  const TempDir dir;
  const auto refused = [&](const std::string& npy, const std::string& why) {
    Write(dir / "a.npy", npy);
    EXPECT_THAT(SampleTokens(dir / "a.npy").status().message(), HasSubstr(why));
  };
  refused(Npy("<f8", "False", "(1,)", std::string(8, '\0')), "dtype '<f8' (<u2, <u4, <i4 or <i8)");
  refused(Npy("<u2", "True", "(1,)", "ab"), "fortran_order is not False");
  refused(Npy("<u2", "False", "(1, 1)", "ab"), "shape (1, 1) (one dimension)");
  refused(Npy("<u2", "False", "(2,)", "ab"), "the header promises 2 tokens");
  refused(Npy("<i4", "False", "(1,)", std::string(4, '\xff')), "token 0, at byte 128: -1");
  EXPECT_FALSE(SampleTokens(dir / "none.bin").ok());
}

}  // namespace
}  // namespace nsa
