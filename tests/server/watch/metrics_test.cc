#include "server/watch/metrics.h"

#include <fstream>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/estimate/estimate.h"
#include "gmock/gmock.h"
#include "tests/server/watch/records.h"
#include "tests/testing/fakes/fake_clock.h"
#include "tests/testing/temp_dir.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Reports every kind of record for a job, so that it gets all its series.
void Exercise(Metrics* metrics, const v1::StoredJob& job) {
  using v1::Job;
  const auto move = [&](v1::Job::State from, v1::Job::State to) {
    v1::StoredJob moved = job;
    moved.mutable_job()->set_state(to);
    metrics->ObserveMove(from, moved);
  };
  move(Job::STATE_UNSPECIFIED, Job::STATE_QUEUED);
  move(Job::STATE_QUEUED, Job::STATE_PREFLIGHT);
  move(Job::STATE_PREFLIGHT, Job::STATE_STARTING);
  move(Job::STATE_STARTING, Job::STATE_RUNNING);
  const int ranks = job.job().spec().resources().gpus();
  for (int rank = 0; rank < ranks; ++rank) {
    metrics->ObserveRecords(job.job(), rank, {Step(1), Step(2), Checkpoint(2)});
  }
  v1::WorkerRecord eval;
  eval.mutable_eval()->set_loss(3.25);
  eval.mutable_eval()->set_seconds(0.75);
  metrics->ObserveRecords(job.job(), 0, {eval, Checkpoint(4, "disk full")});
  std::vector<RankView> views;
  for (int rank = 0; rank < ranks; ++rank) {
    RankView& view = views.emplace_back(RankView{.rank = rank, .node = RankView::Node::kReady});
    view.worker.emplace();
    if (rank == 1) view.worker->set_telemetry_error("disk full");
  }
  metrics->ObserveRanks(job.job(), views);
  metrics->ObserveCall("SubmitJob", "OK", 0.01, false);
  metrics->ObserveStream("WatchJob", 1);
  metrics->ObserveCommit(0.001);
  metrics->ObserveFleet({}, {std::make_shared<const v1::StoredJob>(job)},
                        {{Job::STATE_RUNNING, 1}});
}

TEST(Metrics, ShowsWhatTheRecordsSay) {
  FakeClock clock;
  Metrics metrics(clock);
  v1::StoredJob job = JobThatRuns("j1", 2);
  job.mutable_job()->mutable_progress()->set_productive_seconds(150);
  job.mutable_job()->set_start_unix_nanos(absl::ToUnixNanos(clock.Wall() - absl::Hours(60)));
  job.set_earlier_run_seconds(50);
  job.set_run_seconds(50);
  job.set_state_unix_nanos(absl::ToUnixNanos(clock.Wall() - absl::Seconds(100)));
  Exercise(&metrics, job);
  const std::string text = metrics.Text();
  for (const char* line :
       {"nsa_job_step{job_id=\"j1\"} 2", "nsa_job_loss{job_id=\"j1\"} 3.5",
        "nsa_job_val_loss{job_id=\"j1\"} 3.25", "nsa_job_tokens_total{job_id=\"j1\"} 512",
        "nsa_job_step_duration_seconds_count{job_id=\"j1\"} 2",
        "nsa_job_phase_seconds_total{job_id=\"j1\",phase=\"forward\"} 0.1",
        "nsa_job_phase_seconds_total{job_id=\"j1\",phase=\"evaluation\"} 0.75",
        "nsa_job_goodput_ratio{job_id=\"j1\"} 0.75",
        "nsa_job_checkpoint_failures_total{job_id=\"j1\"} 1",
        "nsa_job_checkpoints_total{job_id=\"j1\"} 2",
        "nsa_job_last_checkpoint_step{job_id=\"j1\"} 2",
        "nsa_gate_entropy{job_id=\"j1\",layer=\"1\"} 1",
        "nsa_gate_share_ratio{branch=\"win\",job_id=\"j1\",layer=\"0\"} 0.5",
        // Of step 1, before the last.
        "nsa_job_attention_mass_kept{branch=\"sel\",job_id=\"j1\",layer=\"1\"} 0.75",
        "nsa_job_attention_mass_kept{branch=\"win\",job_id=\"j1\",layer=\"1\"} 0.25",
        "nsa_keys_read{branch=\"sel\",job_id=\"j1\",layer=\"0\"} 20",
        "nsa_worker_step{job_id=\"j1\",rank=\"1\"} 2", "nsa_worker_up{job_id=\"j1\",rank=\"1\"} 1",
        "nsa_worker_telemetry_failing{job_id=\"j1\",rank=\"0\"} 0",
        "nsa_worker_telemetry_failing{job_id=\"j1\",rank=\"1\"} 1",
        "nsa_job_state{job_id=\"j1\",state=\"RUNNING\"} 1",
        "nsa_job_state{job_id=\"j1\",state=\"STARTING\"} 0", "nsa_jobs{state=\"RUNNING\"} 1",
        "nsa_jobs_submitted_total 1"}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat(line, "\n")));
  }
}

// Only names of the job's own file become series.
TEST(Metrics, ShowWhenACertificateEnds) {
  FakeClock clock;
  Metrics metrics(clock);
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("nsa_certificate_expiry_timestamp_seconds{")));
  metrics.ObserveCertificate("/etc/nsa/tls/ca.crt", absl::FromUnixSeconds(1'800'000'000));
  EXPECT_THAT(metrics.Text(),
              HasSubstr("nsa_certificate_expiry_timestamp_seconds{file=\"/etc/nsa/tls/ca.crt\"} "
                        "1800000000"));
}

TEST(Metrics, ShowsTheSourcesOfAMixtureAndTheNamedSets) {
  FakeClock clock;
  Metrics metrics(clock);
  v1::StoredJob job = JobThatRuns("j1", 1);
  v1::DataSpec* const data = job.mutable_job()->mutable_spec()->mutable_data();
  data->add_mix()->set_name("books");
  (*data->mutable_val())["code"] = "/code.jsonl";
  v1::WorkerRecord step = Step(1);
  for (const char* name : {"books", "stranger"}) {
    v1::SourceShare* const source = step.mutable_step()->add_sources();
    source->set_name(name);
    source->set_rows(3);
    source->set_loss(2.5);
    source->set_epoch(1);
  }
  v1::WorkerRecord eval;
  for (const char* name : {"code", "stranger"}) {
    v1::NamedLoss* const set = eval.mutable_eval()->add_sets();
    set->set_name(name);
    set->set_loss(1.25);
  }
  metrics.ObserveRecords(job.job(), 0, {step, step, eval});
  const std::string text = metrics.Text();
  for (const char* line : {"nsa_job_source_loss{job_id=\"j1\",source=\"books\"} 2.5",
                           "nsa_job_source_rows_total{job_id=\"j1\",source=\"books\"} 6",
                           "nsa_job_source_epoch{job_id=\"j1\",source=\"books\"} 1",
                           "nsa_job_val_set_loss{job_id=\"j1\",set=\"code\"} 1.25"}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat(line, "\n")));
  }
  EXPECT_THAT(text, testing::Not(HasSubstr("stranger")));
}

// What a coordinator that has just started shows for a job that it finds in its store.
TEST(Metrics, AJobThatRunsAlreadyHasItsStateStepAndCheckpointAtOnce) {
  FakeClock clock;
  Metrics metrics(clock);
  v1::StoredJob job = JobThatRuns("j1", 1);
  v1::JobProgress* progress = job.mutable_job()->mutable_progress();
  progress->set_step(977);
  progress->set_val_step(900);
  progress->set_val_loss(3.25);
  progress->set_tokens_per_second(512);
  progress->set_checkpoint_step(500);
  progress->set_checkpoint_unix_nanos(1'500'000'000);
  job.mutable_job()->mutable_spec()->mutable_train()->set_save_every(100);
  metrics.ObserveFleet({}, {std::make_shared<const v1::StoredJob>(job)}, {});
  const double interval = 100.0 * TokensPerStep(job.job().spec()) / 512;
  const std::string text = metrics.Text();
  for (const std::string& line :
       {std::string("state{job_id=\"j1\",state=\"RUNNING\"} 1"),
        std::string("step{job_id=\"j1\"} 977"), std::string("val_loss{job_id=\"j1\"} 3.25"),
        std::string("last_checkpoint_step{job_id=\"j1\"} 500"),
        std::string("last_checkpoint_timestamp_seconds{job_id=\"j1\"} 1.5"),
        std::string("tokens_per_second{job_id=\"j1\"} 512"),
        absl::StrCat("checkpoint_interval_seconds{job_id=\"j1\"} ", interval)}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("nsa_job_", line, "\n")));
  }
  EXPECT_THAT(text, HasSubstr("nsa_job_last_progress_timestamp_seconds{job_id=\"j1\"}"));
  // From then on records and moves are newer than the list of active jobs, and are kept.
  metrics.ObserveRecords(job.job(), 0, {Step(978)});
  v1::StoredJob failed = job;
  failed.mutable_job()->set_state(v1::Job::STATE_FAILED);
  metrics.ObserveMove(v1::Job::STATE_RUNNING, failed);
  metrics.ObserveFleet({}, {std::make_shared<const v1::StoredJob>(job)}, {});
  EXPECT_THAT(metrics.Text(),
              AllOf(HasSubstr("nsa_job_step{job_id=\"j1\"} 978\n"),
                    HasSubstr("nsa_job_state{job_id=\"j1\",state=\"FAILED\"} 1\n"),
                    HasSubstr("nsa_job_state{job_id=\"j1\",state=\"RUNNING\"} 0\n")));
}

TEST(Metrics, AJobThatWaitsHasNoSeriesBeforeItsFirstStart) {
  FakeClock clock;
  Metrics metrics(clock);
  v1::StoredJob job = JobThatRuns("j1", 1);
  job.mutable_job()->set_state(v1::Job::STATE_QUEUED);
  metrics.ObserveFleet({}, {std::make_shared<const v1::StoredJob>(job)}, {});
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("job_id=\"j1\"")));
}

// The alert NsaJobFailed reads nsa_job_state. The series are removed after the grace like those of
// any job.
TEST(Metrics, AJobThatFailsBeforeItsFirstStartIsSeen) {
  FakeClock clock;
  Metrics metrics(clock);
  v1::StoredJob job = JobThatRuns("j1", 1);
  job.mutable_job()->set_state(v1::Job::STATE_FAILED);
  job.mutable_job()->set_reason("PREFLIGHT_REFUSED");
  metrics.ObserveMove(v1::Job::STATE_PREFLIGHT, job);
  metrics.ObserveFleet({}, {}, {});
  EXPECT_THAT(metrics.Text(), HasSubstr("nsa_job_state{job_id=\"j1\",state=\"FAILED\"} 1\n"));
  clock.Advance(Metrics::kGrace + absl::Seconds(1));
  metrics.ObserveFleet({}, {}, {});
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("job_id=\"j1\"")));
}

// increase() ignores the first value of a series, so the series must exist before the first
// restart.
TEST(Metrics, RestartsAreCountedFromZero) {
  FakeClock clock;
  Metrics metrics(clock);
  v1::StoredJob job = JobThatRuns("j1", 1);
  metrics.ObserveFleet({}, {std::make_shared<const v1::StoredJob>(job)}, {});
  EXPECT_THAT(metrics.Text(), HasSubstr("nsa_job_restarts_total{job_id=\"j1\"} 0\n"));
  job.mutable_job()->set_state(v1::Job::STATE_RESTARTING);
  for (const char* reason : {"RANK_KILLED", "HANG"}) {
    job.mutable_job()->set_reason(reason);
    metrics.ObserveMove(v1::Job::STATE_RUNNING, job);
  }
  EXPECT_THAT(metrics.Text(), HasSubstr("nsa_job_restarts_total{job_id=\"j1\"} 2\n"));
}

TEST(Metrics, ARecoveryLastsFromTheFirstFaultToTheNextStep) {
  FakeClock clock;
  Metrics metrics(clock);
  v1::StoredJob job = JobThatRuns("j1", 1);
  const auto move = [&](v1::Job::State to, const char* reason) {
    const v1::Job::State from = job.job().state();
    job.mutable_job()->set_state(to);
    job.mutable_job()->set_reason(reason);
    metrics.ObserveMove(from, job);
  };
  const auto count = [&](const char* reason) {
    return absl::StrCat("nsa_recovery_seconds_count{reason=\"", reason, "\"} ");
  };
  metrics.ObserveRecords(job.job(), 0, {Step(1)});
  move(v1::Job::STATE_RESTARTING, "HANG");
  metrics.ObserveRecords(job.job(), 0, {Step(2)});  // the last one before the fault, late
  clock.Advance(absl::Seconds(20));
  move(v1::Job::STATE_STARTING, "");
  move(v1::Job::STATE_RESTARTING, "RANK_CRASHED");  // the start failed
  clock.Advance(absl::Seconds(25));
  move(v1::Job::STATE_STARTING, "");
  move(v1::Job::STATE_RUNNING, "");
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("nsa_recovery_seconds")));
  clock.Advance(absl::Seconds(5));
  metrics.ObserveRecords(job.job(), 0, {Step(2)});
  metrics.ObserveRecords(job.job(), 0, {Step(3)});
  EXPECT_THAT(metrics.Text(), AllOf(HasSubstr(count("HANG") + "1\n"),
                                    HasSubstr("nsa_recovery_seconds_sum{reason=\"HANG\"} 50\n"),
                                    Not(HasSubstr(count("RANK_CRASHED")))));
  // A job that moves from a machine that is drained had no fault, and one that is stopped recovers
  // no more.
  move(v1::Job::STATE_RESTARTING, "MOVING");
  move(v1::Job::STATE_RUNNING, "");
  metrics.ObserveRecords(job.job(), 0, {Step(4)});
  move(v1::Job::STATE_RESTARTING, "RANK_CRASHED");
  move(v1::Job::STATE_STOPPING, "");
  move(v1::Job::STATE_STOPPED, "");
  move(v1::Job::STATE_RUNNING, "");
  metrics.ObserveRecords(job.job(), 0, {Step(5)});
  EXPECT_THAT(metrics.Text(),
              AllOf(HasSubstr(count("HANG") + "1\n"), Not(HasSubstr(count("RANK_CRASHED")))));
}

TEST(Metrics, AFallbackCounterThatStartsAgainIsNotCountedTwice) {
  FakeClock clock;
  Metrics metrics(clock);
  const v1::StoredJob job = JobThatRuns("j1", 1);
  v1::WorkerRecord started;
  started.mutable_started();
  metrics.ObserveRecords(job.job(), 0, {started, Step(1), Step(2), Step(3)});
  EXPECT_THAT(metrics.Text(),
              HasSubstr("nsa_fallbacks_total{job_id=\"j1\",kind=\"cuda_graph\"} 3\n"));
  // The next worker process counts from zero again.
  metrics.ObserveRecords(job.job(), 0, {started, Step(1), Step(2)});
  EXPECT_THAT(metrics.Text(),
              HasSubstr("nsa_fallbacks_total{job_id=\"j1\",kind=\"cuda_graph\"} 5\n"));
}

// Of a job that waited in the queue between two steps, the alerts count from its next start and its
// next step.
TEST(Metrics, TimeInTheQueueIsNoTimeWithoutProgress) {
  using v1::Job;
  FakeClock clock;
  Metrics metrics(clock);
  v1::StoredJob job = JobThatRuns("j1", 1);
  Exercise(&metrics, job);
  const auto value = [&](const std::string& name) {
    std::smatch found;
    const std::string text = metrics.Text();
    const std::regex line(name + "\\{job_id=\"j1\"\\} (\\S+)");
    return std::regex_search(text, found, line) ? std::stod(found[1]) : -1;
  };
  EXPECT_EQ(value("nsa_job_first_step_timestamp_seconds"), 1.5);
  clock.Advance(absl::Hours(5));
  const auto move = [&](Job::State from, Job::State to) {
    job.mutable_job()->set_state(to);
    metrics.ObserveMove(from, job);
  };
  const double now = absl::ToDoubleSeconds(clock.Wall() - absl::UnixEpoch());
  const auto step = [&](int number, double at) {
    v1::WorkerRecord record = Step(number);
    record.set_unix_nanos(static_cast<int64_t>(at * 1e9));
    metrics.ObserveRecords(job.job(), 0, {record});
  };
  // Ranks that are lost and start again do not begin anew.
  move(Job::STATE_RUNNING, Job::STATE_RESTARTING);
  move(Job::STATE_RESTARTING, Job::STATE_STARTING);
  EXPECT_EQ(value("nsa_job_last_progress_timestamp_seconds"), 1.5);
  move(Job::STATE_STARTING, Job::STATE_RUNNING);
  EXPECT_NEAR(value("nsa_job_last_progress_timestamp_seconds"), now, 1);
  step(3, now);
  EXPECT_EQ(value("nsa_job_first_step_timestamp_seconds"), 1.5);
  move(Job::STATE_RUNNING, Job::STATE_QUEUED);
  move(Job::STATE_QUEUED, Job::STATE_PREFLIGHT);
  move(Job::STATE_PREFLIGHT, Job::STATE_STARTING);
  move(Job::STATE_STARTING, Job::STATE_RUNNING);
  EXPECT_EQ(value("nsa_job_first_step_timestamp_seconds"), 1.5);
  step(4, now);
  EXPECT_NEAR(value("nsa_job_first_step_timestamp_seconds"), now, 1);
}

// With fewer ranks than before, the last step of those that are gone counts no longer.
TEST(Metrics, RanksThatAreGoneAreNotUpAndSlowNobodyDown) {
  FakeClock clock;
  Metrics metrics(clock);
  const v1::StoredJob job = JobThatRuns("j1", 3);
  v1::WorkerRecord slow = Step(1);
  slow.mutable_step()->mutable_times()->set_step_seconds(2);
  const auto observe = [&](int count) {
    std::vector<RankView> ranks;
    for (int rank = 0; rank < count; ++rank) {
      ranks.push_back({.rank = rank, .node = RankView::Node::kReady});
      ranks.back().worker.emplace();
      metrics.ObserveRecords(job.job(), rank, {rank == 2 ? slow : Step(1)});
    }
    metrics.ObserveRanks(job.job(), ranks);
  };
  observe(3);
  EXPECT_THAT(metrics.Text(), HasSubstr("nsa_worker_up{job_id=\"j1\",rank=\"2\"} 1\n"));
  observe(2);
  observe(2);
  EXPECT_THAT(metrics.Text(),
              AllOf(HasSubstr("nsa_worker_up{job_id=\"j1\",rank=\"2\"} 0\n"),
                    HasSubstr("nsa_worker_straggler_ratio{job_id=\"j1\",rank=\"1\"} 1\n")));
}

TEST(Metrics, AMutedProblemIsZero) {
  FakeClock clock;
  Metrics metrics(clock);
  v1::StoredJob job = JobThatRuns("j1", 1);
  v1::HealthMemory* const memory = job.mutable_job()->mutable_progress()->mutable_health_memory();
  memory->set_steps(1);
  memory->set_nonfinite_steps(1);
  const std::string series = "nsa_job_health_problem{job_id=\"j1\",problem=\"NONFINITE\"} ";
  metrics.ObserveRecords(job.job(), 0, {Step(1)});
  EXPECT_THAT(metrics.Text(), HasSubstr(series + "1\n"));
  job.mutable_job()->add_mutes()->set_problem("NONFINITE");
  metrics.ObserveRecords(job.job(), 0, {Step(2)});
  EXPECT_THAT(metrics.Text(), HasSubstr(series + "0\n"));
}

TEST(Metrics, NameTheSlowRank) {
  FakeClock clock;
  Metrics metrics(clock);
  const v1::StoredJob job = JobThatRuns("j1", 2);
  v1::WorkerRecord slow = Step(1);
  slow.mutable_step()->mutable_times()->set_step_seconds(0.6);
  metrics.ObserveRecords(job.job(), 0, {Step(1)});
  metrics.ObserveRecords(job.job(), 1, {slow});
  EXPECT_THAT(metrics.Text(),
              HasSubstr("nsa_worker_straggler_ratio{job_id=\"j1\",rank=\"1\"} 1.5"));
}

TEST(Metrics, DropTheSeriesOfAJobFiveMinutesAfterItsEnd) {
  FakeClock clock;
  Metrics metrics(clock);
  v1::StoredJob job = JobThatRuns("j1", 2);
  const auto running = std::make_shared<v1::StoredJob>(JobThatRuns("j2", 1));
  Exercise(&metrics, job);
  Exercise(&metrics, *running);
  job.mutable_job()->set_state(v1::Job::STATE_FAILED);
  job.mutable_job()->set_reason("HANG");
  metrics.ObserveMove(v1::Job::STATE_RUNNING, job);
  EXPECT_THAT(metrics.Text(), HasSubstr("nsa_worker_up{job_id=\"j1\",rank=\"0\"} 0"));
  EXPECT_THAT(metrics.Text(),
              HasSubstr("nsa_worker_telemetry_failing{job_id=\"j1\",rank=\"1\"} 0"));
  clock.Advance(Metrics::kGrace - absl::Seconds(1));
  metrics.ObserveFleet({}, {running}, {});
  EXPECT_THAT(metrics.Text(), HasSubstr("nsa_job_state{job_id=\"j1\",state=\"FAILED\"} 1"));
  clock.Advance(absl::Seconds(2));
  metrics.ObserveFleet({}, {running}, {});
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("job_id=\"j1\"")));
  EXPECT_THAT(metrics.Text(), HasSubstr("job_id=\"j2\""));
  EXPECT_THAT(metrics.Text(),
              HasSubstr("nsa_jobs_finished_total{reason=\"HANG\",result=\"FAILED\"} 1"));
}

TEST(Metrics, DropTheSeriesOfADeletedJobAtOnceAndCountWhoDeletedIt) {
  FakeClock clock;
  Metrics metrics(clock);
  v1::StoredJob job = JobThatRuns("j1", 2);
  Exercise(&metrics, job);
  Exercise(&metrics, JobThatRuns("j2", 1));
  job.mutable_job()->set_state(v1::Job::STATE_FAILED);
  metrics.ObserveMove(v1::Job::STATE_RUNNING, job);
  EXPECT_THAT(metrics.Text(), HasSubstr("nsa_jobs_deleted_total{cause=\"user\"} 0"));
  metrics.ObserveDeletion("j1", DeletedBy::kUser);
  metrics.ObserveDeletion("without-series", DeletedBy::kRetention);
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("job_id=\"j1\"")));
  EXPECT_THAT(metrics.Text(), HasSubstr("job_id=\"j2\""));
  EXPECT_THAT(metrics.Text(), HasSubstr("nsa_jobs_deleted_total{cause=\"user\"} 1"));
  EXPECT_THAT(metrics.Text(), HasSubstr("nsa_jobs_deleted_total{cause=\"retention\"} 1"));
}

TEST(Metrics, RecordsThatComeAfterTheEndMakeNoSeriesThatStays) {
  FakeClock clock;
  Metrics metrics(clock);
  const auto running = std::make_shared<v1::StoredJob>(JobThatRuns("j2", 1));
  Exercise(&metrics, JobThatRuns("j1", 1));
  Exercise(&metrics, *running);
  for (int minute = 0; minute < 7; ++minute) {
    metrics.ObserveFleet({}, {running}, {});
    clock.Advance(absl::Minutes(1));
  }
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("job_id=\"j1\""))) << "it is not among the active";
  EXPECT_THAT(metrics.Text(), HasSubstr("job_id=\"j2\""));
}

TEST(Metrics, AResumedJobKeepsItsSeries) {
  FakeClock clock;
  Metrics metrics(clock);
  v1::StoredJob job = JobThatRuns("j1", 1);
  Exercise(&metrics, job);
  job.mutable_job()->set_state(v1::Job::STATE_STOPPED);
  metrics.ObserveMove(v1::Job::STATE_RUNNING, job);
  job.mutable_job()->set_state(v1::Job::STATE_QUEUED);
  metrics.ObserveMove(v1::Job::STATE_STOPPED, job);
  const auto resumed = std::make_shared<v1::StoredJob>(job);
  for (int i = 0; i < 3; ++i) {
    clock.Advance(absl::Hours(1));
    metrics.ObserveFleet({}, {resumed}, {});
  }
  EXPECT_THAT(metrics.Text(), HasSubstr("nsa_job_loss{job_id=\"j1\"}"));
}

// A running job has at most 60 series, plus 12 for each rank and 19 for each layer.
TEST(Metrics, StayWithinTheSeriesBudget) {
  FakeClock clock;
  Metrics metrics(clock);
  Exercise(&metrics, JobThatRuns("j1", 4));
  int of_job = 0;
  std::map<std::string, int> of_rank;
  std::map<std::string, int> of_layer;
  const std::regex rank("rank=\"(\\d+)\"");
  const std::regex layer("layer=\"(\\d+)\"");
  for (const auto line : absl::StrSplit(metrics.Text(), '\n')) {
    const std::string text(line);
    std::smatch match;
    if (text.find("job_id=") == std::string::npos) continue;
    if (std::regex_search(text, match, rank)) {
      ++of_rank[match[1]];
    } else if (std::regex_search(text, match, layer)) {
      ++of_layer[match[1]];
    } else {
      ++of_job;
    }
  }
  EXPECT_LE(of_job, 61);
  EXPECT_GT(of_job, 30);
  for (const auto& [name, count] : of_rank) EXPECT_LE(count, 12) << "rank " << name;
  for (const auto& [name, count] : of_layer) EXPECT_LE(count, 19) << "layer " << name;
  EXPECT_EQ(of_rank.size(), 4u);
}

TEST(Metrics, LayersHaveNoSeriesWhereTheConfigurationSaysSo) {
  FakeClock clock;
  Metrics metrics(clock, /*layers=*/false);
  Exercise(&metrics, JobThatRuns("j1", 4));
  EXPECT_THAT(metrics.Text(), HasSubstr("nsa_job_step{job_id=\"j1\"}"));
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("layer=\"")));
}

TEST(Metrics, ShowTheSizeOfTheStoreAndOfItsDisk) {
  FakeClock clock;
  Metrics metrics(clock);
  metrics.ObserveStore(
      {.bytes = 1'000, .free_bytes = 100, .disk_bytes = 90'000, .disk_free_bytes = 500});
  EXPECT_THAT(metrics.Text(), AllOf(HasSubstr("nsa_store_bytes{kind=\"total\"} 1000"),
                                    HasSubstr("nsa_store_bytes{kind=\"free\"} 100"),
                                    HasSubstr("nsa_state_disk_bytes{kind=\"total\"} 90000"),
                                    HasSubstr("nsa_state_disk_bytes{kind=\"free\"} 500")));
}

TEST(Metrics, ShowWhenTheNewestBackupWasMade) {
  FakeClock clock;
  Metrics metrics(clock);
  metrics.ObserveBackup(absl::UnixEpoch());
  EXPECT_THAT(metrics.Text(), HasSubstr("nsa_last_backup_timestamp_seconds 0\n"));
  metrics.ObserveBackup(absl::FromUnixSeconds(1'790'000'000));
  EXPECT_THAT(metrics.Text(), HasSubstr("nsa_last_backup_timestamp_seconds 1790000000\n"));
}

TEST(MetricsTable, NamesFollowTheConventions) {
  const std::set<std::string> units = {"seconds", "bytes", "ratio", "total", "info"};
  std::set<std::string> names;
  for (const FamilySpec& spec : kFamilies) {
    const std::string name = spec.name;
    EXPECT_TRUE(names.insert(name).second) << name << " is there twice";
    EXPECT_EQ(spec.kind == kHistogram, !spec.buckets.empty()) << name;
    EXPECT_TRUE(std::regex_match(name, std::regex("nsa_[a-z][a-z0-9_]*[a-z0-9]"))) << name;
    EXPECT_EQ(spec.kind == kCounter, name.ends_with("_total")) << name;
    if (spec.kind == kHistogram) {
      EXPECT_TRUE(name.ends_with("_seconds") || name.ends_with("_bytes")) << name;
    }
    for (const char* unit : {"milliseconds", "_ms", "_mb", "_gib", "percent", "minutes"}) {
      EXPECT_EQ(name.find(unit), std::string::npos) << name;
    }
    const std::vector<std::string> labels = absl::StrSplit(spec.labels, ' ', absl::SkipEmpty());
    for (const std::string& label : labels) {
      EXPECT_NE(label, "job") << name << ": clashes with Prometheus's own";
      EXPECT_NE(label, "instance") << name;
    }
    EXPECT_GT(std::string(spec.help).size(), 10u) << name;
  }
}

TEST(Metrics, PromtoolFindsNothingToSay) {
  if (std::system("command -v promtool >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "promtool is not installed (package prometheus)";
  }
  TempDir folder;
  FakeClock clock;
  Metrics metrics(clock);
  Exercise(&metrics, JobThatRuns("j1", 2));
  std::ofstream(folder / "metrics.txt") << metrics.Text();
  const std::string command =
      absl::StrCat("promtool check metrics < ", (folder / "metrics.txt").string(), " > ",
                   (folder / "out.txt").string(), " 2>&1");
  const int code = std::system(command.c_str());
  std::stringstream said;
  said << std::ifstream(folder / "out.txt").rdbuf();
  EXPECT_EQ(code, 0) << said.str();
  EXPECT_EQ(said.str(), "");
}

// Otherwise increase() would not see the first failure of a notice.
TEST(Metrics, OfANoticeBeginAtZeroAndShowHowLongTheOldestEventHasWaited) {
  FakeClock clock;
  Metrics metrics(clock);
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("nsa_notice_events_total{")));
  metrics.AddNotice("ops");
  EXPECT_THAT(metrics.Text(),
              AllOf(HasSubstr("nsa_notice_events_total{notice=\"ops\",result=\"refused\"} 0\n"),
                    HasSubstr("nsa_notice_events_total{notice=\"ops\",result=\"given_up\"} 0\n"),
                    HasSubstr("nsa_notice_failed_attempts_total{notice=\"ops\"} 0\n"),
                    HasSubstr("nsa_notice_oldest_waiting_seconds{notice=\"ops\"} 0\n")));
  metrics.ObserveNotice("ops", "delivered", 3);
  metrics.ObserveNoticeFailure("ops");
  const int64_t happened = absl::ToUnixNanos(clock.Wall());
  clock.Advance(absl::Seconds(90));
  metrics.ObserveNoticeWaiting("ops", happened);
  EXPECT_THAT(metrics.Text(),
              AllOf(HasSubstr("nsa_notice_events_total{notice=\"ops\",result=\"delivered\"} 3\n"),
                    HasSubstr("nsa_notice_failed_attempts_total{notice=\"ops\"} 1\n"),
                    HasSubstr("nsa_notice_oldest_waiting_seconds{notice=\"ops\"} 90\n")));
  clock.JumpWall(-absl::Hours(1));
  metrics.ObserveNoticeWaiting("ops", happened);
  EXPECT_THAT(metrics.Text(), HasSubstr("nsa_notice_oldest_waiting_seconds{notice=\"ops\"} 0\n"));
}

}  // namespace
}  // namespace nsa::server
