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
#include "common/record/quantities.h"
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

// A job of two ranks whose records have everything that its series show.
class SeriesGolden : public testing::Test {
 protected:
  SeriesGolden() {
    job_.mutable_spec()->mutable_model()->set_n_layers(3);
    job_.mutable_spec()->mutable_data()->add_mix()->set_name("books");
    (*job_.mutable_spec()->mutable_data()->mutable_val())["code"] = "/code.jsonl";
    metrics_.ObserveRecords(job_, 1, {FullStep(1)});
    metrics_.ObserveRecords(job_, 0, {FullStep(1), FullStep(2), FullEval(2), FullStep(3)});
    NodeView node;
    node.state = RankView::Node::kReady;
    node.info.set_name("n1");
    *node.info.add_gpus() = FullGpu(0.5);
    metrics_.ObserveFleet({node}, {std::make_shared<const v1::StoredJob>(stored_)}, {});
  }

  FakeClock clock_;
  Metrics metrics_{clock_};
  v1::StoredJob stored_ = JobThatRuns("j1", 2);
  v1::Job& job_ = *stored_.mutable_job();
};

TEST_F(SeriesGolden, SeriesOfAJobAreThoseOfToday) {
  std::string text = SeriesOf(metrics_);
  metrics_.ObserveRecords(job_, 0, {LostStep(4)});
  absl::StrAppend(&text, "== after a lost step\n", SeriesOf(metrics_));
  ExpectGolden("server/watch/series.golden", text);
}

TEST_F(SeriesGolden, EachQuantityIsInTheFamilyThatItNames) {
  const std::vector<std::string> lines = absl::StrSplit(metrics_.Text(), '\n');
  for (const record::Quantity& quantity : record::kQuantities) {
    if (quantity.series.family == nullptr) continue;
    const std::string label =
        quantity.series.label == nullptr
            ? ""
            : absl::StrCat(quantity.series.label, "=\"", quantity.series.value, "\"");
    const std::string family = quantity.series.family;
    EXPECT_TRUE(std::ranges::any_of(lines, [&](const std::string& line) {
      const bool of_family =
          absl::StartsWith(line, family + "{") || absl::StartsWith(line, family + "_count{");
      return of_family && absl::StrContains(line, label);
    })) << quantity.name;
  }
}

}  // namespace
}  // namespace nsa::server
