// nsactl import --attention nsa with a model that nsa-worker trains, and what is done with it next.
#include <gmock/gmock.h>

#include <fstream>
#include <string>
#include <vector>

#include "common/run/atomic_file.h"
#include "nlohmann/json.hpp"
#include "tests/client/model/programs_in_folder.h"

namespace nsa::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kText[] = "To be, or not to be, that is the question:\n";

class ConvertTest : public ProgramsInFolder {
 protected:
  void SetUp() override {
    std::ofstream text(dir_ / "text.txt");
    for (int i = 0; i < 200; ++i) text << kText;
    text.close();
    std::ofstream(dir_ / "job.yaml") << Job("dense", "branches: [win], w: 64", "");
    const Ran train = Run({"nsa-worker", "--job", "job.yaml"});
    ASSERT_EQ(train.exit.code, 0) << train.said;
  }

  static std::string Job(const std::string& name, const std::string& nsa, const std::string& more) {
    return "name: " + name +
           "\n"
           "model: {dim: 32, n_layers: 2, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16}\n"
           "nsa: {l: 8, d: 4, l_sel: 8, n_sel: 3, " +
           nsa +
           "}\n"
           "data: {source: text, path: text.txt, val_fraction: 0, tokenizer: byte}\n"
           "train: {steps: 20, seq_len: 64, batch_size: 2, lr: 1.0e-3, save_every: 20}\n" +
           more;
  }

  // Converts the trained model with blocks of 8 tokens.
  Ran Convert(std::vector<std::string> more) {
    std::vector<std::string> arguments = {"nsactl", "import", "artifacts/dense", "sparse"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Run(arguments);
  }

  nlohmann::json Evaluate(const std::string& model) {
    const Ran ran = Run({"nsactl", "eval", model, "--data", "text.txt", "-o", "json"});
    EXPECT_EQ(ran.exit.code, 0) << ran.said;
    return nlohmann::json::parse(ran.said);
  }
};

TEST_F(ConvertTest, MakesACheckpointThatIsEvaluatedAndTrainedOn) {
  const Ran ran =
      Convert({"--attention", "nsa", "--layers", "[win, sel]", "--set", "nsa.w=16", "--set",
               "nsa.l=8", "--set", "nsa.d=4", "--set", "nsa.l_sel=8", "--set", "nsa.n_sel=3"});
  ASSERT_EQ(ran.exit.code, 0) << ran.said;
  EXPECT_THAT(ran.said, AllOf(HasSubstr("sparse: step 0, "), HasSubstr("layers in turn: win, sel"),
                              HasSubstr("nsactl init sparse DATA")));
  // The first tokens of a sequence have the losses of the dense model.
  const nlohmann::json dense = Evaluate("artifacts/dense"), sparse = Evaluate("sparse");
  for (int bucket = 0; bucket < 4; ++bucket) {
    EXPECT_NEAR(sparse["by_context"][bucket]["loss_nats_per_token"].get<double>(),
                dense["by_context"][bucket]["loss_nats_per_token"].get<double>(), 1e-5);
  }
  const std::string sparse_nsa = "layers: [win, sel], w: 16, phi: avg";
  std::ofstream(dir_ / "on.yaml") << Job("on", sparse_nsa, "restart: {init: sparse}\n");
  const Ran train = Run({"nsa-worker", "--job", "on.yaml"});
  EXPECT_EQ(train.exit.code, 0) << train.said;
  const Ran init = Run({"nsactl", "init", "sparse", "text.txt", "-o", "next.yaml"});
  EXPECT_EQ(init.exit.code, 0) << init.said;
  EXPECT_THAT(
      ReadWholeFile(dir_ / "next.yaml").value_or(""),
      AllOf(HasSubstr("- win"), HasSubstr("- sel"), HasSubstr("n_sel: 3"), HasSubstr("init: ")));
}

TEST_F(ConvertTest, RefusesFlagsThatSayNothingOrSomethingElse) {
  const auto refused = [&](std::vector<std::string> flags, const std::string& why) {
    const Ran ran = Convert(std::move(flags));
    EXPECT_EQ(ran.exit.code, 2) << ran.said;
    EXPECT_THAT(ran.said, HasSubstr(why));
  };
  refused({"--attention", "sparse"}, "--attention: sparse (must be full or nsa)");
  refused({"--layers", "sel"}, "--layers: given with --attention full");
  refused({"--set", "nsa.w=8"}, "--set: given with --attention full");
  refused({"--attention", "nsa", "--layers", "win,dense"}, "unknown branch 'dense'");
  refused({"--attention", "nsa", "--layers", "win,full+sel"}, "full beside another branch");
  refused({"--attention", "nsa", "--set", "train.steps=3"}, "--set: train.steps=3 (keys of nsa)");
  refused({"--attention", "nsa", "--set", "nsa.window=3"}, "nsa.window");
  refused({"--attention", "nsa", "--set", "nsa.n_sel=65"}, "n_sel: 65 (from 3 to 64");
  refused({}, "a checkpoint already");
}

}  // namespace
}  // namespace nsa::client
