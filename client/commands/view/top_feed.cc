#include "client/commands/view/top_feed.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/connect/collect_jobs.h"
#include "client/show/job_text.h"
#include "common/base/status.h"
#include "common/base/thread_name.h"
#include "common/estimate/state_title.h"

namespace nsa::client {
namespace {

constexpr absl::Duration kRefresh = absl::Seconds(2);
constexpr absl::Duration kRefreshOpen = absl::Seconds(1);
constexpr int kMostActive = 500;
constexpr int kEnded = 5;

// At most `limit` of the jobs that are wanted and have ended, or have not.
absl::StatusOr<std::vector<v1::Job>> ReadJobs(Client* client, const v1::ListJobsRequest& wanted,
                                              bool ended, int limit) {
  v1::ListJobsRequest request = wanted;
  request.clear_states();
  for (int i = v1::Job::STATE_QUEUED; i < v1::Job::State_ARRAYSIZE; ++i) {
    const auto each = static_cast<v1::Job::State>(i);
    const auto& states = wanted.states();
    const bool asked = states.empty() || std::ranges::find(states, each) != states.end();
    if (asked && HasEnded(each) == ended) request.add_states(each);
  }
  if (request.states().empty()) return std::vector<v1::Job>();
  NSA_ASSIGN_OR_RETURN(const auto found, CollectJobs(client, request, limit));
  return std::vector<v1::Job>(found.jobs().begin(), found.jobs().end());
}

}  // namespace

absl::Status ReadTop(Client* client, const v1::ListJobsRequest& wanted, TopState* state) {
  NSA_ASSIGN_OR_RETURN(state->active, ReadJobs(client, wanted, false, kMostActive));
  NSA_ASSIGN_OR_RETURN(state->ended, ReadJobs(client, wanted, true, kEnded));
  const absl::StatusOr<v1::ListNodesResponse> nodes = client->ListNodes();
  // Not every role may see the machines.
  if (!nodes.ok())
    return absl::IsPermissionDenied(nodes.status()) ? absl::OkStatus() : nodes.status();
  state->nodes.assign(nodes->nodes().begin(), nodes->nodes().end());
  return absl::OkStatus();
}

TopFeed::TopFeed(Session* session, Client* client, v1::ListJobsRequest wanted, TopState first,
                 std::function<void()> changed)
    : session_(*session),
      client_(client),
      wanted_(std::move(wanted)),
      changed_(std::move(changed)),
      picture_(std::make_shared<Picture>(
          Picture{.state = std::move(first), .read = session->clock().Monotonic()})) {
  thread_ = std::thread([this] {
    NameThread("top");
    Run();
  });
}

TopFeed::~TopFeed() { thread_.join(); }

std::shared_ptr<const TopFeed::Picture> TopFeed::picture() const {
  MutexLock lock(&mutex_);
  return picture_;
}

void TopFeed::Open(const std::string& id) {
  MutexLock lock(&mutex_);
  open_ = id;
  now_ = true;
  asked_.SignalAll();
}

void TopFeed::Stop(const v1::Job& job) {
  MutexLock lock(&mutex_);
  stop_ = job;
  now_ = true;
  asked_.SignalAll();
}

bool TopFeed::Wait(std::string* open, std::optional<v1::Job>* stop) {
  MutexLock lock(&mutex_);
  const absl::Duration patience = open_.empty() ? kRefresh : kRefreshOpen;
  while (!now_ && !ended_) {
    if (asked_.WaitFor(&mutex_, patience)) break;
  }
  now_ = false;
  *open = open_;
  *stop = std::exchange(stop_, std::nullopt);
  return !ended_;
}

void TopFeed::Publish(Picture picture) {
  {
    MutexLock lock(&mutex_);
    picture_ = std::make_shared<const Picture>(std::move(picture));
  }
  changed_();
}

void TopFeed::ReadOpen(const std::string& id, Picture* picture) {
  picture->open.reset();
  if (id.empty()) return;
  if (charts_of_ != id) charts_ = std::make_unique<WatchCharts>(client_, id);
  charts_of_ = id;
  absl::StatusOr<v1::Job> found = client_->GetJob(id);
  if (!found.ok()) {
    picture->news = std::string(found.status().message());
    return;
  }
  charts_->Refresh(session_.clock().Monotonic(), found->progress());
  picture->open = {.job = *std::move(found),
                   .received = session_.now(),
                   .curves = charts_->curves(),
                   .problem = charts_->problem()};
}

void TopFeed::Run() {
  const Interrupt::Scope scope(&session_.interrupt(), [this] {
    MutexLock lock(&mutex_);
    ended_ = true;
    asked_.SignalAll();
  });
  std::string open;
  std::optional<v1::Job> stop;
  while (Wait(&open, &stop)) {
    Picture next = *picture();
    if (stop.has_value()) {
      v1::StopJobRequest request;
      request.set_job(stop->id());
      request.mutable_stop()->set_mode(v1::STOP_MODE_GRACEFUL);
      const auto done = client_->Call<v1::StopJobResponse>(request);
      next.news = !done.ok() ? std::string(done.status().message())
                             : absl::StrCat(Title(*stop), ": ",
                                            HasEnded(done->job()) ? StateTitle(done->job())
                                                                  : StopText(done->job().stop()));
    }
    const absl::Status status = ReadTop(client_, wanted_, &next.state);
    next.state.connected = !NoAnswer(status);
    if (next.state.connected) next.status = status;
    if (status.ok()) next.read = session_.clock().Monotonic();
    if (status.ok()) ReadOpen(open, &next);
    const bool goes_on = next.status.ok();
    Publish(std::move(next));
    if (!goes_on) return;
  }
}

}  // namespace nsa::client
