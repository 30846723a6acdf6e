// Records as numbers, and jobs side by side.
#include "client/show/history.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "client/show/comparison.h"
#include "client/show/report_page.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/client/markup_check.h"
#include "tests/testing/fakes/fake_coordinator_service.h"

namespace nsa::client {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kSecond = 1'000'000'000;

v1::WatchRecordsResponse StepAt(int64_t step, double loss, int64_t generation = 1,
                                int64_t seconds = 0) {
  v1::WatchRecordsResponse record;
  record.set_generation(generation);
  record.mutable_record()->set_unix_nanos((1000 + (seconds == 0 ? step : seconds)) * kSecond);
  v1::StepRecord& made = *record.mutable_record()->mutable_step();
  made.set_step(step);
  made.set_loss(loss);
  made.set_total_tokens(100 * step);
  made.set_tokens_per_second(static_cast<double>(1000 + step));
  made.set_memory_allocated_bytes(step << 20);
  made.mutable_times()->set_step_seconds(0.5);
  return record;
}

v1::WatchRecordsResponse EvalAt(int64_t step, double loss) {
  v1::WatchRecordsResponse record;
  record.mutable_record()->mutable_eval()->set_step(step);
  record.mutable_record()->mutable_eval()->set_loss(loss);
  return record;
}

const Metric& Named(const char* name) { return *FindMetric(name); }

TEST(History, IsOneCurveOverARestart) {
  History history;
  for (int step = 1; step <= 4; ++step) history.Add(StepAt(step, step));
  history.Add(EvalAt(4, 4.5));
  for (int step = 3; step <= 5; ++step) history.Add(StepAt(step, 10 * step, 2, 500 + step));
  const Curve loss = history.CurveOf(Named("loss"), Across::kSteps);
  EXPECT_THAT(loss.x, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(loss.y, ElementsAre(1, 2, 30, 40, 50));
  EXPECT_TRUE(history.evaluations().empty()) << "the validation was of steps that were repeated";
  EXPECT_THAT(history.CurveOf(Named("loss"), Across::kTokens).x,
              ElementsAre(100, 200, 300, 400, 500));
  EXPECT_THAT(history.CurveOf(Named("loss"), Across::kTime).x, ElementsAre(0, 1, 1.5, 2.5, 3.5))
      << "the wait between the starts is left out";
}

TEST(History, FindsTheFigures) {
  History history;
  EXPECT_TRUE(std::isnan(history.RecentLoss()) && std::isnan(history.MedianSpeed()));
  EXPECT_EQ(history.PeakMemory(), 0);
  EXPECT_FALSE(history.Best().has_value());
  for (int step = 1; step <= 100; ++step) history.Add(StepAt(step, step <= 50 ? 9 : 2));
  history.Add(StepAt(101, std::nan("")));
  history.Add(EvalAt(20, 3.5));
  history.Add(EvalAt(40, std::nan("")));
  history.Add(EvalAt(60, 2.5));
  history.Add(EvalAt(80, 2.75));
  EXPECT_EQ(history.RecentLoss(), 2) << "the step that is not finite does not count";
  EXPECT_EQ(history.MedianSpeed(), 1051);
  EXPECT_EQ(history.PeakMemory(), 101 << 20);
  EXPECT_EQ(history.Best()->step, 60);
  const Curve validations = history.CurveOf(Named("val_loss"), Across::kTokens);
  EXPECT_TRUE(validations.dots);
  EXPECT_THAT(validations.x, ElementsAre(2000, 4000, 6000, 8000));
}

TEST(History, LeavesOutStepsThatDoNotHaveAMetric) {
  History history;
  v1::WatchRecordsResponse audited = StepAt(2, 1);
  auto& layers = *audited.mutable_record()->mutable_step()->mutable_layers();
  layers.Add()->mutable_audit()->set_selected_mass(0.5);
  layers.Add()->mutable_audit()->set_selected_mass(0.75);
  layers.Add();
  history.Add(StepAt(1, 1));
  history.Add(audited);
  history.Add(StepAt(3, 1));
  const Curve kept = history.CurveOf(Named("mass_kept"), Across::kSteps);
  EXPECT_THAT(kept.x, ElementsAre(2));
  EXPECT_THAT(kept.y, ElementsAre(0.625));
  EXPECT_TRUE(history.CurveOf(Named("gate_entropy"), Across::kSteps).y.empty());
}

TEST(History, KeepsFaults) {
  History history;
  v1::WatchRecordsResponse record;
  record.mutable_record()->mutable_checkpoint()->set_path("/out");
  history.Add(record);
  EXPECT_TRUE(history.faults().empty());
  record.mutable_record()->mutable_checkpoint()->set_error("disk full");
  history.Add(record);
  record.mutable_record()->mutable_finished()->set_outcome(v1::OUTCOME_FAILED);
  history.Add(record);
  EXPECT_EQ(history.faults().size(), 2u);
}

TEST(History, EveryMetricHasANameOfItsOwn) {
  for (const Metric& metric : kMetricTable) EXPECT_EQ(FindMetric(metric.name), &metric);
  EXPECT_EQ(FindMetric("no_such"), nullptr);
  EXPECT_FALSE(FindAcross("no_such").has_value());
}

TEST(Comparison, FindsTheKeysThatDiffer) {
  std::vector<ComparedJob> jobs(2);
  for (ComparedJob& each : jobs) {
    each.job = DemoJob();
    each.job.mutable_spec()->mutable_train()->set_steps(500);
  }
  jobs[1].job.mutable_spec()->mutable_train()->set_lr(0.5);
  (*jobs[1].job.mutable_spec()->mutable_labels())["team"] = "a";
  jobs[1].job.mutable_spec()->mutable_nsa();
  jobs[0].job.mutable_spec()->mutable_nsa()->add_branches(v1::BRANCH_CMP);
  jobs[0].job.mutable_spec()->mutable_nsa()->add_branches(v1::BRANCH_WIN);
  jobs[1].job.mutable_spec()->mutable_train()->set_lr_schedule(v1::LR_SCHEDULE_COSINE);
  std::map<std::string, std::vector<std::string>> differing;
  for (const KeyValues& key : SpecKeys(jobs)) {
    if (key.Differs()) differing[key.key] = key.values;
  }
  EXPECT_EQ(differing.size(), 4u) << ::testing::PrintToString(differing);
  EXPECT_THAT(differing["labels.team"], ElementsAre("-", "a"));
  EXPECT_EQ(differing["train.lr"][1], "0.5");
  EXPECT_THAT(differing["nsa.branches"], ElementsAre("[cmp, win]", "[]"));
  EXPECT_THAT(differing["train.lr_schedule"], ElementsAre("-", "cosine"));
}

TEST(Comparison, JobsOfOneNameAreToldApart) {
  std::vector<ComparedJob> jobs(3);
  for (ComparedJob& each : jobs) each.job = DemoJob();
  jobs[1].job.set_id("j2");
  jobs[2].job.set_name("other\nline");
  EXPECT_THAT(ShortNames(jobs), ElementsAre("demo (jdemo1234567)", "demo (j2)", "other\\nline"));
}

// A report in which every text that a job, a machine or a file can choose is `text`.
Report ReportOf(const std::string& text) {
  Report report;
  report.job = DemoJob();
  report.job.set_state(v1::Job::STATE_FAILED);
  report.now = absl::FromUnixSeconds(1795176000);
  v1::JobEvent& event = report.events.emplace_back();
  event.set_severity(v1::SEVERITY_ERROR);
  v1::Finding& finding = *report.job.add_warnings();
  v1::CheckpointInfo& checkpoint = report.checkpoints.emplace_back();
  v1::NodeInfo& node = *report.nodes.emplace_back().mutable_info();
  for (std::string* field : {report.job.mutable_name(),
                             report.job.mutable_reason(),
                             report.job.mutable_message(),
                             report.job.mutable_owner(),
                             event.mutable_reason(),
                             event.mutable_text(),
                             finding.mutable_rule(),
                             finding.mutable_field(),
                             finding.mutable_problem(),
                             finding.mutable_fix(),
                             checkpoint.mutable_path(),
                             checkpoint.mutable_error(),
                             node.mutable_name(),
                             node.mutable_driver_version(),
                             node.mutable_agent_version(),
                             node.add_gpus()->mutable_name(),
                             report.stacks.emplace_back().mutable_why(),
                             report.version.mutable_version(),
                             report.job.mutable_health()->mutable_words(),
                             report.job.mutable_ranks(0)->mutable_node(),
                             report.job.mutable_ranks(0)->mutable_note(),
                             report.job.mutable_ranks(0)->mutable_telemetry_error(),
                             report.job.mutable_progress()->mutable_initialized_from(),
                             &report.configuration,
                             &report.sampled_from}) {
    *field = text;
  }
  (*report.job.mutable_waivers())[text] = text;
  (*report.job.mutable_spec()->mutable_labels())[text] = text;
  report.samples.push_back({text, text});
  return report;
}

// The records of a run of three steps with such texts.
void AddRecords(const std::string& text, Report* report) {
  v1::WatchRecordsResponse started;
  started.mutable_record()->mutable_started()->set_device(text);
  started.mutable_record()->mutable_started()->set_resumed_from(text);
  report->history.Add(started);
  for (int step = 1; step <= 3; ++step) report->history.Add(StepAt(step, 1));
  v1::WatchRecordsResponse failed;
  failed.mutable_record()->mutable_checkpoint()->set_error(text);
  report->history.Add(failed);
}

int CountOf(std::string_view part, std::string_view text) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

TEST(ReportPage, EscapesWhateverComesFromAJob) {
  const std::string hostile =
      "</pre></style><script>alert('1')</script><img src=x onerror=\"a\">&\x1b[2J";
  Report report = ReportOf(hostile);
  AddRecords(hostile, &report);
  const std::string page = ReportPage(report);
  EXPECT_EQ(MarkupProblem(page), "");
  EXPECT_THAT(page, AllOf(Not(HasSubstr("<script")), Not(HasSubstr("<img")), Not(HasSubstr("\x1b")),
                          HasSubstr("default-src 'none'")));
  EXPECT_GE(CountOf("&lt;script&gt;", page), 28) << "a text is missing in the report";
}

v1::WatchRecordsResponse SampleAt(int64_t step, const std::string& text) {
  v1::WatchRecordsResponse record;
  v1::SampleRecord& sample = *record.mutable_record()->mutable_sample();
  sample.set_step(step);
  sample.set_prompt("To be");
  sample.set_text(text);
  return record;
}

TEST(ReportPage, HasTheSamplesOfTheNewestValidation) {
  Report report;
  report.job.set_id("j1");
  EXPECT_THAT(ReportPage(report), HasSubstr("The job has no sample.prompts;"));
  report.job.mutable_spec()->mutable_sample()->add_prompts("To be");
  EXPECT_THAT(ReportPage(report), HasSubstr("The job has not written any yet."));
  for (const int64_t step : {100, 1200}) {
    for (int i = 0; i < 8; ++i) report.history.Add(SampleAt(step, absl::StrCat(" <", step, i)));
  }
  const std::string page = ReportPage(report);
  EXPECT_EQ(MarkupProblem(page), "");
  EXPECT_THAT(page, AllOf(HasSubstr("Written by the job at step 1,200; nsactl samples j1 shows"),
                          HasSubstr("To be &lt;12000"), HasSubstr("To be &lt;12007"),
                          Not(HasSubstr("&lt;100"))));
  report.history.Add(StepAt(1201, 1));
  report.history.Add(StepAt(1150, 1, 2));
  EXPECT_TRUE(report.history.samples().empty()) << "their step will be done again";
}

TEST(ReportPage, HasTheSourcesAndTheValidationSets) {
  Report report;
  EXPECT_THAT(ReportPage(report),
              AllOf(Not(HasSubstr(">Sources<")), Not(HasSubstr(">Validation sets<"))));
  v1::DataSpec* const data = report.job.mutable_spec()->mutable_data();
  v1::MixSource* const source = data->add_mix();
  source->set_name("books");
  source->set_weight(7);
  source->add_path("/data/books.txt");
  (*data->mutable_val())["prose"] = "/data/prose.txt";
  v1::NamedLoss* const set = report.job.mutable_progress()->add_val_sets();
  set->set_name("prose");
  set->set_loss(1.5);
  set->set_tokens(12345);
  const std::string page = ReportPage(report);
  EXPECT_EQ(MarkupProblem(page), "");
  EXPECT_THAT(page, AllOf(HasSubstr(">Sources<"), HasSubstr(">books<"), HasSubstr(">7<"),
                          HasSubstr(">/data/books.txt<"), HasSubstr(">prose<"),
                          HasSubstr(">1.5000<"), HasSubstr(">12,345<")));
}

TEST(ReportPage, OfAJobThatNeverRanSaysSo) {
  Report report;
  report.job.set_name("new");
  report.job.set_state(v1::Job::STATE_QUEUED);
  const std::string page = ReportPage(report);
  EXPECT_EQ(MarkupProblem(page), "");
  EXPECT_THAT(page, AllOf(HasSubstr("The job has not done a step."), HasSubstr("QUEUED"),
                          Not(HasSubstr("<svg"))));
}

TEST(ReportPage, HasAtMostTheLastEvents) {
  Report report;
  for (int i = 1; i <= 700; ++i)
    report.events.emplace_back().set_text("event" + std::to_string(i) + ".");
  const std::string page = ReportPage(report);
  EXPECT_THAT(page, AllOf(HasSubstr("The last 500 of 700."), HasSubstr(">event700.<"),
                          HasSubstr(">event201.<"), Not(HasSubstr(">event200.<"))));
}

}  // namespace
}  // namespace nsa::client
