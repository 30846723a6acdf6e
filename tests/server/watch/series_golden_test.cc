// The series of a job whose records have a value in every field: series.golden.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/watch/metrics.h"
#include "tests/server/watch/records.h"
#include "tests/testing/fakes/fake_clock.h"
#include "tests/testing/full_records.h"

namespace nsa::server {
namespace {

// The lines of jobs, workers, layers and GPUs, in order; without nsa_job_info, which has the hash
// of the job file.
std::string SeriesOf(const Metrics& metrics) {
  std::vector<std::string> lines;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(metrics.Text(), '\n'))) {
    for (const char* part : {"nsa_job_", "nsa_worker_", "nsa_gate_", "nsa_selection_", "nsa_keys_",
                             "nsa_gpu_", "nsa_fallbacks_"}) {
      if (!absl::StrContains(line, part) || absl::StrContains(line, "job_hash")) continue;
      lines.push_back(line);
      break;
    }
  }
  std::sort(lines.begin(), lines.end());
  return absl::StrJoin(lines, "\n") + "\n";
}

TEST(SeriesGolden, SeriesOfAJobAreThoseOfToday) {
  FakeClock clock;
  Metrics metrics(clock);
  v1::StoredJob stored = JobThatRuns("j1", 2);
  v1::Job& job = *stored.mutable_job();
  job.mutable_spec()->mutable_model()->set_n_layers(3);
  job.mutable_spec()->mutable_data()->add_mix()->set_name("books");
  (*job.mutable_spec()->mutable_data()->mutable_val())["code"] = "/code.jsonl";
  metrics.ObserveRecords(job, 1, {FullStep(1)});
  metrics.ObserveRecords(job, 0, {FullStep(1), FullStep(2), FullEval(2), FullStep(3)});
  NodeView node;
  node.state = RankView::Node::kReady;
  node.info.set_name("n1");
  *node.info.add_gpus() = FullGpu(0.5);
  metrics.ObserveFleet({node}, {std::make_shared<const v1::StoredJob>(stored)}, {});
  std::string text = SeriesOf(metrics);
  metrics.ObserveRecords(job, 0, {LostStep(4)});
  absl::StrAppend(&text, "== after a lost step\n", SeriesOf(metrics));
  ExpectGolden("server/watch/series.golden", text);
}

}  // namespace
}  // namespace nsa::server
