#include "server/web/views.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <future>
#include <limits>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/estimate/estimate.h"
#include "common/estimate/state_title.h"
#include "common/record/json_number.h"
#include "server/act/checkpoints.h"
#include "server/decide/lifecycle.h"
#include "server/decide/problem/problems.h"
#include "server/watch/nodes_view.h"
#include "server/web/curve_text.h"
#include "server/web/view_cache.h"

namespace nsa::server {
namespace {

constexpr int64_t kWidestBucket = int64_t{1} << 40;
constexpr int kEventsOfFleet = 60;
constexpr int kEventsRead = 5'000;
constexpr size_t kEventsOfJob = 500;
constexpr size_t kSparkPoints = 48;
constexpr absl::Duration kSparkAge = absl::Seconds(10);
constexpr absl::Duration kSparkTime = absl::Milliseconds(25);
constexpr size_t kShownCheckpoints = 1'000;

int64_t Now(const Web::Parts& parts) { return absl::ToUnixNanos(parts.clock.Wall()); }

double PeakFlopsOf(const Web::Parts& parts, const v1::StoredJob& stored) {
  double peak = 0;
  for (const v1::GpuInfo& gpu : parts.fleet.GpusOf(stored)) peak += PeakFlops(gpu.name());
  return peak;
}

absl::StatusOr<std::vector<v1::CurveBucket>> BucketsFor(const Web::Parts& parts,
                                                        const std::string& job, CurveKind kind,
                                                        const HttpRequest& request) {
  NSA_ASSIGN_OR_RETURN(const int64_t from, NumberIn(request, "from", 0, INT64_MAX));
  NSA_ASSIGN_OR_RETURN(const int64_t points, NumberIn(request, "points", 0, kStepBuckets));
  NSA_ASSIGN_OR_RETURN(const int64_t least, NumberIn(request, "width", 1, kWidestBucket));
  NSA_ASSIGN_OR_RETURN(auto buckets, parts.store.Buckets(job, kind, from));
  return Fit(std::move(buckets), static_cast<size_t>(points), least);
}

// The job whose checkpoint this one was forked from, and the checkpoint's step; null when it is not
// a fork, or its original was deleted.
Json ParentJson(const JobStore& store, const v1::Job& job) {
  constexpr absl::string_view kPrefix = "step-";
  // OUT_DIR/checkpoints/step-00001500
  const std::filesystem::path checkpoint = job.spec().restart().resume();
  const std::string name = checkpoint.filename();
  int64_t step = 0;
  if (!absl::StartsWith(name, kPrefix) || !absl::SimpleAtoi(name.substr(kPrefix.size()), &step)) {
    return {};
  }
  const std::string out_dir = checkpoint.parent_path().parent_path();
  const JobStore::Jobs all = store.All(std::numeric_limits<size_t>::max());
  for (const auto* jobs : {&all.active, &all.ended}) {
    for (const JobPtr& other : *jobs) {
      const v1::Job& found = other->job();
      if (found.id() == job.id() || found.spec().train().out_dir() != out_dir) continue;
      return Json{{"id", found.id()}, {"name", found.name()}, {"step", step}};
    }
  }
  return {};
}

// When the job will have ended, in whole minutes, so that it seldom changes.
Json EndOf(const Web::Parts& parts, const v1::Job& job) {
  const absl::Time end = parts.clock.Wall() + absl::Seconds(job.progress().eta_seconds());
  return absl::ToUnixSeconds(end) / 60 * 60'000;
}

}  // namespace

Json SparkCache::Of(const v1::Job& job, absl::Duration* left) {
  // Nothing to read: a thousand jobs in the queue would take the page a dozen requests.
  if (job.progress().step() == 0) return Json{{"spark", Json::array()}, {"best_val", nullptr}};
  const bool may_read = *left > absl::ZeroDuration();
  const bool ended = IsTerminal(job.state());
  const absl::Duration now = clock_.Monotonic();
  {
    MutexLock lock(&mutex_);
    const auto known = sparks_.find(job.id());
    if (known != sparks_.end() && (!may_read || known->second.step == job.progress().step() ||
                                   (!ended && now - known->second.made < kSparkAge))) {
      return known->second.row;
    }
  }
  if (!may_read) return Json{{"spark", nullptr}};
  const auto buckets = store_.Buckets(job.id(), CurveKind::kSteps, 0);
  Json points = Json::array();
  bool partial = false;
  if (buckets.ok()) {
    for (const v1::CurveBucket& bucket : Widen(*buckets, WidthFor(*buckets, kSparkPoints))) {
      const bool measured = bucket.count_size() > 0 && bucket.count(0) > 0;
      points.push_back(measured ? Json(std::round(bucket.mean(0) * 1e4) / 1e4) : Json());
      // A last point of few steps would lie off the means before it.
      partial = measured && 2 * bucket.count(0) < bucket.width();
    }
  }
  if (partial && points.size() > 2) points.erase(points.size() - 1);
  double best = std::numeric_limits<double>::infinity();
  if (const auto evals = store_.Marks(job.id(), CurveKind::kEval); evals.ok()) {
    for (const v1::WorkerRecord& record : *evals) {
      if (record.eval().loss() < best) best = record.eval().loss();
    }
  }
  Json row = {{"spark", std::move(points)}, {"best_val", record::JsonOrNull<Json>(best)}};
  *left -= clock_.Monotonic() - now;
  MutexLock lock(&mutex_);
  if (sparks_.size() >= kMostSparks) sparks_.clear();
  sparks_[job.id()] = {job.progress().step(), now, row};
  return row;
}

void SparkCache::Forget(const std::string& job_id) {
  MutexLock lock(&mutex_);
  sparks_.erase(job_id);
}

Json RowNow(const Web::Parts& parts, const JobPtr& stored) {
  return RowJson(*parts.views->Of(stored), Now(parts));
}

Json VerdictNow(const Web::Parts& parts, const FleetVerdict& verdict) {
  Json cards = Json::array();
  for (const JobPtr& stored : verdict.worst) {
    const std::shared_ptr<const v1::Job> view = parts.views->Of(stored);
    const v1::Job& job = *view;
    const v1::Problem* const worst = WorstProblem(job);
    if (worst == nullptr) continue;  // it is over since
    Json card = ProblemJson(*worst);
    card["id"] = job.id();
    card["name"] = job.name();
    card["state"] = StateName(job.state());
    card["step"] = job.progress().step();
    card["steps"] = job.progress().total_steps();
    card["more"] = std::ranges::count_if(job.problems(), [worst](const v1::Problem& problem) {
      return &problem != worst && !problem.muted() &&
             problem.level() > v1::JobHealth::LEVEL_HEALTHY;
    });
    cards.push_back(std::move(card));
  }
  Json next;
  if (verdict.next_end != nullptr) {
    const v1::Job& job = verdict.next_end->job();
    next = {{"id", job.id()}, {"name", job.name()}, {"ends", EndOf(parts, job)}};
  }
  return {{"words", VerdictWords(verdict)}, {"need", verdict.need},       {"fine", verdict.fine},
          {"running", verdict.running},     {"waiting", verdict.waiting}, {"muted", verdict.muted},
          {"cards", std::move(cards)},      {"next_end", std::move(next)}};
}

Json GroupsJson(const std::vector<JobGroup>& groups) {
  Json list = Json::array();
  for (const JobGroup& group : groups) {
    Json states = Json::object();
    for (const auto& [state, count] : group.states) states[StateName(state)] = count;
    Json best;
    if (group.best != nullptr) {
      best = {{"id", group.best->job().id()},
              {"val_loss", group.best->job().progress().val_loss()}};
    }
    list.push_back({{"kind", group.of_sweep ? "sweep" : "waiting"},
                    {"name", group.name},
                    {"ids", group.ids},
                    {"jobs", group.jobs},
                    {"need", group.need},
                    {"states", std::move(states)},
                    {"best", std::move(best)}});
  }
  return list;
}

Json CountsNow(const Web::Parts& parts) {
  Json counts = Json::object();
  for (const auto& [state, count] : parts.store.CountByState()) counts[StateName(state)] = count;
  return counts;
}

Json TitlesJson() {
  Json titles = Json::object();
  for (int state = 1; state < v1::Job::State_ARRAYSIZE; ++state) {
    titles[StateName(static_cast<v1::Job::State>(state))] =
        StateTitle(static_cast<v1::Job::State>(state));
  }
  return titles;
}

Json JobNow(const Web::Parts& parts, const JobPtr& stored) {
  return JobJson(*stored, *parts.views->Of(stored), PeakFlopsOf(parts, *stored), Now(parts));
}

Json NodesNow(const Web::Parts& parts) {
  Json nodes = Json::array();
  const std::vector<NodeView> machines = parts.fleet.Nodes();
  std::vector<JobPtr> active = parts.store.Active();
  std::erase_if(active, [](const JobPtr& job) { return job->placements().empty(); });
  std::map<std::string, std::string> names;
  for (const JobPtr& job : active) names[job->job().id()] = job->job().name();
  v1::ListNodesRequest request;
  size_t bytes = 0;  // beyond the limit, machines are shown without their GPUs
  do {
    absl::StatusOr<v1::ListNodesResponse> page =
        NodesView(machines, active, parts.nodes.All(), request);
    if (!page.ok()) break;
    for (v1::Node& node : *page->mutable_nodes()) {
      bytes += node.ByteSizeLong();
      if (bytes > limits::kPageBytes) {
        node.mutable_info()->clear_gpus();
        node.mutable_info()->clear_cuda_problem();
      }
      nodes.push_back(NodeJson(node, names));
    }
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  return nodes;
}

Json EventNow(const Web::Parts& parts, const v1::JobEvent& event) {
  Json json = EventJson(event);
  const auto job = parts.store.Find(event.job_id());
  json["name"] = job.ok() ? (*job)->job().name() : event.job_id();
  return json;
}

absl::StatusOr<Json> FleetView(const Web::Parts& parts, const HttpRequest& request,
                               SparkCache* sparks) {
  NSA_ASSIGN_OR_RETURN(const int64_t offset, NumberIn(request, "offset", 0, INT32_MAX));
  // Before the jobs are read, so that no later event is missed.
  NSA_ASSIGN_OR_RETURN(const int64_t cursor, parts.store.LastEvent());
  NSA_ASSIGN_OR_RETURN(const Selection wanted, Selection::Of(request));
  const Selected selected = Select(parts, wanted, static_cast<size_t>(offset));
  absl::Duration left = kSparkTime;  // to read curves; so at least one more with each request
  Json jobs = Json::array();
  for (const JobPtr& job : selected.jobs) {
    Json row = RowNow(parts, job);
    row.update(sparks->Of(job->job(), &left));
    jobs.push_back(std::move(row));
  }
  NSA_ASSIGN_OR_RETURN(
      const auto events,
      parts.store.Events("", std::max<int64_t>(cursor - kEventsOfFleet, 0), kEventsOfFleet));
  Json latest = Json::array();
  for (const v1::JobEvent& event : events) latest.push_back(EventNow(parts, event));
  const v1::GetVersionResponse version = parts.version();
  return Json{{"cursor", cursor},
              {"now", Now(parts) / 1'000'000},
              {"version", version.version()},
              {"revision", version.revision()},
              {"token_file", parts.token_file},
              {"jobs", std::move(jobs)},
              {"matching", selected.matching},
              {"look", selected.verdict.need},
              {"verdict", VerdictNow(parts, selected.verdict)},
              {"groups", GroupsJson(selected.groups)},
              {"counts", CountsNow(parts)},
              {"titles", TitlesJson()},
              {"nodes", NodesNow(parts)},
              {"events", std::move(latest)}};
}

absl::StatusOr<Json> JobView(const Web::Parts& parts, const std::string& job) {
  NSA_ASSIGN_OR_RETURN(const int64_t cursor, parts.store.LastEvent());
  NSA_ASSIGN_OR_RETURN(const JobPtr stored, parts.store.Find(job));
  Json json = JobNow(parts, stored);
  json["parent"] = ParentJson(parts.store, stored->job());
  json["cursor"] = cursor;
  json["now"] = Now(parts) / 1'000'000;
  json["token_file"] = parts.token_file;
  return json;
}

absl::StatusOr<std::string> CurvesView(const Web::Parts& parts, const std::string& job,
                                       const HttpRequest& request) {
  NSA_ASSIGN_OR_RETURN(const auto buckets, BucketsFor(parts, job, CurveKind::kSteps, request));
  NSA_ASSIGN_OR_RETURN(const auto evals, parts.store.Marks(job, CurveKind::kEval));
  NSA_ASSIGN_OR_RETURN(const auto starts, parts.store.Marks(job, CurveKind::kStart));
  NSA_ASSIGN_OR_RETURN(const auto checkpoints, parts.store.Marks(job, CurveKind::kCheckpoint));
  Json json;
  json["evals"] = EvalsJson(evals);
  json["val_sets"] = ValSetCurvesJson(evals);
  Json marks = Json::array();
  for (const v1::WorkerRecord& record : starts) {
    const v1::WorkerStarted& started = record.started();
    if (started.resumed_step() == 0) continue;
    marks.push_back({{"kind", "restart"},
                     {"step", started.resumed_step()},
                     {"time", record.unix_nanos() / 1'000'000},
                     {"text", absl::StrCat("continued from ", started.resumed_from())}});
  }
  for (const v1::WorkerRecord& record : checkpoints) {
    const v1::CheckpointRecord& saved = record.checkpoint();
    marks.push_back({{"kind", saved.error().empty() ? "checkpoint" : "failure"},
                     {"step", saved.step()},
                     {"time", record.unix_nanos() / 1'000'000},
                     {"text", saved.error().empty() ? "checkpoint" : saved.error()}});
  }
  json["marks"] = std::move(marks);
  // One object of both.
  std::string text = StepsText(buckets);
  text.back() = ',';
  text.append(Text(json), 1);
  return text;
}

absl::StatusOr<Json> LayersView(const Web::Parts& parts, const std::string& job,
                                const HttpRequest& request) {
  NSA_ASSIGN_OR_RETURN(const auto buckets, BucketsFor(parts, job, CurveKind::kLayers, request));
  return LayersJson(buckets);
}

absl::StatusOr<std::string> GpusView(const Web::Parts& parts, const std::string& job,
                                     const HttpRequest& request) {
  NSA_ASSIGN_OR_RETURN(const auto buckets, BucketsFor(parts, job, CurveKind::kGpus, request));
  return GpusText(buckets);
}

absl::StatusOr<Json> SamplesView(const Web::Parts& parts, const std::string& job,
                                 const HttpRequest& request) {
  NSA_ASSIGN_OR_RETURN(const int64_t step, NumberIn(request, "step", INT64_MAX, INT64_MAX));
  NSA_ASSIGN_OR_RETURN(const JobStore::Samples samples, parts.store.SamplesAt(job, step));
  return SamplesJson(samples);
}

absl::StatusOr<Json> EventsView(const Web::Parts& parts, const std::string& job) {
  NSA_ASSIGN_OR_RETURN(const JobPtr stored, parts.store.Find(job));
  std::vector<v1::JobEvent> events;
  int64_t after = 0;
  while (true) {
    NSA_ASSIGN_OR_RETURN(const auto more,
                         parts.store.Events(stored->job().id(), after, kEventsRead));
    if (more.empty()) break;
    after = more.back().sequence();
    events.insert(events.end(), more.begin(), more.end());
    if (events.size() > kEventsOfJob) {
      events.erase(events.begin(), events.end() - static_cast<std::ptrdiff_t>(kEventsOfJob));
    }
  }
  Json list = Json::array();
  for (const v1::JobEvent& event : events) list.push_back(EventJson(event));
  return Json{{"events", std::move(list)}};
}

absl::Status InFolder(const Web::Parts& parts, JobFolder folder,
                      std::function<absl::Status(const std::string& out_dir)> work) {
  constexpr std::chrono::seconds kPatience{5};
  const auto gone = std::make_shared<std::atomic<bool>>(false);  // nobody waits any more
  const auto answer = std::make_shared<std::promise<absl::Status>>();
  auto ready = answer->get_future();
  folder.files.over = [gone, &draining = parts.draining] { return *gone || draining; };
  const std::string out_dir = folder.out_dir;
  const bool taken = parts.files.TryRun(
      [answer, folder = std::move(folder), work = std::move(work)] {
        const JobFileScope files(folder.files);
        answer->set_value(work(folder.out_dir));
      },
      "the page");
  if (taken && ready.wait_for(kPatience) == std::future_status::ready) return ready.get();
  *gone = true;
  return absl::UnavailableError(
      absl::StrCat("checkpoints: ", out_dir, " does not answer; try again later"));
}

absl::StatusOr<Json> CheckpointsView(const Web::Parts& parts, const std::string& job) {
  NSA_ASSIGN_OR_RETURN(const JobFolder folder, parts.control.OutDir(job));
  // The work may last longer than this call.
  const auto found = std::make_shared<std::vector<v1::CheckpointInfo>>();
  NSA_RETURN_IF_ERROR(InFolder(parts, folder, [found](const std::string& out_dir) -> absl::Status {
    NSA_ASSIGN_OR_RETURN(*found, NewestCheckpoints(out_dir, kShownCheckpoints));
    return absl::OkStatus();
  }));
  Json list = Json::array();
  for (const v1::CheckpointInfo& checkpoint : *found) list.push_back(CheckpointJson(checkpoint));
  return Json{{"checkpoints", std::move(list)}};
}

absl::StatusOr<Json> StacksView(const Web::Parts& parts, const std::string& job) {
  NSA_ASSIGN_OR_RETURN(const JobPtr stored, parts.store.Find(job));
  Json list = Json::array();
  for (const v1::SavedStacks& saved : parts.stacks.List(stored->job().id())) {
    list.push_back({{"id", saved.id()},
                    {"time", saved.unix_nanos() / 1'000'000},
                    {"why", saved.why()},
                    {"bytes", saved.bytes()}});
  }
  return Json{{"stacks", std::move(list)}};
}

absl::StatusOr<std::string> StackText(const Web::Parts& parts, const std::string& job, int64_t id) {
  NSA_ASSIGN_OR_RETURN(const JobPtr stored, parts.store.Find(job));
  NSA_ASSIGN_OR_RETURN(const v1::GetSavedStacksResponse saved,
                       parts.stacks.Read(stored->job().id(), id));
  return saved.text();
}

}  // namespace nsa::server
