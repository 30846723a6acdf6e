// What the audit log keeps.
#include "server/store/audit/audit_log.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/testing/fakes/fake_clock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::AuditEntry Entry(const std::string& subject) {
  v1::AuditEntry entry;
  entry.set_who("ada");
  entry.set_from("unix:");
  entry.set_what("StopJob");
  entry.set_subject(subject);
  entry.set_result("OK");
  return entry;
}

std::string Subjects(const AuditLog& log, int64_t after = 0, size_t limit = 1'000) {
  const auto entries = log.Read(after, limit);
  EXPECT_OK(entries);
  std::string subjects;
  for (const v1::AuditEntry& entry : *entries) subjects += entry.subject() + " ";
  return subjects;
}

TEST(AuditLog, KeepsItsEntriesAndTheirNumbersOverARestart) {
  const TempDir folder;
  FakeClock clock;
  {
    const auto log = AuditLog::Open(folder.path(), clock);
    ASSERT_OK(log);
    for (const char* subject : {"a", "b", "c"}) (*log)->Add(Entry(subject));
  }
  std::ofstream(folder / "audit.log", std::ios::app) << "{\"sequence\": 4, \"subj";  // cut off
  const auto log = AuditLog::Open(folder.path(), clock);
  ASSERT_OK(log);
  (*log)->Add(Entry("d"));
  EXPECT_EQ(Subjects(**log), "a b c d ");
  EXPECT_EQ((*log)->last_sequence(), 4);
  EXPECT_EQ(Subjects(**log, 1, 2), "b c ");
  EXPECT_EQ(std::filesystem::status(folder / "audit.log").permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST(AuditLog, TakesABoundedSpace) {
  const TempDir folder;
  FakeClock clock;
  const auto log = AuditLog::Open(folder.path(), clock, 10'000);
  ASSERT_OK(log);
  for (int i = 0; i < 1'000; ++i) (*log)->Add(Entry("job"));
  EXPECT_LE(std::filesystem::file_size(folder / "audit.log"), 10'000u);
  EXPECT_LE(std::filesystem::file_size(folder / "audit.log.1"), 10'000u);
  const auto entries = (*log)->Read(0, 1'000);
  ASSERT_OK(entries);
  EXPECT_GT(entries->size(), 50u);
  EXPECT_EQ(entries->back().sequence(), 1'000);
}

TEST(AuditLog, ShowsHostileTextsOnOneLine) {
  const TempDir folder;
  FakeClock clock;
  const auto log = AuditLog::Open(folder.path(), clock);
  ASSERT_OK(log);
  (*log)->Add(Entry("\x1b]0;x\x07\n" + std::string(100'000, 'x')));
  EXPECT_THAT(Subjects(**log), HasSubstr("\\x1b]0;x\\x07\\n"));
  EXPECT_THAT(Subjects(**log), Not(HasSubstr("\x1b")));
  EXPECT_LT(std::filesystem::file_size(folder / "audit.log"), 2'000u);
}

// What the calls read() of this process have read so far.
int64_t BytesRead() {
  std::ifstream file("/proc/self/io");
  std::string word;
  int64_t bytes = 0;
  file >> word >> bytes;
  EXPECT_EQ(word, "rchar:");
  return bytes;
}

TEST(AuditLog, ItsPagesTogetherReadTheFileOnce) {
  const TempDir folder;
  FakeClock clock;
  {
    const auto log = AuditLog::Open(folder.path(), clock);
    ASSERT_OK(log);
    for (int i = 1; i <= 10'000; ++i) (*log)->Add(Entry(absl::StrCat("job", i)));
  }
  const auto log = AuditLog::Open(folder.path(), clock);
  ASSERT_OK(log);
  (*log)->Add(Entry("job10001"));
  const auto size = static_cast<int64_t>(std::filesystem::file_size(folder / "audit.log"));
  const int64_t before = BytesRead();
  int64_t after = 0;
  for (int page = 0; page < 101; ++page) {
    const auto entries = (*log)->Read(after, 100);
    ASSERT_OK(entries);
    for (const v1::AuditEntry& entry : *entries) {
      EXPECT_EQ(entry.sequence(), ++after);
      EXPECT_EQ(entry.subject(), absl::StrCat("job", after));
    }
  }
  EXPECT_EQ(after, 10'001);
  // A page begins up to kStride entries too early and is read in whole blocks.
  EXPECT_LT(BytesRead() - before, 4 * size) << "a file of " << size << " bytes";
}

TEST(AuditLog, PagesGoOnFromTheOlderFileToTheNewer) {
  const TempDir folder;
  FakeClock clock;
  const auto log = AuditLog::Open(folder.path(), clock, 40'000);
  ASSERT_OK(log);
  for (int i = 1; i <= 400; ++i) (*log)->Add(Entry(absl::StrCat("job", i)));
  ASSERT_TRUE(std::filesystem::exists(folder / "audit.log.1"));
  const auto all = (*log)->Read(0, 1'000);
  ASSERT_OK(all);
  for (size_t i = 0; i < all->size(); i += 7) {
    const auto page = (*log)->Read((*all)[i].sequence(), 5);
    ASSERT_OK(page);
    ASSERT_EQ(page->size(), std::min<size_t>(5, all->size() - i - 1));
    if (page->empty()) continue;
    EXPECT_EQ(page->front().sequence(), (*all)[i].sequence() + 1);
  }
}

v1::AuditEntry Refusal(const std::string& from) {
  v1::AuditEntry entry = Entry("victim");
  entry.clear_who();
  entry.set_from(from);
  entry.set_result("UNAUTHENTICATED");
  return entry;
}

TEST(AuditLog, StrangersPushNobodysEntryOut) {
  const TempDir folder;
  FakeClock clock;
  const auto log = AuditLog::Open(folder.path(), clock, 10'000);
  ASSERT_OK(log);
  (*log)->Add(Entry("the first change"));
  for (int minute = 0; minute < 200; ++minute) {
    for (int i = 0; i < 200; ++i) {
      (*log)->Add(Refusal(absl::StrCat("ipv4:10.0.", minute, ".", i, ":", 1'000 + i)));
    }
    clock.Advance(absl::Minutes(1));
  }
  (*log)->Add(Entry("the last change"));
  const auto entries = (*log)->Read(0, 1'000);
  ASSERT_OK(entries);
  EXPECT_EQ(entries->front().subject(), "the first change");
  EXPECT_EQ(entries->back().subject(), "the last change");
  EXPECT_GT(entries->size(), 10u) << "refusals are noted, too";
  for (const char* name : {"audit-refused.log", "audit-refused.log.1"}) {
    EXPECT_LE(std::filesystem::file_size(folder / name), 10'000u);
  }
}

TEST(AuditLog, RefusalsOfOneStrangerAreAnEntryAtOnceAndThenACount) {
  const TempDir folder;
  FakeClock clock;
  const auto log = AuditLog::Open(folder.path(), clock);
  ASSERT_OK(log);
  for (int i = 0; i < 1'000; ++i) (*log)->Add(Refusal(absl::StrCat("ipv4:10.0.0.1:", 1'000 + i)));
  EXPECT_EQ(Subjects(**log), "victim ");
  (*log)->Add(Refusal("ipv4:10.0.0.2:5"));
  EXPECT_EQ(Subjects(**log), "victim victim ") << "another source";
  clock.Advance(absl::Minutes(1));
  EXPECT_EQ(Subjects(**log), "victim victim and 999 more in a minute ");
  const auto entries = (*log)->Read(0, 10);
  ASSERT_OK(entries);
  EXPECT_EQ(entries->back().from(), "ipv4:10.0.0.1") << "the source, without its port";
  (*log)->Add(Refusal("ipv4:10.0.0.1:7"));
  EXPECT_EQ(Subjects(**log, 3), "victim ") << "another minute begins";
}

TEST(AuditLog, CountsAreWrittenWhenItEnds) {
  const TempDir folder;
  FakeClock clock;
  for (int life = 0; life < 2; ++life) {
    const auto log = AuditLog::Open(folder.path(), clock);
    ASSERT_OK(log);
    for (int i = 0; i < 3; ++i) (*log)->Add(Refusal("unix:"));
  }
  const auto log = AuditLog::Open(folder.path(), clock);
  ASSERT_OK(log);
  EXPECT_EQ(Subjects(**log), "victim and 2 more in a minute victim and 2 more in a minute ");
  EXPECT_EQ((*log)->last_sequence(), 4);
}

TEST(AuditLog, ADamagedSequenceHidesNoOtherEntry) {
  const TempDir folder;
  FakeClock clock;
  std::ofstream(folder / "audit.log")
      << R"({"sequence":1,"who":"a","subject":"one"})"
      << "\n"
      << R"({"sequence":9223372036854775807,"who":"a","subject":"damaged"})"
      << "\n"
      << R"({"sequence":2,"who":"a","subject":"two"})"
      << "\n";
  const auto log = AuditLog::Open(folder.path(), clock);
  ASSERT_OK(log);
  (*log)->Add(Entry("three"));
  EXPECT_EQ(Subjects(**log), "one two three ");
}

}  // namespace
}  // namespace nsa::server
