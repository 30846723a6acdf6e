#include "server/decide/gang.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"

namespace nsa::server {
namespace {

using v1::WorkerObservation;

// Worker exit codes (worker/train/README.md): bad usage or configuration; failed so that a restart
// would fail again.
constexpr int kExitUsage = 2;
constexpr int kExitFinal = 3;

bool Ended(const RankView& rank) {
  return rank.worker.has_value() && rank.worker->state() == WorkerObservation::STATE_EXITED;
}

// The agent sends heartbeats, but the worker is not in them.
bool Vanished(const RankView& rank) {
  return rank.node == RankView::Node::kReady && rank.heard_since_told && !rank.worker.has_value();
}

bool Gone(const RankView& rank) {
  return rank.node == RankView::Node::kLost || Ended(rank) || Vanished(rank);
}

bool EndedWith(const RankView& rank, v1::Outcome outcome) {
  return Ended(rank) && rank.finished.has_value() && rank.finished->outcome() == outcome;
}

Failure FromLastWords(const RankView& rank, const v1::WorkerFinished& words) {
  Failure failure;
  failure.rank = rank.rank;
  failure.reason = words.reason().empty() ? Word(Reason::kWorkerFailed) : words.reason();
  failure.text = absl::StrCat("rank ", rank.rank, " on ", rank.node_name, ": ",
                              words.text().empty() ? failure.reason : words.text());
  failure.final = words.outcome() == v1::OUTCOME_FAILED_FINAL;
  failure.infrastructure = IsMachineFault(words.reason());
  // The worker ended before it did any work, and the cause may go away by itself.
  const std::optional<Reason> reason = ReasonFromWord(words.reason());
  failure.refused = reason.has_value() && InfoOf(*reason).use == ReasonUse::kRefused;
  return failure;
}

// Whether the agent's signal ended the worker. When the agent ends a gang, a rank that has just
// crashed may still look alive to it; the signal that it died of tells the two apart.
bool EndedByAgent(const WorkerObservation& worker) {
  const int32_t signal = worker.exit_signal();
  return worker.killed_by_agent() && (signal == 0 || signal == SIGKILL || signal == SIGTERM);
}

// The failure of a worker that died without a last record.
Failure FromExit(const RankView& rank, const WorkerObservation& worker) {
  Failure failure;
  failure.rank = rank.rank;
  const std::string who = absl::StrCat("rank ", rank.rank, " on ", rank.node_name);
  if (!worker.start_error().empty()) {
    failure.reason = Word(Reason::kStartFailed);
    failure.text = absl::StrCat(who, " could not be started: ", worker.start_error());
    failure.final = worker.exit_code() == kExitFinal;
  } else if (!worker.out_of_memory().empty()) {
    failure.reason = Word(Reason::kOutOfMemory);
    failure.text = absl::StrCat(
        who,
        worker.exit_signal() == 0 && worker.exit_code() > 0 ? " ended" : " was ended by the kernel",
        " at step ", worker.step(), ": host memory ran out, limit ", worker.out_of_memory(),
        "; prepare the data (`nsactl data prepare`), run fewer ranks on the machine, or raise the "
        "limit");
  } else if (EndedByAgent(worker)) {
    failure.reason = Word(Reason::kKilled);
    failure.text = absl::StrCat(who, " was killed by its agent");
    failure.infrastructure = true;
  } else if (worker.machine_restarted()) {
    failure.reason = Word(Reason::kNodeRestarted);
    failure.text = absl::StrCat(who, " ended with its machine, which was started again, at step ",
                                worker.step());
    failure.infrastructure = true;
  } else if (worker.exit_signal() != 0) {
    failure.reason =
        Word(worker.exit_signal() == SIGKILL ? Reason::kRankKilled : Reason::kRankCrashed);
    failure.text = absl::StrCat(who, " was ended by signal ", worker.exit_signal(), " (",
                                strsignal(worker.exit_signal()), ") at step ", worker.step());
  } else if (worker.exit_code() < 0) {
    // It was not the child of the agent that found it ended.
    failure.reason = Word(Reason::kRankExited);
    failure.text = absl::StrCat(who, " ended at step ", worker.step(),
                                " while no agent was there to see how; see its log");
  } else {
    failure.reason = Word(Reason::kRankExited);
    failure.text = absl::StrCat(who, " exited with code ", worker.exit_code(), " at step ",
                                worker.step(), " without a last record; see its log");
    failure.final = worker.exit_code() == kExitUsage || worker.exit_code() == kExitFinal;
  }
  return failure;
}

// Order in which failures are taken as the cause: first ranks that failed by themselves, then ranks
// that lost a peer, then ranks that their agent killed. Within a class the earliest comes first.
std::tuple<int, int64_t, int32_t> Precedence(const RankView& rank, const Failure& failure) {
  int order = 0;
  const std::optional<Reason> reason = ReasonFromWord(failure.reason);
  if (reason == Reason::kPeerLost) order = 1;
  if (reason == Reason::kKilled) order = 2;
  return {order, rank.ended_unix_nanos, rank.rank};
}

std::optional<Failure> FirstCause(const std::vector<RankView>& ranks) {
  std::optional<Failure> cause;
  std::tuple<int, int64_t, int32_t> best;
  for (const RankView& rank : ranks) {
    const std::optional<Failure> failure = FailureOf(rank);
    if (!failure.has_value()) continue;
    const auto precedence = Precedence(rank, *failure);
    if (cause.has_value() && best <= precedence) continue;
    cause = failure;
    best = precedence;
  }
  return cause;
}

}  // namespace

bool IsMachineFault(const std::string& word) {
  const std::optional<Reason> reason = ReasonFromWord(word);
  return reason.has_value() && InfoOf(*reason).fault == Fault::kMachine;
}

std::optional<Failure> FailureOf(const RankView& rank) {
  if (rank.node == RankView::Node::kLost) {
    return Failure{.reason = Word(Reason::kNodeLost),
                   .text = absl::StrCat("rank ", rank.rank, ": its machine ", rank.node_name,
                                        " sends no heartbeats"),
                   .rank = rank.rank,
                   .infrastructure = true};
  }
  if (Vanished(rank) && rank.seen_before) {
    return Failure{.reason = Word(Reason::kWorkerVanished),
                   .text = absl::StrCat("rank ", rank.rank, " on ", rank.node_name,
                                        ": its agent no longer reports it"),
                   .rank = rank.rank,
                   .infrastructure = true};
  }
  if (!Ended(rank)) return std::nullopt;
  if (!rank.finished.has_value()) return FromExit(rank, *rank.worker);
  if (rank.finished->outcome() == v1::OUTCOME_COMPLETED ||
      rank.finished->outcome() == v1::OUTCOME_STOPPED) {
    return std::nullopt;
  }
  return FromLastWords(rank, *rank.finished);
}

GangVerdict Judge(const std::vector<RankView>& ranks) {
  using Kind = GangVerdict::Kind;
  GangVerdict verdict;
  const auto all = [&](auto&& predicate) { return std::ranges::all_of(ranks, predicate); };
  verdict.gone = all(Gone);
  if (std::optional<Failure> cause = FirstCause(ranks)) {
    verdict.kind = Kind::kFailed;
    verdict.failure = std::move(cause);
  } else if (all([](const RankView& r) { return EndedWith(r, v1::OUTCOME_COMPLETED); })) {
    verdict.kind = Kind::kCompleted;
    verdict.words = *ranks.front().finished;
  } else if (all(Ended)) {
    // Every rank ended well, at least one because of a stop. All agreed on the step.
    verdict.kind = Kind::kStopped;
    verdict.words = *ranks.front().finished;
  } else if (all([](const RankView& r) {
               return r.worker.has_value() &&
                      r.worker->state() != WorkerObservation::STATE_STARTING &&
                      r.worker->state() != WorkerObservation::STATE_UNSPECIFIED;
             })) {
    verdict.kind = Kind::kRunning;
  } else if (all([](const RankView& r) { return r.node == RankView::Node::kReady; })) {
    verdict.kind = Kind::kStarting;
  }
  return verdict;
}

}  // namespace nsa::server
