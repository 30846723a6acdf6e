// Situations of a job for tests of Next(), and how an action is written.
#pragma once

#include <csignal>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/decide/next_action.h"

namespace nsa::server {

using v1::Job;

// A job with two ranks on machine "a"; tests change parts of it.
struct Situation {
  v1::StoredJob job;
  std::vector<RankView> ranks;
  absl::Duration waited = absl::Seconds(1);  // since agents were sent it
  bool checking = false;
  HangState hang;
  Refusals refusals;
  Leave leave;
  std::string gives_way_to;

  JobFacts Facts() const {
    const absl::Duration now = absl::Hours(100);
    return {.job = job,
            .ranks = ranks,
            .now = now,
            .wall_time = absl::FromUnixSeconds(1'800'000'000),
            .jitter = 0.5,
            .told = now - waited,
            .checking = checking,
            .hang = hang,
            .refusals = refusals,
            .leave = leave,
            .gives_way_to = gives_way_to};
  }
};

inline RankView Rank(int32_t rank, v1::WorkerObservation::State state) {
  RankView view{.rank = rank,
                .node = RankView::Node::kReady,
                .node_name = "a",
                .heard_since_told = true,
                .measured_since_told = true,
                .seen_before = true};
  view.worker.emplace();
  view.worker->set_state(state);
  view.worker->set_step(7);
  return view;
}

inline Situation In(Job::State state,
                    v1::WorkerObservation::State worker = v1::WorkerObservation::STATE_RUNNING) {
  Situation s;
  s.job.mutable_job()->set_state(state);
  s.job.mutable_job()->set_generation(3);
  v1::RestartSpec& restart = *s.job.mutable_job()->mutable_spec()->mutable_restart();
  restart.set_backoff_seconds(8);
  restart.set_max_restarts(5);
  restart.set_max_no_progress(3);
  restart.set_stop_grace_seconds(60);
  restart.set_hang_timeout_seconds(30);
  s.ranks = {Rank(0, worker), Rank(1, worker)};
  return s;
}

inline Situation Ended(Job::State state, v1::Outcome outcome, int64_t step) {
  Situation s = In(state, v1::WorkerObservation::STATE_EXITED);
  for (RankView& rank : s.ranks) {
    rank.finished.emplace();
    rank.finished->set_outcome(outcome);
    rank.finished->set_step(step);
  }
  return s;
}

inline void Stop(Situation* s, v1::StopMode mode, int64_t at_step = 0) {
  s->job.mutable_job()->mutable_stop()->set_mode(mode);
  s->job.mutable_job()->mutable_stop()->set_at_step(at_step);
}

inline void Crash(Situation* s) {
  for (RankView& rank : s->ranks) {
    rank.worker->set_state(v1::WorkerObservation::STATE_EXITED);
    rank.worker->set_exit_signal(SIGSEGV);
  }
}

inline std::string Describe(const Action& action) {
  struct {
    std::string operator()(const action::Wait&) { return "wait"; }
    std::string operator()(const action::Move& move) {
      return absl::StrCat(TriggerName(move.trigger), move.cause.reason.empty() ? "" : " ",
                          move.cause.reason);
    }
    std::string operator()(const action::CheckLaunch&) { return "check"; }
    std::string operator()(const action::DumpStacks&) { return "dump"; }
    std::string operator()(const action::SaveStacks&) { return "save"; }
    std::string operator()(const action::EndSuspicion&) { return "end suspicion"; }
    std::string operator()(const action::Restart& restart) {
      return absl::StrCat("restart ", restart.failure.reason, " in ",
                          absl::FormatDuration(restart.decision.delay));
    }
    std::string operator()(const action::PostponeStart& postpone) {
      return absl::StrCat("postpone ", postpone.refusal.reason, " by ",
                          absl::FormatDuration(postpone.delay));
    }
  } describe;
  return std::visit(describe, action);
}

struct Row {
  const char* name;
  Situation situation;
  std::function<void(Situation*)> change;
  const char* action;
};

inline void Check(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    Situation situation = row.situation;
    if (row.change) row.change(&situation);
    EXPECT_EQ(Describe(Next(situation.Facts())), row.action) << row.name;
  }
}

}  // namespace nsa::server
