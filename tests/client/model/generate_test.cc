// nsactl generate with the worker that it starts.
#include <gmock/gmock.h>
#include <signal.h>

#include <fstream>

#include "common/run/process.h"
#include "tests/client/model/trained_model_in_folder.h"
#include "tests/testing/within.h"

namespace nsa::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using GenerateTest = TrainedModelInFolder;

TEST_F(GenerateTest, PrintsWhatTheWorkerSamples) {
  const Ran worker = Run({"nsa-worker", "sample", "artifacts/tiny", "--prompt", "To be", "--seed",
                          "5", "--max-tokens", "40", "--top-k", "20"});
  EXPECT_EQ(worker.exit.code, 0) << worker.said;
  EXPECT_THAT(worker.said, StartsWith("To be"));
  const Ran ran = Run({"nsactl", "generate", "artifacts/tiny", "--prompt", "To be", "--seed", "5",
                       "--max-tokens", "40", "--top-k", "20"});
  EXPECT_EQ(ran.exit.code, 0);
  EXPECT_EQ(ran.said, worker.said);
  std::ofstream(dir_ / "prompt.txt") << "To be";
  EXPECT_EQ(Run({"nsactl", "generate", "artifacts/tiny/checkpoints/latest.ckpt", "--file",
                 "prompt.txt", "--seed", "5", "--max-tokens", "40", "--top-k", "20"})
                .said,
            worker.said);
  EXPECT_NE(Run({"nsactl", "generate", "artifacts/tiny", "--prompt", "To be", "--seed", "6",
                 "--max-tokens", "40", "--top-k", "20"})
                .said,
            worker.said);
}

TEST_F(GenerateTest, RefusesWithTheExitCodesOfNsactl) {
  const Ran absent = Run({"nsactl", "generate", "artifacts/none"});
  EXPECT_EQ(absent.exit.code, 3);
  EXPECT_THAT(absent.said, HasSubstr("nsactl: artifacts/none: no checkpoint"));
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"--temperature", "warm"}, "--temperature: 'warm' (a number, at least 0)"},
      {{"--top-p", "x"}, "--top-p: 'x' (a number, above 0, at most 1)"},
      {{"-o", "json"}, "generate prints plain text"},
      {{"--prompt", "a", "--file", "b"}, "--file excludes --prompt"},
      {{"--top-k", "-1"}, "--top-k"}};
  for (const auto& [flags, why] : wrong) {
    std::vector<std::string> words = {"nsactl", "generate", "artifacts/tiny"};
    words.insert(words.end(), flags.begin(), flags.end());
    const Ran ran = Run(words);
    EXPECT_EQ(ran.exit.code, 2) << flags[0];
    EXPECT_THAT(ran.said, HasSubstr(why));
  }
  const Ran out_of_range = Run({"nsa-worker", "sample", "artifacts/tiny", "--top-p", "2"});
  EXPECT_EQ(out_of_range.exit.code, 2);
  EXPECT_THAT(out_of_range.said, StartsWith("nsa-worker: sample: top-p: 2"));
}

TEST_F(GenerateTest, CtrlCEndsTheWorkerToo) {
  const ProcessIdentity process = Start({"nsactl", "generate", "artifacts/tiny", "--prompt",
                                         "Once upon", "--max-tokens", "1000000000"});
  ASSERT_TRUE(Within(absl::Seconds(60), [&] { return Said().size() > 40; })) << Said();
  ASSERT_OK(SignalProcess(process, SIGINT));
  EXPECT_EQ(Wait(process).exit.code, 130);
  const std::string said = Said();
  EXPECT_THAT(said, AllOf(StartsWith("Once upon"), ::testing::Not(HasSubstr("nsa-worker:"))));
  // nsactl has waited for its end.
  EXPECT_EQ(Said(), said);
}

TEST_F(GenerateTest, TheWorkerEvaluatesAFile) {
  const Ran ran = Run({"nsa-worker", "eval", "artifacts/tiny", "val.txt"});
  EXPECT_EQ(ran.exit.code, 0);
  EXPECT_THAT(ran.said, AllOf(StartsWith("step 2, 44 bytes, 44 tokens\nloss "),
                              HasSubstr("nats a token, perplexity "), HasSubstr("\n16-31 ")));
}

}  // namespace
}  // namespace nsa::client
