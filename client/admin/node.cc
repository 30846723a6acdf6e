// nsactl node: takes machines out of service and puts them back.
#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/admin/node_selection.h"
#include "client/cli.h"
#include "client/connect/each_job.h"
#include "client/show/document.h"
#include "client/show/human.h"
#include "client/show/job_text.h"
#include "common/base/status.h"
#include "common/estimate/state_title.h"
#include "common/rpc/cordon_text.h"
#include "nlohmann/json.hpp"

namespace nsa::client {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(500);

struct NodeFlags {
  NodeSelection chosen;
  std::string reason;
  std::string deadline;
  bool no_wait = false;
};

void PrintNode(Session& session, const v1::Node& node) {
  if (session.PrintDocumentOrName(node, node.info().name())) return;
  session.out() << node.info().name() << ": ";
  if (!node.has_cordon()) {
    session.out() << "ranks may be placed on it\n" << std::flush;
    return;
  }
  session.out() << CordonWord(node) << ", " << CordonText(node.cordon());
  if (node.cordon().deadline_unix_nanos() != 0) {
    session.out() << "; ranks that are there at " << Timestamp(node.cordon().deadline_unix_nanos())
                  << " are killed";
  }
  session.out() << "\n" << std::flush;
}

// Says what becomes of the jobs of a machine that is being drained.
class Moves {
 public:
  explicit Moves(Session* session) : session_(*session) {}

  // Prints a line for each job whose state has changed since the last call. A job that runs again
  // or has ended is done.
  absl::Status Look(Client* client, const v1::Node& node) {
    for (const std::string& id : node.job_ids()) waiting_.insert(id);
    const std::set<std::string> now = waiting_;
    for (const std::string& id : now) {
      const absl::StatusOr<v1::Job> job = client->GetJob(id);
      if (absl::IsNotFound(job.status())) {
        waiting_.erase(id);
        continue;
      }
      NSA_RETURN_IF_ERROR(job.status());
      Say(*job);
      const bool left = std::ranges::find(node.job_ids(), id) == node.job_ids().end();
      if (left && (HasEnded(*job) || job->state() == v1::Job::STATE_RUNNING)) waiting_.erase(id);
    }
    return absl::OkStatus();
  }

 private:
  void Say(const v1::Job& job) {
    std::set<std::string> places;
    for (const v1::RankStatus& rank : job.ranks()) places.insert(rank.node());
    const std::string where =
        places.empty() ? "" : absl::StrCat(" on ", absl::StrJoin(places, ", "));
    const std::string line = absl::StrCat(StateTitle(job), where, " (", job.reason(), ")");
    const bool quiet = session_.structured() || session_.flags().format == Format::kName;
    if (std::exchange(said_[job.id()], line) == line || quiet) return;
    session_.out() << Title(job) << ": " << line << ", " << StepText(job.progress())
                   << (job.message().empty() ? "" : ": ") << job.message() << "\n"
                   << std::flush;
  }

  Session& session_;
  std::set<std::string> waiting_;
  std::map<std::string, std::string> said_;
};

absl::StatusOr<v1::Node> FindNode(Client* client, const std::string& name) {
  NSA_ASSIGN_OR_RETURN(const v1::ListNodesResponse nodes, client->ListNodes());
  for (const v1::Node& node : nodes.nodes()) {
    if (node.info().name() == name) return node;
  }
  return absl::NotFoundError(
      absl::StrCat("node: the coordinator no longer knows ", name, "; `nsactl nodes` shows them"));
}

// One look at the machine. The text says why the drain is over; empty: it goes on.
absl::StatusOr<std::string> LookOnce(Client* client, const std::string& name, Moves* moves,
                                     v1::Node* node) {
  NSA_ASSIGN_OR_RETURN(*node, FindNode(client, name));
  NSA_RETURN_IF_ERROR(moves->Look(client, *node));
  const std::string word = CordonWord(*node);
  if (word == "DRAINING") return "";
  return word.empty() ? "UNCORDONED" : word;
}

// Waits until nothing runs on the machine, also over restarts of the coordinator. kOk: it is empty.
absl::StatusOr<ExitCode> WaitUntilEmpty(Session& session, Client* client, v1::Node* node) {
  const std::string name = node->info().name();
  Moves moves(&session);
  bool lost = false;
  while (true) {
    const absl::StatusOr<std::string> over = LookOnce(client, name, &moves, node);
    if (!over.ok() && !NoAnswer(over.status())) return over.status();
    if (!over.ok() && !lost) {
      session.Note("nsactl: connection to the coordinator lost; waiting for it (Ctrl-C leaves)");
    }
    lost = !over.ok();
    if (over.ok() && *over == "DRAINED") return ExitCode::kOk;
    if (over.ok() && !over->empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("node: ", name, " is ", *over == "CORDONED" ? "only cordoned" : "uncordoned",
                       " now (drained): somebody ended the drain; see `nsactl audit`"));
    }
    if (session.interrupt().SleepFor(kLook)) continue;
    session.Note(absl::StrCat("\nthe drain of ", name, " goes on without this window:\n",
                              "  nsactl nodes                    shows when it is DRAINED\n",
                              "  nsactl node uncordon ", name, "    ends it"));
    return ExitCode::kInterrupted;
  }
}

// Prints what becomes of machines: a structured list of several is one document, printed at the
// end.
class Printed {
 public:
  Printed(Session* session, bool several)
      : session_(*session), list_(several && session->structured()) {}

  void Add(const v1::Node& node) {
    if (!list_) return PrintNode(session_, node);
    nodes_.push_back(ToJson(node));
  }
  void End() {
    if (list_) session_.PrintDocument({{"nodes", std::move(nodes_)}});
  }

 private:
  Session& session_;
  const bool list_;
  nlohmann::ordered_json nodes_ = nlohmann::ordered_json::array();
};

// Calls for each chosen machine, also after an error of one, and hands what has become of it to
// `then`; `request` names none yet.
template <typename Response, typename Request>
absl::Status CallForEach(Session& session, const std::string& command, const NodeFlags& flags,
                         Request request, const std::function<void(const v1::Node&)>& then) {
  NSA_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                       ChosenNodes(session, command, flags.chosen));
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  return ForEachJob(
      command, names,
      [&](const std::string& name) -> absl::Status {
        request.set_node(name);
        NSA_ASSIGN_OR_RETURN(const auto response, client->Call<Response>(request));
        then(response.node());
        return absl::OkStatus();
      },
      "machine");
}

// All of them move their jobs at the same time.
absl::StatusOr<ExitCode> AwaitDrains(Session& session, std::vector<v1::Node> nodes,
                                     Printed* printed) {
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  const bool table = !session.structured() && session.flags().format != Format::kName;
  for (const v1::Node& node : nodes) {
    if (table && CordonWord(node) == "DRAINING") PrintNode(session, node);
  }
  absl::Status failed;
  for (v1::Node& node : nodes) {
    const absl::StatusOr<ExitCode> code = WaitUntilEmpty(session, client, &node);
    if (code.ok() && *code != ExitCode::kOk) return code;
    if (code.ok()) {
      printed->Add(node);
      continue;
    }
    if (absl::IsCancelled(code.status())) return code;
    if (!failed.ok()) session.Note(absl::StrCat("nsactl: ", code.status().message()));
    failed.Update(code.status());
  }
  NSA_RETURN_IF_ERROR(failed);
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> Cordon(Session& session, const NodeFlags& flags, bool drain) {
  v1::CordonNodeRequest request;
  request.set_reason(flags.reason);
  request.set_drain(drain);
  NSA_ASSIGN_OR_RETURN(const int64_t deadline, ParseSeconds("--deadline", flags.deadline));
  request.set_deadline_seconds(static_cast<double>(deadline));
  const bool waits = drain && !flags.no_wait;
  Printed printed(&session, flags.chosen.several());
  std::vector<v1::Node> drained;
  const absl::Status called = CallForEach<v1::CordonNodeResponse>(
      session, drain ? "drain" : "cordon", flags, request,
      [&](const v1::Node& node) { waits ? drained.push_back(node) : printed.Add(node); });
  absl::StatusOr<ExitCode> code = ExitCode::kOk;
  if (!drained.empty()) {
    // An error of one machine is no reason to leave the others unwatched.
    if (!called.ok()) session.Note(absl::StrCat("nsactl: ", called.message()));
    code = AwaitDrains(session, std::move(drained), &printed);
  }
  printed.End();
  NSA_RETURN_IF_ERROR(called);
  return code;
}

absl::StatusOr<ExitCode> Uncordon(Session& session, const NodeFlags& flags) {
  Printed printed(&session, flags.chosen.several());
  const absl::Status called =
      CallForEach<v1::UncordonNodeResponse>(session, "uncordon", flags, v1::UncordonNodeRequest(),
                                            [&](const v1::Node& node) { printed.Add(node); });
  printed.End();
  NSA_RETURN_IF_ERROR(called);
  return ExitCode::kOk;
}

void AddReason(Options options, NodeFlags* flags) {
  ChooseNodes(&options, &flags->chosen);
  options.Text("--reason", "TEXT", &flags->reason, "Why: free text of at most 200 characters");
}

}  // namespace

void AddNode(Cli* cli) {
  const auto flags = std::make_shared<NodeFlags>();
  const Options group = cli->Add({.name = "node",
                                  .what = "Take machines out of service and put them back",
                                  .group = "Service",
                                  .more = "For operators. `nsactl nodes` shows the machines.",
                                  .examples = "nsactl node drain gpu-3 --reason \"new kernel\"\n"
                                              "nsactl node uncordon gpu-3"});
  AddReason(cli->Add({.name = "cordon",
                      .what = "Place no further rank on machines; what runs there goes on",
                      .more = "It holds until `uncordon`, also for a machine that is away. It "
                              "replaces an earlier cordon or drain. Machines that a\npattern or "
                              "--require finds are listed, and confirmed, first.",
                      .examples = "nsactl node cordon gpu-3 --reason \"fan is loud\"\n"
                                  "nsactl node cordon 'gpu-1*' --require rack=a",
                      .run = [flags](Session& session) { return Cordon(session, *flags, false); },
                      .parent = &group}),
            flags.get());
  Options drain = cli->Add(
      {.name = "drain",
       .what = "Cordon machines and move their jobs to others",
       .more =
           "Each job ends after the step in progress, with a checkpoint, goes back to its "
           "place in the queue, and continues\nfrom that checkpoint on other machines; this is "
           "no restart. The command shows the jobs and waits until none\nis left on the machine. "
           "With --deadline, ranks that are still there by then are killed, and their job\n"
           "continues from its last checkpoint.",
       .examples = "nsactl node drain gpu-3 --reason \"new kernel\"\n"
                   "nsactl node drain gpu-3 --deadline 10m\n"
                   "nsactl node drain gpu-3 gpu-4 --no-wait\n"
                   "nsactl node drain --require rack=a --reason \"new switch\"",
       .run = [flags](Session& session) { return Cordon(session, *flags, true); },
       .parent = &group});
  AddReason(drain, flags.get());
  drain.Text("--deadline", "TIME", &flags->deadline,
             "Kill ranks that are still there after this time, such as 90s, 10m or 2h; at most 7d "
             "(default: never)");
  drain.Flag("--no-wait", &flags->no_wait, "Do not wait until the machine is empty");
  Options uncordon =
      cli->Add({.name = "uncordon",
                .what = "Let ranks be placed on machines again; ends a cordon or a drain",
                .examples = "nsactl node uncordon gpu-3\nnsactl node uncordon 'gpu-*' --yes",
                .run = [flags](Session& session) { return Uncordon(session, *flags); },
                .parent = &group});
  ChooseNodes(&uncordon, &flags->chosen);
}

}  // namespace nsa::client
