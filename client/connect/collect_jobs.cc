#include "client/connect/collect_jobs.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/show/job_text.h"
#include "common/base/status.h"
#include "common/estimate/state_title.h"

namespace nsa::client {
namespace {

// Adds the states that `text` names: by their title ("training", "waiting") or name ("running"), or
// every state before the end ("active").
absl::Status AddStates(const std::string& text, v1::ListJobsRequest* request) {
  const int before = request->states_size();
  for (int i = v1::Job::STATE_QUEUED; i < v1::Job::State_ARRAYSIZE; ++i) {
    const auto state = static_cast<v1::Job::State>(i);
    const bool named = absl::EqualsIgnoreCase(text, StateTitle(state)) ||
                       absl::EqualsIgnoreCase(text, StateName(state)) ||
                       (absl::EqualsIgnoreCase(text, "active") && !HasEnded(state));
    if (named) request->add_states(state);
  }
  if (request->states_size() > before) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--state: '", text,
      "' (waiting, starting, training, restarting, stopping, finished, failed, stopped or active); "
      "use one of these"));
}

// Adds "team=vision" to the labels that jobs must have.
absl::Status AddLabel(const std::string& text, v1::ListJobsRequest* request) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--label: '", text, "' (KEY=VALUE); write e.g. --label team=vision"));
  }
  const std::string key = text.substr(0, equals);
  const std::string value = text.substr(equals + 1);
  const auto [label, added] = request->mutable_labels()->insert({key, value});
  if (added || label->second == value) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--label: '", key, "' has the values '",
                                                 label->second, "' and '", value,
                                                 "' (one for each key); remove one of them"));
}

}  // namespace

absl::StatusOr<v1::ListJobsRequest> RequestOf(const JobFilter& filter) {
  v1::ListJobsRequest request;
  for (const std::string& state : filter.states) NSA_RETURN_IF_ERROR(AddStates(state, &request));
  for (const std::string& label : filter.labels) NSA_RETURN_IF_ERROR(AddLabel(label, &request));
  return request;
}

bool HasLabels(const v1::Job& job, const v1::ListJobsRequest& request) {
  const auto& labels = job.spec().labels();
  return std::ranges::all_of(request.labels(), [&](const auto& wanted) {
    const auto label = labels.find(wanted.first);
    return label != labels.end() && label->second == wanted.second;
  });
}

absl::StatusOr<v1::ListJobsResponse> CollectJobs(Client* client, v1::ListJobsRequest request,
                                                 int limit) {
  constexpr int kPage = 500;
  v1::ListJobsResponse all;
  do {
    const int wanted = limit == 0 ? kPage : std::min(kPage, limit - all.jobs_size());
    request.set_page_size(wanted);
    NSA_ASSIGN_OR_RETURN(v1::ListJobsResponse page, client->Call<v1::ListJobsResponse>(request));
    // An older coordinator sends jobs with other labels too.
    for (v1::Job& job : *page.mutable_jobs()) {
      if (HasLabels(job, request)) all.add_jobs()->Swap(&job);
    }
    all.set_next_page_token(page.next_page_token());
    request.set_page_token(page.next_page_token());
  } while (!all.next_page_token().empty() && (limit == 0 || all.jobs_size() < limit));
  return all;
}

absl::StatusOr<std::vector<v1::Job>> CollectSweep(Client* client, const std::string& name,
                                                  const std::string& owner) {
  v1::ListJobsRequest request;
  (*request.mutable_labels())["sweep"] = name;
  NSA_ASSIGN_OR_RETURN(const v1::ListJobsResponse found, CollectJobs(client, request, 0));
  std::vector<v1::Job> jobs;
  for (const v1::Job& job : found.jobs()) {
    if (job.spec().sweep().name() != name) continue;
    if (owner.empty() || job.owner() == owner) jobs.push_back(job);
  }
  return jobs;
}

}  // namespace nsa::client
