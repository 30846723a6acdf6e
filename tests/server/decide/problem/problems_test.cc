// What is wrong with a job: the table has a row for each fault, and what it says of a job.
#include "server/decide/problem/problems.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "common/base/reason.h"
#include "common/job/load.h"
#include "server/decide/health.h"
#include "server/decide/problem/templates.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int64_t kEnd = 1'800'000'000'000'000'000;
const absl::Time kNow = absl::FromUnixNanos(kEnd) + absl::Hours(1);

v1::Job JobIn(v1::Job::State state, const std::string& reason = "") {
  v1::Job job;
  job.set_id("jabc");
  job.set_name("demo");
  job.set_state(state);
  job.set_reason(reason);
  job.mutable_spec()->mutable_train()->set_lr(0.01);
  job.mutable_spec()->mutable_train()->set_batch_size(8);
  job.mutable_spec()->mutable_train()->set_out_dir("/out");
  ApplyDefaults(job.mutable_spec());
  job.mutable_progress()->set_step(900);
  job.mutable_progress()->set_total_steps(2'000);
  job.mutable_progress()->set_loss(8.07);
  job.mutable_progress()->set_checkpoint_step(800);
  if (state == v1::Job::STATE_FAILED || state == v1::Job::STATE_SUCCEEDED) {
    job.set_end_unix_nanos(kEnd);
  }
  return job;
}

// A run whose loss has been too high for 90 steps.
v1::Job DivergedJob() {
  v1::Job job = JobIn(v1::Job::STATE_RUNNING);
  v1::HealthMemory& memory = *job.mutable_progress()->mutable_health_memory();
  memory.set_steps(900);
  memory.set_uniform_loss(5.55);
  memory.set_diverged_steps(90);
  memory.set_best_step(800);
  return job;
}

void Judge(v1::Job* job) { AddProblems(HealthFindings(*job), kEnd, job); }

bool NeedsRow(const ReasonInfo& info) {
  switch (info.use) {
    case ReasonUse::kFailed:
    case ReasonUse::kRefused:
    case ReasonUse::kWaiting:
      return true;
    case ReasonUse::kEvent:
      return info.fault == Fault::kJob || info.fault == Fault::kMachine;
    case ReasonUse::kEnded:
      return info.fault == Fault::kJob;
    case ReasonUse::kRequestRefused:  // the answer says what to do; no job has it
      return false;
  }
  return true;
}

TEST(ProblemTemplates, EveryRuleAndEveryReasonOfAFaultHasOne) {
  std::set<std::string> known;
  for (const HealthRuleInfo& rule : HealthRules()) {
    known.insert(std::string(rule.word));
    EXPECT_NE(TemplateOf(rule.word), nullptr) << rule.word;
  }
  for (int i = 0; i < kReasonCount; ++i) {
    const ReasonInfo& info = InfoOf(static_cast<Reason>(i));
    known.insert(std::string(info.word));
    if (NeedsRow(info)) {
      EXPECT_NE(TemplateOf(info.word), nullptr) << info.word;
    }
  }
  std::set<std::string> seen;
  for (const ProblemTemplate& row : ProblemTemplates()) {
    for (const absl::string_view word : absl::StrSplit(std::string(row.words), ' ')) {
      EXPECT_TRUE(known.contains(std::string(word))) << word << " is neither a rule nor a reason";
      EXPECT_TRUE(seen.insert(std::string(word)).second) << word << " is in two rows";
    }
  }
}

TEST(ProblemTemplates, EveryOneHasACauseKeysOfTheJobFileAndSomethingThatHelps) {
  for (const ProblemTemplate& row : ProblemTemplates()) {
    EXPECT_FALSE(row.cause.empty()) << row.words;
    EXPECT_FALSE(absl::EndsWith(std::string(row.cause), ".")) << row.words;
    const std::vector<std::string> keys =
        absl::StrSplit(std::string(row.keys), ' ', absl::SkipEmpty());
    for (const std::string& key : keys) {
      const std::vector<std::string> parts = absl::StrSplit(key, '.');
      ASSERT_THAT(parts, SizeIs(2)) << key;
      const auto* const section = v1::JobSpec::descriptor()->FindFieldByName(parts[0]);
      ASSERT_NE(section, nullptr) << key;
      EXPECT_NE(section->message_type()->FindFieldByName(parts[1]), nullptr) << key;
    }
    int helps = 0;
    for (const auto state : {v1::Job::STATE_RUNNING, v1::Job::STATE_FAILED}) {
      const v1::Job job = JobIn(state);
      for (const Help help : state == v1::Job::STATE_RUNNING ? row.before_end : row.after_end) {
        const auto remedy = RemedyFor(help, job, 850);
        EXPECT_EQ(remedy.has_value(), help != Help::kNone) << row.words << ": cannot be done then";
        if (!remedy.has_value()) continue;
        ++helps;
        EXPECT_FALSE(remedy->text().empty()) << row.words;
        EXPECT_THAT(remedy->command(), ::testing::StartsWith("nsactl ")) << row.words;
        EXPECT_NE(remedy->action(), v1::Remedy::ACTION_UNSPECIFIED) << row.words;
      }
    }
    EXPECT_GT(helps, 0) << row.words;
  }
}

TEST(Problems, ARunThatDivergesSaysSinceWhenWhyAndWhatHelps) {
  v1::Job job = DivergedJob();
  Judge(&job);
  ASSERT_THAT(job.problems(), SizeIs(1));
  const v1::Problem& problem = job.problems(0);
  EXPECT_EQ(problem.word(), "DIVERGED");
  EXPECT_EQ(problem.level(), v1::JobHealth::LEVEL_BAD);
  EXPECT_EQ(problem.cause(), "The run has diverged");
  EXPECT_THAT(problem.evidence(),
              AllOf(HasSubstr("loss 8.07 (a uniform guess has 5.55); train.lr: 0.01"),
                    HasSubstr("train.grad_clip: 1")));
  EXPECT_EQ(problem.since_step(), 811);
  ASSERT_THAT(problem.remedies(), SizeIs(3));
  EXPECT_EQ(problem.remedies(0).command(), "nsactl stop jabc --now");
  EXPECT_EQ(problem.remedies(1).text(), "Fork from step 800 with train.lr 0.005");
  EXPECT_EQ(problem.remedies(1).command(), "nsactl fork jabc --at-step 800 --set train.lr=0.005");
  EXPECT_EQ(problem.remedies(1).set().at("train.lr"), "0.005");
  EXPECT_EQ(problem.remedies(1).set().at("restart.resume"), "/out/checkpoints/step-00000800");
  EXPECT_EQ(problem.remedies(2).command(), "nsactl mute jabc DIVERGED");
  EXPECT_TRUE(NeedsYou(job, kNow));
}

TEST(Problems, ACheckpointAfterItBeganHelpsNobody) {
  v1::Job job = DivergedJob();
  job.mutable_progress()->set_checkpoint_step(850);
  Judge(&job);
  EXPECT_EQ(job.problems(0).remedies(1).command(),
            "nsactl fork jabc --at-step 0 --set train.lr=0.005");
  EXPECT_FALSE(job.problems(0).remedies(1).set().contains("restart.resume"));
}

TEST(Problems, WhatPreflightSaidOfTheSettingIsNamed) {
  v1::Job job = DivergedJob();
  v1::Finding& finding = *job.add_warnings();
  finding.set_rule("LR_HIGH");
  finding.set_field("train.lr");
  finding.set_problem("0.01 (at most 1e-3)");
  Judge(&job);
  EXPECT_THAT(job.problems(0).evidence(),
              HasSubstr("preflight warned: train.lr: 0.01 (at most 1e-3)"));
}

TEST(Problems, AJobThatFailedHasItsReasonAndWhen) {
  v1::Job job = JobIn(v1::Job::STATE_FAILED, "RANK_KILLED");
  job.mutable_spec()->mutable_resources()->set_gpus(2);
  job.set_message("rank 1 was killed by signal 9\nmore");
  Judge(&job);
  ASSERT_THAT(job.problems(), SizeIs(1));
  const v1::Problem& problem = job.problems(0);
  EXPECT_EQ(problem.cause(), "A rank was killed from outside");
  EXPECT_EQ(problem.evidence(), "rank 1 was killed by signal 9");
  EXPECT_EQ(problem.since_unix_nanos(), kEnd);
  EXPECT_EQ(problem.remedies(0).text(), "Resume from step 800");
  EXPECT_EQ(problem.remedies(1).command(), "nsactl logs jabc --tail 20 --rank 1");
  EXPECT_EQ(problem.remedies(1).rank(), 1);
  EXPECT_TRUE(NeedsYou(job, kNow));
  EXPECT_FALSE(NeedsYou(job, kNow + absl::Hours(24))) << "a day later";
}

TEST(Problems, AReasonThatIsNotKnownIsAProblemAllTheSame) {
  v1::Job job = JobIn(v1::Job::STATE_FAILED, "ADDED_LATER");
  Judge(&job);
  ASSERT_THAT(job.problems(), SizeIs(1));
  EXPECT_EQ(job.problems(0).cause(), "It failed");
  EXPECT_EQ(job.problems(0).evidence(), "ADDED_LATER");
  EXPECT_THAT(job.problems(0).remedies(), SizeIs(3));
}

TEST(Problems, AJobThatWaitsStopsOrMovesNeedsNobody) {
  for (v1::Job job :
       {JobIn(v1::Job::STATE_QUEUED, "UNPLACEABLE"), JobIn(v1::Job::STATE_STOPPED, "STOPPED"),
        JobIn(v1::Job::STATE_RESTARTING, "MOVING"), JobIn(v1::Job::STATE_SUCCEEDED, "COMPLETED"),
        JobIn(v1::Job::STATE_RUNNING)}) {
    Judge(&job);
    EXPECT_FALSE(NeedsYou(job, kNow)) << job.reason();
  }
  v1::Job stopping = DivergedJob();
  stopping.set_state(v1::Job::STATE_STOPPING);
  Judge(&stopping);
  EXPECT_THAT(stopping.problems(), IsEmpty()) << "somebody has been there";
  v1::Job restarting = JobIn(v1::Job::STATE_RESTARTING, "OUT_OF_MEMORY");
  Judge(&restarting);
  EXPECT_TRUE(NeedsYou(restarting, kNow));
  EXPECT_EQ(restarting.problems(0).remedies(0).set().at("train.batch_size"), "4");
}

TEST(Problems, ARankThatIsSilentIsNamed) {
  v1::Job job = JobIn(v1::Job::STATE_RUNNING);
  v1::RankStatus& rank = *job.add_ranks();
  rank.set_rank(3);
  rank.set_state("RUNNING");
  rank.set_phase("all_reduce");
  rank.set_note("no progress for 240 s");
  Judge(&job);
  ASSERT_THAT(job.problems(), SizeIs(1));
  EXPECT_EQ(job.problems(0).word(), "HANG_SUSPECTED");
  EXPECT_THAT(job.problems(0).evidence(), HasSubstr("rank 3: no progress for 240 s in all_reduce"));
  EXPECT_EQ(job.problems(0).remedies(0).command(), "nsactl dump-stack jabc");
}

TEST(Problems, AMuteHoldsUntilTheJobEndsAndForItsProblemAlone) {
  v1::Job job = DivergedJob();
  v1::Mute& mute = *job.add_mutes();
  mute.set_problem("DIVERGED");
  Judge(&job);
  EXPECT_TRUE(job.problems(0).muted());
  EXPECT_FALSE(NeedsYou(job, kNow));
  EXPECT_THAT(job.problems(0).remedies(), Not(SizeIs(3))) << "it is muted already";
  EXPECT_TRUE(IsMuted(job, "DIVERGED"));
  EXPECT_FALSE(IsMuted(job, "RANK_KILLED"));

  job.mutable_progress()->set_checkpoint_error("disk full");
  Judge(&job);
  EXPECT_EQ(WorstProblem(job)->word(), "CHECKPOINT_FAILED") << "another problem counts";

  job.set_state(v1::Job::STATE_FAILED);
  job.set_reason("DIVERGED");
  job.set_end_unix_nanos(kEnd);
  EXPECT_FALSE(IsMuted(job, "DIVERGED"));
  Judge(&job);
  EXPECT_THAT(job.mutes(), IsEmpty());
  EXPECT_TRUE(NeedsYou(job, kNow)) << "the end is news";
}

TEST(Problems, AMuteOfARuleSilencesTheEventsOfItsRow) {
  v1::Job job = JobIn(v1::Job::STATE_RUNNING);
  job.add_mutes()->set_problem("GATE_SATURATED");
  EXPECT_TRUE(IsMuted(job, "GATE_COLLAPSE"));
}

void AddAlert(v1::Job* job, const std::string& when, bool raised) {
  v1::AlertProgress& alert = *job->mutable_progress()->add_alerts();
  alert.set_when(when);
  alert.set_raised(raised);
  alert.set_value(4);
  alert.set_since_step(700);
}

TEST(Problems, ARaisedAlertIsOneAndIsMutedAlone) {
  v1::Job job = JobIn(v1::Job::STATE_RUNNING);
  AddAlert(&job, "loss > 3", true);
  AddAlert(&job, "loss > 5", false);
  AddAlert(&job, "grad_norm > 3", true);
  job.add_mutes()->set_problem("ALERT_1");
  Judge(&job);
  ASSERT_THAT(job.problems(), SizeIs(2));
  EXPECT_EQ(job.problems(0).word(), "ALERT_1");
  EXPECT_TRUE(job.problems(0).muted());
  EXPECT_EQ(job.problems(0).since_step(), 700);
  EXPECT_THAT(job.problems(0).evidence(), HasSubstr("loss > 3"));
  EXPECT_EQ(job.problems(1).word(), "ALERT_3");
  EXPECT_FALSE(job.problems(1).muted());
  EXPECT_TRUE(NeedsYou(job, kNow));
  EXPECT_TRUE(IsMuted(job, "ALERT_1"));
  EXPECT_FALSE(IsMuted(job, "ALERT_3"));
  job.add_mutes()->set_problem("ALERT_3");
  Judge(&job);
  EXPECT_FALSE(NeedsYou(job, kNow));
}

TEST(Problems, AnEventOfAnAlertIsAboutItsProblem) {
  v1::JobEvent event;
  event.set_reason("ALERT_RAISED");
  event.set_problem("ALERT_2");
  event.set_severity(v1::SEVERITY_WARNING);
  event.set_state(v1::Job::STATE_RUNNING);
  const auto problem = ProblemOf(event, JobIn(v1::Job::STATE_RUNNING));
  ASSERT_TRUE(problem.has_value());
  EXPECT_EQ(problem->word(), "ALERT_2");
}

TEST(Problems, AJobThatWaitsForNothingNeedsSomebody) {
  v1::Job job = JobIn(v1::Job::STATE_QUEUED, "DEPENDENCY_NEVER_SATISFIED");
  Judge(&job);
  EXPECT_EQ(WorstProblem(job)->word(), "DEPENDENCY_NEVER_SATISFIED");
  EXPECT_TRUE(NeedsYou(job, kNow));
  EXPECT_EQ(HealthOf(job, kEnd).level, HealthLevel::kWarning);
  job.set_reason("WAITING_FOR_JOBS");
  Judge(&job);
  EXPECT_THAT(job.problems(), IsEmpty());
}

TEST(Problems, AnEventOfAFaultSaysWhatHelps) {
  v1::JobEvent event;
  event.set_reason("OUT_OF_MEMORY");
  event.set_state(v1::Job::STATE_FAILED);
  event.set_severity(v1::SEVERITY_ERROR);
  const auto problem = ProblemOf(event, JobIn(v1::Job::STATE_FAILED));
  ASSERT_TRUE(problem.has_value());
  EXPECT_EQ(problem->cause(), "Memory ran out");
  EXPECT_THAT(problem->evidence(), HasSubstr("train.batch_size: 8"));
  event.set_severity(v1::SEVERITY_INFO);
  EXPECT_FALSE(ProblemOf(event, JobIn(v1::Job::STATE_FAILED)).has_value());
  event.set_severity(v1::SEVERITY_ERROR);
  event.set_reason("RESTART_SCHEDULED");
  EXPECT_FALSE(ProblemOf(event, JobIn(v1::Job::STATE_FAILED)).has_value());
}

TEST(Problems, AnUploadThatFailsOrLagsIsOne) {
  const auto words = [](const v1::Job& given) {
    v1::Job job = given;
    Judge(&job);
    std::vector<std::string> found;
    for (const v1::Problem& problem : job.problems()) found.push_back(problem.word());
    return found;
  };
  v1::Job job = JobIn(v1::Job::STATE_RUNNING);
  job.mutable_spec()->mutable_train()->set_save_every(100);
  job.mutable_progress()->set_uploaded_step(500);
  EXPECT_THAT(words(job), IsEmpty()) << "it has no checkpoint_url";
  job.mutable_spec()->mutable_train()->set_checkpoint_url("s3://bucket/runs");
  EXPECT_THAT(words(job), ElementsAre("CHECKPOINT_UPLOAD_LAGS")) << "three checkpoints behind";
  job.mutable_progress()->set_uploaded_step(600);
  EXPECT_THAT(words(job), IsEmpty());
  job.mutable_progress()->set_upload_error("HTTP 503");
  EXPECT_THAT(words(job), ElementsAre("CHECKPOINT_UPLOAD_FAILED"));
}

TEST(Problems, AnEventsReasonIsAReasonOrTheCodeOfAnError) {
  const std::vector<std::string> words = ReasonWords();
  for (const std::string& word : words) EXPECT_TRUE(IsReasonWord(word)) << word;
  for (const char* word : {"PEER_LOST", "MUTED", "CANCELLED", "UNAUTHENTICATED"}) {
    EXPECT_THAT(words, ::testing::Contains(word));
  }
  for (const char* word : {"", "OK", "peer_lost", "NO_SUCH_REASON"}) {
    EXPECT_FALSE(IsReasonWord(word)) << word;
  }
}

}  // namespace
}  // namespace nsa::server
