// The commands that list and describe, against a fake coordinator.
#include "absl/strings/str_cat.h"
#include "client/show/human.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/client/commands_fixture.h"
#include "yaml-cpp/yaml.h"

namespace nsa::client {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST_F(CommandsTest, ListIsATable) {
  EXPECT_EQ(Run({"list"}).out,
            "ID             NAME  STATE         STEP  DONE    LOSS  TOK/S     ENDS IN  SUBMITTED  "
            "REASON\n"
            "jdemo1234567   demo  training  375/1000   38%  2.1034  12.3k  5 min 20 s    3 h ago\n"
            "jold12345678a  old   failed    375/1000   38%  2.1034      -           -    2 d ago  "
            "CUDA_OOM: out of memory on rank 1\n");
  state().jobs.pop_back();
  EXPECT_THAT(Run({"list"}).out, Not(HasSubstr("REASON"))) << "nothing to say";
}

TEST_F(CommandsTest, EveryCommandNotesWhatTheCoordinatorWarnsOf) {
  state().warning = "the store in /srv/nsä has failed";
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"list", "-o", "json"}, {"describe", "demo"}, {"nodes"}}) {
    EXPECT_THAT(Run(command).err, HasSubstr("coordinator: the store in /srv/nsä has failed\n"));
  }
  EXPECT_EQ(Run({"list", "--quiet"}).err, "");
  state().warning.clear();
  EXPECT_EQ(Run({"list"}).err, "");
}

TEST_F(CommandsTest, DescribesWhatAJobWaitsForAndItsAlerts) {
  v1::Job& job = state().jobs[0];
  job.set_state(v1::Job::STATE_QUEUED);
  for (const auto fate : {v1::Predecessor::STATE_DONE, v1::Predecessor::STATE_ENDED}) {
    v1::Predecessor& one = *job.add_after();
    one.set_name("prep");
    one.set_id("jprep");
    one.set_state(fate);
  }
  job.set_not_before_unix_nanos(kNoon + 3 * 3600 * kSecond);
  for (const char* when : {"loss > 3", "val_loss > 3 for 10m"}) {
    v1::AlertSpec& alert = *job.mutable_spec()->add_alerts();
    alert.set_when(when);
    alert.add_notify("team-chat");
  }
  v1::AlertProgress& raised = *job.mutable_progress()->add_alerts();
  raised.set_when("loss > 3");
  raised.set_raised(true);
  raised.set_value(3.25);
  raised.set_since_step(120);
  const std::string out = Run({"describe", "demo"}).out;
  EXPECT_THAT(out, HasSubstr("prep (jprep) finished, prep (jprep) will not finish\n"));
  EXPECT_THAT(out, testing::ContainsRegex("Not before:  [^ ]+ \\(in 3 h 00 min\\)"));
  EXPECT_THAT(out, testing::ContainsRegex("loss > 3 +since step 120 +3.25 +team-chat"));
  EXPECT_THAT(out, testing::ContainsRegex("val_loss > 3 for 10m +no +- +team-chat"));
}

TEST_F(CommandsTest, ListSaysWhyAJobWaitsAndUntilWhen) {
  // Called each time, because state() waits for the coordinator's threads.
  const auto waiting = [this]() -> v1::Job& { return state().jobs[0]; };
  waiting().set_state(v1::Job::STATE_RESTARTING);
  waiting().set_reason("PREFLIGHT_REFUSED");
  waiting().set_message(
      "first\nbox: DISK_TOO_SMALL: train.out_dir: 1.0 GiB free on /data (9.2 GiB)");
  waiting().set_next_start_unix_nanos(kNoon + 42 * kSecond);
  const std::string start =
      "ID             NAME  STATE           STEP  DONE    LOSS  TOK/S  ENDS IN  SUBMITTED  REASON\n"
      "jdemo1234567   demo  restarting  375/1000   38%  2.1034      -        -    3 h ago  ";
  EXPECT_THAT(Run({"list"}).out,
              StartsWith(start + "next start in 42 s, PREFLIGHT_REFUSED: box: DISK_TOO_SMALL: "
                                 "train.out_dir: ...\n"
                                 "jold12345678a  old   failed      375/1000"));
  EXPECT_THAT(Run({"list", "-o", "wide"}).out,
              HasSubstr("next start in 42 s, PREFLIGHT_REFUSED: first"));
  EXPECT_THAT(Run({"describe", "demo"}).out, HasSubstr("Next start:  in 42 s\n"));
  waiting().set_next_start_unix_nanos(kNoon - kSecond);
  EXPECT_THAT(Run({"list"}).out, StartsWith(start + "next start due, PREFLIGHT_REFUSED: "));
  EXPECT_EQ(nlohmann::json::parse(Run({"list", "-o", "json"}).out)["jobs"][0]["message"],
            waiting().message());

  waiting().clear_next_start_unix_nanos();
  waiting().set_state(v1::Job::STATE_QUEUED);
  waiting().set_reason("WAITING_FOR_SLOTS");
  waiting().set_message("needs 2 GPUs, 1 are free");
  EXPECT_THAT(Run({"list"}).out,
              HasSubstr("  3 h ago  WAITING_FOR_SLOTS: needs 2 GPUs, 1 are free\n"));
}

TEST_F(CommandsTest, ListHasWideNameJsonAndYaml) {
  EXPECT_THAT(Run({"list", "-o", "wide"}).out, HasSubstr("CUDA_OOM: out of memory on rank 1\n"));
  EXPECT_EQ(Run({"list", "-o", "name"}).out, "jdemo1234567\njold12345678a\n");
  const auto json = nlohmann::json::parse(Run({"list", "-o", "json"}).out);
  EXPECT_EQ(json["jobs"][0]["progress"]["step"], "375");
  const YAML::Node yaml = YAML::Load(Run({"list", "-o", "yaml"}).out);
  EXPECT_EQ(yaml["jobs"][1]["state"].as<std::string>(), "STATE_FAILED");
}

TEST_F(CommandsTest, ListReadsPagesUpToItsLimit) {
  state().jobs.clear();
  for (int i = 0; i < 1203; ++i) {
    state().jobs.push_back(DemoJob());
    state().jobs.back().set_id(absl::StrCat("j", i));
  }
  const auto count = [](const std::string& text) {
    return std::count(text.begin(), text.end(), '\n');
  };
  const Ran some = Run({"list", "-o", "name"});
  EXPECT_EQ(count(some.out), 100);
  EXPECT_THAT(some.err, HasSubstr("--limit 0 shows all"));
  const Ran all = Run({"list", "-o", "name", "--limit", "0"});
  EXPECT_EQ(count(all.out), 1203);
  EXPECT_EQ(all.err, "");
  EXPECT_EQ(count(Run({"list", "-o", "name", "--limit", "700"}).out), 700);
}

TEST_F(CommandsTest, ListAsksForStates) {
  EXPECT_EQ(Run({"list", "--state", "failed,stopped", "-o", "name"}).out, "jold12345678a\n");
  EXPECT_EQ(Run({"list", "--state", "active", "-o", "name"}).out, "jdemo1234567\n");
}

TEST_F(CommandsTest, ListAsksForLabels) {
  auto& labels = *state().jobs[0].mutable_spec()->mutable_labels();
  labels["team"] = "vision";
  labels["run"] = "7=8";
  EXPECT_EQ(Run({"list", "--label", "team=vision", "-o", "name"}).out, "jdemo1234567\n")
      << "also when an older coordinator sends other jobs too";
  EXPECT_THAT(service().Requests("ListJobs"),
              ElementsAre(HasSubstr("labels { key: \"team\" value: \"vision\" }")));
  EXPECT_EQ(Run({"list", "--label", "run=7=8", "--label", "team=vision", "-o", "name"}).out,
            "jdemo1234567\n");
  const Ran none = Run({"list", "--label", "team=speech"});
  EXPECT_EQ(none.code, ExitCode::kOk);
  EXPECT_EQ(none.out, "");
  EXPECT_THAT(none.err, HasSubstr("no jobs"));
  for (const std::string wrong : {"team", "=x"}) {
    const Ran ran = Run({"list", "--label", wrong});
    EXPECT_EQ(ran.code, ExitCode::kUsage);
    EXPECT_EQ(ran.err,
              "nsactl: --label: '" + wrong + "' (KEY=VALUE); write e.g. --label team=vision\n");
  }
  EXPECT_EQ(Run({"list", "--label", "a=b", "--label", "a=c"}).code, ExitCode::kUsage);
}

TEST_F(CommandsTest, AnEmptyListSaysWhatToDo) {
  state().jobs.clear();
  const Ran ran = Run({"list"});
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(ran.err, HasSubstr("nsactl submit FILE"));
  EXPECT_EQ(Run({"list", "--quiet"}).err, "");
}

TEST_F(CommandsTest, DescribeTellsEverything) {
  v1::Job& job = state().jobs[0];
  (*job.mutable_waivers())["GRADIENT_CHECKPOINTING_OFF"] = "memory is ample";
  v1::Finding& warning = *job.add_warnings();
  warning.set_rule("EVAL_OFF");
  warning.set_field("train.eval_every");
  warning.set_problem("0 (more than 0)");
  warning.set_fix("write eval_every: 100");
  job.mutable_progress()->set_productive_seconds(555);
  AddEvent(1, "SUBMITTED");
  const Ran ran = Run({"describe", "demo"});
  EXPECT_EQ(ran.code, ExitCode::kOk);
  EXPECT_EQ(ran.out,
            "Name:        demo\n"
            "Id:          jdemo1234567\n"
            "State:       training\n"
            "Submitted:   2026-11-20T09:00:00Z (3 h ago)\n"
            "Started:     2026-11-20T11:50:00Z (10 min ago)\n"
            "Run time:    10 min 00 s\n"
            "Goodput:     92.5 % of the run time in steps that count\n"
            "Restarts:    1 (generation 2)\n"
            "Step:        375 of 1000 (37.5 %)\n"
            "Loss:        2.1034\n"
            "Validation:  2.2101 at step 300\n"
            "Tokens:      3,072,000 (12.3k a second)\n"
            "Optimizer:   learning rate 3.00e-04, gradient norm 0.812\n"
            "Ends in:     5 min 20 s\n"
            "Checkpoint:  step 300, 41 s ago\n"
            "Output:      /data/demo\n"
            "\n"
            "Ranks:\n"
            "RANK  NODE   PID  STATE    STEP  PHASE\n"
            "   0  box   4711  running   375  forward layer 3\n"
            "\n"
            "Waived rules:\n"
            "  GRADIENT_CHECKPOINTING_OFF: memory is ample\n"
            "\n"
            "Warnings of preflight:\n"
            "  EVAL_OFF: train.eval_every: 0 (more than 0); write eval_every: 100\n"
            "\n"
            "Events:\n"
            "  AGE  REASON     TEXT\n"
            "1 min  SUBMITTED  what happened\n");
}

TEST_F(CommandsTest, DescribeShowsTheSourcesOfAMixtureAndTheNamedSets) {
  v1::Job& job = state().jobs[0];
  EXPECT_THAT(Run({"describe", "demo"}).out,
              AllOf(Not(HasSubstr("Sources:")), Not(HasSubstr("Validation sets:"))));
  v1::DataSpec* const data = job.mutable_spec()->mutable_data();
  for (const auto& [name, weight] : {std::pair("books", 7.0), std::pair("code", 3.0)}) {
    v1::MixSource* const source = data->add_mix();
    source->set_name(name);
    source->set_weight(weight);
    source->add_path(absl::StrCat("/data/", name, "/*.parquet"));
  }
  data->mutable_mix(0)->add_path("/data/more.parquet");
  (*data->mutable_val())["prose"] = "/data/prose.txt";
  EXPECT_THAT(Run({"describe", "demo"}).out,
              HasSubstr("\nSources:\n"
                        "NAME   WEIGHT  SHARE  EPOCH  LOSS  FILES\n"
                        "books       7      -      -     -  /data/books/*.parquet and 1 more\n"
                        "code        3      -      -     -  /data/code/*.parquet\n"
                        "\nValidation sets:\n"
                        "NAME   LOSS  TOKENS  FILES\n"
                        "prose     -       -  /data/prose.txt\n"));
  for (const auto& [name, rows] : {std::pair("books", 69), std::pair("code", 31)}) {
    v1::SourceProgress* const source = job.mutable_progress()->add_sources();
    source->set_name(name);
    source->set_rows(rows);
  }
  job.mutable_progress()->mutable_sources(1)->set_loss(1.25);
  job.mutable_progress()->mutable_sources(1)->set_epoch(2);
  v1::NamedLoss* const set = job.mutable_progress()->add_val_sets();
  set->set_name("prose");
  set->set_loss(1.5);
  set->set_tokens(65'536);
  EXPECT_THAT(Run({"describe", "demo"}).out,
              AllOf(HasSubstr("books       7  69.0 %      0       -  /data/books/*.parquet and"),
                    HasSubstr("code        3  31.0 %      2  1.2500  /data/code/*.parquet\n"),
                    HasSubstr("prose  1.5000  65,536  /data/prose.txt\n")));
}

TEST_F(CommandsTest, DescribeHasASpeedAndATimeLeftOnlyOfAJobThatRuns) {
  state().jobs[0].set_state(v1::Job::STATE_RESTARTING);
  EXPECT_THAT(Run({"describe", "demo"}).out,
              AllOf(HasSubstr("Tokens:      3,072,000\n"), Not(HasSubstr("Ends in:"))));
}

TEST_F(CommandsTest, DescribeSaysWhichMachinesTheJobGotFromSlurm) {
  EXPECT_THAT(Run({"describe", "demo"}).out, Not(HasSubstr("Machines:")));
  v1::Job& job = state().jobs[0];
  job.mutable_spec()->mutable_resources()->set_provisioner("slurm");
  EXPECT_THAT(Run({"describe", "demo"}).out, HasSubstr("Machines:    slurm\n"));
  v1::Allocation& allocation = *job.mutable_allocation();
  allocation.set_provisioner("slurm");
  allocation.set_id("aabcdefghijkl");
  allocation.set_state(v1::Allocation::STATE_REQUESTED);
  EXPECT_THAT(Run({"describe", "demo"}).out, HasSubstr("Machines:    slurm job without a number"));
  allocation.set_state(v1::Allocation::STATE_RUNNING);
  allocation.set_cluster_id("17");
  allocation.set_text("RUNNING");
  EXPECT_THAT(Run({"describe", "demo"}).out, HasSubstr("Machines:    slurm job 17, RUNNING\n"));
  allocation.set_end_unix_nanos(kNoon);
  EXPECT_THAT(Run({"describe", "demo"}).out,
              HasSubstr(absl::StrCat("slurm job 17, RUNNING, until ", Timestamp(kNoon), "\n")));
  allocation.set_state(v1::Allocation::STATE_ENDED);
  EXPECT_THAT(Run({"describe", "demo"}).out, HasSubstr("Machines:    slurm job 17, given back\n"));
}

TEST_F(CommandsTest, DescribeSaysWhatIsUnusualAboutARank) {
  state().jobs[0].mutable_ranks(0)->set_state("SUSPENDED");
  state().jobs[0].mutable_ranks(0)->set_note("process stopped (T)");
  EXPECT_THAT(Run({"describe", "demo"}).out,
              HasSubstr("RANK  NODE   PID  STATE      STEP  PHASE            NOTE\n"
                        "   0  box   4711  suspended   375  forward layer 3  process stopped (T)"));
}

TEST_F(CommandsTest, DescribeSaysThatTelemetryIsNotWritten) {
  EXPECT_THAT(Run({"describe", "demo"}).out, Not(HasSubstr("Not written")));
  state().jobs[0].mutable_ranks(0)->set_telemetry_error("/out/val.csv: No space left on device");
  EXPECT_THAT(Run({"describe", "demo"}).out, HasSubstr("telemetry of rank 0: /out/val.csv: No"));
}

TEST_F(CommandsTest, DescribeTakesIdsAndNamesAndKnowsNoOthers) {
  EXPECT_EQ(Run({"describe", "jdemo1234567", "-o", "name"}).out, "jdemo1234567\n");
  EXPECT_EQ(Run({"describe", "demo", "-o", "name"}).out, "jdemo1234567\n");
  const Ran ran = Run({"describe", "nothing"});
  EXPECT_EQ(ran.code, ExitCode::kNotFound);
  EXPECT_EQ(ran.err, "nsactl: job: 'nothing' is not known; see `nsactl list`\n");
  const auto json = nlohmann::json::parse(Run({"describe", "demo", "-o", "json"}).out);
  EXPECT_EQ(json["id"], "jdemo1234567");
  EXPECT_THAT(Run({"describe", "demo", "--spec"}).out, HasSubstr("\nSpec:\nname: demo\n"));
}

TEST_F(CommandsTest, CheckpointsOfAJobAreListedAndVerified) {
  v1::CheckpointInfo& checkpoint = state().checkpoints.emplace_back();
  checkpoint.set_step(300);
  checkpoint.set_path("/data/demo/checkpoints/step-00000300");
  checkpoint.set_bytes(312 << 20);
  checkpoint.set_unix_nanos(kNoon - 41 * kSecond);
  checkpoint.set_val_loss(2.2101);
  checkpoint.set_world_size(2);
  EXPECT_EQ(
      Run({"checkpoint", "list", "demo"}).out,
      "STEP   AGE       SIZE  VAL LOSS  RANKS  PINNED  PATH\n"
      " 300  41 s  312.0 MiB    2.2101      2  -       /data/demo/checkpoints/step-00000300\n");
  const Ran good = Run({"checkpoint", "verify", "demo", "--step", "300"});
  EXPECT_EQ(good.code, ExitCode::kOk);
  EXPECT_THAT(good.out, HasSubstr("step-00000300: good (step 300"));
  state().checkpoint_problems = {"model.safetensors: hash 3f (state.json says 9a)"};
  const Ran bad = Run({"checkpoint", "verify", "demo"});
  EXPECT_EQ(bad.code, ExitCode::kFailed);
  EXPECT_EQ(bad.out, "model.safetensors: hash 3f (state.json says 9a)\n");
  EXPECT_THAT(bad.err, HasSubstr(": 1 problem"));
}

TEST_F(CommandsTest, WithoutMachinesNodesSaysWhetherOneIsJoining) {
  EXPECT_EQ(Run({"nodes"}).err, "no machines; start `nsa-agent` on one\n");
  state().local_agent = true;
  EXPECT_THAT(Run({"nodes"}).err, HasSubstr("no machines yet"));
}

TEST_F(CommandsTest, NodesAreListed) {
  v1::Node& node = state().nodes.emplace_back();
  node.set_state("READY");
  node.set_heartbeat_unix_nanos(kNoon - 2 * kSecond);
  node.set_cpu_slots_used(1);
  node.add_job_ids("jdemo1234567");
  v1::NodeInfo& info = *node.mutable_info();
  info.set_name("box");
  info.set_cpu_slots(2);
  info.set_free_memory_bytes(20LL << 30);
  info.set_cuda_problem("no GPU");
  EXPECT_EQ(Run({"nodes"}).out,
            "NAME  STATE  CPU SLOTS  GPUS  FREE MEMORY  HEARTBEAT  JOBS\n"
            "box   READY        1/2  -     20.00 GiB    2 s ago    jdemo1234567\n");
  EXPECT_THAT(Run({"nodes", "-o", "wide"}).out,
              AllOf(HasSubstr("DRIVER  NCCL  AGENT  WORKERS  CLOCK  RANK ADDRESS  "
                              "RANKS RUN AS  CUDA WORKER  LABELS\n"),
                    HasSubstr("    -  -             agent's user  no GPU")));
  info.set_worker_hash("0123456789abcdef");
  info.set_cuda_worker_hash("fedcba9876543210");
  info.set_nccl_version("2.28.3");
  info.set_unix_nanos(node.heartbeat_unix_nanos() - kSecond / 4);
  EXPECT_THAT(Run({"nodes", "-o", "wide"}).out,
              AllOf(HasSubstr(" 2.28.3 "), HasSubstr(" 01234567,fedcba98  -0.250 s ")));
  info.set_rank_address("10.0.0.2");
  EXPECT_THAT(Run({"nodes", "-o", "wide"}).out, HasSubstr("10.0.0.2      agent's user  no GPU"));
  EXPECT_EQ(Run({"nodes", "-o", "name"}).out, "box\n");
  EXPECT_EQ(nlohmann::json::parse(Run({"nodes", "-o", "json"}).out)["nodes"][0]["state"], "READY");
}
}  // namespace
}  // namespace nsa::client
