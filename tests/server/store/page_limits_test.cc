// Texts are cut where records are taken, and pages and batches end by bytes.
#include <map>
#include <string>

#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "server/store/cut_texts.h"
#include "tests/server/store/job_store_fixture.h"
#include "tests/testing/status_matchers.h"

namespace nsa::server {
namespace {

using ::testing::StartsWith;

class PageLimits : public JobStoreFixture {};

// A record with one event for each of these reasons.
v1::ReportRecordsRequest EventsWith(const std::string& job, const std::string& text,
                                    const std::vector<std::string>& reasons) {
  v1::ReportRecordsRequest request;
  request.set_job_id(job);
  request.set_generation(1);
  for (const std::string& reason : reasons) {
    v1::WorkerRecord& record = *request.add_records();
    record.set_sequence(request.records_size());
    record.mutable_event()->set_reason(reason);
    record.mutable_event()->set_text(text);
  }
  return request;
}

TEST_F(PageLimits, ReasonsOfWorkersAreKnownWordsAndTheirTextsAreCut) {
  const std::string id = Insert("job");
  ASSERT_OK(store_
                ->AppendRecords(EventsWith(id, std::string(900'000, 'x'),
                                           {"FALLBACK", std::string(900'000, 'R'), "NEWER"}))
                .status());
  const auto events = store_->Events(id, 0, 100);
  ASSERT_OK(events.status());
  ASSERT_EQ(events->size(), 4u);
  EXPECT_EQ(events->at(1).reason(), "FALLBACK");
  EXPECT_EQ(events->at(2).reason(), "OTHER");
  EXPECT_EQ(events->at(3).reason(), "OTHER");
  EXPECT_THAT(events->at(3).text(), StartsWith("NEWER: xxx"));
  for (const v1::JobEvent& event : *events) EXPECT_LT(event.ByteSizeLong(), 5'000u);
  const auto records = store_->Records(id, 0, 0, 100);
  ASSERT_OK(records.status());
  for (const auto& record : *records) EXPECT_LT(record.ByteSizeLong(), 9'000u);
}

TEST_F(PageLimits, ARecordThatIsTooLargeBecomesAnEvent) {
  const std::string id = Insert("job");
  v1::ReportRecordsRequest request = EventsWith(id, "", {""});
  auto& fallbacks = *request.mutable_records(0)->mutable_step()->mutable_fallbacks();
  for (int i = 0; i < 1'000; ++i) fallbacks[absl::StrCat(i, std::string(3'000, 'x'))] = 1;
  ASSERT_OK(store_->AppendRecords(request).status());
  const auto records = store_->Records(id, 0, 0, 100);
  ASSERT_OK(records.status());
  ASSERT_EQ(records->size(), 1u);
  EXPECT_EQ(records->at(0).record().event().reason(), "TELEMETRY_FAILED");
  EXPECT_LT(records->at(0).ByteSizeLong(), 1'000u);
}

TEST_F(PageLimits, ASampleKeepsItsText) {
  const std::string id = Insert("job");
  v1::ReportRecordsRequest request = EventsWith(id, "", {""});
  request.mutable_records(0)->mutable_sample()->set_text(std::string(50'000, 'x'));
  ASSERT_OK(store_->AppendRecords(request).status());
  const auto records = store_->Records(id, 0, 0, 100);
  ASSERT_OK(records.status());
  EXPECT_EQ(records->at(0).record().sample().text().size(), 50'000u);
}

// Records from `first` on, of the first generation and rank 0.
v1::ReportRecordsRequest RecordsFrom(const std::string& job, int64_t first) {
  v1::ReportRecordsRequest request;
  request.set_job_id(job);
  request.set_generation(1);
  request.add_records()->set_sequence(first);
  return request;
}

TEST_F(PageLimits, AStepHasTheLayersOfItsModelAndNoOthers) {
  const std::string id = Insert("job");
  v1::ReportRecordsRequest request = RecordsFrom(id, 1);
  v1::StepRecord& step = *request.mutable_records(0)->mutable_step();
  step.set_step(1);
  for (int i = 0; i < 200'000; ++i) step.add_layers();  // all are layer 0
  step.add_layers()->set_layer(1'000'000);
  step.add_layers()->set_layer(-1);
  ASSERT_OK(store_->AppendRecords(request).status());
  const auto records = store_->Records(id, 0, 0, 100);
  ASSERT_OK(records.status());
  const int32_t layers = TinyJob("job", "", 1).model().n_layers();
  EXPECT_EQ(records->at(0).record().step().layers_size(), layers);
  const auto buckets = store_->Buckets(id, CurveKind::kLayers, 0);
  ASSERT_OK(buckets.status());
  ASSERT_EQ(buckets->size(), 1u);
  EXPECT_LT(buckets->at(0).ByteSizeLong(), 10'000u);
}

TEST_F(PageLimits, AValidationHasTheSetsOfItsJobAndNoOthers) {
  const std::string id = Insert("job");
  v1::ReportRecordsRequest request = RecordsFrom(id, 1);
  request.mutable_records(0)->mutable_eval()->set_step(1);
  for (int i = 0; i < 10'000; ++i) request.mutable_records(0)->mutable_eval()->add_sets();
  ASSERT_OK(store_->AppendRecords(request).status());
  const auto marks = store_->Marks(id, CurveKind::kEval);
  ASSERT_OK(marks.status());
  ASSERT_EQ(marks->size(), 1u);
  EXPECT_EQ(marks->at(0).eval().sets_size(), 0);
}

TEST_F(PageLimits, MarksOfACurveHaveShortTextsAndEverySecondGoesWhenThereAreTooMany) {
  const std::string id = Insert("job");
  v1::ReportRecordsRequest request = RecordsFrom(id, 1);
  request.clear_records();
  for (int64_t i = 1; i <= 10'002; ++i) {
    v1::WorkerRecord& record = *request.add_records();
    record.set_sequence(i);
    record.mutable_checkpoint()->set_step(i);
    if (i > 9'990) record.mutable_checkpoint()->set_error(std::string(4'000, 'x'));
  }
  ASSERT_OK(store_->AppendRecords(request).status());
  const auto marks = store_->Marks(id, CurveKind::kCheckpoint);
  ASSERT_OK(marks.status());
  ASSERT_EQ(marks->size(), 5'002u);
  EXPECT_EQ(marks->front().checkpoint().step(), 1);
  EXPECT_EQ(marks->at(1).checkpoint().step(), 3);
  EXPECT_EQ(marks->back().checkpoint().step(), 10'002);
  EXPECT_EQ(marks->at(5'000).checkpoint().step(), 10'001) << "the newest that there was";
  EXPECT_LE(marks->back().checkpoint().error().size(), limits::kReportedWordBytes);
}

TEST_F(PageLimits, AStepHasNoMoreSamplesThanAJobCanAskFor) {
  const std::string id = Insert("job");
  v1::ReportRecordsRequest request = RecordsFrom(id, 1);
  request.clear_records();
  for (int64_t i = 1; i <= 2'000; ++i) {
    v1::WorkerRecord& record = *request.add_records();
    record.set_sequence(i);
    record.mutable_sample()->set_step(5);
  }
  ASSERT_OK(store_->AppendRecords(request).status());
  const auto samples = store_->SamplesAt(id, 5);
  ASSERT_OK(samples.status());
  EXPECT_EQ(samples->records.size(), 16u);
}

TEST_F(PageLimits, APageOfLargeJobsEndsByBytesAndTheNextGoesOn) {
  std::map<std::string, int> seen;
  for (int i = 0; i < 24; ++i) {
    const std::string id = Insert(absl::StrCat("large-", i));
    seen[id] = 0;
    ASSERT_OK(store_
                  ->Update(id,
                           [](v1::StoredJob* job, std::vector<v1::JobEvent>*) {
                             (*job->mutable_job()->mutable_spec()->mutable_labels())["x"] =
                                 std::string(900'000, 'x');
                             return absl::OkStatus();
                           })
                  .status());
  }
  std::string token;
  int pages = 0;
  do {
    const auto page = store_->List(1'000, token, {});
    ASSERT_OK(page.status());
    size_t bytes = 0;
    for (const JobPtr& job : page->jobs) {
      bytes += job->job().ByteSizeLong();
      ++seen[job->job().id()];
    }
    EXPECT_LT(bytes, limits::kPageBytes + 1'000'000);
    token = page->next_page_token;
    ++pages;
  } while (!token.empty());
  EXPECT_EQ(pages, 3);
  for (const auto& [id, times] : seen) EXPECT_EQ(times, 1) << id;
}

TEST(CutTexts, ReachesEveryTextAndDropsWhatIsNotKnown) {
  v1::HeartbeatRequest heartbeat;
  heartbeat.mutable_node()->set_cuda_compat_path(std::string(900'000, 'x'));
  heartbeat.mutable_node()->add_gpus()->set_name(std::string(900'000, 'x'));
  heartbeat.add_workers()->set_start_error(std::string(3'000, 'x'));
  v1::NodeInfo::GetReflection()
      ->MutableUnknownFields(heartbeat.mutable_node())
      ->AddLengthDelimited(1'000, std::string(900'000, 'x'));
  CutTexts(&heartbeat, limits::kReportedTextBytes);
  EXPECT_LE(heartbeat.node().cuda_compat_path().size(), limits::kReportedTextBytes);
  EXPECT_LE(heartbeat.node().gpus(0).name().size(), limits::kReportedTextBytes);
  EXPECT_EQ(heartbeat.workers(0).start_error().size(), 3'000u);
  EXPECT_LT(heartbeat.ByteSizeLong(), 12'000u);
}

}  // namespace
}  // namespace nsa::server
