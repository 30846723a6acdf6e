#include "server/store/log_store.h"

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::server {
namespace {

using Position = LogStore::Position;

class LogStoreTest : public ::testing::Test {
 protected:
  static constexpr int64_t kQuota = 8'000;

  int64_t Append(int64_t offset, std::string_view data, int64_t generation = 1) {
    const auto appended = logs_->Append("j", generation, 0, offset, data);
    EXPECT_OK(appended.status());
    quota_reached_ = quota_reached_ || appended->quota_reached;
    return appended->next_offset;
  }
  // Reads everything from a position on; `end` receives the position after it.
  std::string ReadAll(Position from, bool final, Position* end = nullptr) {
    std::string all;
    while (true) {
      const auto chunk = logs_->Read("j", 0, from, final);
      EXPECT_OK(chunk.status());
      if (chunk->data.empty()) break;
      all += chunk->data;
      from = chunk->next;
    }
    if (end != nullptr) *end = from;
    return all;
  }
  void Reopen() { logs_ = std::make_unique<LogStore>(folder_ / "logs", kQuota); }
  int64_t BytesOnDisk() {
    int64_t bytes = 0;
    for (const auto& file : std::filesystem::recursive_directory_iterator(folder_ / "logs")) {
      if (file.is_regular_file()) bytes += static_cast<int64_t>(file.file_size());
    }
    return bytes;
  }

  TempDir folder_;
  std::unique_ptr<LogStore> logs_ = std::make_unique<LogStore>(folder_ / "logs", kQuota);
  bool quota_reached_ = false;
};

TEST_F(LogStoreTest, ContinuesAtTheOffsetAndIgnoresWhatItHas) {
  EXPECT_EQ(Append(0, "one\n"), 4);
  EXPECT_EQ(Append(0, "one\ntwo\n"), 8);
  EXPECT_EQ(Append(4, "two\n"), 8);
  EXPECT_EQ(Append(20, "after a gap\n"), 8);
  Reopen();
  EXPECT_EQ(Append(8, "three\n"), 14) << "after a restart too";
  EXPECT_EQ(ReadAll({}, false), "one\ntwo\nthree\n");
}

TEST_F(LogStoreTest, GivesWholeLinesUntilTheEnd) {
  Append(0, "one\nhal");
  Position end;
  EXPECT_EQ(ReadAll({}, false, &end), "one\n");
  Append(7, "f\nrest");
  EXPECT_EQ(ReadAll(end, false, &end), "half\n");
  EXPECT_EQ(ReadAll(end, true), "rest");
}

TEST_F(LogStoreTest, AppendsGenerationsOneAfterTheOther) {
  Append(0, "first\ncut off", 1);
  Append(0, "second\n", 2);
  EXPECT_EQ(ReadAll({}, false), "first\ncut off\nsecond\n");
  EXPECT_EQ(ReadAll({2, 0}, false), "second\n");
}

TEST_F(LogStoreTest, KeepsTheQuotaByDroppingTheOldestWholeLines) {
  std::string all;
  for (int i = 0; i < 2'000; ++i) all += absl::StrFormat("line %04d\n", i);
  for (size_t at = 0; at < all.size(); at += 777) {
    EXPECT_EQ(Append(static_cast<int64_t>(at), std::string_view(all).substr(at, 777)),
              static_cast<int64_t>(std::min(at + 777, all.size())));
    ASSERT_LE(BytesOnDisk(), kQuota);
  }
  EXPECT_TRUE(quota_reached_);
  EXPECT_GT(BytesOnDisk(), kQuota / 2);
  const std::string kept = ReadAll({}, true);
  const size_t note = kept.find('\n') + 1;
  EXPECT_TRUE(kept.starts_with("[")) << kept.substr(0, note);
  EXPECT_TRUE(kept.substr(note).starts_with("line "))
      << "no line is cut: " << kept.substr(note, 20);
  EXPECT_EQ(all.substr(all.size() - (kept.size() - note)), kept.substr(note))
      << "no hole, no double";
}

// A machine that was away sends the rest of what the next generation has pushed out.
TEST_F(LogStoreTest, TheRestOfADroppedGenerationIsTakenOnce) {
  const std::string line = absl::StrCat(std::string(99, 'x'), "\n");
  std::string old;
  for (int i = 0; i < 100; ++i) old += line;
  int64_t sent = Append(0, old.substr(0, 1'000), 1);
  EXPECT_EQ(sent, 1'000);
  for (int64_t at = 0; at < 10'000;) at = Append(at, line, 2);
  int calls = 0;
  while (sent < std::ssize(old) && ++calls < 1'000) {
    sent = Append(sent, std::string_view(old).substr(static_cast<size_t>(sent), 500), 1);
  }
  EXPECT_EQ(sent, std::ssize(old));
  EXPECT_EQ(calls, 18);
  EXPECT_LE(BytesOnDisk(), kQuota);
  EXPECT_EQ(Append(0, "anew\n", 3), 5) << "a newer generation begins at 0";
}

TEST_F(LogStoreTest, KeepsTheQuotaWithoutAnyLineEndAndWithAnyBytes) {
  std::string noise;
  for (int i = 0; i < 50'000; ++i)
    noise += static_cast<char>((i * 7) % 255 == 10 ? 0 : (i * 7) % 255);
  std::erase(noise, '\n');
  Append(0, noise);
  EXPECT_LE(BytesOnDisk(), kQuota);
  Position end;
  EXPECT_EQ(ReadAll({1, static_cast<int64_t>(noise.size()) - 500}, true, &end),
            noise.substr(noise.size() - 500));
}

TEST_F(LogStoreTest, FindsTheLastLines) {
  std::string all;
  for (int i = 0; i < 300; ++i) all += absl::StrCat("line ", i, "\n");
  Append(0, all);
  EXPECT_EQ(ReadAll(*logs_->Tail("j", 0, 2), true), "line 298\nline 299\n");
  EXPECT_EQ(ReadAll(*logs_->Tail("j", 0, 100'000), true), all);
  Append(static_cast<int64_t>(all.size()), "unfinished");
  EXPECT_EQ(ReadAll(*logs_->Tail("j", 0, 2), true), "line 299\nunfinished");
  Append(0, "new\n", 2);
  EXPECT_EQ(ReadAll(*logs_->Tail("j", 0, 1), true), "new\n");
  EXPECT_EQ(ReadAll(*logs_->Tail("j", 0, 2), true), "unfinished\nnew\n");
  EXPECT_EQ(*logs_->Tail("nobody", 0, 1), Position());
}

TEST_F(LogStoreTest, RemovesTheLogsOfOneJobAlone) {
  Append(0, "a line\n");
  ASSERT_OK(logs_->Append("j2", 1, 0, 0, "another\n").status());
  ASSERT_OK(logs_->Remove("j"));
  ASSERT_OK(logs_->Remove("j")) << "twice is once";
  EXPECT_EQ(ReadAll({}, true), "");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "logs" / "j"));
  EXPECT_EQ(logs_->Read("j2", 0, {}, true)->data, "another\n");
  EXPECT_EQ(Append(0, "from the start\n"), 15) << "nothing is remembered";
}

TEST_F(LogStoreTest, DoesNotFollowASymbolicLink) {
  std::ofstream(folder_ / "victim") << "mine\n";
  std::filesystem::create_directories(folder_ / "logs" / "j");
  std::filesystem::create_symlink(
      folder_ / "victim", folder_ / "logs" / "j" / "rank-0000.gen-000001.0000000000000000.log");
  // Nothing is written to the link's target, and the link is not replaced.
  EXPECT_EQ(logs_->Append("j", 1, 0, 5, "evil\n")->next_offset, 0);
  EXPECT_FALSE(logs_->Append("j", 1, 0, 0, "evil\n").ok());
  std::string content;
  std::getline(std::ifstream(folder_ / "victim"), content);
  EXPECT_EQ(content, "mine");
}

TEST_F(LogStoreTest, AFileThatCannotBeWrittenIsInternalAndItsFirstErrorIsNews) {
  EXPECT_EQ(Append(0, "one\n"), 4);
  EXPECT_FALSE(logs_->SetWritten("j", 0, true));
  std::filesystem::rename(folder_ / "logs/j", folder_ / "moved");
  std::ofstream(folder_ / "logs/j") << "no folder";
  EXPECT_THAT(logs_->Append("j", 1, 0, 4, "two\n"),
              StatusIs(absl::StatusCode::kInternal, ::testing::HasSubstr("check the disk")));
  EXPECT_TRUE(logs_->SetWritten("j", 0, false));
  EXPECT_FALSE(logs_->SetWritten("j", 0, false));
  EXPECT_THAT(logs_->Read("j", 0, {}, true), StatusIs(absl::StatusCode::kInternal));
  std::filesystem::remove(folder_ / "logs/j");
  std::filesystem::rename(folder_ / "moved", folder_ / "logs/j");
  EXPECT_EQ(Append(4, "two\n"), 8);
  EXPECT_TRUE(logs_->SetWritten("j", 0, true));
  EXPECT_EQ(ReadAll({}, true), "one\ntwo\n");
}

// The job's folder is replaced by a link to a folder with files of the same names.
TEST_F(LogStoreTest, AFolderExchangedForALinkIsNeitherWrittenReadNorEmptied) {
  const std::filesystem::path job = folder_ / "logs" / "j";
  const std::filesystem::path victim = folder_ / "victim";
  const std::string line = std::string(999, 'x') + "\n";
  for (int i = 0; i < 7; ++i) Append(1'000 * i, line);
  std::filesystem::create_directories(victim);
  std::filesystem::rename(job, folder_ / "moved");
  size_t files = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder_ / "moved")) {
    std::ofstream(victim / file.path().filename()) << "secret\n";
    ++files;
  }
  ASSERT_GT(files, 1u);
  std::filesystem::create_directory_symlink(victim, job);
  for (const bool restarted : {false, true}) {
    if (restarted) Reopen();
    // Enough to exceed the quota, which would remove the oldest files.
    for (int i = 0; i < 10; ++i) {
      EXPECT_FALSE(logs_->Append("j", 1, 0, restarted ? 0 : 7'000, line).ok());
    }
    const auto read = logs_->Read("j", 0, {}, true);
    EXPECT_TRUE(!read.ok() || read->data.empty()) << read->data;
    const auto tail = logs_->Tail("j", 0, 1);
    EXPECT_TRUE(!tail.ok() || *tail == Position{});
  }
  for (const auto& file : std::filesystem::directory_iterator(victim)) {
    std::string content;
    std::getline(std::ifstream(file.path()), content);
    EXPECT_EQ(content, "secret");
    --files;
  }
  EXPECT_EQ(files, 0u) << "neither more nor fewer";
}

}  // namespace
}  // namespace nsa::server
