// nsactl top: all jobs and machines, live.
#include <limits>

#include "client/cli.h"
#include "client/commands/view/top_feed.h"
#include "client/commands/view/top_screen.h"
#include "client/connect/collect_jobs.h"
#include "client/show/document.h"
#include "client/show/top_view.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace nsa::client {
namespace {

void PrintState(Session& session, const TopState& state) {
  nlohmann::ordered_json jobs = nlohmann::ordered_json::array();
  nlohmann::ordered_json nodes = nlohmann::ordered_json::array();
  for (const v1::Job& job : state.active) jobs.push_back(ToJson(job));
  for (const v1::Job& job : state.ended) jobs.push_back(ToJson(job));
  for (const v1::Node& node : state.nodes) nodes.push_back(ToJson(node));
  session.PrintDocument({{"jobs", std::move(jobs)}, {"nodes", std::move(nodes)}});
}

absl::StatusOr<ExitCode> Top(Session& session, const JobFilter& filter) {
  NSA_ASSIGN_OR_RETURN(const v1::ListJobsRequest wanted, RequestOf(filter));
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  TopState state;
  NSA_RETURN_IF_ERROR(ReadTop(client, wanted, &state));
  if (session.structured()) {
    PrintState(session, state);
    return ExitCode::kOk;
  }
  if (session.console().terminal) {
    return TopScreen(&session, client, wanted, std::move(state)).Run();
  }
  constexpr int kUnlimited = std::numeric_limits<int>::max();
  for (const std::string& line :
       TopView(state, {}, session.now(),
               {.columns = kUnlimited, .rows = kUnlimited, .colours = false})) {
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
       .more = "Jobs that train, wait or have just ended, and machines with their GPUs, drawn "
               "again every two seconds.\nKeys: the arrows select a job, Enter shows it as watch "
               "does and Esc goes back, s changes the order and r turns\nit round, / filters as "
               "on the page (a part of a name, state=training, team=lm, val<1.7), x stops the "
               "job after a\nquestion, q or Ctrl-C leaves. Where the output is not a terminal, "
               "and with -o json, it is printed once.",
       .examples = "nsactl top\nnsactl top --label team=vision\nnsactl top | head\n"
                   "nsactl top -o json | jq '.nodes[].info.gpus'",
       .run = [filter](Session& session) { return Top(session, *filter); }});
  options.Choose(filter.get());
}

}  // namespace nsa::client
