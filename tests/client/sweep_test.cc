// The jobs that a sweep consists of, and the table of those that came of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/str_cat.h"
#include "client/commands/sweep/expand.h"
#include "client/show/sweep_view.h"
#include "tests/client/nsactl_harness.h"
#include "tests/testing/status_matchers.h"

namespace nsa::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<SweepAxis> Axes(const std::vector<std::string>& texts) {
  std::vector<SweepAxis> axes;
  for (const std::string& text : texts) axes.push_back(ParseSweepAxis(text).value());
  return axes;
}

v1::JobSpec Base() {
  v1::JobSpec spec;
  spec.set_name("demo");
  spec.mutable_train()->set_out_dir("/out/demo");
  spec.mutable_train()->set_steps(800);
  spec.mutable_train()->set_eval_every(50);
  (*spec.mutable_labels())["team"] = "vision";
  return spec;
}

TEST(SweepAxisTest, CommasInsideBracketsAndQuotesDoNotSeparate) {
  const SweepAxis axis = ParseSweepAxis("data.path=[a.txt,b.txt],'c,d.txt', e.txt").value();
  EXPECT_EQ(axis.field, "data.path");
  EXPECT_THAT(axis.values, ElementsAre("[a.txt,b.txt]", "'c,d.txt'", "e.txt"));
}

TEST(SweepAxisTest, BracketsAndQuotesWithinATextAreText) {
  EXPECT_THAT(ParseSweepAxis("data.path=a{b,c]d,don't,e").value().values,
              ElementsAre("a{b", "c]d", "don't", "e"));
  EXPECT_THAT(ParseSweepAxis(R"(data.path="a\",b", 'it''s, it',c)").value().values,
              ElementsAre(R"("a\",b")", "'it''s, it'", "c"));
}

TEST(SweepAxisTest, AFieldMayHaveQuotes) {
  const SweepAxis axis = ParseSweepAxis(R"(data.where."a=b"=x,y)").value();
  EXPECT_EQ(axis.field, R"(data.where."a=b")");
  EXPECT_THAT(axis.values, ElementsAre("x", "y"));
  const std::vector<SweepAxis> axes = {axis};
  const auto jobs =
      SweepJobs(Base(), {.name = "x", .axes = axes, .points = SweepGrid(axes).value()}).value();
  EXPECT_THAT(jobs[1].data().where().at("a=b").value(), ElementsAre("y"));
}

TEST(SweepAxisTest, HalfOfARangeIsRefused) {
  for (const char* text : {"train.lr=1..", "train.lr=..1e-3"}) {
    EXPECT_EQ(ParseSweepAxis(text).status().message(),
              absl::StrCat("--sweep ", text,
                           ": one end of the range is missing (LOW..HIGH); write both"));
  }
  EXPECT_THAT(ParseSweepAxis("data.path=../a.txt,..").value().values,
              ElementsAre("../a.txt", ".."));
}

TEST(SweepAxisTest, WhatIsNoListOfValuesIsRefused) {
  for (const char* text : {"train.lr", "=1,2", "train.lr=", "train.lr=1,,2", "train.lr=3..1"}) {
    const auto axis = ParseSweepAxis(text);
    EXPECT_FALSE(axis.ok()) << text;
    EXPECT_THAT(axis.status().message(), HasSubstr("--sweep")) << text;
  }
}

TEST(SweepGridTest, TheLastFieldChangesFirst) {
  const auto points = SweepGrid(Axes({"train.lr=1e-4,3e-4", "nsa.gate=softmax,sigmoid"})).value();
  EXPECT_THAT(points, ElementsAre(ElementsAre("1e-4", "softmax"), ElementsAre("1e-4", "sigmoid"),
                                  ElementsAre("3e-4", "softmax"), ElementsAre("3e-4", "sigmoid")));
}

TEST(SweepGridTest, ASweepHasTwoToAThousandJobs) {
  EXPECT_THAT(SweepGrid(Axes({"train.lr=1e-4"})).status().message(),
              HasSubstr("1 job (from 2 to 1000)"));
  std::string many = "train.seed=0";
  for (int i = 1; i < 40; ++i) many += "," + std::to_string(i);
  EXPECT_THAT(SweepGrid(Axes({many, "train.lr=" + many.substr(11)})).status().message(),
              HasSubstr("1600 jobs (from 2 to 1000)"));
  EXPECT_FALSE(SweepGrid(Axes({"train.lr=1e-4..1e-2"})).ok());
}

TEST(SweepDrawTest, PointsOfAGridAreDifferentAndRepeatWithTheSeed) {
  const auto axes = Axes({"train.lr=1,2,3,4", "train.seed=1,2,3,4"});
  const auto points = DrawSweep(axes, 10, 7).value();
  EXPECT_EQ(std::set<SweepPoint>(points.begin(), points.end()).size(), 10u);
  EXPECT_EQ(points, DrawSweep(axes, 10, 7).value());
  EXPECT_NE(points, DrawSweep(axes, 10, 8).value());
  EXPECT_EQ(DrawSweep(axes, 16, 1).value(), SweepGrid(axes).value());
  EXPECT_FALSE(DrawSweep(axes, 17, 1).ok());
}

TEST(SweepDrawTest, ARangeIsDrawnByItsLogarithmAndWholeNumbersStayWhole) {
  const auto points = DrawSweep(Axes({"train.lr=1e-4..1e-2", "nsa.w=64..512"}), 1000, 3).value();
  int below = 0;
  for (const SweepPoint& point : points) {
    const double lr = std::stod(point[0]);
    EXPECT_GE(lr, 0.99e-4);
    EXPECT_LE(lr, 1.01e-2);
    below += lr < 1e-3 ? 1 : 0;
    EXPECT_EQ(point[1].find_first_not_of("0123456789"), std::string::npos) << point[1];
  }
  // Half of the logarithms lie below 1e-3; ±5 standard deviations.
  EXPECT_NEAR(below, 500, 80);
}

TEST(SweepDrawTest, WholeNumbersOfARangeAreDrawnOnceEach) {
  const auto axes = Axes({"train.seed=1..3"});
  const auto points = DrawSweep(axes, 3, 1).value();
  EXPECT_EQ(std::set<SweepPoint>(points.begin(), points.end()).size(), 3u);
  EXPECT_THAT(std::string(DrawSweep(axes, 8, 1).status().message()),
              StartsWith("--draw: 8 (only 3 different combinations were drawn)"));
}

TEST(SweepJobsTest, EveryJobHasItsValuesNameFolderAndLabels) {
  const auto axes = Axes({"train.lr=1e-4,3e-4"});
  const auto jobs =
      SweepJobs(
          Base(),
          {.name = "lr", .axes = axes, .points = SweepGrid(axes).value(), .halve_at = {100, 400}})
          .value();
  ASSERT_EQ(jobs.size(), 2u);
  const v1::JobSpec& job = jobs[1];
  EXPECT_EQ(job.name(), "lr-2");
  EXPECT_EQ(job.train().lr(), 3e-4);
  EXPECT_EQ(job.train().out_dir(), "/out/demo-2");
  EXPECT_EQ(job.labels().at("sweep"), "lr");
  EXPECT_EQ(job.labels().at("train.lr"), "3e-4");
  EXPECT_EQ(job.labels().at("team"), "vision");
  EXPECT_EQ(job.sweep().jobs(), 2);
  EXPECT_EQ(job.sweep().index(), 1);
  EXPECT_THAT(job.sweep().halve_at(), ElementsAre(100, 400));
}

// A vocabulary that the job file does not name is that of the tokenizer of each job.
TEST(SweepJobsTest, TheVocabularyIsThatOfTheTokenizer) {
  const TempDir dir;
  std::vector<std::string> paths;
  for (const int tokens : {300, 400}) {
    const std::string path = (dir.path() / absl::StrCat(tokens, ".json")).string();
    std::ofstream(path) << R"({"model": {"vocab": {"<|endoftext|>": )" << tokens - 1 << "}}}";
    paths.push_back(path);
  }
  v1::JobSpec base = Base();
  base.mutable_data()->set_tokenizer(v1::TOKENIZER_BPE);
  base.mutable_data()->set_tokenizer_path(paths[0]);
  const auto axes = Axes({absl::StrCat("data.tokenizer_path=", paths[0], ",", paths[1])});
  const auto vocabularies = [&](int vocab) {
    base.mutable_model()->set_vocab(vocab);
    const auto jobs =
        SweepJobs(base, {.name = "x", .axes = axes, .points = SweepGrid(axes).value()}).value();
    std::vector<int> found;
    for (const v1::JobSpec& job : jobs) found.push_back(job.model().vocab());
    return found;
  };
  EXPECT_THAT(vocabularies(300), ElementsAre(300, 400));
  EXPECT_THAT(vocabularies(512), ElementsAre(512, 512));
}

TEST(SweepJobsTest, WrongValuesAndFieldsOfTheirOwnAreRefused) {
  for (const char* text : {"train.lr=1e-4,fast", "train.stepz=1,2", "name=a,b",
                           "train.out_dir=/a,/b", "sweep.jobs=1,2", "'name'=a,b"}) {
    const auto axes = Axes({text});
    EXPECT_FALSE(
        SweepJobs(Base(), {.name = "x", .axes = axes, .points = SweepGrid(axes).value()}).ok())
        << text;
  }
  const auto wrong = Axes({"train.lr=1e-4,fast"});
  const absl::Status status =
      SweepJobs(Base(), {.name = "x", .axes = wrong, .points = SweepGrid(wrong).value()}).status();
  EXPECT_THAT(std::string(status.message()),
              StartsWith("--sweep train.lr=fast: train.lr: 'fast' is not a number"));
  const auto twice = Axes({"train.lr=1,2", "train.'lr'=3,4"});
  EXPECT_FALSE(
      SweepJobs(Base(), {.name = "x", .axes = twice, .points = SweepGrid(twice).value()}).ok());
}

TEST(SweepHalvingTest, TheStepsHalveTheJobsDownToOneAtValidations) {
  EXPECT_THAT(DefaultHalving(Base(), 8).value(), ElementsAre(100, 200, 400));
  EXPECT_THAT(DefaultHalving(Base(), 5).value(), ElementsAre(100, 200, 400));
  EXPECT_THAT(DefaultHalving(Base(), 2).value(), ElementsAre(400));
  v1::JobSpec rough = Base();
  rough.mutable_train()->set_eval_every(300);
  EXPECT_THAT(DefaultHalving(rough, 8).value(), ElementsAre(300));
  rough.mutable_train()->set_eval_every(0);
  EXPECT_THAT(DefaultHalving(rough, 8).status().message(), HasSubstr("train.eval_every is 0"));
}

v1::Job JobAt(int index, const std::string& lr, int64_t step, double loss) {
  v1::Job job;
  job.set_id("j" + std::to_string(index));
  job.set_name("lr-" + std::to_string(index + 1));
  job.set_state(v1::Job::STATE_STOPPED);
  v1::JobSpec& spec = *job.mutable_spec();
  (*spec.mutable_labels())["sweep"] = "lr";
  (*spec.mutable_labels())["train.lr"] = lr;
  spec.mutable_sweep()->set_index(index);
  spec.mutable_sweep()->add_halve_at(100);
  job.mutable_progress()->set_total_steps(400);
  job.mutable_progress()->set_step(step);
  job.mutable_progress()->set_val_step(step);
  job.mutable_progress()->set_val_loss(loss);
  return job;
}

TEST(SweepViewTest, TheBestJobIsFirstAndDroppedOnesAreLast) {
  std::vector<v1::Job> jobs = {JobAt(0, "1e-4", 100, 1.5), JobAt(1, "3e-4", 100, 1.6),
                               JobAt(2, "6e-4", 200, 2.0)};
  jobs[0].set_reason("SWEEP_DROPPED");
  jobs[0].set_message("rank 3 of 3");
  jobs[1].mutable_stop()->set_mode(v1::STOP_MODE_AT_STEP);
  jobs[1].mutable_stop()->set_at_step(100);
  SortSweep(&jobs);
  EXPECT_THAT(jobs, ElementsAre(::testing::Property(&v1::Job::id, "j2"),
                                ::testing::Property(&v1::Job::id, "j1"),
                                ::testing::Property(&v1::Job::id, "j0")));
  EXPECT_EQ(SweepSummary(jobs), "best: lr-3 (train.lr=6e-4): validation loss 2.0000 at step 200");
  const std::string table = SweepTable(jobs).Format(false);
  EXPECT_THAT(table, HasSubstr("train.lr"));
  EXPECT_THAT(table, HasSubstr("waits at step 100 for the other jobs"));
  EXPECT_THAT(table, HasSubstr("rank 3 of 3"));
}

// Alice and Bob have a sweep `lr` each.
class SweepCommandTest : public NsactlTest {
 protected:
  SweepCommandTest() {
    for (const char* owner : {"alice", "bob"}) {
      for (int i = 0; i < 2; ++i) {
        v1::Job job = JobAt(i, i == 0 ? "1e-4" : "3e-4", 100, 1.5 + i);
        job.set_id(absl::StrCat("j", owner, i));
        job.set_owner(owner);
        job.mutable_spec()->mutable_sweep()->set_name("lr");
        (*job.mutable_spec()->mutable_labels())["sweep"] = "lr";
        job.mutable_spec()->mutable_train()->set_out_dir(absl::StrCat("/", owner, "-", i + 1));
        state().jobs.push_back(job);
      }
    }
    state().report.set_accepted(true);
  }

  // Submits a sweep `lr` of two jobs; how many of them preflight was asked about.
  size_t AskedAbout(const std::string& out_dir) {
    const std::string file = (dir_ / "job.yaml").string();
    std::ofstream(file) << "name: lr\ntrain: {steps: 100, out_dir: " << out_dir << "}\n";
    const NsactlTest::Ran ran = Run({"submit", file, "--sweep", "train.lr=1e-4,3e-4"});
    EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
    size_t asked = 0;
    for (const std::string& request : service().Requests("SubmitJob")) {
      asked += request.find("validate_only: true") != std::string::npos ? 1 : 0;
    }
    return asked;
  }
};

TEST_F(SweepCommandTest, SweepsOfTwoOwnersAreNotRankedTogether) {
  const NsactlTest::Ran both = Run({"sweep", "lr"});
  EXPECT_NE(both.code, ExitCode::kOk);
  EXPECT_THAT(both.err, HasSubstr("'lr' is the name of 2 sweeps"));
  const NsactlTest::Ran one = Run({"sweep", "lr", "--owner", "bob", "-o", "name"});
  EXPECT_EQ(one.out, "jbob0\njbob1\n");
  EXPECT_THAT(Run({"sweep", "lr", "--owner", "carol"}).err, HasSubstr("no job of carol belongs"));
}

TEST_F(SweepCommandTest, OnlyOnesOwnJobsCountAsSubmitted) { EXPECT_EQ(AskedAbout("/carol"), 2); }

// The coordinator remembers the request of a deleted job; the same command submits it anew.
TEST_F(SweepCommandTest, AJobThatWasDeletedIsSubmittedAgain) {
  const auto submitted = [&] {
    const size_t before = service().Requests("SubmitJob").size();
    // After the two questions to preflight.
    state().failures["SubmitJob"] = {grpc::Status::OK, grpc::Status::OK,
                                     grpc::Status(grpc::StatusCode::NOT_FOUND,
                                                  "request_id: 1f0c (that of job j1, which has "
                                                  "been deleted); choose a new one")};
    AskedAbout("/carol");
    std::vector<std::string> ids;
    const std::vector<std::string> all = service().Requests("SubmitJob");
    for (size_t i = before; i < all.size(); ++i) {
      const size_t at = all[i].find("request_id: ");
      if (at != std::string::npos) ids.push_back(all[i].substr(at, 50));
    }
    return ids;
  };
  const std::vector<std::string> first = submitted();
  ASSERT_EQ(first.size(), 3u) << "the first job twice";
  EXPECT_NE(first[0], first[1]);
  EXPECT_EQ(submitted(), first) << "the ids follow from the job";
}

TEST_F(SweepCommandTest, JobsThatWereSubmittedBeforeAreNotAskedAbout) {
  EXPECT_EQ(AskedAbout("/bob"), 0);
}

}  // namespace
}  // namespace nsa::client
