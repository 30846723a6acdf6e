// A store of 10,000 jobs that ended long ago: retention deletes them while the store serves, and
// its file shrinks.
#include <algorithm>
#include <cstdio>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "server/store/sealed.h"
#include "tests/server/act/retention_fixture.h"

namespace nsa::server {
namespace {

constexpr int kJobs = 10'000;
constexpr int kBuckets = 16;

class RetentionOfManyTest : public RetentionFixture {
 protected:
  // Jobs that ended 100 days ago, each with a curve.
  void Fill() {
    store_.reset();
    const auto database = *Database::Open(folder_.path() / "jobs.sqlite");
    Transaction transaction = *Transaction::Begin(database.get());
    for (int number = 1; number <= kJobs; ++number) Write(database.get(), number);
    ASSERT_OK(transaction.Commit());
  }

  void Write(Database* database, int number) {
    v1::StoredJob stored;
    v1::Job& job = *stored.mutable_job();
    job.set_id(absl::StrFormat("j%012d", number));
    job.set_name("old");
    job.set_state(v1::Job::STATE_SUCCEEDED);
    job.set_end_unix_nanos(absl::ToUnixNanos(clock_.Wall() - 100 * kDay) + number);
    *job.mutable_spec() = TinyJob("old", absl::StrCat("/nowhere/", number));
    Statement row = *database->Prepare("INSERT INTO jobs(number, id, body) VALUES(?, ?, ?)");
    ASSERT_OK(row.Bind(1, number).Bind(2, job.id()).BindBlob(3, Seal(stored)).Run());
    v1::CurveBucket bucket;
    for (int i = 0; i < 100; ++i) bucket.add_mean(1);
    for (int step = 1; step <= kBuckets; ++step) {
      row = *database->Prepare("INSERT INTO curve(job, kind, step, body) VALUES(?, 1, ?, ?)");
      ASSERT_OK(row.Bind(1, number).Bind(2, step).BindBlob(3, Seal(bucket)).Run());
    }
  }
};

TEST_F(RetentionOfManyTest, TenThousandJobsGoAndTheFileShrinks) {
  Fill();
  Restart(90 * kDay);
  const std::string young = Insert(kDay);
  const int64_t before = store_->SizeNow()->bytes;
  ASSERT_GT(before, int64_t{64} << 20);
  const absl::Time began = absl::Now();
  Pass(Retention::kSteady + absl::Seconds(1));
  const absl::Duration deleting = absl::Now() - began;
  EXPECT_EQ(Jobs(), std::vector<std::string>{young});
  EXPECT_EQ(by_age_, kJobs);
  EXPECT_EQ(store_->NextToPurge(), "");
  // A tick gives back at most kPages.
  Pass(absl::Minutes(2));
  const int64_t after = store_->SizeNow()->bytes;
  EXPECT_LT(after, before / 10);
  EXPECT_THAT(failed_, ::testing::IsEmpty());
  std::printf("%d jobs deleted in %.1f s; the store had %.1f MiB and has %.1f MiB\n", kJobs,
              absl::ToDoubleSeconds(deleting), static_cast<double>(before) / (1 << 20),
              static_cast<double>(after) / (1 << 20));
}

}  // namespace
}  // namespace nsa::server
