// Curves as numbers, and jobs side by side.
#include "client/show/curves.h"

#include <algorithm>
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
using ::testing::Optional;
using ::testing::Pair;

constexpr int64_t kSecond = 1'000'000'000;

// Adds a point of these steps, the last of which was done so many seconds after 1000.
void AddPoint(int64_t first, int64_t last, int64_t seconds, v1::CurveTable* table) {
  table->set_width(last - first + 1);
  table->add_first_step(first);
  table->add_last_step(last);
  table->add_unix_nanos((1000 + seconds) * kSecond);
  table->add_total_tokens(100 * last);
}

// Adds a point's values: `count` finite ones, all of them `value`, and so many others.
void AddValue(const std::string& name, double value, int64_t count, int64_t nonfinite,
              v1::CurveTable* table) {
  auto found = std::ranges::find(*table->mutable_columns(), name, &v1::CurveColumn::name);
  v1::CurveColumn& column =
      found == table->mutable_columns()->end() ? *table->add_columns() : *found;
  column.set_name(name);
  column.add_count(count);
  column.add_nonfinite(nonfinite);
  column.add_mean(static_cast<float>(value));
  column.add_least(static_cast<float>(value));
  column.add_greatest(static_cast<float>(value));
}

// A step of half a second, done so many seconds after 1000.
void AddStep(int64_t step, double loss, int64_t seconds, v1::GetCurvesResponse* curves) {
  v1::CurveTable* const steps = curves->mutable_steps();
  AddPoint(step, step, seconds, steps);
  AddValue("step_seconds", 0.5, 1, 0, steps);
  AddValue("loss", loss, std::isfinite(loss) ? 1 : 0, std::isfinite(loss) ? 0 : 1, steps);
  AddValue("tokens_per_second", 1000.0 + static_cast<double>(step), 1, 0, steps);
  AddValue("memory_bytes", static_cast<double>(step << 20), 1, 0, steps);
}

void AddEval(int64_t step, double loss, v1::GetCurvesResponse* curves) {
  curves->mutable_validations()->add_step(step);
  curves->mutable_validations()->add_unix_nanos((1000 + step) * kSecond);
  curves->mutable_validations()->add_loss(loss);
}

const Metric& Named(const char* name) { return *FindMetric(name); }

TEST(JobCurves, TimeLeavesOutTheWaitBetweenStarts) {
  v1::GetCurvesResponse all;
  all.add_start_unix_nanos(990 * kSecond);
  for (int step = 1; step <= 2; ++step) AddStep(step, step, step, &all);
  all.add_start_unix_nanos(1500 * kSecond);
  for (int step = 3; step <= 5; ++step) AddStep(step, 10 * step, 500 + step, &all);
  const JobCurves curves(all);
  const Curve loss = curves.CurveOf(Named("loss"), Across::kSteps);
  EXPECT_THAT(loss.x, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(loss.y, ElementsAre(1, 2, 30, 40, 50));
  EXPECT_THAT(curves.CurveOf(Named("loss"), Across::kTokens).x,
              ElementsAre(100, 200, 300, 400, 500));
  EXPECT_THAT(curves.CurveOf(Named("loss"), Across::kTime).x, ElementsAre(0, 1, 1.5, 2.5, 3.5))
      << "the wait between the starts is left out";
}

TEST(JobCurves, ValidationsOfALongRunLieWhereTheirStepsAre) {
  v1::GetCurvesResponse all;
  for (int point = 0; point < 4; ++point) {
    AddPoint(100 * point + 1, 100 * point + 100, 50 * (point + 1), all.mutable_steps());
    AddValue("step_seconds", 0.5, 100, 0, all.mutable_steps());
    AddValue("loss", 4 - point, 100, 0, all.mutable_steps());
  }
  for (const int step : {50, 100, 125, 150, 400}) AddEval(step, 3, &all);
  const JobCurves curves(all);
  EXPECT_THAT(curves.CurveOf(Named("val_loss"), Across::kSteps).x,
              ElementsAre(50, 100, 125, 150, 400));
  EXPECT_THAT(curves.CurveOf(Named("val_loss"), Across::kTokens).x,
              ElementsAre(5000, 10000, 12500, 15000, 40000));
  EXPECT_THAT(curves.CurveOf(Named("val_loss"), Across::kTime).x,
              ElementsAre(24.5, 49.5, 62, 74.5, 199.5));
}

TEST(JobCurves, FindsTheFigures) {
  EXPECT_FALSE(JobCurves().RecentLoss().has_value());
  EXPECT_TRUE(std::isnan(JobCurves().MedianSpeed()));
  EXPECT_EQ(JobCurves().PeakMemory(), 0);
  EXPECT_FALSE(JobCurves().Best().has_value() || JobCurves().Newest().has_value());
  v1::GetCurvesResponse all;
  for (int step = 1; step <= 100; ++step) AddStep(step, step <= 50 ? 9 : 2, step, &all);
  AddStep(101, std::nan(""), 101, &all);
  AddEval(20, 3.5, &all);
  AddEval(40, std::nan(""), &all);
  AddEval(60, 2.5, &all);
  AddEval(80, 2.75, &all);
  const JobCurves curves(all);
  EXPECT_EQ(curves.RecentLoss()->loss, 2) << "the step that is not finite does not count";
  EXPECT_EQ(curves.MedianSpeed(), 1051);
  EXPECT_EQ(curves.PeakMemory(), 101 << 20);
  EXPECT_EQ(curves.Best()->step, 60);
  EXPECT_EQ(curves.Newest()->step, 80);
  const Curve validations = curves.CurveOf(Named("val_loss"), Across::kTokens);
  EXPECT_TRUE(validations.dots);
  EXPECT_THAT(validations.x, ElementsAre(2000, 4000, 6000, 8000));
}

TEST(JobCurves, ALossThatIsNeverFiniteIsNoMissingLoss) {
  v1::GetCurvesResponse all;
  AddStep(1, std::nan(""), 1, &all);
  AddEval(1, std::nan(""), &all);
  const JobCurves curves(all);
  ASSERT_TRUE(curves.RecentLoss().has_value() && curves.Newest().has_value());
  EXPECT_TRUE(std::isnan(curves.RecentLoss()->loss) && std::isnan(curves.Newest()->loss));
  EXPECT_FALSE(curves.Best().has_value());
  const Curve loss = curves.CurveOf(Named("loss"), Across::kSteps);
  EXPECT_THAT(loss.x, ElementsAre(1));
  EXPECT_THAT(loss.nonfinite, ElementsAre(1));
  std::vector<ComparedJob> jobs(2);
  for (ComparedJob& job : jobs) job.job = DemoJob();
  jobs[0].curves = curves;
  const auto document = ComparisonDocument(jobs, {}, absl::UnixEpoch());
  EXPECT_EQ(document["jobs"][0]["loss"], "NaN");
  EXPECT_EQ(document["jobs"][0]["val_loss"], "NaN");
  EXPECT_TRUE(document["jobs"][1]["loss"].is_null()) << "it has done no step";
}

TEST(JobCurves, LeavesOutWhatWasNotMeasured) {
  v1::GetCurvesResponse all;
  for (int step = 1; step <= 3; ++step) {
    AddStep(step, 1, step, &all);
    AddPoint(step, step, step, all.mutable_layers());
    AddValue("mass_kept", step == 2 ? 0.625 : std::nan(""), step == 2 ? 2 : 0, 0,
             all.mutable_layers());
  }
  const Curve kept = JobCurves(all).CurveOf(Named("mass_kept"), Across::kSteps);
  EXPECT_THAT(kept.x, ElementsAre(2));
  EXPECT_THAT(kept.y, ElementsAre(0.625));
  EXPECT_TRUE(JobCurves(all).CurveOf(Named("gate_entropy"), Across::kSteps).y.empty());
}

TEST(JobCurves, ANumberHasTheDigitsThatThePageShows) {
  v1::GetCurvesResponse all;
  AddStep(1, 5.95, 1, &all);
  EXPECT_THAT(JobCurves(all).CurveOf(Named("loss"), Across::kSteps).y, ElementsAre(5.95));
}

// A run of `steps` steps in points of two, each with a layer and, from step 3 on, a loss that is
// not finite.
v1::GetCurvesResponse RunOf(int64_t steps, int64_t from = 0) {
  v1::GetCurvesResponse all;
  for (int64_t first = 1; first <= steps; first += 2) {
    if (first < from) continue;
    const int64_t last = std::min(first + 1, steps);
    AddPoint(first, last, last, all.mutable_steps());
    AddValue("loss", 10.0 - static_cast<double>(last), last - first + 1, first > 2 ? 1 : 0,
             all.mutable_steps());
    AddPoint(first, last, last, all.mutable_layers());
    AddValue("mass_kept", 0.5, 1, 0, all.mutable_layers());
  }
  for (v1::CurveColumn& column : *all.mutable_steps()->mutable_columns()) {
    if (std::ranges::all_of(column.nonfinite(), [](int64_t n) { return n == 0; })) {
      column.clear_nonfinite();
    }
  }
  AddEval(steps, 1, &all);
  return all;
}

TEST(JobCurves, WhatHasComeSinceMakesThemWhole) {
  JobCurves curves(RunOf(1));
  for (const int64_t steps : {2, 3, 7, 8}) {
    const v1::GetCurvesRequest request = curves.RequestForMore(v1::GetCurvesRequest());
    EXPECT_GE(request.from_step(), steps - 4);
    ASSERT_TRUE(curves.Add(RunOf(steps, request.from_step()))) << steps;
    const JobCurves whole(RunOf(steps));
    EXPECT_EQ(curves.last_step(), steps);
    for (const char* name : {"loss", "mass_kept", "val_loss"}) {
      const Curve one = curves.CurveOf(Named(name), Across::kSteps);
      const Curve other = whole.CurveOf(Named(name), Across::kSteps);
      EXPECT_EQ(one.x, other.x) << name;
      EXPECT_EQ(one.y, other.y) << name;
      EXPECT_EQ(one.nonfinite, other.nonfinite) << name;
    }
  }
}

TEST(JobCurves, OtherPointsAreNoMore) {
  JobCurves curves(RunOf(4));
  v1::GetCurvesResponse thinned = RunOf(8, 3);
  thinned.mutable_steps()->set_first_step(0, 2);
  EXPECT_FALSE(curves.Add(thinned));
  v1::GetCurvesResponse restarted = RunOf(8, 3);
  restarted.add_start_unix_nanos(1);
  EXPECT_FALSE(curves.Add(restarted));
  EXPECT_FALSE(curves.Add(v1::GetCurvesResponse())) << "the newest point is gone";
  EXPECT_EQ(curves.last_step(), 4) << "nothing is changed";
}

TEST(JobCurves, EveryMetricHasANameOfItsOwn) {
  for (const Metric* metric : Metrics()) EXPECT_EQ(FindMetric(metric->name), metric);
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

TEST(Comparison, NamesTheKeysOfFiltersAndMixturesAsAJobFileDoes) {
  std::vector<ComparedJob> jobs(2);
  for (ComparedJob& each : jobs) {
    v1::DataSpec& data = *each.job.mutable_spec()->mutable_data();
    (*data.mutable_where())["source"].add_value("a");
    (*(*data.mutable_val_except())["books"].mutable_field())["lang"].add_value("en");
    data.add_mix()->set_source(v1::DATA_SOURCE_JSONL);
  }
  v1::DataSpec& data = *jobs[1].job.mutable_spec()->mutable_data();
  (*data.mutable_where())["source"].add_value("b");
  (*(*data.mutable_val_except())["books"].mutable_field())["lang"].add_value("de");
  data.mutable_mix(0)->set_source(v1::DATA_SOURCE_PARQUET);
  std::map<std::string, std::vector<std::string>> differing;
  for (const KeyValues& key : SpecKeys(jobs)) {
    if (key.Differs()) differing[key.key] = key.values;
  }
  EXPECT_EQ(differing.size(), 3u) << ::testing::PrintToString(differing);
  EXPECT_THAT(differing["data.where.source"], ElementsAre("[a]", "[a, b]"));
  EXPECT_THAT(differing["data.val_except.books.lang"], ElementsAre("[en]", "[en, de]"));
  EXPECT_THAT(differing["data.mix[0].source"], ElementsAre("jsonl", "parquet"));
}

TEST(Comparison, HasAColumnForEachValidationSetOfAnyJob) {
  std::vector<ComparedJob> jobs(3);
  for (ComparedJob& each : jobs) each.job = DemoJob();
  const auto add = [](const char* name, std::optional<double> loss, v1::Job* job) {
    (*job->mutable_spec()->mutable_data()->mutable_val())[name] = "/data/val.txt";
    if (!loss.has_value()) return;
    v1::NamedLoss* const set = job->mutable_progress()->add_val_sets();
    set->set_name(name);
    set->set_loss(*loss);
  };
  add("books", 1.5, &jobs[0].job);
  add("code", std::nullopt, &jobs[0].job);
  add("books", 1.25, &jobs[1].job);
  EXPECT_THAT(FiguresOf(jobs[0], absl::UnixEpoch()).val_sets,
              ElementsAre(Pair("books", Optional(1.5)), Pair("code", std::nullopt)));
  const Table table = FiguresTable(jobs, absl::UnixEpoch());
  EXPECT_THAT(
      table.Format(/*colours=*/false),
      AllOf(HasSubstr("AT STEP  VAL books  VAL code  TOK/S"),
            HasSubstr(" -     1.5000         -      - "), HasSubstr(" -          -         - ")));
  EXPECT_THAT(table.Format(/*colours=*/true), HasSubstr(Paint(Colour::kGood, "1.2500", true)));
  const auto document = ComparisonDocument(jobs, {}, absl::UnixEpoch());
  EXPECT_EQ(document["jobs"][0]["val_sets"].dump(), R"({"books":1.5,"code":null})");
  EXPECT_EQ(document["jobs"][1]["val_sets"].dump(), R"({"books":1.25})");
  EXPECT_EQ(document["jobs"][2]["val_sets"].dump(), "{}");
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

// The curves of a run of three steps with such texts.
void AddCurves(const std::string& text, Report* report) {
  v1::GetCurvesResponse all;
  v1::WorkerStarted& started = *all.add_marks()->mutable_started();
  started.set_device(text);
  started.set_resumed_from(text);
  for (int step = 1; step <= 3; ++step) AddStep(step, 1, step, &all);
  all.add_marks()->mutable_checkpoint()->set_error(text);
  report->curves = JobCurves(all);
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
  AddCurves(hostile, &report);
  const std::string page = ReportPage(report);
  EXPECT_EQ(MarkupProblem(page), "");
  EXPECT_THAT(page, AllOf(Not(HasSubstr("<script")), Not(HasSubstr("<img")), Not(HasSubstr("\x1b")),
                          HasSubstr("default-src 'none'")));
  EXPECT_GE(CountOf("&lt;script&gt;", page), 28) << "a text is missing in the report";
}

TEST(ReportPage, BeginsWithTheVerdict) {
  Report report;
  report.job.mutable_health()->set_words("healthy");
  report.job.mutable_health()->set_level(v1::JobHealth::LEVEL_HEALTHY);
  EXPECT_THAT(ReportPage(report), HasSubstr("<p class=\"good\">healthy</p>"));
  v1::Problem& problem = *report.job.add_problems();
  problem.set_level(v1::JobHealth::LEVEL_BAD);
  problem.set_cause("The run has diverged");
  problem.add_remedies()->set_command("nsactl stop demo");
  const std::string page = ReportPage(report);
  EXPECT_THAT(
      page, AllOf(HasSubstr("<p class=\"bad\">The run has diverged"), Not(HasSubstr(">healthy<"))));
  EXPECT_LT(page.find("nsactl stop demo"), page.find(">Figures<"));
  problem.set_muted(true);
  EXPECT_THAT(ReportPage(report), AllOf(HasSubstr("<p class=\"soft\">The run has diverged"),
                                        Not(HasSubstr("nsactl stop demo"))));
}

TEST(ReportPage, HasTheSamplesOfTheNewestValidation) {
  Report report;
  report.job.set_id("j1");
  EXPECT_THAT(ReportPage(report), HasSubstr("The job has no sample.prompts;"));
  report.job.mutable_spec()->mutable_sample()->add_prompts("To be");
  EXPECT_THAT(ReportPage(report), HasSubstr("The job has not written any yet."));
  v1::GetCurvesResponse all;
  for (int i = 0; i < 8; ++i) {
    v1::SampleRecord& sample = *all.add_marks()->mutable_sample();
    sample.set_step(1200);
    sample.set_prompt("To be");
    sample.set_text(absl::StrCat(" <1200", i));
  }
  report.curves = JobCurves(all);
  const std::string page = ReportPage(report);
  EXPECT_EQ(MarkupProblem(page), "");
  EXPECT_THAT(page, AllOf(HasSubstr("Written by the job at step 1,200; nsactl samples j1 shows"),
                          HasSubstr("To be &lt;12000"), HasSubstr("To be &lt;12007")));
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
  EXPECT_THAT(page, AllOf(HasSubstr("The job has not done a step."), HasSubstr("waiting"),
                          Not(HasSubstr("<svg"))));
}

// One flapping guard wrote 2,356 warnings in 40 s.
TEST(ReportPage, FoldsWarningsOfOneCauseAndNeverNotes) {
  Report report;
  const auto add = [&](const std::string& reason, v1::Severity severity, const std::string& text) {
    v1::JobEvent& event = report.events.emplace_back();
    event.set_reason(reason);
    event.set_severity(severity);
    event.set_text(text);
    event.set_rank(-1);
    event.set_unix_nanos(static_cast<int64_t>(report.events.size()) * 1'000'000'000);
  };
  for (int i = 1; i <= 300; ++i) {
    add("GATE_COLLAPSE", v1::SEVERITY_WARNING, absl::StrCat("layer ", i, "."));
    if (i % 100 == 0) add("NOTE", v1::SEVERITY_INFO, absl::StrCat("note ", i, "."));
    if (i % 100 == 0) add("NOTE", v1::SEVERITY_INFO, absl::StrCat("another ", i, "."));
  }
  const std::string page = ReportPage(report);
  EXPECT_THAT(page, HasSubstr("×300 since 1970-01-01"));
  EXPECT_THAT(page, HasSubstr("layer 300."));
  EXPECT_THAT(page, Not(HasSubstr("layer 299.")));
  for (const int i : {100, 200, 300}) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat("note ", i, ".")));
    EXPECT_THAT(page, HasSubstr(absl::StrCat("another ", i, ".")));
  }
}

TEST(ReportPage, HasAtMostTheLastEvents) {
  Report report;
  for (int i = 1; i <= 700; ++i) {
    v1::JobEvent& event = report.events.emplace_back();
    event.set_reason(absl::StrCat("REASON_", i));
    event.set_text(absl::StrCat("event", i, "."));
  }
  const std::string page = ReportPage(report);
  EXPECT_THAT(page, AllOf(HasSubstr("The last 500 of 700."), HasSubstr(">event700.<"),
                          HasSubstr(">event201.<"), Not(HasSubstr(">event200.<"))));
}

}  // namespace
}  // namespace nsa::client
