// Measures how much CPU time one decision about the queue takes: 10,000 queued jobs, 1,000 machines
// of eight GPUs that are all in use, jobs that end and arrive, with and without preemption and fair
// shares.
//   scheduler_bench --benchmark_counters_tabular=true
#include <time.h>

#include <algorithm>
#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "server/decide/scheduler.h"

namespace nsa::server {
namespace {

constexpr int kMachines = 1'000;
constexpr int kGpus = 8;
constexpr size_t kQueued = 10'000;
constexpr int kTeams = 20;
constexpr int kRounds = 500;
constexpr int kEndEachRound = 10;

// Of this thread, so that other programs on the machine do not count.
double CpuSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class Fleet {
 public:
  Fleet(bool preempt, bool shares) : preempt_(preempt), shares_(shares) {
    for (int i = 0; i < kMachines; ++i) {
      NodeSlots node{
          .name = absl::StrCat("gpu-", i), .gpus_total = kGpus, .has_rank_address = true};
      for (int gpu = 0; gpu < kGpus; ++gpu) node.gpus_free.push_back(absl::StrCat(i, "/", gpu));
      machines_[node.name] = std::move(node);
    }
    while (queue_.size() < kQueued) Arrive();
    while (Round() > 0) {
    }
  }

  // Some jobs end, as many arrive. Returns the seconds that the decision took.
  double Step() {
    for (int i = 0; i < kEndEachRound && !running_.empty(); ++i) {
      auto job = running_.begin();
      std::advance(job, random_() % running_.size());
      Return(job->first);
    }
    while (queue_.size() < kQueued) Arrive();
    Round();
    return seconds_;
  }
  int64_t preempted() const { return preempted_; }

 private:
  struct Running {
    QueuedJob job;
    int64_t since = 0;
    std::vector<v1::RankPlacement> ranks;
  };

  void Arrive() {
    static constexpr int kRanks[] = {1, 1, 2, 4, 8, 16};
    const int ranks = kRanks[random_() % std::size(kRanks)];
    queue_.push_back({.id = absl::StrCat("j", ++jobs_),
                      .priority = static_cast<int32_t>(random_() % 1'000 == 0 ? 10 : random_() % 3),
                      .order = jobs_,
                      .ranks = ranks,
                      .nodes = ranks > kGpus ? 2 : 1,
                      .cuda = true,
                      .name = absl::StrCat("job-", jobs_),
                      .share = absl::StrCat("team-", random_() % kTeams),
                      .may_preempt = preempt_});
  }

  // Gives the slots of a running job back and puts it into the queue if `again`.
  void Return(const std::string& id, bool again = false) {
    const Running job = running_.at(id);
    for (const v1::RankPlacement& rank : job.ranks) {
      NodeSlots& node = machines_.at(rank.node());
      std::erase(node.gpus_held, rank.cuda_device());
      node.gpus_free.push_back(rank.cuda_device());
    }
    running_.erase(id);
    if (again) queue_.push_back(job.job);
  }

  QueueRules Rules() const {
    QueueRules rules;
    if (shares_) rules.shares.emplace();
    for (const auto& [id, job] : running_) {
      if (shares_) (*rules.shares)[{true, job.job.share}] += job.job.ranks;
      if (!preempt_) continue;
      RunningJob& one = rules.running.emplace_back(RunningJob{
          .id = id, .priority = job.job.priority, .since = job.since, .may_give_way = true});
      for (const auto& rank : job.ranks) one.slots.push_back({rank.node(), rank.cuda_device()});
    }
    return rules;
  }

  // One decision, carried out at once. Returns the number of jobs that were placed.
  size_t Round() {
    ++round_;
    std::vector<NodeSlots> nodes;
    for (const auto& [name, node] : machines_) nodes.push_back(node);
    const QueueRules rules = Rules();
    std::vector<QueuedJob> queue = queue_;
    const double began = CpuSeconds();
    const QueuePlan plan = Schedule(std::move(queue), std::move(nodes), rules);
    seconds_ = CpuSeconds() - began;
    std::map<std::string, QueuedJob> placed;
    for (const Placement& placement : plan.placements) placed[placement.job_id];
    for (const QueuedJob& job : queue_) {
      if (const auto found = placed.find(job.id); found != placed.end()) found->second = job;
    }
    std::erase_if(queue_, [&](const QueuedJob& job) { return placed.contains(job.id); });
    for (const Placement& placement : plan.placements) {
      for (const v1::RankPlacement& rank : placement.ranks) {
        NodeSlots& node = machines_.at(rank.node());
        std::erase(node.gpus_free, rank.cuda_device());
        node.gpus_held.push_back(rank.cuda_device());
      }
      running_[placement.job_id] = {placed.at(placement.job_id), round_, placement.ranks};
    }
    for (const Preemption& one : plan.preemptions) Return(one.victim, true);
    preempted_ += static_cast<int64_t>(plan.preemptions.size());
    return plan.placements.size();
  }

  const bool preempt_;
  const bool shares_;
  std::mt19937_64 random_{1};
  std::map<std::string, NodeSlots> machines_;
  std::vector<QueuedJob> queue_;
  std::map<std::string, Running> running_;
  int64_t jobs_ = 0;
  int64_t round_ = 0;
  int64_t preempted_ = 0;
  double seconds_ = 0;
};

void Decide(benchmark::State& state) {
  std::vector<double> seconds;
  int64_t preempted = 0;
  for (auto _ : state) {
    Fleet fleet(state.range(0) != 0, state.range(1) != 0);
    for (int i = 0; i < kRounds; ++i) seconds.push_back(fleet.Step());
    preempted += fleet.preempted();
  }
  std::ranges::sort(seconds);
  state.counters["p50_ms"] = 1e3 * seconds[seconds.size() / 2];
  state.counters["p99_ms"] = 1e3 * seconds[seconds.size() * 99 / 100];
  state.counters["max_ms"] = 1e3 * seconds.back();
  state.counters["preempted"] = static_cast<double>(preempted);
}
BENCHMARK(Decide)
    ->ArgNames({"preempt", "shares"})
    ->ArgsProduct({{0, 1}, {0, 1}})
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace nsa::server

BENCHMARK_MAIN();
