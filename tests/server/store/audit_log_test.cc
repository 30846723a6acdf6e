// What the audit log keeps.
#include "server/store/audit_log.h"

#include <filesystem>
#include <fstream>

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

}  // namespace
}  // namespace nsa::server
