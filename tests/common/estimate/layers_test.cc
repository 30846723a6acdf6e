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

constexpr LayerAttention kAll = {.branches = {true, true, true}};
constexpr LayerAttention kWinOnly = {.branches = {false, false, true}};
constexpr LayerAttention kCmpSel = {.branches = {true, true, false}};
constexpr LayerAttention kFull = {.branches = {false, false, true}, .full = true};

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

TEST(LayersOf, AreThoseOfBranchesForEveryLayerAndAllWithoutAny) {
  v1::NsaSpec nsa;
  EXPECT_THAT(LayersOf(nsa), ElementsAre(kAll));
  nsa.add_branches(v1::BRANCH_WIN);
  EXPECT_THAT(LayersOf(nsa), ElementsAre(kWinOnly));
  nsa.add_branches(v1::BRANCH_CMP);
  nsa.add_branches(v1::BRANCH_UNSPECIFIED);
  EXPECT_THAT(LayersOf(nsa), ElementsAre(LayerAttention{.branches = {true, false, true}}));
}

TEST(LayersOf, AllOfAModelRepeatTheTurns) {
  const v1::NsaSpec nsa = Load("nsa: {layers: [win, cmp+sel]}").nsa();
  EXPECT_THAT(AllLayersOf(nsa, 5), ElementsAre(kWinOnly, kCmpSel, kWinOnly, kCmpSel, kWinOnly));
  EXPECT_THAT(AllLayersOf(nsa, 1), ElementsAre(kWinOnly));
  EXPECT_THAT(AllLayersOf(v1::NsaSpec(), 2), ElementsAre(kAll, kAll));
}

TEST(LayersOf, AreThoseOfLayersInTurn) {
  EXPECT_THAT(LayersOf(Load("nsa: {layers: [win, cmp+sel]}").nsa()),
              ElementsAre(kWinOnly, kCmpSel));
  EXPECT_THAT(LayersOf(Load("nsa: {layers: [win, ' sel + cmp ', win]}").nsa()),
              ElementsAre(kWinOnly, kCmpSel, kWinOnly));
  EXPECT_THAT(LayersOf(Load("nsa: {layers: [full, win, ' full ']}").nsa()),
              ElementsAre(kFull, kWinOnly, kFull));
}

TEST(SetLayers, WritesTheShortestListThatIsRepeated) {
  v1::NsaSpec nsa;
  nsa.add_layers("sel");
  SetLayers({kFull, kWinOnly, kWinOnly, kFull, kWinOnly}, &nsa);
  EXPECT_THAT(nsa.layers(), ElementsAre("full", "win", "win"));
  SetLayers({kCmpSel, kCmpSel}, &nsa);
  EXPECT_THAT(nsa.layers(), ElementsAre("cmp+sel"));
  SetLayers({kFull, kWinOnly, kFull, kFull}, &nsa);
  EXPECT_THAT(nsa.layers(), ElementsAre("full", "win", "full"));
  SetLayers({kFull, kFull, kWinOnly}, &nsa);
  EXPECT_THAT(nsa.layers(), ElementsAre("full", "full", "win"));
}

TEST(IsDense, IsAFullLayerOrAWindowThatIsNoShorterThanASequence) {
  v1::JobSpec spec = Load("nsa: {w: 64}\ntrain: {seq_len: 64}");
  EXPECT_TRUE(IsDense(kFull, spec));
  EXPECT_TRUE(IsDense(kWinOnly, spec));
  EXPECT_FALSE(IsDense(kAll, spec));
  spec.mutable_nsa()->set_w(63);
  EXPECT_TRUE(IsDense(kFull, spec));
  EXPECT_FALSE(IsDense(kWinOnly, spec));
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

TEST(NsaLayers, AJobWhoseLayersAreAllFullSaysSoOnce) {
  for (const char* text :
       {"nsa: {layers: [full]}", "nsa: {layers: full}", "nsa: {layers: [full, ' full']}"}) {
    const v1::JobSpec spec = Load(text);
    EXPECT_THAT(spec.nsa().layers(), ElementsAre("full")) << text;
    EXPECT_THAT(spec.nsa().branches(), IsEmpty()) << text;
    EXPECT_EQ(ToYaml(Load(ToYaml(spec))), ToYaml(spec)) << text;
  }
  EXPECT_NE(JobHash(Load("nsa: {layers: [full]}")), JobHash(Load("nsa: {layers: [win]}")));
}

TEST(NsaLayers, TheirOrderIsPartOfTheJob) {
  const std::string hash = JobHash(Load("nsa: {layers: [win, cmp+sel]}"));
  EXPECT_NE(hash, JobHash({}));
  EXPECT_NE(hash, JobHash(Load("nsa: {layers: [cmp+sel, win]}")));
  EXPECT_EQ(hash, JobHash(Load("nsa: {layers: [win, sel+cmp]}")));
}

TEST(NsaLayers, AreRefusedWithTheirPlaceAndWhatToDo) {
  EXPECT_EQ(RefusalOf("nsa: {layers: [win, cmp+sel]}"), "");
  EXPECT_EQ(
      RefusalOf("nsa: {layers: [win, cmp+swa]}"),
      "nsa.layers[1]: unknown branch 'swa' (cmp, sel, win, joined by +, or full); name one of "
      "them");
  for (const char* empty : {"''", "win+", "+", "win++cmp"}) {
    EXPECT_EQ(RefusalOf(std::string("nsa: {layers: [") + empty + "]}"),
              "nsa.layers[0]: no branch where one is expected (cmp, sel, win, joined by +, or "
              "full); name one")
        << empty;
  }
  EXPECT_THAT(RefusalOf("nsa: {layers: [win, win+cmp+win]}"),
              StartsWith("nsa.layers[1]: the branch win"));
  for (const char* beside : {"full+win", "sel+full", "full+full"}) {
    EXPECT_EQ(RefusalOf(std::string("nsa: {layers: [win, ") + beside + "]}"),
              "nsa.layers[1]: full beside another branch (alone: it sees what the others see); "
              "leave the others out");
  }
  EXPECT_THAT(RefusalOf("nsa: {branches: [win], layers: [full]}"),
              StartsWith("nsa.layers[0]: 'full' (nsa.branches is set, too, and says win"));
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

TEST(NsaLayers, ACheckpointFitsWhereAWindowBecomesFullOrTheOtherWayRound) {
  v1::CheckpointState state;
  state.set_step(1);
  *state.mutable_spec() = Load("nsa: {layers: [win, sel]}\nmodel: {n_layers: 5}");
  for (const char* same : {"[full, sel]", "[full, sel, win, sel]", "[full, sel, win, sel, full]"}) {
    const v1::JobSpec hybrid =
        Load(std::string("nsa: {layers: ") + same + "}\nmodel: {n_layers: 5}");
    EXPECT_FALSE(CheckWeights(state, hybrid)) << same;
    EXPECT_THAT(FixedDifferences(state.spec(), hybrid), HasSubstr("nsa.layers")) << same;
  }
  for (const char* other : {"[sel, full]", "[full]", "[full, sel, full]"}) {
    EXPECT_TRUE(CheckWeights(
        state, Load(std::string("nsa: {layers: ") + other + "}\nmodel: {n_layers: 5}")))
        << other;
  }
  *state.mutable_spec() = Load("nsa: {branches: [win], w: 2048}");
  EXPECT_FALSE(CheckWeights(state, Load("nsa: {layers: [full]}")));
  EXPECT_FALSE(CheckWeights(state, Load("nsa: {layers: [full, win]}")));
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

// A full layer is a window of all tokens in that layer alone.
TEST(NsaLayers, FullLayersAreEstimatedAsWindowsOfAllTokens) {
  const std::string rest =
      "\nmodel: {n_layers: 6}\ntrain: {seq_len: 4096}"
      "\nruntime: {device: cuda, precision: bf16}\nsample: {prompts: [one], tokens: 5000}";
  const v1::JobSpec dense = Load("nsa: {branches: [win], w: 4096}" + rest);
  const v1::JobSpec full = Load("nsa: {layers: [full], w: 256}" + rest);
  EXPECT_EQ(ParameterCount(full), ParameterCount(dense));
  EXPECT_DOUBLE_EQ(FlopsPerToken(full), FlopsPerToken(dense));
  EXPECT_EQ(TotalBytes(MemoryEstimate(full)), TotalBytes(MemoryEstimate(dense)));
  EXPECT_EQ(ExpectedTokensPerSecond(full, "NVIDIA H200", 0),
            ExpectedTokensPerSecond(dense, "NVIDIA H200", 0));

  const v1::JobSpec narrow = Load("nsa: {branches: [win], w: 256}" + rest);
  const v1::JobSpec both = Load("nsa: {layers: [full, win, win], w: 256}" + rest);
  EXPECT_EQ(ParameterCount(both), ParameterCount(dense));
  EXPECT_NEAR(3 * FlopsPerToken(both), FlopsPerToken(dense) + 2 * FlopsPerToken(narrow), 1);
  const int64_t bytes = TotalBytes(MemoryEstimate(both));
  EXPECT_GT(bytes, TotalBytes(MemoryEstimate(narrow)));
  EXPECT_LT(bytes, TotalBytes(MemoryEstimate(dense)));
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
