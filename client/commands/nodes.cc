// nsactl nodes: the machines.
#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli.h"
#include "client/show/human.h"
#include "common/base/status.h"
#include "common/rpc/cordon_text.h"

namespace nsa::client {
namespace {

// "READY", "READY,DRAINING".
Table::Cell State(const v1::Node& node) {
  const std::string cordon = CordonWord(node);
  const Colour colour = node.state() == "LOST"                      ? Colour::kBad
                        : node.state() == "READY" && cordon.empty() ? Colour::kGood
                                                                    : Colour::kWarning;
  return {cordon.empty() ? node.state() : absl::StrCat(node.state(), ",", cordon), colour};
}

std::string Gpus(const v1::Node& node) {
  const auto& gpus = node.info().gpus();
  if (node.info().gpus_age_seconds() < 0) return "asking the driver";
  if (gpus.empty()) return "-";
  std::string text = absl::StrCat(node.gpus_used(), "/", gpus.size(), " ", gpus[0].name());
  for (const v1::GpuInfo& gpu : gpus) {
    if (gpu.fault().empty()) continue;
    absl::StrAppend(&text, ", ", gpu.uuid(), " is taken out (", gpu.fault(), ")");
  }
  return text;
}

std::string OrDash(const std::string& text) { return text.empty() ? "-" : text; }

// How far the machine's clock is ahead of the coordinator's: "+0.002 s".
std::string Clock(const v1::Node& node) {
  if (node.info().unix_nanos() == 0) return "-";
  const absl::Duration ahead = absl::FromUnixNanos(node.info().unix_nanos()) -
                               absl::FromUnixNanos(node.heartbeat_unix_nanos());
  return absl::StrFormat("%+.3f s", absl::ToDoubleSeconds(ahead));
}

// The first digits of the hashes of nsa-worker and nsa-worker-cuda.
std::string Programs(const v1::NodeInfo& info) {
  const std::string worker = OrDash(info.worker_hash().substr(0, 8));
  if (info.cuda_worker_hash().empty()) return worker;
  return absl::StrCat(worker, ",", info.cuda_worker_hash().substr(0, 8));
}

// "rack=a,room=2".
std::string MachineLabels(const v1::NodeInfo& info) {
  const std::map<std::string, std::string> sorted(info.labels().begin(), info.labels().end());
  return OrDash(absl::StrJoin(sorted, ",", absl::PairFormatter("=")));
}

std::vector<Table::Column> Columns(bool cordoned, bool wide) {
  std::vector<Table::Column> columns = {
      {"NAME"}, {"STATE"}, {"CPU SLOTS", true}, {"GPUS"}, {"FREE MEMORY"}, {"HEARTBEAT"}, {"JOBS"}};
  if (cordoned) columns.push_back({"CORDON"});
  if (wide) {
    columns.insert(columns.end(), {{"CORES", true},
                                   {"MEMORY"},
                                   {"DRIVER"},
                                   {"NCCL"},
                                   {"AGENT"},
                                   {"WORKERS"},
                                   {"CLOCK", true},
                                   {"RANK ADDRESS"},
                                   {"RANKS RUN AS"},
                                   {"CUDA WORKER"},
                                   {"LABELS"}});
  }
  return columns;
}

// The cells of one machine, in the order of Columns().
std::vector<Table::Cell> Row(const v1::Node& node, absl::Time now, bool cordoned, bool wide) {
  const v1::NodeInfo& info = node.info();
  std::vector<Table::Cell> row = {
      info.name(),
      State(node),
      absl::StrCat(node.cpu_slots_used(), "/", info.cpu_slots()),
      Gpus(node),
      HumanBytes(info.free_memory_bytes()),
      HumanAge(now, node.heartbeat_unix_nanos()),
      node.job_ids().empty() ? "-" : absl::StrJoin(node.job_ids(), ",")};
  if (cordoned) row.emplace_back(node.has_cordon() ? CordonText(node.cordon()) : "-");
  if (wide) {
    row.emplace_back(absl::StrCat(info.cores()));
    row.emplace_back(HumanBytes(info.memory_bytes()));
    row.emplace_back(OrDash(info.driver_version()));
    row.emplace_back(OrDash(info.nccl_version()));
    row.emplace_back(info.agent_version());
    row.emplace_back(Programs(info));
    row.emplace_back(Clock(node));
    row.emplace_back(OrDash(info.rank_address()));
    row.emplace_back(info.unix_users() ? "job's Unix user" : "agent's user");
    row.emplace_back(info.cuda_worker() ? "yes" : info.cuda_problem());
    row.emplace_back(MachineLabels(info));
  }
  return row;
}

absl::StatusOr<ExitCode> Nodes(Session& session) {
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const v1::ListNodesResponse response, client->ListNodes());
  if (session.structured()) {
    session.PrintDocument(response);
    return ExitCode::kOk;
  }
  if (session.flags().format == Format::kName) {
    for (const v1::Node& node : response.nodes()) session.out() << node.info().name() << "\n";
    return ExitCode::kOk;
  }
  const bool cordoned = std::ranges::any_of(response.nodes(), &v1::Node::has_cordon);
  Table table(Columns(cordoned, session.wide()));
  for (const v1::Node& node : response.nodes()) {
    table.Add(Row(node, session.now(), cordoned, session.wide()));
  }
  session.PrintTable(table);
  for (const v1::Node& node : response.nodes()) {
    if (node.store_id().empty()) continue;
    session.Note(absl::StrCat(node.info().name(), ": its ranks were started under job store ",
                              node.store_id(),
                              ", which this coordinator does not have (`nsactl "
                              "version -o json` shows its own); they keep running, and none is "
                              "placed there. Put that store back, or `nsactl node drain ",
                              node.info().name(), "` ends them with a checkpoint"));
  }
  if (response.nodes().empty()) {
    session.Note(response.local_agent()
                     ? "no machines yet: the agent that the coordinator starts on its own machine "
                       "is joining; if it does not within seconds, see the coordinator's log"
                     : "no machines; start `nsa-agent` on one");
  }
  return ExitCode::kOk;
}

}  // namespace

void AddNodes(Cli* cli) {
  cli->Add({.name = "nodes",
            .what = "List the machines, what they have and what runs on them",
            .group = "Service",
            .examples = "nsactl nodes\nnsactl nodes -o wide",
            .run = Nodes});
}

}  // namespace nsa::client
