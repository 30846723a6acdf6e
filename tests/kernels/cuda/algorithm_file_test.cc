// Storing the choice of algorithms on disk. Needs no GPU.
#include "kernels/cuda/algorithm_file.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"

namespace nsa::cuda {
namespace {

class AlgorithmFileTest : public ::testing::Test {
 protected:
  AlgorithmFileTest()
      : folder_(std::filesystem::temp_directory_path() /
                ("nsa-algorithm-file-" + std::to_string(getpid()))) {}
  ~AlgorithmFileTest() override { std::filesystem::remove_all(folder_); }

  AlgorithmFile Open() { return {(folder_ / "a/b").string(), "NVIDIA H200", 130002}; }

  const std::filesystem::path folder_;
  const Algorithm one_ = {1, 2, 3, 4, 5, 6, 7, 0xffffffffffffffffu}, two_ = {9};
};

TEST_F(AlgorithmFileTest, WhatOneAddsTheOtherFinds) {
  AlgorithmFile first = Open(), second = Open();
  EXPECT_EQ(first.path(), (folder_ / "a/b/cublaslt-NVIDIA_H200-130002.txt").string());
  EXPECT_FALSE(second.Find("x").has_value());
  ASSERT_TRUE(first.Lock().ok());
  ASSERT_TRUE(first.Add("x", one_).ok());
  ASSERT_TRUE(first.Add("y", two_).ok());
  first.Unlock();
  EXPECT_EQ(second.Find("x"), one_);
  EXPECT_EQ(second.Find("y"), two_);
  EXPECT_EQ(first.Find("x"), one_);
}

TEST_F(AlgorithmFileTest, TheFirstLineOfAShapeCountsAndBrokenLinesDoNot) {
  AlgorithmFile file = Open();
  ASSERT_TRUE(file.Lock().ok());
  ASSERT_TRUE(file.Add("x", one_).ok());
  ASSERT_TRUE(file.Add("x", two_).ok());
  file.Unlock();
  std::ofstream(file.path(), std::ios::app)
      << "broken 1 2\nz 1 2 3 4 5 6 7 8\nhalf 1 2 3 4 5 6 7 8";
  AlgorithmFile other = Open();
  EXPECT_EQ(other.Find("x"), one_);
  EXPECT_FALSE(other.Find("broken").has_value());
  EXPECT_TRUE(other.Find("z").has_value());
  EXPECT_FALSE(other.Find("half").has_value()) << "its line has no end yet";
}

TEST(Algorithm, IsReadBackAsItWasWritten) {
  const Algorithm algorithm = {1, 0, 0xabcdef, 4, 5, 6, 7, 0xffffffffffffffffu};
  EXPECT_EQ(FormatAlgorithm(algorithm), "1 0 abcdef 4 5 6 7 ffffffffffffffff");
  EXPECT_EQ(ParseAlgorithm(FormatAlgorithm(algorithm)), algorithm);
  for (const char* text :
       {"", "1 2 3", "1 2 3 4 5 6 7 8 9", "1 2 3 4 5 6 7 x", "1 2 3 4 5 6 7 10000000000000000"}) {
    EXPECT_FALSE(ParseAlgorithm(text).has_value()) << text;
  }
}

TEST_F(AlgorithmFileTest, WithoutAFolderNothingIsKept) {
  AlgorithmFile file("", "GPU", 1);
  EXPECT_FALSE(file.Lock().ok());
  EXPECT_FALSE(file.Find("x").has_value());
}

TEST_F(AlgorithmFileTest, TheUsersCacheFolderIsTheDefault) {
  setenv("XDG_CACHE_HOME", "/c", 1);
  EXPECT_EQ(DefaultAlgorithmFolder(), "/c/nsa");
  setenv("XDG_CACHE_HOME", "relative", 1);
  setenv("HOME", "/h", 1);
  EXPECT_EQ(DefaultAlgorithmFolder(), "/h/.cache/nsa");
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  EXPECT_EQ(DefaultAlgorithmFolder(), "");
}

}  // namespace
}  // namespace nsa::cuda
