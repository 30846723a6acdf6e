// `store_writer FOLDER SUFFIX [JOBS]` submits jobs and appends records, for ever or until it has
// submitted JOBS jobs, and prints what was acknowledged. A test kills it, or simulates a power
// loss, and checks that everything acknowledged is stored.
#include <climits>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "server/act/job_control.h"
#include "server/store/job_store.h"
#include "server/store/state_lock.h"
#include "tests/server/tiny_job.h"
#include "tests/testing/say.h"

namespace nsa {
namespace {

int Write(const std::string& folder, const std::string& suffix, int jobs) {
  const RealClock clock;
  const auto lock = server::LockStateDir(folder);
  if (!lock.ok()) return 1;
  auto store = server::JobStore::Open(folder, clock, {});
  if (!store.ok()) return 1;
  for (int i = 0; i < jobs; ++i) {
    v1::StoredJob job;
    job.mutable_job()->set_id(server::NewJobId());
    job.mutable_job()->set_name("writer");
    job.mutable_job()->set_state(v1::Job::STATE_RUNNING);
    job.mutable_job()->set_generation(1);
    *job.mutable_job()->mutable_spec() =
        TinyJob("writer", absl::StrCat("/nowhere/", suffix, "/", i));
    const std::string request = absl::StrCat("request-", i, "-", suffix);
    v1::JobEvent event;
    event.set_reason("SUBMITTED");
    const auto inserted = (*store)->Insert(job, request, "fingerprint", event);
    if (!inserted.ok()) return 2;
    Say(absl::StrCat("job ", job.job().id(), " ", request));
    v1::ReportRecordsRequest records;
    records.set_job_id(job.job().id());
    records.set_generation(1);
    for (int step = 1; step <= 20; ++step) {
      records.clear_records();
      v1::WorkerRecord* record = records.add_records();
      record->set_sequence(step);
      record->mutable_step()->set_step(step);
      if (!(*store)->AppendRecords(records).ok()) return 3;
      Say(absl::StrCat("record ", job.job().id(), " ", step));
    }
  }
  return 0;
}

}  // namespace
}  // namespace nsa

int main(int argc, char** argv) {
  return nsa::Write(argv[1], argv[2], argc > 3 ? std::atoi(argv[3]) : INT_MAX);
}
