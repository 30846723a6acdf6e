// Metrics of machines, GPUs and the queue.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/estimate/estimate.h"
#include "gmock/gmock.h"
#include "server/watch/metrics.h"
#include "tests/server/watch/records.h"
#include "tests/testing/fakes/fake_clock.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Metrics, QueuedJobsAreCountedByTheKindOfSlotTheyWaitFor) {
  FakeClock clock;
  Metrics metrics(clock);
  std::vector<NodeView> nodes(1);
  nodes[0].state = RankView::Node::kReady;
  nodes[0].info.set_name("vm");
  nodes[0].info.set_cpu_slots(14);
  std::vector<JobPtr> active;
  for (const v1::Device device : {v1::DEVICE_CPU, v1::DEVICE_CUDA, v1::DEVICE_AUTO}) {
    v1::StoredJob job = JobThatRuns(absl::StrCat("j", active.size()), 1);
    job.mutable_job()->set_state(v1::Job::STATE_QUEUED);
    job.mutable_job()->mutable_spec()->mutable_runtime()->set_device(device);
    active.push_back(std::make_shared<const v1::StoredJob>(job));
  }
  active.push_back(std::make_shared<const v1::StoredJob>(JobThatRuns("running", 1)));
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
  v1::StoredJob own = *active.front();
  own.mutable_job()->mutable_spec()->mutable_resources()->set_provisioner("slurm");
  metrics.ObserveFleet(nodes, {std::make_shared<const v1::StoredJob>(own)}, {});
  EXPECT_THAT(metrics.Text(), queued(0, 0)) << "it waits for machines of its own";
  v1::StoredJob held = *active.front();
  held.mutable_job()->set_reason("WAITING_FOR_QUOTA");
  metrics.ObserveFleet(nodes, {std::make_shared<const v1::StoredJob>(held)}, {});
  EXPECT_THAT(metrics.Text(), queued(0, 0)) << "a free slot does not help it";
  metrics.ObserveFleet(nodes, {}, {});
  EXPECT_THAT(metrics.Text(), queued(0, 0));
}

TEST(Metrics, TheOldestWaitIsThatOfTheJobThatHasQueuedLongest) {
  FakeClock clock;
  Metrics metrics(clock);
  const auto oldest = [](int cpu, int gpu) {
    return AllOf(
        HasSubstr(absl::StrCat("nsa_queue_oldest_wait_seconds{kind=\"cpu\"} ", cpu, "\n")),
        HasSubstr(absl::StrCat("nsa_queue_oldest_wait_seconds{kind=\"gpu\"} ", gpu, "\n")));
  };
  std::vector<JobPtr> active;
  for (const int64_t waited : {60, 600, 5}) {
    v1::StoredJob job = JobThatRuns(absl::StrCat("j", waited), 1);
    job.mutable_job()->set_state(v1::Job::STATE_QUEUED);
    job.set_queued_unix_nanos(absl::ToUnixNanos(clock.Wall() - absl::Seconds(waited)));
    active.push_back(std::make_shared<const v1::StoredJob>(job));
  }
  metrics.ObserveFleet({}, active, {});
  EXPECT_THAT(metrics.Text(), oldest(600, 0));
  metrics.ObserveFleet({}, {}, {});
  EXPECT_THAT(metrics.Text(), oldest(0, 0)) << "none waits";
}

TEST(Metrics, ShowTheMemoryOfEveryGpuAndWhatAJobMakesOfItsOwn) {
  FakeClock clock;
  Metrics metrics(clock);
  v1::StoredJob job = JobThatRuns("j1", 2);
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
  const auto clock_of = [](const char* agent, const char* value) {
    return HasSubstr(absl::StrCat("nsa_node_clock_offset_seconds{agent=\"", agent, "\"}", value));
  };
  nodes[0].clock_offset = absl::Seconds(-1.5);
  nodes[1].clock_offset = absl::Seconds(3);
  metrics.ObserveFleet(nodes, {}, {});
  EXPECT_THAT(metrics.Text(), AllOf(up("a", 1), up("b", 1), gpu("a"), gpu("b")));
  EXPECT_THAT(metrics.Text(), AllOf(clock_of("a", " -1.5\n"), clock_of("b", " 3\n")));
  nodes[0].clock_offset.reset();
  nodes[1].state = RankView::Node::kLost;
  metrics.ObserveFleet(nodes, {}, {});
  EXPECT_THAT(metrics.Text(), AllOf(up("a", 1), up("b", 0), gpu("a"), Not(gpu("b"))));
  EXPECT_THAT(metrics.Text(), AllOf(Not(clock_of("a", "")), Not(clock_of("b", ""))));
  nodes.pop_back();
  metrics.ObserveFleet(nodes, {}, {});
  EXPECT_THAT(metrics.Text(), AllOf(up("a", 1), gpu("a"), Not(HasSubstr("agent=\"b\""))));
}

TEST(Metrics, ShowWhichGpusAJobHasNow) {
  FakeClock clock;
  Metrics metrics(clock);
  v1::StoredJob job = JobThatRuns("j1", 2);
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

TEST(Metrics, ShowWithHowManyRanksAJobHasStarted) {
  FakeClock clock;
  Metrics metrics(clock);
  v1::StoredJob job = JobThatRuns("j1", 4);
  const auto place = [&](int ranks) {
    job.clear_placements();
    for (int rank = 0; rank < ranks; ++rank) job.add_placements()->set_node("vm");
    metrics.ObserveFleet({}, {std::make_shared<const v1::StoredJob>(job)}, {});
  };
  const auto info = [](int ranks, int value) {
    return ContainsRegex(
        absl::StrFormat("nsa_job_info[{][^}]*world_size=\"%d\"[}] %d\n", ranks, value));
  };
  place(4);
  EXPECT_THAT(metrics.Text(), info(4, 1));
  place(2);
  EXPECT_THAT(metrics.Text(), AllOf(info(2, 1), info(4, 0)));
  place(0);  // between two starts
  EXPECT_THAT(metrics.Text(), AllOf(info(2, 1), info(4, 0)));
  place(4);
  EXPECT_THAT(metrics.Text(), AllOf(info(2, 0), info(4, 1)));
}

TEST(Metrics, AJobOnTheCpuHasNoModelFlopUtilisation) {
  FakeClock clock;
  Metrics metrics(clock);
  v1::StoredJob job = JobThatRuns("j1", 1);
  job.add_placements()->set_node("vm");
  metrics.ObserveFleet({}, {std::make_shared<const v1::StoredJob>(job)}, {});
  metrics.ObserveRecords(job.job(), 0, {Step(1)});
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("nsa_job_mfu_ratio{")));
}

}  // namespace
}  // namespace nsa::server
