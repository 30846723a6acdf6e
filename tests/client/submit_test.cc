// submit, validate and checkpoint folders: the commands that read this machine's files.
#include <filesystem>
#include <fstream>
#include <vector>

#include "client/connect/job_source.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/client/nsactl_harness.h"
#include "tests/testing/status_matchers.h"

namespace nsa::client {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

class SubmitTest : public NsactlTest {
 protected:
  SubmitTest() {
    state().jobs = {DemoJob()};
    state().jobs[0].set_state(v1::Job::STATE_QUEUED);
    state().report.set_accepted(true);
    file_ = Write("job.yaml", "name: demo\nmodel: {dim: 128}\ntrain:\n  steps: 100\n");
  }

  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = (dir_ / name).string();
    std::ofstream(path) << text;
    return path;
  }

  v1::Finding& AddFinding(v1::Severity severity, const std::string& rule,
                          const std::string& field) {
    v1::Finding& finding = *state().report.add_findings();
    finding.set_severity(severity);
    finding.set_rule(rule);
    finding.set_field(field);
    finding.set_problem("100 (at most 50)");
    finding.set_fix("take less");
    return finding;
  }

  std::string file_;
};

TEST_F(SubmitTest, AfterTakesThePlaceOfThatOfTheFile) {
  const std::string file = Write("chain.yaml", "name: demo\nafter: old\nmodel: {dim: 128}\n");
  EXPECT_EQ(Run({"submit", file, "--after", "prep,jqx2m4k7c3zap"}).code, ExitCode::kOk);
  const std::vector<std::string> submitted = service().Requests("SubmitJob");
  ASSERT_THAT(submitted, SizeIs(1));
  EXPECT_THAT(submitted[0], AllOf(HasSubstr("after: \"prep\""), Not(HasSubstr("old")),
                                  HasSubstr("after: \"jqx2m4k7c3zap\"")));
}

TEST_F(SubmitTest, SaysWhatWasAcceptedAndWhatToTypeNext) {
  AddFinding(v1::SEVERITY_WARNING, "EVAL_OFF", "train.eval_every");
  AddFinding(v1::SEVERITY_ERROR, "TOY", "model.dim").set_waived("a test");
  AddFinding(v1::SEVERITY_INFO, "NO_CHECKPOINT_CADENCE", "train.save_every").clear_fix();
  for (const char* name : {"memory per rank", "memory: activations"}) {
    v1::EstimateItem& item = *state().report.add_estimates();
    item.set_name(name);
    item.set_value(1 << 20);
    item.set_unit("bytes");
  }
  const Ran ran = Run({"submit", file_});
  EXPECT_EQ(ran.code, ExitCode::kOk);
  EXPECT_EQ(ran.out,
            "submitted demo (jdemo1234567): waiting\n"
            "  warning EVAL_OFF: train.eval_every: 100 (at most 50); take less\n"
            "  waived TOY: model.dim: 100 (at most 50) (waived: a test)\n"
            "  note NO_CHECKPOINT_CADENCE: train.save_every: 100 (at most 50)\n"
            "  estimate: memory per rank 1.0 MiB\n");
  EXPECT_THAT(ran.err,
              AllOf(HasSubstr("nsactl watch jdemo1234567"), HasSubstr("nsactl stop jdemo1234567")));
}

// The records of a canary of `steps` steps at a speed that doubles after the first half.
std::vector<v1::WatchRecordsResponse> CanaryRecords(int64_t steps) {
  std::vector<v1::WatchRecordsResponse> records(1);
  records[0].mutable_record()->mutable_started()->set_device("cpu, 2 threads");
  records[0].set_position(1);
  for (int64_t i = 1; i <= steps; ++i) {
    v1::WatchRecordsResponse& response = records.emplace_back();
    response.set_position(i + 1);
    v1::StepRecord& step = *response.mutable_record()->mutable_step();
    step.set_step(i);
    step.set_tokens(1000);
    step.mutable_times()->set_step_seconds(i <= steps / 2 ? 1 : 0.5);
    step.set_memory_allocated_bytes(int64_t{3} << 30);
    step.set_loss(5.4);
  }
  return records;
}

TEST_F(SubmitTest, ACanaryRunsTheFirstStepsAndThenTheJobIsQueued) {
  state().records = CanaryRecords(20);
  state().stops_at_once = true;
  std::vector<std::string> folders;
  state().on_call = [&](const std::string& method, const google::protobuf::Message& request) {
    if (method != "SubmitJob") return;
    const auto& submit = dynamic_cast<const v1::SubmitJobRequest&>(request);
    if (submit.validate_only()) return;
    folders.push_back(submit.spec().train().out_dir());
    std::filesystem::create_directories(folders.back());
  };
  const Ran ran = Run({"submit", file_, "--canary", "--after", "prep", "--set",
                       "train.out_dir=" + (dir_ / "out").string()});
  EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("canary: 20 steps on cpu, 2 threads: "));
  const std::vector<std::string> submitted = service().Requests("SubmitJob");
  ASSERT_THAT(submitted, SizeIs(3)) << "checked, canary, job";
  EXPECT_THAT(submitted[1], AllOf(HasSubstr("name: \"demo-canary-"), HasSubstr("demo-canary-"),
                                  HasSubstr("resume: \"never\""), HasSubstr("steps: 100")));
  EXPECT_THAT(submitted[1], Not(HasSubstr("after:"))) << "it runs now";
  EXPECT_THAT(submitted[2], AllOf(HasSubstr("name: \"demo\""), Not(HasSubstr("canary")),
                                  HasSubstr("after: \"prep\"")));
  EXPECT_THAT(service().Requests("StopJob"), ElementsAre(HasSubstr("STOP_MODE_NOW")));
  EXPECT_THAT(service().Requests("DeleteJob"), SizeIs(1));
  ASSERT_THAT(folders, SizeIs(2));
  EXPECT_FALSE(std::filesystem::exists(folders[0])) << "that of the canary";
  EXPECT_TRUE(std::filesystem::exists(folders[1])) << "that of the job";
}

TEST_F(SubmitTest, ACanaryBelowTheFloorKeepsTheJobOutOfTheQueue) {
  state().records = CanaryRecords(5);
  state().stops_at_once = true;
  const Ran ran =
      Run({"submit", file_, "--canary", "5", "--set", "guard.min_tokens_per_second=2500"});
  EXPECT_EQ(ran.code, ExitCode::kUsage);
  EXPECT_THAT(ran.err,
              AllOf(HasSubstr("guard.min_tokens_per_second: 2,500 ("), HasSubstr("not submitted")));
  EXPECT_THAT(service().Requests("SubmitJob"), SizeIs(2)) << "checked, canary";
  EXPECT_THAT(service().Requests("DeleteJob"), SizeIs(1));
}

TEST_F(SubmitTest, ACanaryThatFailsSaysWhyAndTheJobIsNotQueued) {
  state().records = CanaryRecords(3);
  state().jobs[0].set_state(v1::Job::STATE_FAILED);
  state().jobs[0].set_reason("RANK_CRASHED");
  state().failures["StopJob"] = {{grpc::StatusCode::FAILED_PRECONDITION, "it has ended"}};
  const Ran ran = Run({"submit", file_, "--canary"});
  EXPECT_EQ(ran.code, ExitCode::kPrecondition);
  EXPECT_THAT(ran.err, AllOf(HasSubstr("canary: failed after 3 steps"),
                             HasSubstr("the canary's folder stays, to look at: ")));
  EXPECT_THAT(service().Requests("SubmitJob"), SizeIs(2));
}

TEST_F(SubmitTest, QuietGivesTheIdAlone) {
  const Ran ran = Run({"submit", "-q", file_});
  EXPECT_EQ(ran.out, "jdemo1234567\n");
  EXPECT_EQ(ran.err, "");
  EXPECT_EQ(Run({"submit", "-o", "name", "-q", file_}).out, "jdemo1234567\n");
  const auto json = nlohmann::json::parse(Run({"submit", "-o", "json", file_}).out);
  EXPECT_EQ(json["job"]["id"], "jdemo1234567");
}

TEST_F(SubmitTest, ARequestThatIsSentAgainKeepsItsId) {
  // More than the channel itself sends again.
  const grpc::Status away(grpc::StatusCode::UNAVAILABLE, "going down");
  state().failures["SubmitJob"] = {away, away, away, away, away};
  EXPECT_EQ(Run({"submit", file_}).code, ExitCode::kOk);
  const auto requests = service().Requests("SubmitJob");
  ASSERT_THAT(requests, SizeIs(6));
  EXPECT_THAT(requests[0], HasSubstr("request_id: \""));
  for (const std::string& request : requests) EXPECT_EQ(request, requests[0]);
  Run({"submit", file_});
  EXPECT_NE(service().Requests("SubmitJob").back(), requests[0]) << "a new call is a new job";
  Run({"submit", file_, "--request-id", "mine"});
  EXPECT_THAT(service().Requests("SubmitJob").back(), HasSubstr("request_id: \"mine\""));
}

TEST_F(SubmitTest, ARequestIdIsAShortText) {
  for (const std::string& id : {std::string(), std::string(129, 'x')}) {
    const Ran ran = Run({"submit", file_, "--request-id", id});
    EXPECT_EQ(ran.code, ExitCode::kUsage);
    EXPECT_THAT(ran.err, AllOf(StartsWith("nsactl: --request-id: '"),
                               HasSubstr("' (a text of 1 to 128 bytes); see `nsactl submit")));
  }
  EXPECT_EQ(Run({"submit", file_, "--request-id", std::string(128, 'x')}).code, ExitCode::kOk);
  state().failures["SubmitJob"] = {
      grpc::Status(grpc::ALREADY_EXISTS,
                   "request_id: abc (that of another request, about job jold); choose a new one")};
  const Ran used = Run({"submit", file_, "--request-id", "abc"});
  EXPECT_EQ(used.code, ExitCode::kPrecondition);
  EXPECT_EQ(used.err,
            "nsactl: --request-id: abc (that of another request, about job jold); choose a new "
            "one\n");
}

TEST_F(SubmitTest, AJobToWaitForIsNamedLikeAJob) {
  const Ran ran = Run({"submit", file_, "--after", "prep,["});
  EXPECT_EQ(ran.code, ExitCode::kUsage);
  EXPECT_EQ(ran.err, "nsactl: --after: '[' (the id or name of a job); see `nsactl list`\n");
}

TEST_F(SubmitTest, PathsBecomeAbsoluteFromTheCurrentDirectory) {
  const std::string file =
      Write("text.yaml", "data: {source: text, path: a.txt}\ntrain: {out_dir: out}\n");
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(dir_.path());
  Run({"submit", file, "--set", "data.val_path=[b.txt]"});
  std::filesystem::current_path(before);
  EXPECT_THAT(service().Requests("SubmitJob"),
              ElementsAre(AllOf(HasSubstr("path: \"" + (dir_ / "a.txt").string()),
                                HasSubstr("val_path: \"" + (dir_ / "b.txt").string()),
                                HasSubstr("out_dir: \"" + (dir_ / "out").string()))));
}

TEST_F(SubmitTest, MistakesInTheFileNeedNoCoordinator) {
  const std::string file = Write("bad.yaml", "model: {dim: wide}\ntrain:\n  stepps: 3\n");
  const Ran ran = RunAlone({"submit", file});
  EXPECT_EQ(ran.code, ExitCode::kUsage);
  EXPECT_THAT(ran.err, AllOf(HasSubstr(file + ":1:14: model.dim: "),
                             HasSubstr(file + ":3:3: train.stepps: "), HasSubstr("'steps'"),
                             HasSubstr("nsactl: " + file + ": 2 mistakes; correct the file")));
}

TEST_F(SubmitTest, EveryMistakeIsCountedAlsoOneThatIsNotShown) {
  std::string text = "train:\n";
  for (int i = 0; i < 25; ++i) text += "  nonsense" + std::to_string(i) + ": 1\n";
  const std::string file = Write("bad.yaml", text);
  EXPECT_THAT(RunAlone({"submit", file}).err,
              HasSubstr("and 5 more\nnsactl: " + file + ": 25 mistakes; correct the file"));
}

TEST_F(SubmitTest, WhatSetGivesIsNotAbsentAndHasNoPlace) {
  const std::string file =
      Write("two.yaml",
            "runtime: {device: cuda, precision: bf16}\nguard: {after_steps: 5}\n"
            "train:\n  steps: 50000\n  save_every: 100\n");
  const Ran ran = RunAlone(
      {"validate", "--offline", file, "--set", "train={save_every: 0, keep_checkpoints: 1}"});
  EXPECT_THAT(ran.out, AllOf(HasSubstr(file + ": error NO_CHECKPOINT_CADENCE: train.save_every: 0"),
                             HasSubstr(file + ": error KEEP_CHECKPOINTS_TOO_FEW: "
                                              "train.keep_checkpoints: 1")));
}

TEST_F(SubmitTest, AnEmptyFileIsUsageAndNothingIsSubmitted) {
  const std::string file = Write("empty.yaml", "# nothing yet\n");
  for (const char* command : {"submit", "validate"}) {
    const Ran ran = Run({command, file});
    EXPECT_EQ(ran.code, ExitCode::kUsage);
    EXPECT_EQ(ran.err,
              "nsactl: " + file +
                  ": sets nothing (a job file must set at least one key); see configs/jobs/\n");
  }
  EXPECT_THAT(service().Requests("SubmitJob"), SizeIs(0));
}

TEST_F(SubmitTest, AFileThatIsNotThereIsUsage) {
  const Ran ran = Run({"submit", "/nowhere/job.yaml"});
  EXPECT_EQ(ran.code, ExitCode::kUsage);
  EXPECT_THAT(ran.err, HasSubstr("/nowhere/job.yaml: cannot be read"));
}

TEST_F(SubmitTest, ARefusalNamesEveryFindingWithItsPlace) {
  state().report.set_accepted(false);
  AddFinding(v1::SEVERITY_ERROR, "TOY", "model.dim");
  AddFinding(v1::SEVERITY_ERROR, "STEPS", "train.steps");
  const Ran ran = Run({"submit", file_});
  EXPECT_EQ(ran.code, ExitCode::kUsage);
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(ran.err,
              AllOf(HasSubstr(file_ + ":2:9: error TOY: model.dim: 100 (at most 50); take less"),
                    HasSubstr(file_ + ":4:3: error STEPS: train.steps"),
                    HasSubstr("nsactl: " + file_ + ": refused by preflight: 2 errors")));
  EXPECT_THAT(ran.err, EndsWith("; change the job\n")) << "neither rule can be waived";
  AddFinding(v1::SEVERITY_ERROR, "GRADIENT_CHECKPOINTING_OFF", "runtime.gradient_checkpointing");
  EXPECT_THAT(Run({"submit", file_}).err,
              EndsWith("or waive GRADIENT_CHECKPOINTING_OFF with a reason under "
                       "preflight.waive\n"));
}

TEST_F(SubmitTest, SubmitWatchEndsWithTheJobsOutcome) {
  v1::Job job = DemoJob();
  state().watch = {job};
  job.set_state(v1::Job::STATE_FAILED);
  job.set_reason("NONFINITE_LOSS");
  job.set_end_unix_nanos(job.start_unix_nanos() + 1);
  state().watch.push_back(job);
  const Ran ran = Run({"submit", "--watch", file_});
  EXPECT_EQ(ran.code, ExitCode::kFailed);
  EXPECT_THAT(ran.out, HasSubstr("failed after 0 s"));
}

TEST_F(SubmitTest, LegacyKeysAreExplained) {
  const std::string file = Write("old.yaml", "runtime: {use_flash: true}\ntrain: {steps: 5}\n");
  EXPECT_THAT(Run({"submit", file}).err, HasSubstr(file + ":1:11: warning: runtime.use_flash"));
}

TEST(ApplySet, ChangesScalarsListsAndMapEntries) {
  v1::JobSpec spec;
  spec.mutable_data()->add_path("old");
  (*spec.mutable_labels())["team"] = "a";
  ASSERT_OK(ApplySet("train.steps=100", &spec));
  ASSERT_OK(ApplySet("train.lr=3e-4", &spec));
  ASSERT_OK(ApplySet("runtime.precision=bf16", &spec));
  ASSERT_OK(ApplySet("data.path=[x, y]", &spec));
  ASSERT_OK(ApplySet("labels.run=b", &spec));
  ASSERT_OK(ApplySet("name=other", &spec));
  EXPECT_EQ(spec.train().steps(), 100);
  EXPECT_EQ(spec.train().lr(), 3e-4);
  EXPECT_EQ(spec.runtime().precision(), v1::PRECISION_BF16);
  EXPECT_THAT(spec.data().path(), ElementsAre("x", "y"));
  EXPECT_EQ(spec.labels().at("team"), "a");
  EXPECT_EQ(spec.labels().at("run"), "b");
  EXPECT_EQ(spec.name(), "other");
}

TEST(ApplySet, EmptiesListsAndTexts) {
  v1::JobSpec spec;
  spec.add_after("prep");
  spec.set_not_before("+2h");
  spec.mutable_data()->add_path("a.txt");
  spec.mutable_resources()->set_provisioner("slurm");
  (*spec.mutable_labels())["run"] = "a";
  ASSERT_OK(ApplySet("after=[]", &spec));
  ASSERT_OK(ApplySet("not_before=\"\"", &spec));
  ASSERT_OK(ApplySet("data.path=[]", &spec));
  ASSERT_OK(ApplySet("resources={provisioner: \"\", gpus: 2}", &spec));
  ASSERT_OK(ApplySet("labels={}", &spec));
  EXPECT_TRUE(spec.after().empty());
  EXPECT_EQ(spec.not_before(), "");
  EXPECT_TRUE(spec.data().path().empty());
  EXPECT_EQ(spec.resources().provisioner(), "");
  EXPECT_EQ(spec.resources().gpus(), 2);
  EXPECT_EQ(spec.labels_size(), 1) << "maps gain entries";
}

TEST(ApplySet, NamesInMapsMayHaveDotsAndQuotes) {
  v1::JobSpec spec;
  ASSERT_OK(ApplySet("labels.app.example.org/team=a=b", &spec));
  ASSERT_OK(ApplySet("data.where.meta.source=x", &spec));
  ASSERT_OK(ApplySet("data.where.'a=b'=[x, y]", &spec));
  ASSERT_OK(ApplySet(R"(data.except."say \"hi\"".'it''s'=z)", &spec));
  ASSERT_OK(ApplySet("data.val.'v1.2'=a.txt", &spec));
  ASSERT_OK(ApplySet("data.val_where.'v1.2'.meta.lang=en", &spec));
  EXPECT_EQ(spec.labels().at("app.example.org/team"), "a=b");
  EXPECT_THAT(spec.data().where().at("meta.source").value(), ElementsAre("x"));
  EXPECT_THAT(spec.data().where().at("a=b").value(), ElementsAre("x", "y"));
  EXPECT_THAT(spec.data().except().at("say \"hi\".it's").value(), ElementsAre("z"));
  EXPECT_EQ(spec.data().val().at("v1.2"), "a.txt");
  EXPECT_THAT(spec.data().val_where().at("v1.2").field().at("meta.lang").value(),
              ElementsAre("en"));
}

TEST(ApplySet, AValueIsOneValueWhateverItsCharacters) {
  v1::JobSpec spec;
  const auto path = [&](const std::string& value) {
    ASSERT_OK(ApplySet("data.path=" + value, &spec));
  };
  for (const char* text :
       {"a}b", "a{b}.txt", "a]", "x, y", "a: b", "a # b", "*.jsonl", "&a", "!a", "- a", "a\"b"}) {
    path(text);
    EXPECT_THAT(spec.data().path(), ElementsAre(text));
  }
  path("['a}', \"{b\", 'it''s']");
  EXPECT_THAT(spec.data().path(), ElementsAre("a}", "{b", "it's"));
  path("'[a]'");
  EXPECT_THAT(spec.data().path(), ElementsAre("[a]"));
  path(" a ");
  EXPECT_THAT(spec.data().path(), ElementsAre("a"));
}

TEST(ApplySet, AFieldOfASetIsAdded) {
  v1::JobSpec spec;
  ASSERT_OK(ApplySet("data.val_where.p={m: [a, b], o: c}", &spec));
  ASSERT_OK(ApplySet("data.val_where.p.n=1", &spec));
  ASSERT_OK(ApplySet("data.val_where.p.m=z", &spec));
  ASSERT_OK(ApplySet("data.val_where.q.m=2", &spec));
  const auto& fields = spec.data().val_where().at("p").field();
  EXPECT_EQ(fields.size(), 3u);
  EXPECT_THAT(fields.at("n").value(), ElementsAre("1"));
  EXPECT_THAT(fields.at("m").value(), ElementsAre("z")) << "lists are replaced";
  EXPECT_THAT(fields.at("o").value(), ElementsAre("c"));
  EXPECT_THAT(spec.data().val_where().at("q").field().at("m").value(), ElementsAre("2"));
}

TEST(ApplySet, RefusesWhatTheLoaderWouldRefuse) {
  v1::JobSpec spec;
  EXPECT_THAT(ApplySet("train.steps", &spec),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("FIELD=VALUE")));
  EXPECT_THAT(ApplySet("train.stepps=1", &spec),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "--set train.stepps=1: train.stepps: unknown key; did you mean 'steps'?"));
  EXPECT_THAT(ApplySet("train.steps=many", &spec), StatusIs(absl::StatusCode::kInvalidArgument));
  for (const char* bad :
       {"train.steps=1, lr: 2", "train.steps=1}}", "train.steps=1}, model: {dim: 64",
        "train.steps=", "name=[a] b", "name=\"a\" b", "data.where.\"a=x", "data.where.\"a\"b=x",
        "data..path=x", "data.where.=x", ".name=x"}) {
    EXPECT_THAT(ApplySet(bad, &spec), StatusIs(absl::StatusCode::kInvalidArgument)) << bad;
  }
  EXPECT_EQ(spec.ByteSizeLong(), 0) << spec.DebugString();
}

TEST_F(SubmitTest, ValidateOfflineAsksNobody) {
  const std::string file =
      Write("toy.yaml",
            "name: toy\nruntime: {device: cuda, precision: fp32}\nmodel: {dim: 128, n_layers: 1}\n"
            "train: {steps: 50000, save_every: 0}\n");
  const Ran ran = RunAlone({"validate", "--offline", file});
  EXPECT_EQ(ran.code, ExitCode::kUsage);
  EXPECT_THAT(ran.out,
              AllOf(HasSubstr(file + ":2:25: error PRECISION_NOT_BF16: runtime.precision"),
                    HasSubstr(file + ":4:23: error NO_CHECKPOINT_CADENCE: train.save_every"),
                    HasSubstr("MODEL_TOO_SMALL_FOR_RUN")));
  EXPECT_THAT(ran.err, HasSubstr("refused by preflight"));
}

TEST_F(SubmitTest, ValidateGivesJsonForProgramsAndYamlThatLoadsAgain) {
  const std::string file = Write("ok.yaml",
                                 "name: ok\nruntime: {device: cpu}\n"
                                 "model: {dim: 64, n_layers: 1, n_heads: 2, n_kv_groups: 1}\n"
                                 "train: {steps: 10, out_dir: " +
                                     (dir_ / "out").string() + "}\n");
  const Ran json = RunAlone({"validate", "--offline", "-o", "json", file});
  EXPECT_EQ(json.code, ExitCode::kOk) << json.err;
  EXPECT_EQ(nlohmann::json::parse(json.out)["accepted"], true);
  const Ran yaml = RunAlone({"validate", "--offline", "-o", "yaml", file});
  const std::string full = Write("full.yaml", yaml.out);
  const Ran again = RunAlone({"validate", "--offline", "-o", "yaml", full});
  EXPECT_EQ(again.code, ExitCode::kOk) << again.err;
  EXPECT_THAT(yaml.out, HasSubstr("\n  steps: 10\n"));
  const auto spec = [](const std::string& text) { return text.substr(text.find("\nname: ")); };
  EXPECT_EQ(spec(again.out), spec(yaml.out));
}

TEST_F(SubmitTest, ValidateAsksTheCoordinatorAndStoresNothing) {
  const Ran ran = Run({"validate", file_});
  EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_THAT(service().Requests("SubmitJob"), ElementsAre(HasSubstr("validate_only: true")));
  const Ran alone = RunAlone({"validate", file_});
  EXPECT_EQ(alone.code, ExitCode::kUnreachable);
  EXPECT_THAT(alone.err, HasSubstr("--offline checks without one"));
}

class CheckpointFolderTest : public SubmitTest {
 protected:
  // A checkpoint of one file.
  std::filesystem::path MakeCheckpoint(int64_t step) {
    const auto path = CheckpointsDir(dir_.path()) / CheckpointName(step);
    std::filesystem::create_directories(path);
    std::ofstream(path / "model.safetensors") << "weights";
    v1::CheckpointState state;
    state.set_format_version(1);
    state.set_step(step);
    state.set_world_size(2);
    state.set_val_loss(2.5);
    state.mutable_spec()->mutable_train()->set_steps(1'000);
    state.mutable_spec()->mutable_train()->set_eval_every(100);
    state.set_unix_nanos(1795176000LL * 1'000'000'000);
    v1::CheckpointFile& file = *state.add_files();
    file.set_name("model.safetensors");
    file.set_bytes(7);
    file.set_xxh3_128(*HashFile(path / "model.safetensors"));
    std::ofstream(path / "state.json") << *SerializeCheckpointState(state);
    return path;
  }
};

TEST_F(CheckpointFolderTest, FoldersAreListedWithoutACoordinator) {
  const std::string path = MakeCheckpoint(100).string();
  MakeCheckpoint(200);
  const Ran ran = RunAlone({"checkpoint", "list", dir_.path().string()});
  EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_EQ(ran.out,
            "STEP  AGE  SIZE  VAL LOSS  RANKS  PINNED  PATH\n"
            " 100  0 s   7 B    2.5000      2  -       " +
                path + "\n" + " 200  0 s   7 B    2.5000      2  -       " +
                (CheckpointsDir(dir_.path()) / CheckpointName(200)).string() + "\n");
  EXPECT_EQ(RunAlone({"checkpoint", "list", path, "-o", "name"}).out, path + "\n");
  EXPECT_EQ(RunAlone({"checkpoint", "list", "/nowhere/at/all"}).code, ExitCode::kNotFound);
  std::filesystem::create_directory(dir_ / "out");
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(dir_.path());
  EXPECT_EQ(Run({"checkpoint", "list", "out"}).err,
            "nsactl: job: 'out' is not known; see `nsactl list`; for the folder write ./out\n");
  std::filesystem::current_path(before);
}

TEST_F(CheckpointFolderTest, AFlippedBitIsFoundAndItsFileNamed) {
  MakeCheckpoint(100);
  const auto path = MakeCheckpoint(200);
  EXPECT_EQ(RunAlone({"checkpoint", "verify", dir_.path().string()}).code, ExitCode::kOk);
  std::ofstream(path / "model.safetensors") << "wfights";
  const Ran bad = RunAlone({"checkpoint", "verify", dir_.path().string()});
  EXPECT_EQ(bad.code, ExitCode::kFailed);
  EXPECT_THAT(bad.out, HasSubstr("model.safetensors"));
  EXPECT_THAT(bad.err, HasSubstr("step-00000200"));
  EXPECT_EQ(RunAlone({"checkpoint", "verify", dir_.path().string(), "--step", "100"}).code,
            ExitCode::kOk);
  EXPECT_EQ(RunAlone({"checkpoint", "verify", dir_.path().string(), "--step", "300"}).code,
            ExitCode::kNotFound);
}

TEST_F(CheckpointFolderTest, APinIsSetShownAndTakenAway) {
  const auto first = MakeCheckpoint(100);
  const auto second = MakeCheckpoint(200);
  const std::string out_dir = dir_.path().string();
  const auto pinned = [&] {
    std::string steps;
    for (const auto& path : {first, second}) {
      if (std::filesystem::exists(path / "PINNED")) steps += path.filename().string() + " ";
    }
    return steps;
  };
  for (int times = 0; times < 2; ++times) {
    const Ran ran = RunAlone({"checkpoint", "pin", out_dir, "--step", "100"});
    EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
    EXPECT_EQ(ran.out, first.string() + ": pinned: kept regardless of train.keep_checkpoints\n");
    EXPECT_EQ(pinned(), "step-00000100 ");
  }
  EXPECT_EQ(RunAlone({"checkpoint", "pin", out_dir}).code, ExitCode::kOk) << "the newest";
  EXPECT_EQ(pinned(), "step-00000100 step-00000200 ");
  EXPECT_THAT(RunAlone({"checkpoint", "list", out_dir}).out, HasSubstr("  yes  "));
  const Ran unpinned = RunAlone({"checkpoint", "unpin", first.string(), "-o", "json"});
  EXPECT_EQ(unpinned.code, ExitCode::kOk) << unpinned.err;
  EXPECT_EQ(nlohmann::json::parse(unpinned.out)["pinned"], false);
  EXPECT_EQ(pinned(), "step-00000200 ");
  EXPECT_EQ(RunAlone({"checkpoint", "unpin", first.string()}).code, ExitCode::kOk) << "it was not";
  EXPECT_EQ(RunAlone({"checkpoint", "verify", out_dir}).code, ExitCode::kOk);
  EXPECT_EQ(RunAlone({"checkpoint", "pin", out_dir, "--step", "300"}).code, ExitCode::kNotFound);
}

TEST_F(CheckpointFolderTest, AJobsCheckpointIsPinnedWhereItLies) {
  for (const char* path : {"", "/on/another/machine/step-00000200"}) {
    v1::CheckpointInfo info;
    info.set_step(*path == '\0' ? 100 : 200);
    info.set_path(*path == '\0' ? MakeCheckpoint(100).string() : path);
    state().checkpoints.push_back(info);
  }
  const Ran ran = Run({"checkpoint", "pin", "demo", "--step", "100"});
  EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_TRUE(
      std::filesystem::exists(CheckpointsDir(dir_.path()) / CheckpointName(100) / "PINNED"));
  for (const char* command : {"pin", "unpin"}) {
    const Ran away = Run({"checkpoint", command, "demo"});
    EXPECT_EQ(away.code, ExitCode::kNotFound);
    EXPECT_THAT(away.err, HasSubstr("step-00000200/PINNED: No such file"));
  }
}

}  // namespace
}  // namespace nsa::client
