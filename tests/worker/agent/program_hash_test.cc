#include "worker/agent/program_hash.h"

#include <xxhash.h>

#include <fstream>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/testing/temp_dir.h"

namespace nsa::agent {
namespace {

void Write(const std::filesystem::path& file, const std::string& content) {
  std::ofstream(file, std::ios::binary) << content;
}

std::string Expected(const std::string& content) {
  return absl::StrFormat("%016x", XXH3_64bits(content.data(), content.size()));
}

TEST(ProgramHash, IsThatOfTheWholeFile) {
  const TempDir folder;
  const std::string content = std::string(3 << 20, 'x') + "end";
  Write(folder / "program", content);
  EXPECT_EQ(ProgramHash(folder / "program").Read(), Expected(content));
}

TEST(ProgramHash, FollowsAFileThatIsReplacedChangedOrRemoved) {
  const TempDir folder;
  ProgramHash hash(folder / "program");
  EXPECT_EQ(hash.Read(), "") << "there is none";
  Write(folder / "program", "one");
  EXPECT_EQ(hash.Read(), Expected("one"));
  Write(folder / "new", "two");
  std::filesystem::rename(folder / "new", folder / "program");
  EXPECT_EQ(hash.Read(), Expected("two")) << "an update";
  absl::SleepFor(absl::Milliseconds(20));  // the file system's clock ticks in milliseconds
  Write(folder / "program", "owt");
  EXPECT_EQ(hash.Read(), Expected("owt")) << "the same size";
  std::filesystem::remove(folder / "program");
  EXPECT_EQ(hash.Read(), "");
}

// Bytes that this process has read so far.
int64_t BytesRead() {
  std::ifstream io("/proc/self/io");
  std::string key;
  int64_t value = 0;
  while (io >> key >> value) {
    if (key == "rchar:") return value;
  }
  ADD_FAILURE() << "no rchar";
  return 0;
}

TEST(ProgramHash, ReadsAFileOnceAsLongAsItIsTheSame) {
  const TempDir folder;
  Write(folder / "program", std::string(8 << 20, 'x'));
  ProgramHash hash(folder / "program");
  const int64_t began = BytesRead();
  ASSERT_NE(hash.Read(), "");
  const int64_t once = BytesRead() - began;
  EXPECT_GE(once, 8 << 20);
  for (int i = 0; i < 5; ++i) ASSERT_NE(hash.Read(), "");
  EXPECT_LT(BytesRead() - began - once, 1 << 20);
}

TEST(ProgramHash, OfAFolderOrAFileThatIsTooLargeIsEmpty) {
  const TempDir folder;
  EXPECT_EQ(ProgramHash(folder.path()).Read(), "");
  Write(folder / "large", "x");
  std::filesystem::resize_file(folder / "large", (uintmax_t{4} << 30) + 1);  // sparse
  EXPECT_EQ(ProgramHash(folder / "large").Read(), "");
}

}  // namespace
}  // namespace nsa::agent
