// What is deleted when the cache is full, and what is not.
#include "worker/train/data/cache/cache_folder.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/within.h"
#include "worker/train/data/cache/beat.h"
#include "worker/train/data/cache/entry_lock.h"
#include "worker/train/data/remote/block_cache.h"

namespace nsa::train {
namespace {

namespace fs = std::filesystem;

using testing::ElementsAre;
using testing::IsEmpty;

void Write(const fs::path& path, int64_t bytes, int minute) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << std::string(static_cast<size_t>(bytes), 'x');
  fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(2) +
                                std::chrono::minutes(minute));
}

// A cache in which a thing that was used later has a larger minute.
class CacheFolderTest : public testing::Test {
 protected:
  void AddBlock(const std::string& name, int minute) {
    Write(cache_ / name.substr(0, 2) / (name + ".block"), 100, minute);
  }
  TokenEntry AddTokens(const std::string& key, int minute) {
    const TokenEntry entry(cache_, key);
    Write(entry.tokens() / "tokens-00000.bin", 90, minute);
    Write(entry.manifest(), 10, minute);
    Write(entry.lock(), 0, minute);
    return entry;
  }
  // The names of blocks and tokens that are there.
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(cache_)) {
      const std::string ending = entry.path().extension();
      if (ending == ".block" || ending == ".tokens" || ending == ".partial") {
        names.push_back(entry.path().filename());
      }
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  const TempDir dir_;
  const fs::path cache_ = dir_ / "cache";
};

TEST_F(CacheFolderTest, DeletesWhatWasNotUsedForTheLongestTime) {
  AddBlock("aa1", 1);
  AddTokens("k2", 2);
  AddBlock("bb3", 3);
  AddTokens("k4", 4);
  const CacheFolder folder(cache_, 400);
  EXPECT_EQ(folder.PossibleRoom(), 400);
  EXPECT_EQ(folder.MakeRoom(0), 0);
  EXPECT_THAT(Names(), ElementsAre("aa1.block", "bb3.block", "k2.tokens", "k4.tokens"));
  EXPECT_EQ(folder.MakeRoom(100), 100);
  EXPECT_THAT(Names(), ElementsAre("bb3.block", "k2.tokens", "k4.tokens"));
  EXPECT_EQ(folder.MakeRoom(101), 200);
  EXPECT_THAT(Names(), ElementsAre("bb3.block", "k4.tokens"));
  EXPECT_FALSE(fs::exists(TokenEntry(cache_, "k2").lock()));
  EXPECT_EQ(folder.MakeRoom(400), 400);
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(CacheFolderTest, KeepsTokensThatSomebodyMapsOrWrites) {
  const TokenEntry mapped = AddTokens("k1", 1);
  const TokenEntry written = AddTokens("k2", 2);
  AddTokens("k3", 3);
  const CacheFolder folder(cache_, 300);
  {
    const auto reader = EntryLock::Share(mapped.manifest());
    const auto writer = EntryLock::Take(written.lock());
    ASSERT_OK(reader);
    ASSERT_OK(writer);
    EXPECT_EQ(folder.PossibleRoom(), 100);
    EXPECT_EQ(folder.MakeRoom(100), 100);
    EXPECT_THAT(Names(), ElementsAre("k1.tokens", "k2.tokens"));
  }
  EXPECT_EQ(folder.MakeRoom(200), 200);
  EXPECT_THAT(Names(), ElementsAre("k2.tokens"));
}

TEST_F(CacheFolderTest, DeletesNothingInVain) {
  const TokenEntry mapped = AddTokens("k1", 1);
  AddBlock("aa2", 2);
  const auto reader = EntryLock::Share(mapped.manifest());
  ASSERT_OK(reader);
  EXPECT_EQ(CacheFolder(cache_, 250).MakeRoom(151), 50);
  EXPECT_THAT(Names(), ElementsAre("aa2.block", "k1.tokens"));
  EXPECT_EQ(CacheFolder(cache_, 250).MakeRoom(150), 150);
  EXPECT_THAT(Names(), ElementsAre("k1.tokens"));
}

TEST_F(CacheFolderTest, WhatAKilledWriterLeftGoesFirst) {
  AddTokens("k1", 1);
  Write(TokenEntry(cache_, "k9").partial() / "tokens-00000.bin", 100, 9);
  const CacheFolder folder(cache_, 200);
  {
    const auto writer = EntryLock::Take(TokenEntry(cache_, "k9").lock());
    ASSERT_OK(writer);
    EXPECT_EQ(folder.PossibleRoom(), 100);
  }
  EXPECT_EQ(folder.MakeRoom(1), 100);
  EXPECT_THAT(Names(), ElementsAre("k1.tokens"));
}

TEST_F(CacheFolderTest, LeavesSpaceOnTheDisk) {
  AddBlock("aa1", 1);
  const auto free = static_cast<int64_t>(fs::space(cache_).available);
  const int64_t most = int64_t{1} << 50;
  EXPECT_GT(CacheFolder(cache_, most, 1).PossibleRoom(), free / 2);
  EXPECT_EQ(CacheFolder(cache_, most, int64_t{1} << 60).MakeRoom(1), 0);
  EXPECT_THAT(Names(), ElementsAre("aa1.block"));
}

TEST_F(CacheFolderTest, NoFolderHasRoom) {
  EXPECT_EQ(CacheFolder(cache_ / "none", 70, 1).MakeRoom(10), 70);
}

TEST_F(CacheFolderTest, BlocksLeaveTokensThatAreMappedAndStayWithinTheBound) {
  const TokenEntry mapped = AddTokens("k1", 1);
  const auto reader = EntryLock::Share(mapped.manifest());
  ASSERT_OK(reader);
  BlockCache blocks(cache_, 1000);
  for (int i = 0; i < 200; ++i) blocks.Keep(absl::StrCat("block ", i), std::string(300, 'x'));
  int64_t total = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(cache_)) {
    if (entry.is_regular_file()) total += static_cast<int64_t>(entry.file_size());
  }
  EXPECT_LE(total, 1000);
  EXPECT_GT(total, 300) << "some blocks are kept";
  EXPECT_TRUE(fs::exists(mapped.manifest()));
}

TEST(EntryLock, IsForOneOrForManyReaders) {
  const TempDir dir;
  EXPECT_THAT(EntryLock::Share(dir / "a"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(EntryLock::TakeExisting(dir / "a"), StatusIs(absl::StatusCode::kNotFound));
  {
    const auto alone = EntryLock::Take(dir / "a");
    ASSERT_OK(alone);
    EXPECT_THAT(EntryLock::Take(dir / "a"), StatusIs(absl::StatusCode::kAlreadyExists));
    EXPECT_THAT(EntryLock::Share(dir / "a"), StatusIs(absl::StatusCode::kAlreadyExists));
    // A process that finds another file under the name has a lock of that one.
    fs::remove(dir / "a");
    EXPECT_OK(EntryLock::Take(dir / "a"));
  }
  const auto one = EntryLock::Share(dir / "a");
  const auto two = EntryLock::Share(dir / "a");
  EXPECT_OK(one);
  EXPECT_OK(two);
  EXPECT_THAT(EntryLock::TakeExisting(dir / "a"), StatusIs(absl::StatusCode::kAlreadyExists));
}

TEST(Beat, GoesOnWithTheCounterOnly) {
  const TempDir dir;
  Write(dir / "file", 0, 1);
  std::atomic<int64_t> counter = 0;
  BeatWatch watch(dir / "file");
  EXPECT_TRUE(watch.WentOn());  // the first time
  EXPECT_FALSE(watch.WentOn());
  const Beat beat(dir / "file", counter);
  EXPECT_TRUE(Within(absl::Seconds(20), [&] { return watch.WentOn(); }));
  EXPECT_FALSE(Within(absl::Seconds(1), [&] { return watch.WentOn(); }));
  counter = 7;
  EXPECT_TRUE(Within(absl::Seconds(20), [&] { return watch.WentOn(); }));
}

}  // namespace
}  // namespace nsa::train
