// nsa.layers: the branches of each layer, from the job file to the estimates.
#include "common/estimate/layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/estimate/estimate.h"
#include "common/estimate/memory/memory.h"
#include "common/job/load.h"
#include "common/preflight/fork.h"
#include "common/preflight/preflight.h"

namespace nsa {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr BranchSet kAll = {true, true, true};
constexpr BranchSet kWinOnly = {false, false, true};
constexpr BranchSet kCmpSel = {true, true, false};

// The job of this file, with its defaults.
v1::JobSpec Load(std::string_view text) {
  v1::JobSpec spec;
  const auto loaded = LoadYamlText(text, "job.yaml", &spec);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  ApplyDefaults(&spec);
  return spec;
}

// What preflight says about nsa.layers: "field: problem; fix".
std::string RefusalOf(std::string_view text) {
  const v1::PreflightReport report = Preflight(Load(text), {});
  for (const v1::Finding& finding : report.findings()) {
    if (finding.rule() != "BRANCHES_INVALID") continue;
    return finding.field() + ": " + finding.problem() + "; " + finding.fix();
  }
  return "";
}

TEST(LayerBranchesOf, AreThoseOfBranchesForEveryLayerAndAllWithoutAny) {
  v1::NsaSpec nsa;
  EXPECT_THAT(LayerBranchesOf(nsa), ElementsAre(kAll));
  nsa.add_branches(v1::BRANCH_WIN);
  EXPECT_THAT(LayerBranchesOf(nsa), ElementsAre(kWinOnly));
  nsa.add_branches(v1::BRANCH_CMP);
  nsa.add_branches(v1::BRANCH_UNSPECIFIED);
  EXPECT_THAT(LayerBranchesOf(nsa), ElementsAre(BranchSet{true, false, true}));
}

TEST(LayerBranchesOf, AreThoseOfLayersInTurn) {
  EXPECT_THAT(LayerBranchesOf(Load("nsa: {layers: [win, cmp+sel]}").nsa()),
              ElementsAre(kWinOnly, kCmpSel));
  EXPECT_THAT(LayerBranchesOf(Load("nsa: {layers: [win, ' sel + cmp ', win]}").nsa()),
              ElementsAre(kWinOnly, kCmpSel, kWinOnly));
}

TEST(NsaLayers, AreLoadedPrintedAndLoadedAgain) {
  const v1::JobSpec spec = Load("nsa: {layers: [win, sel+cmp]}");
  EXPECT_THAT(spec.nsa().layers(), ElementsAre("win", "cmp+sel")) << "in one order";
  EXPECT_THAT(spec.nsa().branches(), IsEmpty());
  const std::string yaml = ToYaml(spec);
  EXPECT_THAT(yaml, HasSubstr("  layers:\n    - win\n    - cmp+sel\n"));
  const v1::JobSpec again = Load(yaml);
  EXPECT_EQ(ToYaml(again), yaml);
  EXPECT_EQ(JobHash(again), JobHash(spec));
}

TEST(NsaLayers, AJobThatSaysTheSameForEveryLayerIsTheJobWithBranches) {
  const v1::JobSpec plain = Load("train: {steps: 5}");
  for (const char* text : {"nsa: {layers: [cmp+sel+win]}", "nsa: {layers: win+sel+cmp}",
                           "nsa: {layers: [cmp+sel+win, win+sel+cmp]}",
                           "nsa: {branches: [cmp, sel, win], layers: [cmp+sel+win]}"}) {
    const v1::JobSpec spec = Load(std::string(text) + "\ntrain: {steps: 5}");
    EXPECT_EQ(ToYaml(spec), ToYaml(plain)) << text;
    EXPECT_EQ(JobHash(spec), JobHash(plain)) << text;
  }
  EXPECT_EQ(ToYaml(Load("nsa: {layers: [win]}")), ToYaml(Load("nsa: {branches: [win]}")));
}

TEST(NsaLayers, TheirOrderIsPartOfTheJob) {
  const std::string hash = JobHash(Load("nsa: {layers: [win, cmp+sel]}"));
  EXPECT_NE(hash, JobHash({}));
  EXPECT_NE(hash, JobHash(Load("nsa: {layers: [cmp+sel, win]}")));
  EXPECT_EQ(hash, JobHash(Load("nsa: {layers: [win, sel+cmp]}")));
}

TEST(NsaLayers, AreRefusedWithTheirPlaceAndWhatToDo) {
  EXPECT_EQ(RefusalOf("nsa: {layers: [win, cmp+sel]}"), "");
  EXPECT_EQ(RefusalOf("nsa: {layers: [win, cmp+swa]}"),
            "nsa.layers[1]: unknown branch 'swa' (cmp, sel, win, joined by +); name one of them");
  for (const char* empty : {"''", "win+", "+", "win++cmp"}) {
    EXPECT_EQ(RefusalOf(std::string("nsa: {layers: [") + empty + "]}"),
              "nsa.layers[0]: no branch where one is expected (cmp, sel, win, joined by +); name "
              "one")
        << empty;
  }
  EXPECT_THAT(RefusalOf("nsa: {layers: [win, win+cmp+win]}"),
              StartsWith("nsa.layers[1]: the branch win"));
  EXPECT_THAT(RefusalOf("nsa: {layers: [win, cmp+sel, win]}\nmodel: {n_layers: 2}"),
              StartsWith("nsa.layers: 3 entries"));
  EXPECT_EQ(RefusalOf("nsa: {branches: [win], layers: [win, cmp+sel]}"),
            "nsa.layers[1]: 'cmp+sel' (nsa.branches is set, too, and says win for every layer); "
            "remove nsa.branches or nsa.layers");
}

TEST(NsaLayers, ACheckpointOfOtherLayersIsRefusedWithTheirNames) {
  v1::CheckpointState state;
  state.set_step(1);
  *state.mutable_spec() = Load("nsa: {layers: [win, cmp+sel]}");
  EXPECT_FALSE(CheckFork(state, Load("nsa: {layers: [win, sel+cmp]}")));
  for (const char* other : {"nsa: {layers: [cmp+sel, win]}", "nsa: {layers: [win, cmp]}",
                            "nsa: {branches: [win]}", "{}"}) {
    const auto problem = CheckFork(state, Load(other));
    ASSERT_TRUE(problem) << other;
    EXPECT_THAT(problem->what, HasSubstr("nsa.layers[1]")) << other;
    EXPECT_THAT(problem->what, HasSubstr("cmp+sel")) << other;
  }
}

// A model whose layers alternate has the mean of the two models with the same branches everywhere.
TEST(NsaLayers, AlternatingLayersAreEstimatedAsTheMeanOfBothKinds) {
  const std::string rest = "\nmodel: {n_layers: 6}\nruntime: {device: cuda, precision: bf16}";
  for (const char* phi : {"avg", "mlp"}) {
    const std::string nsa = std::string("nsa: {phi: ") + phi;
    const v1::JobSpec win = Load(nsa + ", branches: [win]}" + rest);
    const v1::JobSpec two = Load(nsa + ", branches: [cmp, sel]}" + rest);
    const v1::JobSpec turns = Load(nsa + ", layers: [win, cmp+sel]}" + rest);
    EXPECT_EQ(2 * ParameterCount(turns), ParameterCount(win) + ParameterCount(two));
    EXPECT_NEAR(2 * FlopsPerToken(turns), FlopsPerToken(win) + FlopsPerToken(two), 1);
    const double speed = ExpectedTokensPerSecond(turns, "NVIDIA H200", 0);
    EXPECT_GT(speed, ExpectedTokensPerSecond(two, "NVIDIA H200", 0));
    EXPECT_LT(speed, ExpectedTokensPerSecond(win, "NVIDIA H200", 0));
    const int64_t bytes = TotalBytes(MemoryEstimate(turns));
    EXPECT_LT(bytes, TotalBytes(MemoryEstimate(two)));
    EXPECT_GT(bytes, TotalBytes(MemoryEstimate(win)));
  }
}

TEST(NsaLayers, AnUnevenNumberOfLayersHasMoreOfTheFirstKind) {
  const auto count = [](const std::string& nsa, int layers) {
    return ParameterCount(Load(nsa + "\nmodel: {n_layers: " + std::to_string(layers) + "}"));
  };
  const std::string turns = "nsa: {layers: [win, cmp+sel]}", win = "nsa: {branches: [win]}",
                    two = "nsa: {branches: [cmp, sel]}";
  EXPECT_EQ(count(turns, 3) - count(turns, 2), count(win, 3) - count(win, 2));
  EXPECT_EQ(count(turns, 4) - count(turns, 3), count(two, 4) - count(two, 3));
}

}  // namespace
}  // namespace nsa
