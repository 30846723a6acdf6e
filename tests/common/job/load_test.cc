#include "common/job/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "google/protobuf/util/message_differencer.h"
#include "nsa/v1/config.pb.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;

v1::JobSpec MustLoad(std::string_view text) {
  v1::JobSpec spec;
  const absl::StatusOr<LoadResult> result = LoadYamlText(text, "job.yaml", &spec);
  EXPECT_TRUE(result.ok()) << result.status();
  return spec;
}

std::string ErrorOf(std::string_view text) {
  v1::JobSpec spec;
  const absl::StatusOr<LoadResult> result = LoadYamlText(text, "job.yaml", &spec);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(result.status().message());
}

TEST(LoadYaml, FillsEveryKindOfField) {
  const v1::JobSpec spec = MustLoad(R"(
name: first-run
labels: {team: nlp, run: 5}
model: {dim: 64, rope_base: 1e5}
nsa: {phi: mlp, branches: [cmp, win]}
data:
  source: text
  path: a.txt
  val_path:
    - b.txt
    - "c d.txt"
  allow_synthetic_fallback: true
train: {lr: 3e-4, betas: [0.9, 0.99], seed: -1}
preflight:
  policy: production
  waive:
    - DISK_TOO_SMALL: cleaned up by hand
)");
  EXPECT_EQ(spec.name(), "first-run");
  EXPECT_EQ(spec.labels().at("run"), "5");
  EXPECT_EQ(spec.model().dim(), 64);
  EXPECT_EQ(spec.model().rope_base(), 1e5);
  EXPECT_EQ(spec.nsa().phi(), v1::PHI_MLP);
  EXPECT_THAT(spec.nsa().branches(), testing::ElementsAre(v1::BRANCH_CMP, v1::BRANCH_WIN));
  EXPECT_THAT(spec.data().path(), testing::ElementsAre("a.txt"));
  EXPECT_THAT(spec.data().val_path(), testing::ElementsAre("b.txt", "c d.txt"));
  EXPECT_TRUE(spec.data().allow_synthetic_fallback());
  EXPECT_EQ(spec.train().lr(), 3e-4);
  EXPECT_THAT(spec.train().betas(), testing::ElementsAre(0.9, 0.99));
  EXPECT_EQ(spec.train().seed(), -1);
  EXPECT_EQ(spec.preflight().waive().at("DISK_TOO_SMALL"), "cleaned up by hand");
}

TEST(LoadYaml, KeepsThePlaceOfEveryKey) {
  v1::JobSpec spec;
  const auto result =
      LoadYamlText("name: a\ntrain:\n  steps: 5\n  betas: [0.9,\n    0.95]\n", "job.yaml", &spec);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->places.at("train").line, 2);
  EXPECT_EQ(result->places.at("train.steps").line, 3);
  EXPECT_EQ(result->places.at("train.steps").column, 3);
  EXPECT_EQ(result->places.at("train.betas[1]").line, 5);
}

TEST(LoadYaml, ReadsTheEscapesOfTwoSpacesAsUtf8) {
  v1::JobSpec spec;
  const auto result = LoadYamlText(R"(name: "a\_b"
labels: {"\N": "\_é\_\N"}
)",
                                   "x.yaml", &spec);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(spec.name(),
            "a\xC2\xA0"
            "b");
  EXPECT_EQ(spec.labels().at("\xC2\x85"), "\xC2\xA0é\xC2\xA0\xC2\x85");
}

TEST(LoadYaml, AcceptsAnEmptyFileAndEmptySections) {
  EXPECT_EQ(MustLoad("").ByteSizeLong(), 0u);
  EXPECT_EQ(MustLoad("# nothing\n").ByteSizeLong(), 0u);
  EXPECT_FALSE(MustLoad("train:\n  # steps: 5\n").train().has_steps());
}

TEST(LoadYaml, LoadsTheDaemonsConfigurations) {
  v1::CoordinatorConfig config;
  const auto result =
      LoadYamlText("state_dir: /var/lib/nsa\nallowed_roots: [/data, /out]\nlocal_agent: false\n",
                   "c.yaml", &config);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(config.state_dir(), "/var/lib/nsa");
  EXPECT_FALSE(config.local_agent());
}

TEST(LoadYaml, SaysWhereAndWhatAndHowToFix) {
  EXPECT_EQ(ErrorOf("train:\n  stepz: 5\n"),
            "job.yaml:2:3: train.stepz: unknown key; did you mean 'steps'?");
  EXPECT_EQ(ErrorOf("model:\n  seq_len: 5\n"),
            "job.yaml:2:3: model.seq_len: unknown key; it belongs to train; write it as "
            "train.seq_len");
  EXPECT_EQ(ErrorOf("train:\n  z_loss: 0\n"),
            "job.yaml:2:3: train.z_loss: unknown key; an earlier version had it; remove it, see "
            "CHANGELOG.md");
  EXPECT_EQ(ErrorOf("model:\n  zero_init_outputs: true\n"),
            "job.yaml:2:3: model.zero_init_outputs: unknown key; an earlier version had it; remove "
            "it, see CHANGELOG.md");
  EXPECT_EQ(ErrorOf("model:\n  logit_softcap: 30\n"),
            "job.yaml:2:3: model.logit_softcap: unknown key; an earlier version had it; remove it, "
            "see CHANGELOG.md");
  EXPECT_EQ(ErrorOf("train:\n  steps: two\n"),
            "job.yaml:2:10: train.steps: 'two' is not a whole number; write decimal digits only, "
            "e.g. 100");
  EXPECT_THAT(ErrorOf("runtime: {precision: fp16}"), HasSubstr("write bf16"));
  EXPECT_THAT(ErrorOf("runtime: {precision: bf61}"), HasSubstr("did you mean 'bf16'?"));
}

TEST(LoadYaml, KnowsTheUsualNamesOfOtherTrainers) {
  EXPECT_EQ(ErrorOf("train: {learning_rate: 1}"),
            "job.yaml:1:9: train.learning_rate: unknown key; did you mean 'lr'?");
  EXPECT_EQ(ErrorOf("train: {epochs: 3}"),
            "job.yaml:1:9: train.epochs: unknown key; did you mean 'steps'?");
  EXPECT_EQ(ErrorOf("learning_rate: 1"),
            "job.yaml:1:1: learning_rate: unknown key; did you mean 'lr'? It belongs to train; "
            "write it as train.lr");
  EXPECT_EQ(ErrorOf("train: {context_length: 3}"),
            "job.yaml:1:9: train.context_length: unknown key; did you mean 'seq_len'?");
  EXPECT_EQ(ErrorOf("train: {devices: 2}"),
            "job.yaml:1:9: train.devices: unknown key; did you mean 'gpus'? It belongs to "
            "resources; write it as resources.gpus");
}

TEST(LoadYaml, NamesATabInTheIndentation) {
  const std::string tab = "a TAB in the indentation; YAML wants spaces, write two for each level";
  EXPECT_EQ(ErrorOf("train:\n\tsteps: 3\n"), "job.yaml:2:1: yaml: " + tab);
  EXPECT_EQ(ErrorOf("train:\n  steps: 3\n\tlr: 1\n"), "job.yaml:3:1: yaml: " + tab);
  EXPECT_EQ(ErrorOf("train:\n  lr: 1\n  \tsteps: 3\n"), "job.yaml:3:3: yaml: " + tab);
  EXPECT_THAT(ErrorOf("train: {steps: 3\n"), Not(HasSubstr("TAB")));
}

TEST(LoadYaml, AnErrorCarriesItsMistakesAsValues) {
  v1::JobSpec spec;
  const absl::Status status =
      LoadYamlText("train:\n  stepz: 5\n  lr: x\n", "job.yaml", &spec).status();
  const std::vector<LoadError> errors = LoadErrorsOf(status);
  ASSERT_EQ(errors.size(), 2u);
  EXPECT_EQ(errors[0].place.line, 2);
  EXPECT_EQ(errors[0].place.column, 3);
  EXPECT_EQ(errors[0].field, "train.stepz");
  EXPECT_EQ(errors[0].text, "unknown key; did you mean 'steps'?");
  EXPECT_EQ(errors[1].field, "train.lr");
  EXPECT_TRUE(LoadErrorsOf(absl::InvalidArgumentError("job.yaml:2:3: x: y")).empty());
  // A name is cut after 64 bytes, here within a character.
  const std::string start(63, 'a');
  const auto odd = LoadErrorsOf(LoadYamlText(start + "é: 1\n\"b c\": 2\n", "", &spec).status());
  ASSERT_EQ(odd.size(), 2u);
  EXPECT_EQ(odd[0].field, start + "…");
  EXPECT_EQ(odd[1].field, "b c");
}

TEST(LoadYaml, ReportsAllMistakesAtOnceInTheirOrder) {
  const std::string error = ErrorOf("train:\n  steps: x\nmodle: 1\nmodel:\n  dim: 1.5\n");
  EXPECT_LT(error.find("job.yaml:2:"), error.find("job.yaml:3:"));
  EXPECT_LT(error.find("job.yaml:3:"), error.find("job.yaml:5:"));
  EXPECT_THAT(error, HasSubstr("did you mean 'model'?"));
}

TEST(LoadYaml, ShowsTwentyMistakesAndCountsTheRest) {
  std::string text;
  for (int i = 0; i < 33; ++i) text += "zzzzzz" + std::to_string(i) + ": 1\n";
  const std::string error = ErrorOf(text);
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 20);
  EXPECT_THAT(error, testing::EndsWith("and 13 more"));
}

}  // namespace
}  // namespace nsa
