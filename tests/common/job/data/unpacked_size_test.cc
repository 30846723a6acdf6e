#include "common/job/data/unpacked_size.h"

#include <sys/stat.h>

#include <fstream>
#include <string>

#include "gtest/gtest.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

using namespace std::literals;

class UnpackedSizeTest : public ::testing::Test {
 protected:
  int64_t Of(const std::string& content) {
    std::ofstream(folder_ / "file", std::ios::binary) << content;
    return SaidUnpackedBytes(folder_ / "file");
  }
  const TempDir folder_;
};

TEST_F(UnpackedSizeTest, IsInTheLastBytesOfGzip) {
  const std::string member = "\x1f\x8b\x08" + std::string(20, '\0');
  EXPECT_EQ(Of(member + "\x40\x42\x0f\x00"s), 1'000'000);
  EXPECT_EQ(Of(member + "\xff\xff\xff\xff"s), 4'294'967'295);
}

// The headers of frames that zstd 1.5 writes.
TEST_F(UnpackedSizeTest, IsInTheFirstFrameOfZstd) {
  const std::string magic = "\x28\xb5\x2f\xfd";
  const std::string rest(16, '\0');
  EXPECT_EQ(Of(magic + "\x24\x05"s + rest), 5) << "one segment, one byte";
  EXPECT_EQ(Of(magic + "\x64\x00\x01"s + rest), 512) << "two bytes from 256 on";
  EXPECT_EQ(Of(magic + "\xa4\x00\x00\x10\x00"s + rest), 1 << 20);
  EXPECT_EQ(Of(magic + "\x84\x58\x00\x00\x10\x00"s + rest), 1 << 20) << "behind a window";
  EXPECT_EQ(Of(magic + "\x87\x58\x01\x02\x03\x04\x00\x00\x10\x00"s + rest), 1 << 20)
      << "behind the id of a dictionary";
  EXPECT_EQ(Of(magic + "\xe4\xff\xff\xff\xff\xff\xff\xff\xff"s + rest), int64_t{1} << 50);
  EXPECT_EQ(Of(magic + "\x04\x58"s + rest), 0) << "written in passing: it does not say";
}

TEST_F(UnpackedSizeTest, WhatIsCutOffOrOfAnotherKindSaysNothing) {
  EXPECT_EQ(Of(""), 0);
  EXPECT_EQ(Of("\x1f\x8b"), 0);
  EXPECT_EQ(Of("\x28\xb5\x2f\xfd"), 0);
  EXPECT_EQ(Of("\x28\xb5\x2f\xfd\xe4\x01"), 0);
  EXPECT_EQ(Of(std::string(100, 'a')), 0);
  EXPECT_EQ(SaidUnpackedBytes(folder_ / "none"), 0);
  mkfifo((folder_ / "pipe").c_str(), 0600);
  EXPECT_EQ(SaidUnpackedBytes(folder_ / "pipe"), 0);
}

}  // namespace
}  // namespace nsa
