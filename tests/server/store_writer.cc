// Submits jobs and appends records until it is killed, and says on standard output what was
// acknowledged. A test kills it and looks whether all of that is there.
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "server/job_control.h"
#include "server/job_store.h"
#include "tests/server/tiny_job.h"

namespace nsa {
namespace {

int Write(const std::string& folder, const std::string& suffix) {
  const RealClock clock;
  auto store = server::JobStore::Open(folder, clock, {});
  if (!store.ok()) return 1;
  for (int i = 0;; ++i) {
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
    std::printf("job %s %s\n", job.job().id().c_str(), request.c_str());
    std::fflush(stdout);
    v1::ReportRecordsRequest records;
    records.set_job_id(job.job().id());
    records.set_generation(1);
    for (int step = 1; step <= 20; ++step) {
      records.clear_records();
      v1::WorkerRecord* record = records.add_records();
      record->set_sequence(step);
      record->mutable_step()->set_step(step);
      if (!(*store)->AppendRecords(records).ok()) return 3;
      std::printf("record %s %d\n", job.job().id().c_str(), step);
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace nsa

int main(int, char** argv) { return nsa::Write(argv[1], argv[2]); }
