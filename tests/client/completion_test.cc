#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "gmock/gmock.h"
#include "tests/client/nsactl_harness.h"
#include "tests/testing/paths.h"

namespace nsa::client {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class CompletionTest : public NsactlTest {
 protected:
  CompletionTest() {
    state().jobs = {DemoJob()};
    v1::Job failed = DemoJob();
    failed.set_id("jold12345678a");
    failed.set_name("old");
    failed.set_state(v1::Job::STATE_FAILED);
    state().jobs.push_back(failed);
    setenv("NSACTL_ADDRESS", coordinator_.address().c_str(), 1);
    setenv("NSACTL_COMPLETION_TIMEOUT", "1m", 1);
  }

  // The candidates for the last of these words, without their descriptions.
  std::vector<std::string> Complete(std::vector<std::string> words) {
    words.insert(words.begin(), "__complete");
    std::vector<std::string> values;
    const Ran ran = RunAlone(words);
    EXPECT_EQ(ran.code, ExitCode::kOk);
    for (const absl::string_view line : absl::StrSplit(ran.out, '\n', absl::SkipEmpty())) {
      values.emplace_back(line.substr(0, line.find('\t')));
    }
    return values;
  }

  // Runs a command of the shell with `text` as its script; true when it exits with 0.
  bool Shell(const std::string& command, const std::string& text, std::string* output) {
    const std::string script = (dir_ / "script").string();
    std::ofstream(script) << text;
    FILE* pipe = popen(absl::StrCat(command, " ", script, " 2>&1").c_str(), "r");
    if (pipe == nullptr) return false;
    char buffer[4096];
    output->clear();
    while (const size_t n = fread(buffer, 1, sizeof(buffer), pipe)) output->append(buffer, n);
    return pclose(pipe) == 0;
  }
};

TEST_F(CompletionTest, CommandsAndSubcommands) {
  EXPECT_THAT(Complete({""}), AllOf(Contains("submit"), Contains("watch"), Contains("context")));
  EXPECT_THAT(Complete({"checkpoint", ""}), ElementsAre("list", "verify", "pin", "unpin"));
  EXPECT_THAT(Complete({"help", ""}), Contains("stop"));
}

TEST_F(CompletionTest, FlagsOfTheCommandAndGlobalOnes) {
  EXPECT_THAT(Complete({"stop", "demo", "--"}),
              AllOf(Contains("--at-step"), Contains("--now"), Contains("--address")));
  EXPECT_THAT(Complete({"--output", ""}), ElementsAre("table", "wide", "json", "yaml", "name"));
  EXPECT_THAT(Complete({"generate", "--device", ""}), ElementsAre("cpu", "cuda"));
  EXPECT_THAT(Complete({"import", "--attention", ""}), ElementsAre("full", "nsa"));
  EXPECT_THAT(Complete({"data", "needle", "--task", ""}),
              ElementsAre("key", "keys", "values", "trace", "count"));
  EXPECT_THAT(Complete({"dump-stack", "demo", "--rank", ""}), IsEmpty()) << "N|all";
  EXPECT_THAT(Complete({"import", "h"}), Contains("hf://"));
  EXPECT_THAT(Complete({"list", "--state", ""}), Contains("training"));
}

TEST_F(CompletionTest, JobsThatTheCommandCanDoSomethingWith) {
  EXPECT_THAT(Complete({"describe", ""}),
              ElementsAre("demo", "jdemo1234567", "old", "jold12345678a"));
  EXPECT_THAT(Complete({"stop", ""}), ElementsAre("demo", "jdemo1234567"));
  EXPECT_THAT(Complete({"resume", ""}), ElementsAre("old", "jold12345678a"));
  EXPECT_THAT(Complete({"delete", ""}), ElementsAre("old", "jold12345678a"));
  EXPECT_THAT(Complete({"delete", "other", "--yes", ""}), ElementsAre("old", "jold12345678a"));
  EXPECT_THAT(Complete({"stop", "other", ""}), ElementsAre("demo", "jdemo1234567"));
  EXPECT_THAT(Complete({"describe", "demo", ""}), IsEmpty());
  EXPECT_THAT(Complete({"logs", "--rank", "1", "-f", "d"}), Contains("demo"));
  EXPECT_THAT(Complete({"checkpoint", "verify", ""}), AllOf(Contains("demo"), Contains(":files")));
}

TEST_F(CompletionTest, ModelsAndDataAreJobsAndFiles) {
  for (const char* command : {"generate", "chat", "serve", "eval", "needle"}) {
    EXPECT_THAT(Complete({command, ""}),
                ElementsAre("demo", "jdemo1234567", "old", "jold12345678a", ":files"))
        << command;
    EXPECT_THAT(Complete({command, "demo", ""}), IsEmpty()) << command;
  }
  EXPECT_THAT(Complete({"export", ""}), AllOf(Contains("demo"), Contains(":files")));
  EXPECT_THAT(Complete({"export", "demo", ""}), ElementsAre(":files"));
  EXPECT_THAT(Complete({"eval", "demo", "--data", ""}), ElementsAre(":files"));
  EXPECT_THAT(Complete({"submit", "job.yaml", "--after", ""}), Contains("demo"));
  EXPECT_THAT(Complete({"data", "inspect", "job.yaml", ""}), ElementsAre(":files"));
}

TEST_F(CompletionTest, KeysOfTheJobFileAndTheirWordsAfterSet) {
  for (const char* command : {"submit", "validate", "resume", "fork", "replay"}) {
    EXPECT_THAT(Complete({command, "x", "--set", "tr"}),
                AllOf(Contains("name="), Contains("train.steps="), Contains("nsa.gate="),
                      Contains("preflight.waive="), Not(Contains("train="))))
        << command;
  }
  EXPECT_THAT(Complete({"data", "prepare", "x", "--set", ""}), Contains("data.path="));
  EXPECT_THAT(Complete({"submit", "x", "--set", "nsa.gate="}),
              AllOf(Contains("nsa.gate=softmax"), Contains("nsa.gate=sigmoid")));
  EXPECT_THAT(Complete({"submit", "x", "--sweep", "nsa.gate=so"}), Contains("nsa.gate=softmax"));
  EXPECT_THAT(Complete({"submit", "x", "--set", "model.qk_norm="}),
              ElementsAre("model.qk_norm=true", "model.qk_norm=false"));
  EXPECT_THAT(Complete({"submit", "x", "--set", "train.steps="}), IsEmpty());
  EXPECT_THAT(Complete({"submit", "x", "--set", "train.steps=5", "--set", "train.st"}),
              Contains("train.steps="));
}

TEST_F(CompletionTest, WithoutACoordinatorItIsQuietAndQuick) {
  unsetenv("NSACTL_ADDRESS");
  const absl::Duration start = RealClock().Monotonic();
  const Ran ran = RunAlone({"__complete", "describe", ""});
  EXPECT_EQ(ran.out + ran.err, "");
  EXPECT_LT(RealClock().Monotonic() - start, absl::Seconds(30));
}

TEST_F(CompletionTest, ASlowCoordinatorIsNotWaitedForUnlessTheUserSaysSo) {
  state().delay = absl::Minutes(2);
  for (const char* patience : {"", "never", "-1s", "10ms"}) {
    setenv("NSACTL_COMPLETION_TIMEOUT", patience, 1);
    const absl::Duration start = RealClock().Monotonic();
    EXPECT_THAT(Complete({"describe", ""}), IsEmpty()) << patience;
    EXPECT_LT(RealClock().Monotonic() - start, absl::Minutes(1)) << patience;
  }
}

TEST_F(CompletionTest, FilesAndContexts) {
  EXPECT_THAT(Complete({"submit", ""}), ElementsAre(":files"));
  EXPECT_THAT(Complete({"init", "a.txt", ""}), ElementsAre(":files"));
  RunAlone({"context", "set", "lab", "--address", "lab:1"});
  EXPECT_THAT(Complete({"context", "use", ""}), ElementsAre("lab"));
  EXPECT_THAT(Complete({"--context", ""}), ElementsAre("lab"));
  EXPECT_THAT(Complete({"sweep", ""}), IsEmpty()) << "a sweep is no context";
}

TEST_F(CompletionTest, Machines) {
  for (const char* name : {"a", "b"}) {
    state().nodes.emplace_back().mutable_info()->set_name(name);
    state().nodes.back().set_state("READY");
  }
  EXPECT_THAT(Complete({"node", "uncordon", ""}), ElementsAre("a", "b"));
}

TEST_F(CompletionTest, TheBashScriptIsGoodBashAndCompletes) {
  const std::string script = RunAlone({"completion", "bash"}).out;
  std::string output;
  EXPECT_TRUE(Shell("bash -n", script, &output)) << output;
  const std::string use = absl::StrCat(
      script,
      "PATH=" + Program("") + ":$PATH\nCOMP_WORDS=(nsactl describe de)\nCOMP_CWORD=2\n_nsactl\n",
      "echo \"[${COMPREPLY[*]}]\"\nCOMP_WORDS=(nsactl st)\nCOMP_CWORD=1\n_nsactl\n",
      "echo \"[${COMPREPLY[*]}]\"\n",
      "COMP_WORDS=(nsactl submit x --set nsa.gate = so)\nCOMP_CWORD=6\n_nsactl\n",
      "echo \"[${COMPREPLY[*]}]\"\nCOMP_WORDS=(nsactl submit x --set model.qk_norm =)\n",
      "COMP_CWORD=5\n_nsactl\necho \"[${COMPREPLY[*]}]\"\n",
      "COMP_WORDS=(nsactl submit x --set train.steps = 5 --set nsa.ga)\nCOMP_CWORD=8\n_nsactl\n",
      "echo \"[${COMPREPLY[*]}]\"\n");
  EXPECT_TRUE(Shell("bash", use, &output)) << output;
  EXPECT_EQ(output, "[demo]\n[stop]\n[softmax]\n[true false]\n[nsa.gate=]\n");
}

TEST_F(CompletionTest, TheOtherScriptsAreGoodWhereTheirShellsAre) {
  std::string output;
  for (const char* shell : {"zsh", "fish"}) {
    const std::string script = RunAlone({"completion", shell}).out;
    EXPECT_THAT(script, HasSubstr("__complete"));
    if (Shell(absl::StrCat("command -v ", shell, " #"), "", &output)) {
      EXPECT_TRUE(Shell(absl::StrCat(shell, " -n"), script, &output)) << output;
    }
  }
}

}  // namespace
}  // namespace nsa::client
