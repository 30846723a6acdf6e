// The keys of model that a job may leave out: their limits, and which of them exclude each other.
#include <gmock/gmock.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/common/preflight/preflight_cases.h"

namespace nsa {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// "RULE: field: problem" of what is refused in the good job after `change`.
std::vector<std::string> RefusedModel(const std::function<void(v1::ModelSpec*)>& change) {
  GoodJob job;
  change(job.spec.mutable_model());
  const v1::PreflightReport report = job.Check();
  std::vector<std::string> refused;
  for (const v1::Finding& finding : report.findings()) {
    if (finding.severity() != v1::SEVERITY_ERROR) continue;
    refused.push_back(finding.rule() + ": " + finding.field() + ": " + finding.problem());
  }
  return refused;
}

void SetLlama3(v1::ModelSpec* model) {
  v1::RopeScaling* scaling = model->mutable_rope_scaling();
  scaling->set_type(v1::ROPE_SCALING_TYPE_LLAMA3);
  scaling->set_factor(8);
  scaling->set_original_seq_len(8192);
  scaling->set_low_freq_factor(1);
  scaling->set_high_freq_factor(4);
}

// SEQ_LEN_SHORT speaks of the branches that the model has.
TEST(ModelKeys, ShortSequencesMatterToTheBranchesThatReadThem) {
  const auto problems = [](int seq_len, const std::vector<v1::Branch>& branches) {
    GoodJob job;
    job.spec.mutable_train()->set_seq_len(seq_len);
    job.spec.mutable_nsa()->clear_branches();
    for (const v1::Branch branch : branches) job.spec.mutable_nsa()->add_branches(branch);
    std::vector<std::string> found;
    const v1::PreflightReport report = job.Check();
    for (const v1::Finding& finding : report.findings()) {
      if (finding.rule() == "SEQ_LEN_SHORT") found.push_back(finding.problem());
    }
    return found;
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(problems(512, {v1::BRANCH_WIN}), IsEmpty());
  EXPECT_THAT(problems(16, {v1::BRANCH_WIN}), ElementsAre(HasSubstr("the window is all")));
  EXPECT_THAT(problems(512, {v1::BRANCH_CMP, v1::BRANCH_SEL}),
              ElementsAre(HasSubstr("every block is selected")));
  EXPECT_THAT(problems(16, {v1::BRANCH_CMP, v1::BRANCH_WIN}),
              ElementsAre(HasSubstr("never sees a block"), HasSubstr("the window is all")));
}

TEST(ModelKeys, TheModelsOfOtherFamiliesAreTaken) {
  EXPECT_THAT(RefusedModel([](v1::ModelSpec* model) {
                model->set_norm_eps(1e-5);
                model->set_mlp(v1::MLP_SWIGLU);
                model->set_mlp_dim(2048);
                model->set_tie_embeddings(true);
                model->set_qkv_bias(true);
                model->set_qk_norm(true);
                model->set_qk_norm_weights(true);
                SetLlama3(model);
              }),
              IsEmpty());
}

TEST(ModelKeys, NumbersHaveLimits) {
  const auto refused = [](auto set) { return RefusedModel(set); };
  for (const double eps : {0.0, -1e-6, 0.02, 9e-13}) {
    EXPECT_THAT(refused([&](v1::ModelSpec* model) { model->set_norm_eps(eps); }),
                ElementsAre(::testing::StartsWith("MODEL_RANGE: model.norm_eps: ")));
  }
  EXPECT_THAT(refused([](v1::ModelSpec* model) { model->set_norm_eps(1e-46); }),
              ElementsAre("MODEL_RANGE: model.norm_eps: 1e-46 (must be from 1e-12 to 0.01)"))
      << "0 in fp32";
  EXPECT_THAT(refused([](v1::ModelSpec* model) { model->set_norm_eps(1e-12); }), IsEmpty());
  EXPECT_THAT(
      refused([](v1::ModelSpec* model) { model->set_mlp_dim(100); }),
      ElementsAre("MODEL_RANGE: model.mlp_dim: 100 (must be a multiple of 16, at most 524288)"));
  EXPECT_THAT(
      refused([](v1::ModelSpec* model) { model->set_mlp_dim(-16); }),
      ElementsAre("MODEL_RANGE: model.mlp_dim: -16 (must be a multiple of 16, at most 524288)"));
  EXPECT_THAT(refused([](v1::ModelSpec* model) {
                model->set_dim(264);
                model->set_mlp_ratio(1);
                model->set_mlp(v1::MLP_SWIGLU);
              }),
              ElementsAre("MODEL_RANGE: model.mlp_ratio: 264 hidden units with mlp: swiglu "
                          "(must be a multiple of 16)"));
}

TEST(ModelKeys, ASmallBaseOfTheRotationIsNotedWhereRotatedLayersReadFar) {
  const auto noted = [](const std::function<void(v1::JobSpec*)>& change) {
    GoodJob job;
    job.spec.mutable_train()->set_seq_len(16384);
    change(&job.spec);
    const v1::PreflightReport report = job.Check();
    const v1::Finding* const finding = FindingOf(report, "ROPE_BASE");
    if (finding != nullptr) {
      EXPECT_EQ(finding->severity(), v1::SEVERITY_INFO);
    }
    return finding != nullptr;
  };
  const auto layers = [](v1::RopeLayers rotated, int32_t window, v1::JobSpec* spec) {
    spec->mutable_nsa()->clear_branches();
    spec->mutable_nsa()->add_layers("win");
    spec->mutable_nsa()->add_layers("sel");
    spec->mutable_nsa()->set_w(window);
    spec->mutable_model()->set_rope_layers(rotated);
  };
  EXPECT_TRUE(noted([](v1::JobSpec*) {}));
  EXPECT_FALSE(noted([](v1::JobSpec* spec) { spec->mutable_train()->set_seq_len(8192); }));
  EXPECT_TRUE(noted([&](v1::JobSpec* spec) { layers(v1::ROPE_LAYERS_ALL, 512, spec); }));
  EXPECT_FALSE(noted([&](v1::JobSpec* spec) { layers(v1::ROPE_LAYERS_WINDOW, 512, spec); }));
  EXPECT_TRUE(noted([&](v1::JobSpec* spec) { layers(v1::ROPE_LAYERS_WINDOW, 16384, spec); }))
      << "dense layers";
  EXPECT_TRUE(noted([](v1::JobSpec* spec) {
    spec->mutable_model()->set_rope_layers(v1::ROPE_LAYERS_WINDOW);
  })) << "every layer has a window, and chosen blocks too";
  EXPECT_FALSE(noted([](v1::JobSpec* spec) { spec->mutable_model()->set_rope_base(1e6); }));
  EXPECT_FALSE(noted([](v1::JobSpec* spec) { spec->mutable_model()->set_rope_scale(8); }));
  EXPECT_FALSE(noted([](v1::JobSpec* spec) { SetLlama3(spec->mutable_model()); }));
}

TEST(ModelKeys, TheNumbersOfAScaledRotationHaveLimits) {
  const auto refused = [](auto change) {
    return RefusedModel([&](v1::ModelSpec* model) {
      SetLlama3(model);
      change(model->mutable_rope_scaling());
    });
  };
  EXPECT_THAT(refused([](v1::RopeScaling* scaling) { scaling->set_factor(0.5); }),
              ElementsAre("MODEL_RANGE: model.rope_scaling.factor: 0.5 (from 1 to 1,000,000)"));
  EXPECT_THAT(
      refused([](v1::RopeScaling* scaling) { scaling->set_original_seq_len(0); }),
      ElementsAre("MODEL_RANGE: model.rope_scaling.original_seq_len: 0 (from 1 to 1,000,000,000)"));
  EXPECT_THAT(refused([](v1::RopeScaling* scaling) { scaling->set_high_freq_factor(1); }),
              ElementsAre("MODEL_RANGE: model.rope_scaling.high_freq_factor: 1 (above "
                          "low_freq_factor, at most 1,000,000)"));
}

TEST(ModelKeys, SomeExcludeEachOther) {
  EXPECT_THAT(RefusedModel([](v1::ModelSpec* model) { model->set_qk_norm_weights(true); }),
              ElementsAre("MODEL_CONFLICT: model.qk_norm_weights: true without qk_norm (they are "
                          "its weights)"));
  EXPECT_THAT(RefusedModel([](v1::ModelSpec* model) {
                SetLlama3(model);
                model->mutable_rope_scaling()->set_beta_fast(32);
              }),
              ElementsAre("MODEL_CONFLICT: model.rope_scaling.beta_fast: set, but the type is not "
                          "yarn"));
}

// Full layers are not rotated then, and leave order to windows.
TEST(ModelKeys, RopeLayersWindowWithFullLayersNeedsAWindow) {
  const auto refused = [](std::initializer_list<const char*> layers) {
    GoodJob job;
    job.spec.mutable_model()->set_rope_layers(v1::ROPE_LAYERS_WINDOW);
    job.spec.mutable_nsa()->clear_branches();
    for (const char* const layer : layers) job.spec.mutable_nsa()->add_layers(layer);
    const v1::PreflightReport report = job.Check();
    std::vector<std::string> problems;
    for (const v1::Finding& finding : report.findings()) {
      if (finding.severity() != v1::SEVERITY_ERROR) continue;
      problems.push_back(finding.rule() + ": " + finding.field() + ": " + finding.problem());
    }
    return problems;
  };
  const char* const problem =
      "MODEL_CONFLICT: model.rope_layers: window with full layers and none that has the branch win "
      "(no layer would know the order of tokens)";
  EXPECT_THAT(refused({"full"}), ElementsAre(problem));
  EXPECT_THAT(refused({"full", "sel"}), ElementsAre(problem));
  EXPECT_THAT(refused({"full", "win"}), IsEmpty());
  EXPECT_THAT(refused({"full", "sel+win"}), IsEmpty());
  EXPECT_THAT(refused({"sel"}), IsEmpty()) << "as before there were full layers";
}

}  // namespace
}  // namespace nsa
