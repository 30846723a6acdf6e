// The configuration, the texts for Slurm, and its programs, which scripts stand in for. Against the
// real ones: tests/e2e/slurm_test.py.
#include "server/provision/slurm.h"

#include <sys/stat.h>

#include <cmath>
#include <fstream>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/job/load.h"
#include "common/run/atomic_file.h"
#include "gmock/gmock.h"
#include "server/provision/allocation_folder.h"
#include "server/provision/slurm_script.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

class SlurmTest : public ::testing::Test {
 protected:
  SlurmTest() {
    for (const char* name : {"sbatch", "squeue", "sacct", "scancel"}) Program(name, "exit 1");
    config_.set_listen_address("127.0.0.1:50951");
    v1::SlurmConfig& slurm = *config_.mutable_provisioners()->mutable_slurm();
    slurm.set_shared_dir((folder_ / "sha'red").string());
    slurm.set_bin_dir(folder_.path().string());
    v1::Job& job = *job_.mutable_job();
    job.mutable_spec()->mutable_resources()->set_gpus(4);
    job.mutable_spec()->mutable_resources()->set_nodes(2);
    job.mutable_spec()->mutable_runtime()->set_device(v1::DEVICE_CPU);
    job.mutable_allocation()->set_id("aabcdefghijkl");
    job.mutable_allocation()->set_provisioner("slurm");
  }

  void Program(const std::string& name, const std::string& body) {
    const std::string path = (folder_ / name).string();
    std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
    chmod(path.c_str(), 0700);
  }
  v1::SlurmConfig& slurm() { return *config_.mutable_provisioners()->mutable_slurm(); }
  v1::JobSpec& spec() { return *job_.mutable_job()->mutable_spec(); }
  std::vector<std::string> Arguments() {
    return SbatchArguments(job_, *ResolveSlurm(config_), "/shared/aabcdefghijkl");
  }
  Slurm Make() {
    const SlurmOptions options = *ResolveSlurm(config_);
    std::filesystem::create_directories(options.shared_dir / "aabcdefghijkl");
    return Slurm(options, cancelled_);
  }

  const TempDir folder_;
  const std::atomic<bool> cancelled_ = false;
  v1::CoordinatorConfig config_;
  v1::StoredJob job_;
};

TEST_F(SlurmTest, AConfigurationThatCannotWorkIsRefused) {
  const auto refuses = [&](const std::string& text, const std::function<void()>& change) {
    const v1::CoordinatorConfig before = config_;
    change();
    EXPECT_THAT(ResolveSlurm(config_),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("provisioners.slurm: "), HasSubstr(text))));
    config_ = before;
  };
  EXPECT_OK(ResolveSlurm(config_));
  refuses("shared_dir: ''", [&] { slurm().clear_shared_dir(); });
  refuses("shared_dir: 'here'", [&] { slurm().set_shared_dir("here"); });
  refuses("gpus_per_node: 0 (from 1 to 64)", [&] { slurm().set_gpus_per_node(0); });
  refuses("cpus_per_rank: 2000 (from 1 to 1024)", [&] { slurm().set_cpus_per_rank(2000); });
  refuses("hours: 0 (above 0", [&] { slurm().set_hours(0); });
  refuses("hours: nan", [&] { slurm().set_hours(std::nan("")); });
  refuses("options: '-x'", [&] { slurm().add_options("-x"); });
  refuses("coordinator_address: none", [&] { config_.clear_listen_address(); });
  refuses("coordinator_address: 0.0.0.0:50951",
          [&] { config_.set_listen_address("0.0.0.0:50951"); });
  refuses("tls: none", [&] { slurm().set_coordinator_address("lab:50951"); });
  refuses("sbatch is not there", [&] { slurm().set_bin_dir("/nowhere"); });
}

TEST_F(SlurmTest, AsksForWhatTheJobNeeds) {
  EXPECT_THAT(Arguments(),
              AllOf(Contains("--job-name=nsa-aabcdefghijkl"), Contains("--no-requeue"),
                    Contains("--nodes=2"), Contains("--ntasks-per-node=1"),
                    Contains("--cpus-per-task=2"), Not(Contains(HasSubstr("gpus"))),
                    Not(Contains(HasSubstr("--time"))), Not(Contains(HasSubstr("partition")))));
  EXPECT_EQ(Arguments().back(), "/shared/aabcdefghijkl/run.sh");
  spec().mutable_runtime()->set_device(v1::DEVICE_CUDA);
  slurm().set_cpus_per_rank(8);
  slurm().set_partition("gpu");
  slurm().add_options("--constraint=a100");
  EXPECT_THAT(Arguments(), AllOf(Contains("--gpus-per-node=2"), Contains("--cpus-per-task=16"),
                                 Contains("--partition=gpu"), Contains("--constraint=a100")));
  spec().mutable_runtime()->set_device(v1::DEVICE_UNSPECIFIED);
  EXPECT_THAT(Arguments(), Not(Contains(HasSubstr("gpus"))));
  slurm().set_gpus_per_node(8);
  EXPECT_THAT(Arguments(), Contains("--gpus-per-node=8"));
}

TEST_F(SlurmTest, TheTimeLimitIsThatOfTheJobElseThatOfTheConfiguration) {
  EXPECT_EQ(LimitMinutes(job_, slurm()), 0);
  slurm().set_hours(0.01);
  EXPECT_EQ(LimitMinutes(job_, slurm()), 1);
  spec().mutable_limits()->set_hours(2);
  EXPECT_EQ(LimitMinutes(job_, slurm()), 130) << "ten minutes more than the job's own limit";
  job_.set_run_seconds(3'600);
  EXPECT_EQ(LimitMinutes(job_, slurm()), 70);
  job_.set_run_seconds(1e9);
  EXPECT_EQ(LimitMinutes(job_, slurm()), 10);
  spec().mutable_restart()->set_stop_grace_seconds(299);
  EXPECT_OK(CheckLimit(job_, slurm()));
  spec().mutable_restart()->set_stop_grace_seconds(300);
  EXPECT_THAT(Make().Submit(job_), StatusIs(absl::StatusCode::kInvalidArgument,
                                            HasSubstr("time limit: 10 min (more than twice")));
}

TEST_F(SlurmTest, AnAgentsConfigurationHasNoSecret) {
  slurm().set_coordinator_address("lab:50951");
  slurm().mutable_tls()->set_certificate_file("/etc/nsa/no\"de.crt");
  const std::string yaml = AgentYaml(job_, *ResolveSlurm(config_), "/shared/aabcdefghijkl", 1);
  v1::AgentConfig agent;
  ASSERT_OK(LoadYamlText(yaml, "agent.yaml", &agent).status()) << yaml;
  EXPECT_EQ(agent.node_name(), "slurm-aabcdefghijkl-1");
  EXPECT_EQ(agent.allocation(), "aabcdefghijkl");
  EXPECT_EQ(agent.cpu_slots(), 2);
  EXPECT_EQ(agent.join_token_file(), "/shared/aabcdefghijkl/agent-1.token");
  EXPECT_EQ(agent.tls().certificate_file(), "/etc/nsa/no\"de.crt");
}

// The agent is a script that says how it was called, and is killed once.
TEST_F(SlurmTest, TheAgentsScriptStartsItAgainWhenItWasKilledAndCleansUp) {
  Program("agent", R"(
echo "$@" >>"${0%/*}/calls"
[ -d "$4" ] && echo "$4" >"${0%/*}/state"
[ -e "${0%/*}/killed" ] || { touch "${0%/*}/killed"; kill -KILL $$; }
exit 0)");
  slurm().set_agent_program((folder_ / "agent").string());
  Program("agent.sh", AgentScript(*ResolveSlurm(config_), "/sha'red/x"));
  const auto end = RunCommand({.argv = {"/bin/sh", (folder_ / "agent.sh").string()},
                               .environment = {{"PATH", "/usr/bin:/bin"},
                                               {"SLURM_PROCID", "1"},
                                               {"TMPDIR", folder_.path()}}},
                              cancelled_);
  ASSERT_OK(end);
  EXPECT_EQ(end->exit->code, 0) << end->errors;
  const std::string calls = *ReadWholeFile(folder_ / "calls");
  EXPECT_THAT(calls, HasSubstr("--config /sha'red/x/agent-1.yaml --state-dir "));
  EXPECT_EQ(std::count(calls.begin(), calls.end(), '\n'), 2);
  std::string state = *ReadWholeFile(folder_ / "state");
  state.pop_back();
  EXPECT_FALSE(std::filesystem::exists(state));
}

TEST_F(SlurmTest, SubmitsAndTellsARefusalFromAnotherError) {
  Program("sbatch",
          "printf '%s\\n' \"$@\" >\"${0%/*}/arguments\"; env >\"${0%/*}/environment\"; echo 17");
  setenv("NSA_TEST_SECRET", "secret", 1);
  const auto number = Make().Submit(job_);
  ASSERT_OK(number);
  EXPECT_EQ(*number, "17");
  EXPECT_THAT(*ReadWholeFile(folder_ / "arguments"), HasSubstr("run.sh"));
  EXPECT_THAT(*ReadWholeFile(folder_ / "environment"),
              AllOf(HasSubstr("SLURM_TIME_FORMAT=%s"), Not(HasSubstr("secret"))));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "sha'red" / "aabcdefghijkl" / "agent-1.yaml"));
  Program("sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid qos' >&2; exit 1");
  EXPECT_THAT(Make().Submit(job_), StatusIs(absl::StatusCode::kInvalidArgument,
                                            "sbatch: Batch job submission failed: Invalid qos"));
  Program("sbatch", "echo 'sbatch: error: Unable to contact slurm controller' >&2; exit 1");
  EXPECT_THAT(Make().Submit(job_), StatusIs(absl::StatusCode::kUnavailable));
  Program("sbatch", "echo hello");
  EXPECT_THAT(Make().Submit(job_), StatusIs(absl::StatusCode::kUnavailable));
  Program("sbatch", "kill -SEGV $$");
  EXPECT_THAT(Make().Submit(job_), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("signal")));
}

TEST_F(SlurmTest, ListsFindsAndCancels) {
  Program("squeue", "echo '7|PENDING|N/A|nsa-aabcdefghijkl|Priority'");
  EXPECT_THAT(*Make().List(), SizeIs(1));
  Program("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1");
  EXPECT_THAT(Make().List(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("Unable")));
  Program("sacct", "echo '7|TIMEOUT|nsa-aabcdefghijkl'");
  EXPECT_EQ((*Make().Find("7"))->word, "TIMEOUT");
  Program("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1");
  EXPECT_EQ(*Make().Find("7"), std::nullopt);
  Program("sacct", "echo 'sacct: error: slurm_persist_conn_open' >&2; exit 1");
  EXPECT_THAT(Make().Find("7"), StatusIs(absl::StatusCode::kUnavailable));
  Program("scancel", "echo \"$@\" >\"${0%/*}/arguments\"");
  EXPECT_OK(Make().Cancel({"7", "8"}));
  EXPECT_EQ(*ReadWholeFile(folder_ / "arguments"), "--quiet 7 8\n");
}

}  // namespace
}  // namespace nsa::server
