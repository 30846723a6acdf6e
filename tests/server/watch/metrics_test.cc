#include "server/watch/metrics.h"

#include <unistd.h>

#include <fstream>
#include <memory>
#include <regex>
#include <set>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/estimate/estimate.h"
#include "common/run/process.h"
#include "server/watch/metrics_http.h"
#include "tests/server/tiny_job.h"
#include "tests/testing/fakes/fake_clock.h"
#include "tests/testing/http_get.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

v1::StoredJob RunningJob(const std::string& id, int ranks) {
  v1::StoredJob job;
  job.mutable_job()->set_id(id);
  job.mutable_job()->set_name("demo");
  job.mutable_job()->set_state(v1::Job::STATE_RUNNING);
  *job.mutable_job()->mutable_spec() = TinyJob("demo", "/nowhere", ranks);
  return job;
}

v1::WorkerRecord Step(int64_t step, int layers = 2) {
  v1::WorkerRecord record;
  record.set_unix_nanos(1'500'000'000);
  v1::StepRecord* body = record.mutable_step();
  body->set_step(step);
  body->set_loss(3.5);
  body->set_tokens(256);
  body->mutable_times()->set_step_seconds(0.2);
  body->mutable_times()->set_forward_seconds(0.05);
  (*body->mutable_fallbacks())["cuda_graph"] = step;
  for (int i = 0; i < layers; ++i) {
    v1::LayerStats* layer = body->add_layers();
    layer->set_layer(i);
    layer->mutable_gate()->set_entropy_mean(1.0);
    for (const double share : {0.2, 0.3, 0.5}) layer->mutable_gate()->add_branch_share(share);
    if (step == 1) {
      layer->mutable_audit()->set_selected_mass(0.75);
      layer->mutable_audit()->set_window_mass(0.25);
    }
    for (const int64_t keys : {10, 20, 30}) {
      layer->add_keys_read(keys);
      layer->add_keys_expected(keys);
    }
  }
  return record;
}

v1::WorkerRecord Checkpoint(int64_t step, const std::string& error = "") {
  v1::WorkerRecord record;
  record.mutable_checkpoint()->set_step(step);
  record.mutable_checkpoint()->set_bytes(1'000);
  record.mutable_checkpoint()->set_write_seconds(2);
  record.mutable_checkpoint()->set_error(error);
  return record;
}

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
  v1::StoredJob job = RunningJob("j1", 2);
  job.mutable_job()->mutable_progress()->set_productive_seconds(150);
  job.mutable_job()->set_start_unix_nanos(absl::ToUnixNanos(clock.Wall() - absl::Seconds(200)));
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

// What a coordinator that has just started shows for a job that it finds in its store.
TEST(Metrics, AJobThatRunsAlreadyHasItsStateStepAndCheckpointAtOnce) {
  FakeClock clock;
  Metrics metrics(clock);
  v1::StoredJob job = RunningJob("j1", 1);
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
  v1::StoredJob job = RunningJob("j1", 1);
  job.mutable_job()->set_state(v1::Job::STATE_QUEUED);
  metrics.ObserveFleet({}, {std::make_shared<const v1::StoredJob>(job)}, {});
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("job_id=\"j1\"")));
}

// The alert NsaJobFailed reads nsa_job_state. The series are removed after the grace like those of
// any job.
TEST(Metrics, AJobThatFailsBeforeItsFirstStartIsSeen) {
  FakeClock clock;
  Metrics metrics(clock);
  v1::StoredJob job = RunningJob("j1", 1);
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
  v1::StoredJob job = RunningJob("j1", 1);
  metrics.ObserveFleet({}, {std::make_shared<const v1::StoredJob>(job)}, {});
  EXPECT_THAT(metrics.Text(), HasSubstr("nsa_job_restarts_total{job_id=\"j1\"} 0\n"));
  job.mutable_job()->set_state(v1::Job::STATE_RESTARTING);
  for (const char* reason : {"RANK_KILLED", "HANG"}) {
    job.mutable_job()->set_reason(reason);
    metrics.ObserveMove(v1::Job::STATE_RUNNING, job);
  }
  EXPECT_THAT(metrics.Text(), HasSubstr("nsa_job_restarts_total{job_id=\"j1\"} 2\n"));
}

TEST(Metrics, QueuedJobsAreCountedByTheKindOfSlotTheyWaitFor) {
  FakeClock clock;
  Metrics metrics(clock);
  std::vector<NodeView> nodes(1);
  nodes[0].state = RankView::Node::kReady;
  nodes[0].info.set_name("vm");
  nodes[0].info.set_cpu_slots(14);
  std::vector<JobPtr> active;
  for (const v1::Device device : {v1::DEVICE_CPU, v1::DEVICE_CUDA, v1::DEVICE_AUTO}) {
    v1::StoredJob job = RunningJob(absl::StrCat("j", active.size()), 1);
    job.mutable_job()->set_state(v1::Job::STATE_QUEUED);
    job.mutable_job()->mutable_spec()->mutable_runtime()->set_device(device);
    active.push_back(std::make_shared<const v1::StoredJob>(job));
  }
  active.push_back(std::make_shared<const v1::StoredJob>(RunningJob("running", 1)));
  const auto queued = [&](int cpu, int gpu) {
    return AllOf(HasSubstr(absl::StrCat("nsa_queued_jobs{kind=\"cpu\"} ", cpu, "\n")),
                 HasSubstr(absl::StrCat("nsa_queued_jobs{kind=\"gpu\"} ", gpu, "\n")));
  };
  metrics.ObserveFleet(nodes, active, {});
  EXPECT_THAT(metrics.Text(), queued(2, 1)) << "what leaves its device open runs on the CPU";
  nodes[0].info.set_cuda_worker(true);
  nodes[0].info.add_gpus()->set_uuid("GPU-a");
  metrics.ObserveFleet(nodes, active, {});
  EXPECT_THAT(metrics.Text(), queued(1, 2));
  metrics.ObserveFleet(nodes, {}, {});
  EXPECT_THAT(metrics.Text(), queued(0, 0));
}

TEST(Metrics, AFallbackCounterThatStartsAgainIsNotCountedTwice) {
  FakeClock clock;
  Metrics metrics(clock);
  const v1::StoredJob job = RunningJob("j1", 1);
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

TEST(Metrics, NameTheSlowRank) {
  FakeClock clock;
  Metrics metrics(clock);
  const v1::StoredJob job = RunningJob("j1", 2);
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
  v1::StoredJob job = RunningJob("j1", 2);
  const auto running = std::make_shared<v1::StoredJob>(RunningJob("j2", 1));
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
  v1::StoredJob job = RunningJob("j1", 2);
  Exercise(&metrics, job);
  Exercise(&metrics, RunningJob("j2", 1));
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
  const auto running = std::make_shared<v1::StoredJob>(RunningJob("j2", 1));
  Exercise(&metrics, RunningJob("j1", 1));
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
  v1::StoredJob job = RunningJob("j1", 1);
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

TEST(Metrics, ShowTheMemoryOfEveryGpuAndWhatAJobMakesOfItsOwn) {
  FakeClock clock;
  Metrics metrics(clock);
  v1::StoredJob job = RunningJob("j1", 2);
  std::vector<NodeView> nodes(1);
  nodes[0].state = RankView::Node::kReady;
  nodes[0].info.set_name("vm");
  for (const char* uuid : {"GPU-a", "GPU-b", "GPU-c"}) {
    v1::GpuInfo* gpu = nodes[0].info.add_gpus();
    gpu->set_uuid(uuid);
    gpu->set_name("NVIDIA H200");
    gpu->set_memory_bytes(1'000);
    gpu->set_free_bytes(400);
  }
  for (const char* uuid : {"GPU-a", "GPU-c"}) {
    job.add_placements()->set_cuda_device(uuid);
  }
  metrics.ObserveFleet(nodes, {std::make_shared<const v1::StoredJob>(job)}, {});
  job.mutable_job()->mutable_progress()->set_tokens_per_second(1e6);
  metrics.ObserveRecords(job.job(), 0, {Step(1)});
  const std::string text = metrics.Text();
  for (const char* kind :
       {"total\",name=\"NVIDIA H200\"} 1000\n", "used\",name=\"NVIDIA H200\"} 600\n"}) {
    EXPECT_THAT(
        text, HasSubstr(absl::StrCat("nsa_gpu_memory_bytes{agent=\"vm\",gpu=\"2\",kind=\"", kind)));
  }
  const std::string before = "\nnsa_job_mfu_ratio{job_id=\"j1\"} ";
  ASSERT_THAT(text, HasSubstr(before));
  double mfu = 0;
  ASSERT_TRUE(absl::SimpleAtod(
      std::string(*absl::StrSplit(text.substr(text.find(before) + before.size()), '\n').begin()),
      &mfu));
  EXPECT_NEAR(mfu, 1e6 * FlopsPerToken(job.job().spec()) / (2 * 989e12), 1e-9);
}

TEST(Metrics, DropTheSeriesOfMachinesThatAreGone) {
  FakeClock clock;
  Metrics metrics(clock);
  std::vector<NodeView> nodes(2);
  for (const char* name : {"a", "b"}) {
    NodeView& node = nodes[name[0] - 'a'];
    node.state = RankView::Node::kReady;
    node.info.set_name(name);
    node.info.add_gpus()->set_memory_bytes(1'000);
  }
  const auto up = [](const char* agent, int value) {
    return HasSubstr(absl::StrFormat("nsa_agent_up{agent=\"%s\"} %d\n", agent, value));
  };
  const auto gpu = [](const char* agent) {
    return HasSubstr(absl::StrFormat("nsa_gpu_memory_bytes{agent=\"%s\"", agent));
  };
  metrics.ObserveFleet(nodes, {}, {});
  EXPECT_THAT(metrics.Text(), AllOf(up("a", 1), up("b", 1), gpu("a"), gpu("b")));
  nodes[1].state = RankView::Node::kLost;
  metrics.ObserveFleet(nodes, {}, {});
  EXPECT_THAT(metrics.Text(), AllOf(up("a", 1), up("b", 0), gpu("a"), Not(gpu("b"))));
  nodes.pop_back();
  metrics.ObserveFleet(nodes, {}, {});
  EXPECT_THAT(metrics.Text(), AllOf(up("a", 1), gpu("a"), Not(HasSubstr("agent=\"b\""))));
}

TEST(Metrics, ShowWhichGpusAJobHasNow) {
  FakeClock clock;
  Metrics metrics(clock);
  v1::StoredJob job = RunningJob("j1", 2);
  const auto place = [&](std::vector<const char*> uuids) {
    job.clear_placements();
    for (const char* uuid : uuids) {
      v1::RankPlacement* placement = job.add_placements();
      placement->set_node("vm");
      placement->set_cuda_device(uuid);
    }
    metrics.ObserveFleet({}, {std::make_shared<const v1::StoredJob>(job)}, {});
  };
  const auto info = [](int rank, const char* uuid, int value) {
    return HasSubstr(absl::StrFormat(
        "\nnsa_job_gpu_info{agent=\"vm\",job_id=\"j1\",rank=\"%d\",uuid=\"%s\"} %d\n", rank, uuid,
        value));
  };
  place({"GPU-a", "GPU-b"});
  EXPECT_THAT(metrics.Text(), AllOf(info(0, "GPU-a", 1), info(1, "GPU-b", 1)));
  place({});
  EXPECT_THAT(metrics.Text(), AllOf(info(0, "GPU-a", 0), info(1, "GPU-b", 0)));
  place({"GPU-a", "GPU-c"});  // after a restart the job has another GPU
  EXPECT_THAT(metrics.Text(), AllOf(info(0, "GPU-a", 1), info(1, "GPU-b", 0), info(1, "GPU-c", 1)));
  job.mutable_job()->set_state(v1::Job::STATE_SUCCEEDED);
  metrics.ObserveMove(v1::Job::STATE_RUNNING, job);
  EXPECT_THAT(metrics.Text(), AllOf(info(0, "GPU-a", 0), info(1, "GPU-c", 0)));
}

TEST(Metrics, AJobOnTheCpuHasNoModelFlopUtilisation) {
  FakeClock clock;
  Metrics metrics(clock);
  v1::StoredJob job = RunningJob("j1", 1);
  job.add_placements()->set_node("vm");
  metrics.ObserveFleet({}, {std::make_shared<const v1::StoredJob>(job)}, {});
  metrics.ObserveRecords(job.job(), 0, {Step(1)});
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("nsa_job_mfu_ratio{")));
}

// A running job has at most 60 series, plus 12 for each rank and 18 for each layer.
TEST(Metrics, StayWithinTheSeriesBudget) {
  FakeClock clock;
  Metrics metrics(clock);
  Exercise(&metrics, RunningJob("j1", 4));
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
  EXPECT_LE(of_job, 60);
  EXPECT_GT(of_job, 30);
  for (const auto& [name, count] : of_rank) EXPECT_LE(count, 12) << "rank " << name;
  for (const auto& [name, count] : of_layer) EXPECT_LE(count, 19) << "layer " << name;
  EXPECT_EQ(of_rank.size(), 4u);
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
  Exercise(&metrics, RunningJob("j1", 2));
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

TEST(MetricsHttp, RefusesAPortThatIsTakenAndNamesIt) {
  const auto text = [] { return std::string("x 1\n"); };
  const auto healthy = [] { return true; };
  const auto first = MetricsHttp::Start("127.0.0.1:0", text, healthy);
  ASSERT_OK(first.status());
  EXPECT_THAT(MetricsHttp::Start((*first)->address(), text, healthy).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr((*first)->address())));
}

class MetricsHttpTest : public ::testing::Test {
 protected:
  MetricsHttpTest() {
    auto started = MetricsHttp::Start(
        "127.0.0.1:0", [] { return std::string("x 1\n"); }, [] { return true; });
    EXPECT_OK(started.status());
    if (started.ok()) http_ = *std::move(started);
  }

  std::string Port() const { return http_->address().substr(http_->address().rfind(':')); }
  std::string Ask(const std::string& path, const std::string& host) const {
    return HttpRead(HttpSend(http_->address(),
                             absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: ", host, "\r\n\r\n")));
  }

  std::unique_ptr<MetricsHttp> http_;
};

TEST_F(MetricsHttpTest, AnswersToItsOwnNamesAndToNoOther) {
  char machine[256] = {};
  ASSERT_EQ(gethostname(machine, sizeof(machine) - 1), 0);
  for (const std::string host : {"127.0.0.1", "localhost", "LocalHost", "[::1]", "10.1.2.3",
                                 static_cast<const char*>(machine)}) {
    for (const std::string& port : {std::string(), Port()}) {
      EXPECT_THAT(Ask("/metrics", host + port), AllOf(HasSubstr("200 OK"), HasSubstr("x 1\n")))
          << host << port;
    }
  }
  // A page of another site whose name was made to point to this machine.
  for (const std::string host : {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example",
                                 "", "[", "1", "0x7f.1"}) {
    for (const char* path : {"/metrics", "/healthz", "/"}) {
      const std::string answer = Ask(path, host + Port());
      EXPECT_THAT(answer, AllOf(HasSubstr(" 421 "), HasSubstr("localhost"), HasSubstr(machine)))
          << host << path;
      EXPECT_THAT(answer, Not(HasSubstr("x 1"))) << host << path;
    }
  }
}

TEST_F(MetricsHttpTest, FortyHalfRequestsDelayNobodyAndAreClosedInTime) {
  std::vector<Fd> half;
  const absl::Time begin = absl::Now();
  for (int i = 0; i < 40; ++i) {
    half.push_back(HttpSend(http_->address(), "GET /metrics HTTP/1.1\r\nHost: loc"));
    ASSERT_TRUE(half.back().valid());
  }
  for (const char* path : {"/healthz", "/metrics"}) {
    const absl::Time asked = absl::Now();
    EXPECT_THAT(Ask(path, "localhost"), HasSubstr("200 OK"));
    EXPECT_LT(absl::Now() - asked, absl::Seconds(2));
  }
  for (const Fd& fd : half) HttpRead(fd);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(6));
}

}  // namespace
}  // namespace nsa::server
