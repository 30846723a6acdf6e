#include "server/decide/allocation/slurm_reply.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"

namespace nsa::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Phase = ClusterJob::Phase;
using End = ClusterJob::End;

constexpr char kName[] = "nsa-aabcdefghijkl";

TEST(ReadSqueue, FindsOurJobsAmongOthers) {
  const auto jobs = ReadSqueue(
      "12|PENDING|N/A|nsa-aabcdefghijkl|Resources\n"
      "13|RUNNING|1795614565|train.sh|None\n"
      "14|RUNNING|1795614565|nsa-abbbbbbbbbbbb|None\n"
      "11|CANCELLED|1795614000|nsa-acccccccccccc|None\n");
  ASSERT_THAT(jobs, SizeIs(3));
  EXPECT_EQ(jobs[0].number, "12");
  EXPECT_EQ(jobs[0].phase, Phase::kPending);
  EXPECT_EQ(TextOf(jobs[0]), "PENDING (Resources)");
  EXPECT_EQ(jobs[0].end_unix_nanos, 0);
  EXPECT_EQ(jobs[1].name, "nsa-abbbbbbbbbbbb");
  EXPECT_EQ(jobs[1].phase, Phase::kRunning);
  EXPECT_EQ(TextOf(jobs[1]), "RUNNING");
  EXPECT_EQ(jobs[1].end_unix_nanos, 1'795'614'565'000'000'000);
  EXPECT_EQ(jobs[2].end, End::kCancelled);
}

TEST(ReadSqueue, KnowsHowAJobEnded) {
  const auto end_of = [](const std::string& state) {
    const auto jobs = ReadSqueue(absl::StrCat("7|", state, "|1|", kName, "|None"));
    return jobs.empty() ? End::kNone : jobs[0].end;
  };
  for (const char* word : {"TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "DEADLINE"}) {
    EXPECT_EQ(end_of(word), End::kTaken) << word;
  }
  for (const char* word : {"COMPLETED", "FAILED", "OUT_OF_MEMORY"}) {
    EXPECT_EQ(end_of(word), End::kFinished) << word;
  }
  // A state that is not known may be that of a job which runs.
  for (const char* word : {"RUNNING", "SUSPENDED", "SIGNALING", "COMPLETING", "NEW_WORD"}) {
    EXPECT_EQ(end_of(word), End::kNone) << word;
  }
}

TEST(ReadSqueue, LeavesOutWhatIsNotALineOfOurs) {
  for (const std::string line :
       {"", "|", "||||", "7|RUNNING|1|nsa-", "7|RUNNING|1|nsa-|None",
        "7|RUNNING|1|nsa-../../etc|None", "7|RUNNING|1|nsa-AABCDEFGHIJKL|None",
        "x|RUNNING|1|nsa-aabcdefghijkl|None", "-7|RUNNING|1|nsa-aabcdefghijkl|None",
        "7_1|RUNNING|1|nsa-aabcdefghijkl|None", "7||1|nsa-aabcdefghijkl|None",
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "7|RUNNING|1| nsa-aabcdefghijkl|None",
        "99999999999999999999|RUNNING|1|nsa-aabcdefghijkl|x"}) {
    EXPECT_THAT(ReadSqueue(line), IsEmpty()) << line;
  }
  EXPECT_THAT(ReadSqueue(std::string(1 << 20, '|')), IsEmpty());
}

TEST(ReadSqueue, AReasonMayContainAnythingAndIsMadeFitToShow) {
  const auto jobs =
      ReadSqueue(absl::StrCat("7|PENDING|N/A|", kName, "|a|b \x1b[31m", std::string(5000, 'x')));
  ASSERT_THAT(jobs, SizeIs(1));
  EXPECT_THAT(jobs[0].reason, HasSubstr("a|b \\x1b[31m"));
  EXPECT_LT(jobs[0].reason.size(), 400U);
}

TEST(ReadSqueue, AnEndThatIsNoTimeIsNotKnown) {
  for (const std::string end : {"N/A", "NONE", "-5", "1e9", "99999999999999999", ""}) {
    const auto jobs = ReadSqueue(absl::StrCat("7|RUNNING|", end, "|", kName, "|None"));
    ASSERT_THAT(jobs, SizeIs(1)) << end;
    EXPECT_EQ(jobs[0].end_unix_nanos, 0) << end;
  }
}

TEST(ReadSacct, FindsTheJobAndNotItsSteps) {
  const std::string printed = absl::StrCat("71|COMPLETED|", kName, "\n7|CANCELLED by 1000|", kName,
                                           "\n7.batch|COMPLETED|batch\n");
  const auto job = ReadSacct(printed, "7");
  ASSERT_TRUE(job.has_value());
  EXPECT_EQ(job->end, End::kCancelled);
  EXPECT_EQ(TextOf(*job), "CANCELLED by 1000");
  EXPECT_FALSE(ReadSacct(printed, "8").has_value());
  EXPECT_FALSE(ReadSacct("", "7").has_value());
  EXPECT_FALSE(ReadSacct("7", "7").has_value());
  EXPECT_FALSE(ReadSacct("7||x", "7").has_value());
}

TEST(ReadSbatch, TakesTheNumberOnly) {
  EXPECT_EQ(ReadSbatch("17\n"), "17");
  EXPECT_EQ(ReadSbatch("17;cluster\n"), "17");
  EXPECT_EQ(ReadSbatch("Welcome to the cluster\n17\n"), "17");
  EXPECT_EQ(ReadSbatch("Submitted batch job 17\n"), "");
  EXPECT_EQ(ReadSbatch(""), "");
  EXPECT_EQ(ReadSbatch("-1\n"), "");
}

TEST(SbatchErrors, AreThoseOfTheJobOrOfTheCluster) {
  EXPECT_FALSE(SbatchMayPass(
      "sbatch: error: Batch job submission failed: Invalid partition name specified\n"));
  EXPECT_FALSE(
      SbatchMayPass("sbatch: error: Batch job submission failed: Requested time limit is "
                    "invalid (missing or exceeds some limit)\n"));
  EXPECT_TRUE(
      SbatchMayPass("sbatch: error: Batch job submission failed: Unable to contact slurm "
                    "controller (connect failure)\n"));
  EXPECT_TRUE(SbatchMayPass(
      "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"));
}

TEST(SbatchErrors, AreShownInOneLine) {
  EXPECT_EQ(ShortError("sbatch: error: invalid partition specified: x\n\nsbatch: error: Batch job "
                       "submission failed: Invalid partition name specified\n"),
            "invalid partition specified: x; Batch job submission failed: Invalid partition name "
            "specified");
  EXPECT_EQ(ShortError("\x1b[2J\n"), "\\x1b[2J");
}

}  // namespace
}  // namespace nsa::server
