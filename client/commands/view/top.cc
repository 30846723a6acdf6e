// nsactl top: all jobs and machines, live.
#include <algorithm>
#include <limits>

#include "client/cli.h"
#include "client/connect/collect_jobs.h"
#include "client/show/document.h"
#include "client/show/job_text.h"
#include "client/show/live_block.h"
#include "client/show/top_view.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace nsa::client {
namespace {

constexpr absl::Duration kRefresh = absl::Seconds(2);
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

absl::Status Read(Client* client, const v1::ListJobsRequest& wanted, TopState* state) {
  NSA_ASSIGN_OR_RETURN(state->active, ReadJobs(client, wanted, false, kMostActive));
  NSA_ASSIGN_OR_RETURN(state->ended, ReadJobs(client, wanted, true, kEnded));
  const auto nodes = client->Call<v1::ListNodesResponse>(v1::ListNodesRequest());
  // Not every role may see the machines.
  if (!nodes.ok())
    return absl::IsPermissionDenied(nodes.status()) ? absl::OkStatus() : nodes.status();
  state->nodes.assign(nodes->nodes().begin(), nodes->nodes().end());
  return absl::OkStatus();
}

void PrintState(Session& session, const TopState& state) {
  nlohmann::ordered_json jobs = nlohmann::ordered_json::array();
  nlohmann::ordered_json nodes = nlohmann::ordered_json::array();
  for (const v1::Job& job : state.active) jobs.push_back(ToJson(job));
  for (const v1::Job& job : state.ended) jobs.push_back(ToJson(job));
  for (const v1::Node& node : state.nodes) nodes.push_back(ToJson(node));
  session.PrintDocument({{"jobs", std::move(jobs)}, {"nodes", std::move(nodes)}});
}

absl::StatusOr<ExitCode> Live(Session& session, Client* client, const v1::ListJobsRequest& wanted,
                              TopState state) {
  // Ctrl-C ends the loop between two waits too, so that the cursor comes back.
  const Interrupt::Scope scope(&session.interrupt(), [] {});
  LiveBlock block(&session.out());
  while (true) {
    block.Draw("", TopView(state, session.now(),
                           {.columns = session.console().columns() - 1,
                            .rows = TerminalRows(),
                            .colours = session.colours()}));
    if (!session.interrupt().SleepFor(kRefresh)) return ExitCode::kInterrupted;
    const absl::Status status = Read(client, wanted, &state);
    if (absl::IsCancelled(status)) return ExitCode::kInterrupted;
    state.connected = !NoAnswer(status);
    if (state.connected) NSA_RETURN_IF_ERROR(status);
  }
}

absl::StatusOr<ExitCode> Top(Session& session, const JobFilter& filter) {
  NSA_ASSIGN_OR_RETURN(const v1::ListJobsRequest wanted, RequestOf(filter));
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  TopState state;
  NSA_RETURN_IF_ERROR(Read(client, wanted, &state));
  if (session.structured()) {
    PrintState(session, state);
    return ExitCode::kOk;
  }
  if (session.console().terminal) return Live(session, client, wanted, std::move(state));
  constexpr int kUnlimited = std::numeric_limits<int>::max();
  for (const std::string& line : TopView(
           state, session.now(), {.columns = kUnlimited, .rows = kUnlimited, .colours = false})) {
    session.out() << line << "\n";
  }
  return ExitCode::kOk;
}

}  // namespace

void AddTop(Cli* cli) {
  const auto filter = std::make_shared<JobFilter>();
  Options options = cli->Add(
      {.name = "top",
       .what = "Show all jobs and machines, live",
       .group = "Jobs",
       .more = "Drawn again every two seconds until Ctrl-C: jobs that train, wait or have "
               "just ended, and machines with their\nGPUs. Where the output is not a terminal, "
               "and with -o json, it is printed once.",
       .examples = "nsactl top\nnsactl top --label team=vision\nnsactl top | head\n"
                   "nsactl top -o json | jq '.nodes[].info.gpus'",
       .run = [filter](Session& session) { return Top(session, *filter); }});
  options.Choose(filter.get());
}

}  // namespace nsa::client
